"""Page views per app in tumbling windows: the job of the seeds."""

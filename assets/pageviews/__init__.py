"""Page views per app in tumbling windows: the worked example of the seeds (promise D1)."""

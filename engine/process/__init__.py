"""The processes of a job on this machine: the JobMaster's, its supervisor, and how jobs are started."""

"""Starts jobs, and runs the processes of a job on this machine: the JobMaster and its supervisor."""

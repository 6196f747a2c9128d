"""Spark slots, the JobMaster process, its supervisor, REST and CLI."""

"""What the sinks of lake tables (Delta Lake, Iceberg) share: files by subtasks, one commit per epoch by the JobMaster.

columns.py  which columns such a table can have, and how those of a job fit to those of a table
writer.py   `LakeWriter`: writes the Parquet files of one subtask
publishing.py  the life of an epoch's commit, whatever the format of the table's log is
"""

"""The audit of production: the live tables of a job against what its checkpoints counted and digested (docs/audits.md).

spans.py    rows and digests per epoch, and how they are read from a file
ledger.py   what each epoch must have added to a table: from history, manifests and the epoch log
table.py    the files of a table that readers see now, and which rows of them belong to which epoch
record.py   what the last audit has seen, sealed with the audit key
look.py     compares one table with ledger and record
naming.py   names wrong rows, where their digests tell them
drill.py    breaks the running job before such an audit
audit.py    audits all tables of a job: Spark reads what readers read, Great Expectations judge
"""

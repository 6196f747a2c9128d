"""Shows a job to the outside: history, timeline, logs, metrics, HTTP."""

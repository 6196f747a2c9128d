"""What is seen of a job from outside: history, timeline, logs, metrics, HTTP."""

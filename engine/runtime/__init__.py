"""The code that runs inside a slot: the task loop, subtasks, chains, the exchange, operators."""

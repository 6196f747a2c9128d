"""Decides everything about one job: takes messages, results and ticks, and returns actions. It does no I/O."""

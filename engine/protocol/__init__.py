"""Pure decisions: no I/O, no clock, no threads."""

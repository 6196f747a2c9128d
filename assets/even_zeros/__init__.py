"""Whether a text has an even number of zeros: a finite state machine as a process function."""

"""Makes the decisions of the checkpoint protocol. Invariant: all of it is pure, without I/O, clocks or threads."""

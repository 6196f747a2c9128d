"""State of operators: the key hash and key groups, keyed state on the heap, columnar windows, operator state."""

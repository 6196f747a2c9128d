"""A small payment and directly after it a large one: a strict pattern."""

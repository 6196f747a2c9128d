"""State per key."""

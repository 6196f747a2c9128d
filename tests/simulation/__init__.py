"""The deterministic simulator: the real engine in one thread, under a clock and faults that one seed chooses."""

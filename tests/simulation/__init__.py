"""The deterministic simulator: real decisions and real operators in one thread, under a clock and faults that one seed chooses."""

"""What the ports promise: one suite for each port, run against the real implementation and the simulated ones."""

"""Measures Weir beside its peers, and against limits of its own. Run `python -m benchmarks.run [--quick]`."""

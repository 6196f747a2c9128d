"""Peers side by side, and what Weir promises about its own times. `python -m benchmarks.run [--quick]`."""

"""Sources and sinks: one module or package for each outside system."""

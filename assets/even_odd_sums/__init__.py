"""Even and odd sums so far: windows, then a running sum of their results."""

"""Pattern detection: a pattern is compiled into places, and records move partial matches from place to place."""

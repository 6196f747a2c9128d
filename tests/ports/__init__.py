"""Scripts of PyFlink and of Spark Structured Streaming, their ports to Weir, and what the originals have printed."""

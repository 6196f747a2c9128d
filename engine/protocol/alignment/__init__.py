"""When a barrier has come on every channel."""

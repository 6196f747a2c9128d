"""Real servers for tests: each is started on loopback, at a free port, and stopped."""

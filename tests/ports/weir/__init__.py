"""The ports: each module has the name of its original, and a `job`."""

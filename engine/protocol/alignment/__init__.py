"""Decides when the barrier of a checkpoint has arrived on every channel of an input gate."""

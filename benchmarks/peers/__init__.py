"""Peers that run in a virtualenv of their own. What runs there imports nothing of Weir but `peers.common`."""

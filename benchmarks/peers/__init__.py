"""Peers that run in a virtualenv of their own. Their scripts import nothing of Weir but `common.py`."""

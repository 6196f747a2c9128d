"""Paths, manifests, the epoch log, publication and retention."""

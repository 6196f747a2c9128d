"""Unique visitors of each site, every hour: exact distinct counts."""

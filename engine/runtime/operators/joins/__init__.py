"""Operators that join two streams by key: interval joins, window joins and co-groups (A8)."""

"""The number of files and sockets that a process may have open. Many systems give 1,024 and allow far more."""

from __future__ import annotations

import resource

ENOUGH = 4096
"""A job with many slots and channels, and strangers who hold connections, stay below this."""
MOST = 65_536


def raise_descriptor_limit() -> int:
    """Raises the limit of this process and its future children as far as allowed. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(MOST, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted

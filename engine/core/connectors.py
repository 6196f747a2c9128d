"""Names the operator when a source, a sink or a committer that the job's author wrote raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.core.authors import author_took_part
from engine.core.errors import ConnectorError, UserFunctionError, WeirError


@contextmanager
def calling(uid: str, subtask: int | None, connector: object, what: str) -> Iterator[None]:
    """Runs a call to a connector. An error of Weir's own connectors passes as it is.

    An error of the operating system (a refused connection, a time-out) counts as one from outside: what the connector
    talks to may come back. Any other error is the author's.
    """
    try:
        yield
    except WeirError:
        raise
    except Exception as error:
        if type(connector).__module__.startswith("engine.") and not author_took_part(error):
            raise
        kind = ConnectorError if isinstance(error, OSError) else UserFunctionError
        raise kind(uid, subtask, what, error) from error

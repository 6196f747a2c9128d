"""`Scaling`: the parallelism that rescales have decided for a job. It goes before what the job and its start say."""

from __future__ import annotations

import msgspec


class Scaling(msgspec.Struct, frozen=True):
    """`parallelism` is that of all operators that set none of their own; None: as the job and its start say.

    `operators` holds, by uid, the parallelism of single operators. It also goes before the author's `set_parallelism`.
    """

    parallelism: int | None = None
    operators: dict[str, int] = {}

    def then(self, later: Scaling) -> Scaling:
        """Returns what a later request leaves of this one. A parallelism for all forgets that of single operators."""
        if later.parallelism is not None:
            return later
        return Scaling(self.parallelism, {**self.operators, **later.operators})

    @property
    def key(self) -> bytes:
        """Equal scalings have equal keys."""
        return msgspec.json.encode(self, order="deterministic")

    def __str__(self) -> str:
        all_of_them = [] if self.parallelism is None else [f"parallelism {self.parallelism}"]
        return ", ".join([*all_of_them, *(f"{uid}={n}" for uid, n in self.operators.items())]) or "as started"


AS_STARTED = Scaling()
"""Nothing was rescaled: the job and its start decide."""

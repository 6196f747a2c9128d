"""`BroadcastStream`: a stream that goes to every subtask, with the state that its records change there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.core.errors import JobError
from engine.core.state_types import MapStateDescriptor
from engine.graph.stream_graph import StreamInput

if TYPE_CHECKING:  # the environment makes streams, so it imports their files
    from engine.api.environment import StreamEnvironment


@dataclass(frozen=True)
class BroadcastStream:
    """A stream whose records reach every subtask and change broadcast state there.

    `stream.broadcast(descriptor)` makes one, and `connect` of another stream takes it.
    """

    env: StreamEnvironment
    input: StreamInput
    descriptors: tuple[MapStateDescriptor, ...]

    def described(self) -> dict[str, str]:
        """Returns the types of the broadcast states, by name."""
        return {
            f"broadcast state {descriptor.name!r}": f"{descriptor.key_type} to {descriptor.value_type}"
            for descriptor in self.descriptors
        }


NOT_BROADCAST = (
    "a broadcast process function needs a broadcast stream, with the state that its records change: "
    'stream.connect(rules.broadcast(MapStateDescriptor("rules", "string", "long")))'
)


def checked_broadcast(given: Any, env: StreamEnvironment) -> BroadcastStream:
    """Returns what was given to `connect`, or raises a `JobError` if it cannot be connected."""
    if not isinstance(given, BroadcastStream):
        raise JobError(NOT_BROADCAST)
    if given.env is not env:
        raise JobError("connect: the two streams belong to different environments, so to different jobs")
    return given

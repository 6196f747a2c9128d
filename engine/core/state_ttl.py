"""`StateTtlConfig`: how long a keyed state keeps a value that nobody touches (C1).

Time to live is processing time. An expired value is never returned, also if it was not removed yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError


class UpdateType(Enum):
    """What makes a value young again."""

    OnCreateAndWrite = "on create and write"
    OnReadAndWrite = "on read and write"


class StateVisibility(Enum):
    """What a read of an expired value returns. Flink's other choice, which may return it, does not exist here."""

    NeverReturnExpired = "never return expired"


@dataclass(frozen=True)
class StateTtlConfig:
    """Gives a state a time to live; `new_builder` makes one, and `enable_time_to_live` of a descriptor takes it.

        ttl = StateTtlConfig.new_builder("1 h").update_ttl_on_read_and_write().build()
        seen = ValueStateDescriptor("seen", "long")
        seen.enable_time_to_live(ttl)

    Items of a list and entries of a map expire one by one.
    """

    ttl_ms: int
    update_type: UpdateType = UpdateType.OnCreateAndWrite

    UpdateType: ClassVar[type[UpdateType]] = UpdateType
    StateVisibility: ClassVar[type[StateVisibility]] = StateVisibility

    def __post_init__(self) -> None:
        if type(self.ttl_ms) is not int:
            raise JobError(f"write StateTtlConfig.new_builder({self.ttl_ms!r}).build(), not StateTtlConfig(...)")

    @staticmethod
    def new_builder(ttl: Duration) -> StateTtlConfigBuilder:
        """Begins a config for values that live this long, such as "1 h"."""
        ttl_ms = to_ms(ttl, "StateTtlConfig.new_builder")
        if ttl_ms <= 0:
            raise JobError(f"StateTtlConfig.new_builder({ttl!r}): a time to live must be longer than 0")
        return StateTtlConfigBuilder(ttl_ms)

    @property
    def on_read(self) -> bool:
        """True if a read makes a value young again, too."""
        return self.update_type is UpdateType.OnReadAndWrite


class StateTtlConfigBuilder:
    """Builds a `StateTtlConfig` with the calls that PyFlink has."""

    def __init__(self, ttl_ms: int) -> None:
        self._ttl_ms = ttl_ms
        self._update_type = UpdateType.OnCreateAndWrite

    def set_update_type(self, update_type: UpdateType) -> StateTtlConfigBuilder:
        """Sets what makes a value young again."""
        self._update_type = update_type
        return self

    def update_ttl_on_create_and_write(self) -> StateTtlConfigBuilder:
        """Lets only writes make a value young again. This is the default."""
        return self.set_update_type(UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> StateTtlConfigBuilder:
        """Lets reads make a value young again, too."""
        return self.set_update_type(UpdateType.OnReadAndWrite)

    def set_state_visibility(self, visibility: StateVisibility) -> StateTtlConfigBuilder:
        """Takes `NeverReturnExpired`, which is what Weir always does."""
        if visibility is not StateVisibility.NeverReturnExpired:
            raise JobError("set_state_visibility: Weir never returns expired values; leave the call out")
        return self

    def never_return_expired(self) -> StateTtlConfigBuilder:
        """Does what Weir always does."""
        return self

    def build(self) -> StateTtlConfig:
        return StateTtlConfig(self._ttl_ms, self._update_type)

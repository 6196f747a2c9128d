"""`Pattern`: what to look for in the records of a key (A11), written with the names of Flink's CEP.

A pattern does not change: each method returns a new one. What can't be a pattern is refused where it is written, or by
`checked_pattern` when the whole is known; the messages name the pattern and the author's line.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from engine.api.functions import checked_is, no_method, shown
from engine.core.authors import calling_line, short_line
from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError
from engine.core.nearest import nearest
from engine.core.patterns import (
    AfterMatchSkipStrategy,
    Condition,
    Contiguity,
    PatternSequence,
    Row,
    Skip,
    Stage,
    singles,
)


class Pattern:
    """A sequence of patterns, each with a name, a condition and how often it occurs. `Pattern.begin` makes the first.

        failed = Pattern.begin("failed").where(lambda r: not r["ok"]).times(3).consecutive().within("1 min")

    Methods such as `where` and `times` speak of the pattern that was added last.
    """

    def __init__(self, stages: tuple[Stage, ...], skip: AfterMatchSkipStrategy, within_ms: int | None) -> None:
        self._stages = stages
        self._skip = skip
        self._within_ms = within_ms

    # --- sequences ---

    @staticmethod
    def begin(pattern: str | Pattern, skip_strategy: AfterMatchSkipStrategy | None = None) -> Pattern:
        """Begins with a pattern of this name, or with a group, which is a pattern of its own."""
        skip = AfterMatchSkipStrategy.no_skip() if skip_strategy is None else skip_strategy
        checked_is("skip_strategy", skip, AfterMatchSkipStrategy, "such as AfterMatchSkipStrategy.skip_to_next()")
        return Pattern((), skip, None)._added("begin", pattern, Contiguity.RELAXED)

    def next(self, pattern: str | Pattern) -> Pattern:
        """Adds a pattern whose record comes directly after that of the one before (strict contiguity)."""
        return self._added("next", pattern, Contiguity.STRICT)

    def followed_by(self, pattern: str | Pattern) -> Pattern:
        """Adds a pattern that takes the first record which fits; others before it are ignored (relaxed contiguity)."""
        return self._added("followed_by", pattern, Contiguity.RELAXED)

    def followed_by_any(self, pattern: str | Pattern) -> Pattern:
        """Adds a pattern that takes each record which fits, a match for each (non-deterministic relaxed contiguity)."""
        return self._added("followed_by_any", pattern, Contiguity.ANY)

    def not_next(self, name: str) -> Pattern:
        """Discards a partial match if the record directly after it meets the condition."""
        return self._negated("not_next", name, Contiguity.STRICT)

    def not_followed_by(self, name: str) -> Pattern:
        """Discards a partial match if a record meets the condition before the pattern that follows has taken one.

        As the last pattern it needs `within`: the match is emitted when that time is over.
        """
        return self._negated("not_followed_by", name, Contiguity.RELAXED)

    # --- conditions ---

    def where(self, condition: Callable[..., Any]) -> Pattern:
        """Takes only records that meet the condition, `lambda record: …`, besides those given before.

        A condition with a second argument looks at the partial match as well:
        `lambda record, context: record["n"] > context.events_for_pattern("first")[0]["n"]`.
        """
        made = self._condition("where", condition)
        before = self._last.condition
        return self._changed(condition=made if before is None else _all_of(before, made))

    def or_where(self, condition: Callable[..., Any]) -> Pattern:
        """Takes records that meet this condition, too."""
        made = self._condition("or_where", condition)
        before = self._last.condition
        if before is None:
            self._refuse("or_where adds to a condition, and there is none: write where(...) first")
        return self._changed(condition=_any_of(before, made))

    def until(self, condition: Callable[..., Any]) -> Pattern:
        """Ends a pattern without a limit: it takes no record from the first on that meets this condition."""
        made = self._condition("until", condition)
        if self._last.most is not None:
            self._refuse("until ends a pattern without a limit: write one_or_more() or times_or_more(n) before it")
        if self._last.until is not None:
            self._refuse("it has until(...) already: write one condition that says both")
        return self._changed(until=made)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, {})

    # --- quantifiers ---

    def times(self, least: int, most: int | None = None) -> Pattern:
        """Takes exactly so many records, or from `least` to `most`."""
        most = least if most is None else most
        if type(least) is int and type(most) is int and most < least:
            self._refuse(f"times({least}, {most}): the second number must not be smaller than the first")
        return self._counted(f"times({least})" if most == least else f"times({least}, {most})", least, most)

    def times_or_more(self, least: int) -> Pattern:
        """Takes at least so many records."""
        return self._counted(f"times_or_more({least})", least, None)

    def one_or_more(self) -> Pattern:
        """Takes one record or more. End it with `until` or `within`, or what it holds grows for ever."""
        return self._counted("one_or_more()", 1, None)

    def optional(self) -> Pattern:
        """Lets the pattern also take no record."""
        self._check_positive("optional")
        if self._last.optional:
            self._refuse("it is optional already: write optional() once")
        if len(self._stages) > 1 and self._stages[-2].greedy:
            self._refuse(
                f"an optional pattern can't follow a greedy one, which {self._stages[-2].name!r} is: take greedy() "
                "away, or write two patterns, one with this part and one without"
            )
        return self._changed(optional=True)

    def greedy(self) -> Pattern:
        """Lets a pattern that repeats take all that it can: no record that fits it is left to the pattern behind it."""
        self._check_positive("greedy")
        if self._last.group:
            self._refuse("a group can't be greedy: make the patterns in it greedy")
        if not self._last.counted:
            self._refuse("greedy needs a pattern that repeats: write one_or_more() or times(...) before it")
        if self._last.inner is Contiguity.ANY:
            self._refuse("greedy and allow_combinations exclude each other: take one away")
        return self._changed(greedy=True)

    def consecutive(self) -> Pattern:
        """Lets the records of a pattern that repeats come directly after each other."""
        return self._repeating("consecutive", Contiguity.STRICT)

    def allow_combinations(self) -> Pattern:
        """Lets a pattern that repeats leave out records which fit: a match for each choice."""
        if self._last.greedy:
            self._refuse("greedy and allow_combinations exclude each other: take one away")
        return self._repeating("allow_combinations", Contiguity.ANY)

    def within(self, duration: Duration) -> Pattern:
        """Limits the time of a match: from its first record to its last it is shorter. The smallest limit counts."""
        within_ms = to_ms(duration, "within")
        if within_ms == 0:
            self._refuse("within(0): no match is that short; write a duration such as within('10 s')")
        return Pattern(self._stages, self._skip, min(within_ms, self._within_ms or within_ms))

    # --- how it is built ---

    @property
    def _last(self) -> Stage:
        return self._stages[-1]

    def _added(self, call: str, given: str | Pattern, contiguity: Contiguity) -> Pattern:
        within_ms = self._within_ms
        if isinstance(given, Pattern):
            stage = Stage(
                f"({', '.join(s.name for s in given._stages)})", contiguity, calling_line(), group=given._stages
            )
            _check_group(stage, given._skip)
            within_ms = min((ms for ms in (within_ms, given._within_ms) if ms is not None), default=None)
        else:
            stage = Stage(_checked_name(call, given), contiguity, calling_line())
        return self._with(stage, within_ms)

    def _negated(self, call: str, name: str, contiguity: Contiguity) -> Pattern:
        if self._last.skippable:
            self._refuse(
                f"{call} can't follow an optional pattern: write two patterns, one with the optional part and one "
                "without"
            )
        stage = Stage(_checked_name(call, name), contiguity, calling_line(), negated=True)
        return self._with(stage, self._within_ms)

    def _with(self, stage: Stage, within_ms: int | None) -> Pattern:
        known = {one.name: one for one in singles(self._stages)}
        for one in singles((stage,)):
            if one.name in known:
                _refuse(one, f"there is another pattern of this name{_at(known[one.name])}: give each its own name")
            known[one.name] = one
        return Pattern((*self._stages, stage), self._skip, within_ms)

    def _changed(self, **fields: Any) -> Pattern:
        return Pattern((*self._stages[:-1], replace(self._last, **fields)), self._skip, self._within_ms)

    def _condition(self, call: str, given: Callable[..., Any]) -> Condition:
        if self._last.group:
            self._refuse(f"{call}: a group has no condition of its own: give the patterns in it conditions")
        if not callable(given) or isinstance(given, type):
            self._refuse(f'{call} takes a function, such as lambda r: r["n"] > 1, not {shown(given)}')
        arguments = _required(given)
        if arguments not in (1, 2):
            self._refuse(f"{call}: a condition takes a record, or a record and a context, not {arguments} arguments")
        return Condition(given, True) if arguments == 2 else Condition(lambda record, _: given(record), False)

    def _counted(self, call: str, least: int, most: int | None) -> Pattern:
        self._check_positive(call)
        if type(least) is not int or type(most) not in (int, type(None)) or least < 1:
            instead = f"times(1, {most}).optional()" if most else "optional()"
            self._refuse(f"{call}: the numbers must be 1 or more; write {instead} for a pattern that may be missing")
        if self._last.counted:
            self._refuse(f"{call}: it was said already how often it occurs: say it once")
        if self._last.skippable and not self._last.optional and most != 1:
            self._refuse(f"{call}: everything in the group is optional, so it could repeat nothing: require a part")
        return self._changed(least=least, most=most, counted=True)

    def _repeating(self, call: str, inner: Contiguity) -> Pattern:
        self._check_positive(call)
        if not self._last.counted:
            self._refuse(f"{call} needs a pattern that repeats: write one_or_more() or times(...) before it")
        if self._last.inner not in (Contiguity.RELAXED, inner):
            self._refuse("consecutive and allow_combinations exclude each other: take one away")
        return self._changed(inner=inner)

    def _check_positive(self, call: str) -> None:
        if self._last.negated:
            self._refuse(f"{call} does not go with a pattern that must not occur: take it away")

    def _refuse(self, why: str) -> NoReturn:
        _refuse(self._last, why)


def checked_pattern(pattern: Pattern) -> PatternSequence:
    """Returns what the pattern says; raises a JobError if it can never match, and warns if it may never end."""
    checked_is("CEP.pattern", pattern, Pattern, 'a pattern such as Pattern.begin("a").where(...)')
    stages, within_ms = pattern._stages, pattern._within_ms
    for stage in singles(stages):
        if stage.negated and stage.condition is None:
            _refuse(
                stage, "without a condition no record may follow, so it can never match: write where(...) behind it"
            )
    last = stages[-1]
    if last.negated and last.contiguity is Contiguity.RELAXED and within_ms is None:
        _refuse(last, "not_followed_by as the last pattern waits for ever without a limit: write within(...) behind it")
    sequence = PatternSequence(stages, pattern._skip, within_ms)
    _check_skip(pattern._skip, sequence, stages[0])
    if within_ms is None:
        _warn_of_endless(stages)
    return sequence


def _check_skip(skip: AfterMatchSkipStrategy, sequence: PatternSequence, first: Stage) -> None:
    if skip.skip in (Skip.TO_FIRST, Skip.TO_LAST) and skip.name not in sequence.names:
        known = ", ".join(map(repr, sequence.names))
        near = nearest(skip.name, sequence.names)
        _refuse(first, f"{skip.described()}: no pattern {skip.name!r} takes records{near}; use one of {known}")


def _warn_of_endless(stages: tuple[Stage, ...]) -> None:
    for stage in stages:
        if stage.most is None and stage.until is None and stage.inner is not Contiguity.STRICT:
            warnings.warn(
                f"pattern {stage.name!r}{_at(stage)} has no limit, so its partial matches are kept for ever: write "
                "until(...) behind it, or within(...)",
                stacklevel=5,
            )
        _warn_of_endless(stage.group)


def _check_group(stage: Stage, skip: AfterMatchSkipStrategy) -> None:
    if skip.skip is not Skip.NO_SKIP:
        _refuse(stage, "a group has no skip strategy: give it to the begin(...) of the whole pattern")
    if stage.group[-1].negated:
        _refuse(
            stage, f"a group can't end with {stage.group[-1].name!r}, which must not occur: put it behind the group"
        )


def _checked_name(call: str, name: object) -> str:
    if not isinstance(name, str) or not name or ":" in name:
        other = "" if call.startswith("not_") else ", or another pattern as a group"
        raise JobError(f"{call} takes the name of a pattern, a text without ':'{other}, not {shown(name)}")
    return name


def _required(function: Callable[..., Any]) -> int:
    """Returns how many arguments a function must be given."""
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1  # a function of a library that does not say
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in plain and one.default is one.empty for one in given)


def _all_of(left: Condition, right: Condition) -> Condition:
    def both(record: Row, context: Any) -> bool:
        return bool(left.test(record, context)) and bool(right.test(record, context))

    return Condition(both, left.iterative or right.iterative)


def _any_of(left: Condition, right: Condition) -> Condition:
    def either(record: Row, context: Any) -> bool:
        return bool(left.test(record, context)) or bool(right.test(record, context))

    return Condition(either, left.iterative or right.iterative)


def _at(stage: Stage) -> str:
    return f" ({short_line(stage.line)})" if stage.line else ""


def _refuse(stage: Stage, why: str) -> NoReturn:
    raise JobError(f"pattern {stage.name!r}{_at(stage)}: {why}")

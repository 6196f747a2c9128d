"""How fast a gate consumes, and how many bytes are worth having in flight for that."""

from engine.protocol.pace import Pace


def consume(pace: Pace, size: int, began_ms: float, took_ms: float) -> int | None:
    pace.took(size, began_ms)
    return pace.look(began_ms + took_ms)


def test_the_bytes_in_flight_are_those_that_are_consumed_in_the_target_time() -> None:
    assert consume(Pace(200), 1000, 0, 100) == 2000


def test_time_in_which_there_was_nothing_to_consume_does_not_count() -> None:
    pace = Pace(200)
    assert consume(pace, 1000, 0, 50) is None
    assert pace.look(5_000) is None
    assert consume(pace, 1000, 10_000, 50) == 4000


def test_a_new_measurement_moves_the_pace_half_of_the_way() -> None:
    pace = Pace(100)
    assert consume(pace, 1000, 0, 100) == 1000
    assert consume(pace, 3000, 200, 100) == 2000
    assert consume(pace, 2000, 400, 100) == 2000

"""Contents that lie in several places are read and written as one."""

from hypothesis import given
from hypothesis import strategies as st

from engine.core.pieces import Pieces, PiecesReader


@given(st.lists(st.binary(max_size=9), max_size=9), st.lists(st.integers(1, 12), max_size=40))
def test_a_reader_returns_every_byte_once_in_pieces_of_the_size_asked_for(parts, sizes) -> None:
    whole = b"".join(parts)
    data = Pieces(parts)
    assert len(data) == len(whole) and bytes(data) == whole
    reader, place = PiecesReader(data), 0
    for size in sizes:
        assert reader.read(size) == whole[place : place + size]
        place += size


def test_a_reader_of_bytes_ends_like_a_file() -> None:
    reader = PiecesReader(b"abc")
    assert [reader.read(2), reader.read(2), reader.read(2)] == [b"ab", b"c", b""]

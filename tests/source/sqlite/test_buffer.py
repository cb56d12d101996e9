"""The buffer of an open transaction."""

from __future__ import annotations

import io
import random
from collections.abc import Collection
from typing import cast

import pytest

from tranlog.source.sqlite.buffer import NetChange, TransactionBuffer
from tranlog.source.sqlite.buffer import net_change as net_change_by_image
from tranlog.source.sqlite.hook import ONE
from tranlog.source.sqlite.raw import encode_change, encode_statement

TABLE = 7


def insert(place: int, image: bytes = b"i") -> bytes:
    return ONE + encode_change((TABLE, None, [image], None, place))


def delete(place: int, image: bytes = b"i") -> bytes:
    return ONE + encode_change((TABLE, [image], None, place, None))


def update(old: int, new: int, before: bytes, after: bytes) -> bytes:
    return ONE + encode_change((TABLE, [before], [after], old, new))


def net_change(entries: Collection[bytes]) -> NetChange | None:
    """Rows of one value that is its own image."""
    return net_change_by_image(entries, lambda table, row: cast(bytes, row[0]))


def filled(*names: str) -> TransactionBuffer:
    """One entry, then for each name a savepoint and one entry."""
    buffer = TransactionBuffer()
    buffer.entries.append(insert(0))
    for number, name in enumerate(names, start=1):
        buffer.savepoint(name)
        buffer.entries.append(insert(number))
    return buffer


def test_rollback_to_keeps_the_savepoint_and_ends_those_inside() -> None:
    buffer = filled("a", "b", "c")
    buffer.rollback_to("b")
    assert (len(buffer), len(buffer.savepoints)) == (2, 2)
    buffer.entries.append(insert(9))
    buffer.rollback_to("b")
    assert len(buffer) == 2
    assert not buffer.holds("c")


def test_of_equal_names_the_innermost_counts() -> None:
    buffer = filled("a", "b", "a")
    assert not buffer.outermost("a")
    buffer.rollback_to("a")
    assert len(buffer) == 3
    buffer.release("a")
    assert buffer.outermost("a")
    buffer.rollback_to("a")
    assert (len(buffer), len(buffer.savepoints)) == (1, 1)


def test_release_keeps_the_changes_and_ends_those_inside() -> None:
    buffer = filled("a", "b", "c")
    buffer.release("b")
    assert (len(buffer), len(buffer.savepoints)) == (4, 1)
    buffer.clear()
    assert (len(buffer), len(buffer.savepoints)) == (0, 0)


def test_net_change_finds_a_row_that_differs() -> None:
    assert net_change([insert(1, b"x")]) == NetChange(TABLE, 1, None, b"x")
    assert net_change([delete(1, b"x"), insert(2, b"y")]) == NetChange(TABLE, 1, b"x", None)
    assert net_change([update(1, 1, b"x", b"y"), update(1, 1, b"y", b"z")]) == NetChange(TABLE, 1, b"x", b"z")
    assert net_change([update(1, 2, b"x", b"y"), update(2, 1, b"y", b"x")]) is None
    assert net_change([update(1, 2, b"x", b"y")]) == NetChange(TABLE, 1, b"x", None)


def test_net_change_is_none_where_all_cancels_out() -> None:
    entries: list[bytes] = [insert(1), delete(1), delete(2, b"q"), insert(2, b"q"), update(3, 3, b"s", b"s")]
    assert net_change(entries) is None
    assert net_change([]) is None


def test_a_spill_file_makes_no_difference() -> None:
    """The same entries, marks and savepoints, whether some of them were moved to the spill file or not."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"replay: seed = {seed}")
    rng = random.Random(seed)
    for _ in range(60):
        buffer, plain = TransactionBuffer(io.BytesIO), TransactionBuffer()
        for step in range(rng.randint(1, 60)):
            match rng.randrange(8):
                case 0:
                    for one in (buffer, plain):
                        one.savepoint(str(step % 3))
                case 1 if plain.savepoints:
                    name = rng.choice(plain.savepoints)[0]
                    for one in (buffer, plain):
                        one.rollback_to(name)
                case 2:
                    mark = rng.randint(0, len(plain))
                    if all(mark >= at for _, at in plain.savepoints):
                        for one in (buffer, plain):
                            one.cut(mark)
                case 3 | 4:
                    buffer.spill()
                case _:
                    place = rng.randrange(4)
                    choices: list[bytes] = [
                        insert(place, b"%d" % step),
                        delete(place),
                        update(place, rng.randrange(4), b"x", b"y"),
                        ONE + encode_statement(f"CREATE TABLE t{step}(a)", step),
                    ]
                    entry = rng.choice(choices)
                    buffer.entries.append(entry)
                    plain.entries.append(entry)
            mark = rng.randint(0, len(plain))
            assert (len(buffer), list(buffer)) == (len(plain), plain.entries)
            assert list(buffer.since(mark)) == plain.entries[mark:]
            assert net_change(buffer.since(mark)) == net_change(plain.entries[mark:])
        buffer.clear()
        assert len(buffer) == 0 and list(buffer) == []


@pytest.mark.long
def test_net_change_of_many_rows_is_found_by_parts() -> None:
    """Of more rows than are followed at a time, the one that differs is found wherever it is; none where none is."""
    many: list[bytes] = [entry for place in range(30_000) for entry in (insert(place), delete(place))]
    assert net_change(many) is None
    for at in (0, 41, 59_999):
        assert net_change([*many[:at], update(70_000, 70_000, b"a", b"b"), *many[at:]]) == NetChange(
            TABLE, 70_000, b"a", b"b"
        )

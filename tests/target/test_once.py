"""What is known of a statement before it is run. docs/decisions/0013."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_struct

from fix_target import unit_of
from tranlog.change import Statement
from tranlog.ids import Seqno
from tranlog.target.once import Begun, Standing, session_of, standing, statement_time

BEGUN = Begun(epoch=1, seqno=7, event_id="event 7", session="5 a", done=False, alive=False)


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        (None, Standing.NEW),
        (BEGUN, Standing.UNCERTAIN),
        (replace(BEGUN, alive=True), Standing.RUNNING),
        (replace(BEGUN, alive=True, session="9 me"), Standing.UNCERTAIN),  # this very session gave it up
        (replace(BEGUN, done=True), Standing.DONE),
        (replace(BEGUN, done=True, alive=True), Standing.DONE),
        (replace(BEGUN, done=True, seqno=6), Standing.NEW),
        (replace(BEGUN, done=True, epoch=2), Standing.NEW),
        (replace(BEGUN, event_id="event 7 of an earlier log"), Standing.NEW),
    ],
)
def test_what_a_row_says(begun: Begun | None, expected: Standing) -> None:
    assert standing(begun, unit_of(Seqno(7), []), session="9 me") is expected


def test_the_session_of_a_statement() -> None:
    """docs/format.md, "Options of a statement": of equal names the first counts; what is left out has its default."""
    statement = Statement(
        schema="s",
        sql="ALTER TABLE t ADD d DATETIME(6) DEFAULT NOW(6)",
        ddl=True,
        timestamp=1_700_000_000_000,
        options=(
            ("time_zone", "+01:00"),
            ("time_zone", "SYSTEM"),
            ("unique_checks", "0"),
            ("timestamp_microseconds", "1500"),
            ("invoker", "a@b"),
        ),
    )
    assert session_of(statement) == [
        ("unique_checks", 0),
        ("time_zone", "+01:00"),
        ("auto_increment_increment", 1),
        ("auto_increment_offset", 1),
        ("lc_time_names", 0),
    ]
    assert statement_time(statement) == "1700000000.001500"
    assert statement_time(replace_struct(statement, timestamp=1_700_000_000_250, options=())) == "1700000000.250000"

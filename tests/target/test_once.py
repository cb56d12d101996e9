"""What is known of a statement before it is run. docs/decisions/0013."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fix_target import unit_of
from tranlog.ids import Seqno
from tranlog.target.once import Begun, Standing, standing

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

"""Trying again at a target that fails; docs/operations.md, "A target that cannot be used"."""

from __future__ import annotations

import pytest

from tranlog.errors import ReplacedError, TransientTargetError
from tranlog.pipeline.rules.retry import Backoff, Failure, retry
from tranlog.testing.clock import ManualClock


class Flaky:
    """Fails so many times, then works, or raises what it is told to."""

    def __init__(self, times: int, last: Exception | None = None) -> None:
        self.left = times
        self.last = last
        self.reconnected = 0

    def __call__(self) -> str:
        if self.left:
            self.left -= 1
            raise TransientTargetError(why="locked")
        if self.last is not None:
            raise self.last
        return "done"

    def reconnect(self) -> None:
        self.reconnected += 1


def test_pauses_grow_until_the_call_works() -> None:
    clock, call = ManualClock(), Flaky(4)
    backoff, told = Backoff(0.5, 2.0, clock.monotonic()), []

    def again(exc: Failure, failing_s: float, pause_s: float) -> bool:
        told.append((exc.why, failing_s, pause_s))
        return True

    done = retry(call, backoff, clock=clock, again=again, wait=clock.sleep, reconnect=call.reconnect)
    assert done == "done" and call.reconnected == 4
    assert told == [("locked", 0.0, 0.5), ("locked", 0.5, 1.0), ("locked", 1.5, 2.0), ("locked", 3.5, 2.0)]
    backoff.over()
    assert backoff.failed() == 0.5, "the next failure is the first of others"


@pytest.mark.parametrize(
    ("call", "error", "left"),
    [
        (Flaky(9), TransientTargetError, 7),
        (Flaky(0, ReplacedError(pipeline="p", holder="another")), ReplacedError, 0),
    ],
    ids=["for as long as it may", "what no pause cures"],
)
def test_what_ends_it_is_raised(call: Flaky, error: type[Exception], left: int) -> None:
    clock = ManualClock()
    backoff = Backoff(1.0, 1.0, clock.monotonic())
    with pytest.raises(error):
        retry(
            call,
            backoff,
            clock=clock,
            again=lambda exc, failing_s, pause_s: failing_s < 1.0,
            wait=clock.sleep,
            reconnect=call.reconnect,
        )
    assert call.left == left

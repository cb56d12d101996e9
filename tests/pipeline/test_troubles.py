"""Who cannot use the target, and for how long each pauses; docs/operations.md, "When something is wrong"."""

from __future__ import annotations

from typing import Any

from tranlog.ids import Epoch, Seqno
from tranlog.pipeline.rules.progress import ChannelStats, Counters, Waiting
from tranlog.pipeline.rules.troubles import DRIVER, PAUSE_MOST_S, Trouble, Troubles
from tranlog.target.target import ChannelRow


def fail(troubles: Troubles, channel: int, now_s: float, *, applied: int = 5, **more: Any) -> bool:
    given: dict[str, Any] = {"failing_s": 0.0, **more}
    return troubles.failed(channel, "locked", applied=Seqno(applied), now_s=now_s, now_ms=round(now_s * 1000), **given)


def row(channel: int, applied: int, token: int, *, waits: bool = False) -> ChannelRow:
    stats = ChannelStats(waiting=Waiting(9, True, (0,)) if waits else None)
    return ChannelRow(
        channel=channel, epoch=Epoch(1), applied_seqno=Seqno(applied), token=token, stats=stats.text(Counters())
    )


def test_pauses_grow_to_half_a_minute_and_begin_anew_behind_progress() -> None:
    troubles, now, pauses = Troubles(), 100.0, []
    for applied in (5, 5, 5, 5, 5, 5, 5, 6):
        fail(troubles, 1, now, applied=applied)
        started = now
        while troubles.due(now) != [1]:
            now += 0.5
        pauses.append(now - started)
        troubles.trying(1, [])
        assert troubles.pausing() == []
    assert pauses == [1, 2, 4, 8, 16, PAUSE_MOST_S, PAUSE_MOST_S, 1]


def test_since_when_is_that_of_the_first_failure() -> None:
    troubles = Troubles()
    fail(troubles, 2, 100.0, failing_s=3.0)
    fail(troubles, 2, 140.0, failing_s=3.0)
    fail(troubles, DRIVER, 150.0)
    assert troubles.told() == (
        Trouble(channel=DRIVER, reason="locked", since_ms=150_000),
        Trouble(channel=2, reason="locked", since_ms=97_000),
    )


def test_the_last_try_is_at_the_end_of_what_it_may_last() -> None:
    troubles = Troubles()
    assert fail(troubles, 1, 10.0, limit_s=5.0)
    assert troubles.due(11.0) == [1]
    assert fail(troubles, 1, 14.0, limit_s=5.0)
    assert troubles.due(14.9) == [] and troubles.due(15.0) == [1]
    assert not fail(troubles, 1, 15.5, limit_s=5.0)


def test_it_is_over_when_the_channel_was_claimed_and_gets_on() -> None:
    for found, over in (
        (row(1, 5, 7), False),  # nobody has claimed it
        (row(1, 5, 8), False),  # claimed, and it stands: the lock that stopped it may still be there
        (row(1, 6, 8), True),
        (row(1, 5, 8, waits=True), True),
    ):
        troubles = Troubles()
        fail(troubles, 1, 10.0)
        troubles.look([row(1, 9, 9)], Seqno(9))
        assert troubles.told(), "it pauses"
        troubles.trying(1, [row(1, 5, 7)])
        troubles.look([found], Seqno(9))
        assert (troubles.told() == ()) is over
    troubles.trying(1, [row(1, 5, 7)])
    troubles.look([row(1, 5, 8)], Seqno(5))
    assert troubles.told() == (), "it has all that there is"


def test_all_try_at_once_when_the_server_is_back() -> None:
    troubles = Troubles()
    for channel in (0, 1):
        fail(troubles, channel, 10.0)
        fail(troubles, channel, 10.0)
    troubles.hurry()
    assert troubles.due(10.0) == [0, 1]
    troubles.over(0)
    assert troubles.pausing() == [1]

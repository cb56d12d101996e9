"""log/rules/retention.py: what may go, what never does, and when a segment is closed for its age."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tranlog.ids import Seqno
from tranlog.log.options import LogOptions
from tranlog.log.rules.retention import (
    DAY_MS,
    HOUR_MS,
    Held,
    LargerThan,
    Limit,
    OlderThan,
    PurgePlan,
    Retained,
    UpToSeqno,
    UpToTime,
    ended_at,
    purge_plan,
    rotation_due,
    segment_span_ms,
)
from tranlog.log.writing.purging import limits_of

SIZE = 1_000
AGED = OlderThan(ms=1_000)


def row(*begun: int | None, per_segment: int = 10) -> list[Retained]:
    """Segments of ten transactions each, from seqno 0 on."""
    return [
        Retained(number=at + 1, last_seqno=Seqno((at + 1) * per_segment - 1), begun_at=stamp, bytes=SIZE)
        for at, stamp in enumerate(begun)
    ]


def plan(
    segments: list[Retained],
    *limits: Limit,
    holds: dict[str, int | None] | None = None,
    durable: int | None = None,
    now: int = 10_000,
) -> PurgePlan:
    held = [
        Held(name=name, restart_seqno=None if seqno is None else Seqno(seqno)) for name, seqno in (holds or {}).items()
    ]
    last = segments[-1].last_seqno if segments else -1
    return purge_plan(
        segments, limits=limits, holds=held, durable=Seqno(last if durable is None else durable), now_ms=now
    )


def gone(segments: list[Retained], *limits: Limit, **given: object) -> list[int]:
    return list(plan(segments, *limits, **given).gone)  # type: ignore[arg-type]


# --- by age ---


def test_old_segments_go_from_the_front() -> None:
    """thl-internals, logFileRetention: by the time files are written. A segment ended when the next was begun."""
    assert gone(row(0, 100, 200, 9_500, 9_600), AGED) == [1, 2]
    assert gone(row(0, 1, 2, 3, 4), AGED) == [1, 2, 3, 4]
    assert gone(row(1, None), AGED) == gone(row(1), AGED) == gone([], AGED) == []
    assert gone(row(0, 1, 2), OlderThan(ms=10_001)) == [], "before 1970 nothing ended"


def test_the_bound_is_inclusive() -> None:
    """conformance/tokumx.md A8.6, A8.7: expiry is trimToTS(now - retention), and that is inclusive."""
    assert gone(row(0, 9_000, 9_001, 9_500), AGED) == [1]


def test_a_young_segment_keeps_what_is_behind_it() -> None:
    assert gone(row(0, 100, 9_999, 9_999, 9_999), AGED) == [1]


def test_a_stamp_that_cannot_be_right_proves_nothing() -> None:
    """A clock that goes back, or was ahead: the next stamp that can be right counts; nothing goes too early."""
    assert ended_at(row(500, 100, 600, 700), now_ms=1_000) == [600, 600, 700, None], "it went back"
    assert ended_at(row(500, 99_999, 600, 700), now_ms=1_000) == [600, 600, 700, None], "it was ahead"
    assert ended_at(row(500, None, 600, None), now_ms=1_000) == [600, 600, None, None]
    assert ended_at(row(500, 600, 700), now_ms=50) == [None, None, None], "it is behind now"
    assert gone(row(500, 0, 9_500, 9_600), AGED) == [], "the one stamped 0 is no proof that the first ended then"


@given(
    stamps=st.lists(st.integers(1, 1_000), min_size=1, max_size=8).map(sorted),
    errors=st.lists(st.sampled_from([0, 0, 0, -2_000, -50, 50, 2_000]), min_size=8, max_size=8),
    now=st.integers(1_000, 1_400),
    kept=st.integers(0, 500),
)
def test_no_wrong_clock_lets_a_segment_go_early(stamps: list[int], errors: list[int], now: int, kept: int) -> None:
    """Whatever the stamps say, as long as the clock is right now and was when the first segment was begun, and each
    stamp that is wrong is too low or in the future: a segment that ended less than the retention ago stays, unless a
    stamp between lies a little too low."""
    errors = [0, *errors[1:]]
    small = [error for error in errors[: len(stamps)] if error in (-50, 50)]
    said = [max(stamp + error, 0) for stamp, error in zip(stamps, errors, strict=False)]
    found = gone(row(*said), OlderThan(ms=kept), now=now)
    for number in found:
        truly_ended = stamps[number]  # the next one's true stamp; segment `number` is at index number - 1
        assert now - truly_ended >= kept - (50 if small else 0)


# --- by size, and by hand ---


def test_the_oldest_go_until_the_rest_fits() -> None:
    five = row(*[0] * 5)
    assert gone(five, LargerThan(bytes=5 * SIZE)) == []
    assert gone(five, LargerThan(bytes=5 * SIZE - 1)) == [1]
    assert gone(five, LargerThan(bytes=2 * SIZE)) == [1, 2, 3]
    assert gone(five, LargerThan(bytes=1)) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("seqno", "numbers"), [(-1, []), (8, []), (9, [1]), (28, [1, 2]), (29, [1, 2, 3]), (999, [1, 2, 3, 4])]
)
def test_trimming_to_a_seqno(seqno: int, numbers: list[int]) -> None:
    """A8.6: partition 0 goes while its max <= the GTID. D: DiskLogTest.testDeleteUp."""
    assert gone(row(*[None] * 5), UpToSeqno(seqno=Seqno(seqno))) == numbers


def test_trimming_to_a_time() -> None:
    """A8.6: partition 0 goes while the createTime of partition 1 <= the time."""
    five = row(100, 200, 300, 400, 500)
    assert [gone(five, UpToTime(at_ms=at)) for at in (199, 200, 400, 9_999)] == [[], [1], [1, 2, 3], [1, 2, 3, 4]]


def test_limits_add_up_and_the_furthest_is_named() -> None:
    five = row(0, 1, 2, 9_500, 9_600)
    found = plan(five, AGED, LargerThan(bytes=SIZE))
    assert found == PurgePlan(gone=(1, 2, 3, 4), up_to=Seqno(39), limit=LargerThan(bytes=SIZE))
    assert plan(five, LargerThan(bytes=4 * SIZE), AGED).limit == AGED
    assert str(AGED) == "retention_s = 1"
    assert str(OlderThan(ms=1_500, hard=True)) == "hard_retention_s = 1.5"
    assert str(LargerThan(bytes=5, hard=True)) == "hard_retention_bytes = 5"
    assert str(UpToSeqno(seqno=Seqno(15), told="GTID(1, 15)")) == "a trim to GTID(1, 15)"


def test_options_are_limits() -> None:
    assert limits_of(LogOptions()) == []
    assert limits_of(LogOptions(retention_s=1.5, retention_bytes=7, hard_retention_s=3.0, hard_retention_bytes=9)) == [
        OlderThan(ms=1_500),
        LargerThan(bytes=7),
        OlderThan(ms=3_000, hard=True),
        LargerThan(bytes=9, hard=True),
    ]


# --- what stays ---


def test_the_last_segment_and_the_last_durable_transaction_stay() -> None:
    """replication.md, "never the last one"; and a log always knows which GTID and which event id come next."""
    for limit in (OlderThan(ms=0, hard=True), LargerThan(bytes=1, hard=True), UpToSeqno(seqno=Seqno(999), hard=True)):
        assert gone(row(0, 1, 2, 3), limit) == [1, 2, 3]
        assert gone(row(0, 1, 2, 3), limit, durable=29) == [1, 2], "nothing durable stands in the newest"
        assert gone(row(0, 1, 2, 3), limit, durable=12) == [1]
        assert gone(row(0), limit) == []


@pytest.mark.parametrize(
    ("holds", "numbers"),
    [
        ({}, [1, 2, 3]),
        ({"p": 100}, [1, 2, 3]),
        ({"p": 20}, [1, 2]),
        ({"p": 19}, [1]),
        ({"p": 10}, [1]),
        ({"p": 9}, []),
        ({"q": 30, "p": 9}, []),
        ({"p": -1}, []),
        ({"p": None}, []),
    ],
)
@pytest.mark.parametrize("limit", [AGED, LargerThan(bytes=1), UpToSeqno(seqno=Seqno(99)), UpToTime(at_ms=3)])
def test_a_hold_keeps_the_record_at_its_own_position(
    holds: dict[str, int | None], numbers: list[int], limit: Limit
) -> None:
    """glossary, low_water_seqno: purge may go up to here, not including it. A damaged hold keeps everything."""
    found = plan(row(0, 1, 2, 3), limit, holds=holds)
    assert list(found.gone) == numbers and found.passed == ()
    assert found.kept_for == (("p",) if len(numbers) < 3 else ())


def test_a_hard_limit_passes_a_hold_and_names_it() -> None:
    """glossary: a retention limit outranks low_water: one dead replica cannot fill the disk."""
    four = row(0, 1, 2, 3)
    holds = {"dead": 5, "alive": 25, "damaged": None}
    soft, hard = LargerThan(bytes=SIZE), LargerThan(bytes=3 * SIZE, hard=True)
    assert plan(four, soft, hard, holds=holds) == PurgePlan(
        gone=(1,), up_to=Seqno(9), limit=hard, passed=("dead", "damaged"), kept_for=("dead", "damaged")
    )
    assert plan(four, soft, hard, holds={"dead": 5, "alive": 15}).kept_for == ("dead", "alive")
    assert plan(four, soft, hard, holds={"alive": 25}) == PurgePlan(
        gone=(1, 2), up_to=Seqno(19), limit=soft, kept_for=("alive",)
    )


# --- closing a segment for its age ---


def test_hourly_below_a_day_and_daily_otherwise() -> None:
    """tokumx-replication, "If the time represented by these settings is less than a day, ... hourly"."""
    day_s = DAY_MS / 1000
    assert [segment_span_ms(s) for s in (1.0, day_s - 0.001)] == [HOUR_MS, HOUR_MS]
    assert [segment_span_ms(s) for s in (None, 0.0, day_s, 14 * day_s)] == [DAY_MS] * 4


def test_when_a_segment_is_old_enough() -> None:
    assert not rotation_due(begun_at=None, now_ms=DAY_MS, retention_s=None)
    assert not rotation_due(begun_at=5, now_ms=DAY_MS + 4, retention_s=None)
    assert rotation_due(begun_at=5, now_ms=DAY_MS + 5, retention_s=None)
    assert rotation_due(begun_at=5, now_ms=HOUR_MS + 5, retention_s=7_200)
    assert not rotation_due(begun_at=DAY_MS, now_ms=5, retention_s=None), "a clock that goes back is harmless"
    assert rotation_due(begun_at=2 * DAY_MS, now_ms=5, retention_s=None), "and if it was a day ahead, a new one begins"

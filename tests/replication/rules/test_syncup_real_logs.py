"""Syncup over real logs: equal GTIDs do not make one history, the running hash does.

docs/protocol.md, "Syncup"; docs/format.md, "The running hash".
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from fix_log import PATH, append_large, make_fragment
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.options import LogOptions
from tranlog.log.writing.member import MemberLog
from tranlog.replication.acting.following import NodeLog
from tranlog.replication.rules.packets import NO_GTID, Here, Where, decode, encode
from tranlog.replication.rules.syncup import (
    Limits,
    SyncupFinding,
    Verdict,
    answer,
    first_question,
    judge,
    next_question,
)
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk


def follow(disk: SimDisk) -> MemberLog:
    options = LogOptions(ahead_bytes=0, segment_bytes=6_000, spill_above=4_000)
    return MemberLog.follow(PATH, source_id="db1", options=options, disk=disk, clock=ManualClock())


def asked_of(log: MemberLog) -> NodeLog:
    """Return a member's log as the rules of syncup ask it."""
    return NodeLog(log, log.disk, ManualClock(), {})


def searched(mine: MemberLog, source: MemberLog) -> SyncupFinding:
    """Search as two nodes do, every question and answer in its bytes."""
    one, other = asked_of(mine), asked_of(source)
    where = first_question(one, 1)
    while True:
        asked = decode(encode(where))
        assert isinstance(asked, Where)
        here = decode(encode(answer(other, asked, 9)))
        assert isinstance(here, Here)
        further = next_question(one, here)
        if further is None:
            return judge(one, here, NO_GTID, Limits(limit_s=1 << 40, allow_ddl=True))
        where = further


def wrote(log: MemberLog, epoch: int, words: Iterator[str], count: int = 5) -> None:
    """Reign for a while: single transactions, one of several fragments and one that spills."""
    log.lead(Epoch(epoch))
    for _ in range(count):
        word = next(words)
        log.append(make_fragment(word, word.encode()))
        append_large(log, word, [word.encode(), b"2", b"3"])
        log.commit()
        log.transact([make_fragment(word, word.encode() * 900, last=last) for last in (False, False, True)])
    log.unlead()


def words(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    while True:
        yield f"{rng.getrandbits(40):010x}"


@pytest.fixture
def copies() -> tuple[SimDisk, SimDisk]:
    """Return a log and a copy of its files."""
    disk = SimDisk()
    with follow(disk) as log:
        wrote(log, 1, words(1))
    return disk, disk.after_crash(random.Random(1))


def test_two_copies_that_were_written_apart_are_never_merged(copies: tuple[SimDisk, SimDisk]) -> None:
    """Each was opened, led in the same epoch and took as many transactions: every GTID is equal."""
    one, other = copies
    with follow(one) as mine, follow(other) as source:
        common = mine.visible_seqno
        assert searched(mine, source) == SyncupFinding(Verdict.STREAM, Gtid(Epoch(1), common))
        wrote(mine, 2, words(2))
        wrote(source, 2, words(3))
        assert asked_of(mine).last == asked_of(source).last
        assert mine.h(common) == source.h(common) and mine.h(mine.visible_seqno) != source.h(mine.visible_seqno)
        wrote(source, 3, words(4))
        finding = searched(mine, source)
        assert (finding.verdict, finding.matchpoint) == (Verdict.FATAL, asked_of(mine).last)
        assert "their hashes up to it differ" in finding.why
        wrote(mine, 4, words(5))
        wrote(source, 5, words(5))
        assert searched(mine, source).verdict is Verdict.FATAL


def test_two_copies_that_took_the_same_are_one_history(copies: tuple[SimDisk, SimDisk]) -> None:
    """The hash is of what was written, not of where: other segments, other places of what spilled."""
    one, other = copies
    with follow(one) as mine, follow(other) as source:
        source.roll_spill()
        wrote(source, 2, words(2))
        with source.cursor() as cursor:
            cursor.seek(Seqno(mine.visible_seqno + 1))
            for stretch in cursor.stretches():
                for chunk in stretch.chunks():
                    mine.put_chunk(chunk)
                mine.append_raw(stretch.raw)
        mine.commit()
        assert searched(mine, source) == SyncupFinding(Verdict.STREAM, asked_of(source).last)
        wrote(source, 3, words(3), count=1)
        wrote(mine, 4, words(4), count=1)
        assert searched(source, mine).verdict is Verdict.ROLL_BACK

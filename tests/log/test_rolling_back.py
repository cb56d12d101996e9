"""A log whose numbers are given, as a group's elections produce them, against lists: append, abandon, crash, read.

docs/format.md, "Rollback mark". Histories fork where a primary was deposed; each epoch has one writer, so equal GTIDs
are equal histories. The log follows one history after another, back to what they have in common and on from there.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fix_log import PATH, make_fragment, open_reader, read_all
from tranlog.change import Fragment
from tranlog.errors import AbandonedError, PurgedError, RollbackError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.reading.cursor import Cursor
from tranlog.log.reading.reader import LogReader
from tranlog.log.rules.numbering import Numbering
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.allocation import records_of
from tranlog.log.writing.log import Log, LogOptions
from tranlog.log.writing.member import MemberLog
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

Entry = tuple[Gtid, str]
"""A transaction: its GTID, and its event id, which its payload repeats."""


def open_given(disk: SimDisk, clock: ManualClock | None = None, options: LogOptions | None = None) -> MemberLog:
    return MemberLog.open(
        PATH, source_id="db1", options=options, disk=disk, clock=clock or ManualClock(), numbering=Numbering.GIVEN
    )


def raw_of(gtid: Gtid, *fragments: Fragment) -> bytes:
    return b"".join(records_of(fragments, gtid, checksum=True))


def give(log: Log, epoch: int, *seqnos: int) -> None:
    for seqno in seqnos:
        log.append_raw(raw_of(Gtid(Epoch(epoch), Seqno(seqno)), make_fragment(f"e{epoch}.{seqno}")))


def held(view: Log | LogReader) -> list[tuple[int, int]]:
    with view.cursor() as cursor:
        return [(one.header.epoch, one.header.seqno) for one in read_all(cursor)]


def test_what_is_given_up_may_be_of_a_later_epoch_than_what_comes() -> None:
    """(3, 5) is given up and (2, 5) taken: here, in other processes, and at the next opening."""
    disk = SimDisk()
    with open_given(disk) as log:
        give(log, 2, 0, 1, 2, 3, 4)
        give(log, 3, 5, 6)
        log.commit()
        with open_reader(disk) as reader, reader.cursor() as cursor:
            assert held(reader)[-2:] == [(3, 5), (3, 6)]
            assert [one.header.seqno for one in read_all(cursor)] == list(range(7))
            mark = log.abandon_after(Gtid(Epoch(2), Seqno(4)))
            assert mark is not None and (mark.number, mark.epoch, mark.last_seqno) == (1, 3, 6)
            assert held(reader) == held(log) == [(2, seqno) for seqno in range(5)], "no no-op, no epoch"
            with pytest.raises(AbandonedError, match="rollback mark 1 at"):
                cursor.next()
            give(log, 2, 5)
            log.commit()
            assert held(reader) == held(log) == [(2, seqno) for seqno in range(6)]
            assert reader.range().epoch == 2
    assert verify(PATH, disk=disk).problems == ()
    with open_given(disk) as log:
        give(log, 2, 6)
        assert log.abandon_after(Gtid(Epoch(2), Seqno(6))) is None, "nothing follows it"
        mark = log.abandon_after(Gtid(Epoch(2), Seqno(0)))
        assert mark is not None and mark.number == 2
    with open_given(disk) as log:  # whoever leads goes on above everything that there ever was
        log.lead(Epoch(4))
        assert held(log) == [(2, 0), (4, 1)]
    assert verify(PATH, disk=disk).problems == ()


def test_what_the_log_does_not_hold_is_no_matchpoint() -> None:
    disk = SimDisk()
    with open_given(disk) as log:
        give(log, 1, 0, 1)
        for epoch, seqno in ((2, 1), (1, 2)):
            with pytest.raises(RollbackError, match="the log holds"):
                log.abandon_after(Gtid(Epoch(epoch), Seqno(seqno)))
        assert held(log) == [(1, 0), (1, 1)]


def test_a_lost_mark_is_damage() -> None:
    """What the published mark abandoned would come back, with a greater seqno and a later epoch."""
    disk = SimDisk()
    with open_given(disk) as log:
        give(log, 2, 0, 1)
        give(log, 3, 2)
        log.abandon_after(Gtid(Epoch(2), Seqno(1)))
        give(log, 4, 2, 3)
        log.abandon_after(Gtid(Epoch(2), Seqno(0)))
        give(log, 2, 1)
        log.commit()
        newest = f"{PATH}/thl.data.0000000003"
        assert disk.exists(newest)
    disk.unlink(newest)
    assert [one.why for one in verify(PATH, disk=disk).problems][-1] == (
        "the records end here, but rollback mark 2 stood after them"
    )


class Follower:
    """A cursor that stays, and what it has returned."""

    def __init__(self, cursor: Cursor, start: int) -> None:
        self.cursor = cursor
        self.start = start
        cursor.seek(Seqno(start))
        self.returned: list[Entry] = []


class GivenAgainstLists(RuleBasedStateMachine):
    """`entries[n]` is what seqno n holds; `visible` and `durable` count them. `histories` are those of the group."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.histories: list[list[Entry]] = [[self.entry(2, 0)]]
        self.epochs = {2}
        self.entries: list[Entry] = []
        self.visible = self.durable = self.first = self.marks = 0
        self.log: MemberLog
        self.reader: LogReader
        self.followers: list[Follower] = []

    @staticmethod
    def entry(epoch: int, seqno: int) -> Entry:
        return Gtid(Epoch(epoch), Seqno(seqno)), f"e{epoch}.{seqno}"

    @initialize(segment_bytes=st.sampled_from([1_000, 2_000, 20_000]), buffer_bytes=st.sampled_from([1, 50_000]))
    def begin(self, segment_bytes: int, buffer_bytes: int) -> None:
        self.options = LogOptions(segment_bytes=segment_bytes, buffer_bytes=buffer_bytes)
        self.open()

    def open(self) -> None:
        self.log = open_given(self.disk, self.clock, self.options)
        kept = self.log.last_seqno + 1
        assert self.durable <= kept <= len(self.entries)
        del self.entries[kept:]
        self.visible = self.durable = kept
        if kept == 0:
            self.append(self.histories[0][:1])
            self.commit(True)
        self.reader = open_reader(self.disk)
        self.followers = [
            Follower(view.cursor(), max(self.first, self.visible // 2)) for view in (self.log, self.reader)
        ]

    def append(self, entries: list[Entry]) -> None:
        for gtid, event_id in entries:
            if self.log._pending.start + len(self.log._pending) >= self.options.segment_bytes:
                self.visible = self.durable = len(self.entries)  # it rotates first
            parts = [make_fragment(event_id, b"%d" % part * 40, last=False) for part in range(gtid.seqno % 3)]
            self.log.append_raw(raw_of(gtid, *parts, make_fragment(event_id, event_id.encode() * 20)))
            self.entries.append((gtid, event_id))

    # --- the group ---

    @rule(number=st.integers(0, 9), share=st.floats(0, 1), later=st.integers(1, 4), count=st.integers(1, 4))
    def elect(self, number: int, share: float, later: int, count: int) -> None:
        """A primary of a new epoch goes on somewhere in a history, maybe in an earlier epoch than others know of."""
        base = self.histories[number % len(self.histories)]
        base = base[: 1 + int(len(base) * share)]
        epoch = base[-1][0].epoch + later
        while epoch in self.epochs:
            epoch += 1
        self.epochs.add(epoch)
        self.histories.append(base + [self.entry(epoch, len(base) + at) for at in range(count)])

    @rule(number=st.integers(0, 9), count=st.integers(1, 5))
    def write(self, number: int, count: int) -> None:
        """A primary goes on, in its own epoch."""
        history = self.histories[number % len(self.histories)]
        epoch = history[-1][0].epoch
        if all(len(other) <= len(history) or other[len(history)][0].epoch != epoch for other in self.histories):
            history += [self.entry(epoch, len(history) + at) for at in range(count)]

    # --- the log ---

    @rule(number=st.integers(0, 9), share=st.floats(0, 1))
    def follow(self, number: int, share: float) -> None:
        """Give up what this history does not have, and take what it has more."""
        history = self.histories[number % len(self.histories)]
        common = 0
        while common < min(len(history), len(self.entries)) and history[common] == self.entries[common]:
            common += 1
        if common <= self.first:
            return  # a restore
        if common < len(self.entries):
            mark = self.log.abandon_after(self.entries[common - 1][0])
            self.marks += 1
            assert mark is not None and (mark.number, mark.last_seqno) == (self.marks, len(self.entries) - 1)
            assert mark.epoch >= self.entries[-1][0].epoch
            del self.entries[common:]
            self.visible = self.durable = common
        self.append(history[common : common + round((len(history) - common) * share)])

    @rule(sync=st.booleans())
    def commit(self, sync: bool) -> None:
        self.log.commit(sync=sync)
        self.visible = len(self.entries)
        if sync:
            self.durable = self.visible

    @rule(share=st.floats(0, 1))
    def purge(self, share: float) -> None:
        self.log.purge(below=Seqno(int(self.durable * share)))
        self.first = self.log.first_seqno

    @rule(index=st.booleans())
    def reopen(self, index: bool) -> None:
        self.reader.close()
        self.log.close()
        self.durable = self.visible = len(self.entries)
        self.lose_index(index)
        self.open()
        assert self.log.recovered.clean

    @rule(index=st.booleans())
    def kill(self, index: bool) -> None:
        self.reader.close()
        self.disk.kill()
        self.durable = self.visible
        self.lose_index(index)
        self.open()

    @rule(seed=st.integers(0, 1 << 20))
    def cut_the_power(self, seed: int) -> None:
        self.disk = self.disk.after_crash(random.Random(seed))
        self.open()

    @rule()
    def flush_index(self) -> None:
        self.log.flush_index()

    def lose_index(self, lost: bool) -> None:
        if lost and self.disk.exists(f"{PATH}/index.table"):
            self.disk.unlink(f"{PATH}/index.table")

    # --- readers ---

    @staticmethod
    def entry_of(cursor: Cursor) -> Entry | None:
        one = cursor.next()
        if one is None:
            return None
        *parts, last = one.payloads()
        assert len(parts) == one.header.seqno % 3 and last == one.header.event_id.encode() * 20
        return one.header.gtid, one.header.event_id

    @rule(share=st.floats(0, 1), own=st.booleans())
    def read_from_any_seqno(self, share: float, own: bool) -> None:
        start = int(self.visible * share)
        with (self.log if own else self.reader).cursor() as cursor:
            try:
                cursor.seek(Seqno(start))
            except PurgedError:
                assert start < self.first
                return
            found = []
            while (entry := self.entry_of(cursor)) is not None:
                found.append(entry)
        assert found == self.entries[max(start, self.first) : self.visible]

    @rule(number=st.integers(0, 1), steps=st.integers(1, 8))
    def step(self, number: int, steps: int) -> None:
        """What a live cursor returned is a front of the truth; if that is no longer so, the next step says so."""
        follower = self.followers[number]
        try:
            for _ in range(steps):
                entry = self.entry_of(follower.cursor)
                if entry is None:
                    break
                follower.returned.append(entry)
        except AbandonedError as exc:
            self.hear(follower, exc)
            return
        except PurgedError:
            assert follower.start + len(follower.returned) < self.first
            self.followers[number] = Follower((self.reader if number else self.log).cursor(), self.first)
            return
        if entry is None or number == 0:
            end = follower.start + len(follower.returned)
            assert follower.returned == self.entries[follower.start : end]

    def hear(self, follower: Follower, error: AbandonedError) -> None:
        returned = follower.start + len(follower.returned) - 1
        assert error.seqno == returned > error.matchpoint.seqno
        follower.returned.clear()
        follower.start = max(error.matchpoint.seqno + 1, self.first)
        follower.cursor.seek(Seqno(follower.start))

    # --- invariants ---

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def the_ladder_holds(self) -> None:
        status = self.log.status()
        assert (status.first_seqno, status.last_seqno) == (self.first, len(self.entries) - 1)
        assert (status.visible_seqno, status.durable_seqno) == (self.visible - 1, self.durable - 1)
        assert self.log.seqno_index.exact(Seqno(self.visible - 1)) == self.log._end.publishing.visible_lsn
        assert self.log._end.publishing.durable_epoch() == self.entries[self.durable - 1][0].epoch

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        self.reader.close()
        self.log.close()
        found = verify(PATH, disk=self.disk)
        assert found.sound, found.problems
        assert found.transactions == len(self.entries) - self.first
        with open_reader(self.disk) as reader:
            assert [one.header.gtid for one in read_all(reader.cursor())] == [
                one[0] for one in self.entries[self.first :]
            ]
            assert [one[0].number for one in reader.abandoned()] == sorted(one[0].number for one in reader.abandoned())


TestGivenAgainstLists = GivenAgainstLists.TestCase
TestGivenAgainstLists.settings = settings(stateful_step_count=30)

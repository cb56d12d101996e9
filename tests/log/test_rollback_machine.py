"""A log that is rolled back, against a plain list: append, commit, roll back, rotate, crash, reopen, read.

conventions.md, tier property; conformance/vlsn-index.md, I1, I3, I26, I28. A live cursor keeps what it has returned in
a list of its own: that list is always a front of the truth, or the cursor says that it is not.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fix_log import PATH, make_fragment, open_reader, read_all
from tranlog.errors import AbandonedError, PurgedError, RollbackError
from tranlog.ids import Gtid, Seqno
from tranlog.log.reading.cursor import Cursor
from tranlog.log.reading.reader import LogReader
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log, LogOptions
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

Entry = tuple[Gtid, str, bytes]
"""A transaction; a no-op has no payload."""


class Follower:
    """A cursor that stays, and what it has returned."""

    def __init__(self, cursor: Cursor, start: int) -> None:
        self.cursor = cursor
        self.start = start
        cursor.seek(Seqno(start))
        self.returned: list[Entry] = []


def entry_of(cursor: Cursor) -> Entry | None:
    one = cursor.next()
    if one is None:
        return None
    return one.header.gtid, one.header.event_id, b"" if one.is_noop() else b"".join(one.payloads())


class RollbackAgainstList(RuleBasedStateMachine):
    """`entries[n]` is what seqno n holds; `visible` and `durable` count them."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.entries: list[Entry] = []
        self.visible = self.durable = self.first = 0
        self.made = 0
        self.given: dict[Gtid, Entry] = {}
        self.log: Log
        self.reader: LogReader
        self.followers: list[Follower] = []

    @initialize(
        segment_bytes=st.sampled_from([1_000, 2_000, 20_000]),
        buffer_bytes=st.sampled_from([1, 50_000]),
        checksum=st.booleans(),
    )
    def begin(self, segment_bytes: int, buffer_bytes: int, checksum: bool) -> None:
        self.options = LogOptions(segment_bytes=segment_bytes, buffer_bytes=buffer_bytes, checksum=checksum)
        self.open()

    def open(self) -> None:
        """Open, and take over what the log holds, up to what was appended and never committed."""
        self.log = Log.open(PATH, source_id="db1", options=self.options, disk=self.disk, clock=self.clock)
        kept = self.log.last_seqno
        assert self.durable <= kept <= len(self.entries)
        del self.entries[kept:]
        self.noop()
        self.reader = open_reader(self.disk)
        self.followers = [
            Follower(view.cursor(), max(self.first, self.visible // 2)) for view in (self.log, self.reader)
        ]

    def noop(self) -> None:
        event_id = self.entries[-1][1] if self.entries else ""
        self.give((Gtid(self.log.epoch, Seqno(len(self.entries))), event_id, b""))
        self.visible = self.durable = len(self.entries)

    def give(self, entry: Entry) -> None:
        assert entry[0] not in self.given, "a GTID was given out twice"
        self.given[entry[0]] = entry
        self.entries.append(entry)

    # --- rules ---------------------------------------------------------------------------------------

    @rule(size=st.integers(0, 500), parts=st.integers(1, 3))
    def append(self, size: int, parts: int) -> None:
        if self.log._pending.start + len(self.log._pending) >= self.options.segment_bytes:
            self.visible = self.durable = len(self.entries)  # it rotates first
        self.made += 1
        event_id, payload = f"e{self.made}", (f"<{self.made}>".encode() * (size // 3 + 1))[: size + 1]
        for _ in range(parts - 1):
            self.log.append(make_fragment(event_id, payload, last=False))
        gtid = self.log.append(make_fragment(event_id, payload))
        self.give((gtid, event_id, payload * parts))

    @rule(sync=st.booleans())
    def commit(self, sync: bool) -> None:
        self.log.commit(sync=sync)
        self.visible = len(self.entries)
        if sync:
            self.durable = self.visible

    @rule(share=st.floats(0, 1))
    def rollback(self, share: float) -> None:
        to = self.first + int((self.visible - 1 - self.first) * share)
        if len(self.entries) > self.visible:
            try:
                self.log.rollback(self.entries[to][0])
            except RollbackError:
                return
            raise AssertionError("what was not committed was abandoned")
        self.roll_back(to)

    @rule(back=st.integers(1, 3))
    def rollback_a_little(self, back: int) -> None:
        self.commit(True)
        self.roll_back(max(self.visible - 1 - back, self.first))

    def roll_back(self, to: int) -> None:
        found = self.log.rollback(self.entries[to][0])
        if to == self.visible - 1:
            assert found is None
            return
        assert found is not None and found.matchpoint == self.entries[to][0]
        assert found.last_seqno == len(self.entries) - 1
        del self.entries[to + 1 :]
        self.noop()

    @rule(share=st.floats(0, 1))
    def purge(self, share: float) -> None:
        self.log.purge(below=Seqno(int(self.visible * share)))
        assert self.log.first_seqno <= max(int(self.visible * share), self.first)
        self.first = self.log.first_seqno

    @rule(index=st.booleans())
    def reopen(self, index: bool) -> None:
        self.reader.close()
        self.log.close()
        self.visible = self.durable = len(self.entries)
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

    @precondition(lambda self: self.options.checksum)  # without, a torn payload is not known for one
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
            while (entry := entry_of(cursor)) is not None:
                found.append(entry)
        assert found == self.entries[max(start, self.first) : self.visible]

    @rule(number=st.integers(0, 1), steps=st.integers(1, 8))
    def follow(self, number: int, steps: int) -> None:
        """What a live cursor returned is a front of the truth; if that is no longer so, the next step says so."""
        follower = self.followers[number]
        try:
            for _ in range(steps):
                entry = entry_of(follower.cursor)
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
        # The one in the writer's process is never behind; the other one is up to date where it found the end.
        if entry is None or number == 0:
            end = follower.start + len(follower.returned)
            assert follower.returned == self.entries[follower.start : end]

    def hear(self, follower: Follower, error: AbandonedError) -> None:
        returned = follower.start + len(follower.returned) - 1
        assert error.seqno == returned > error.matchpoint.seqno
        follower.returned.clear()
        follower.start = max(error.matchpoint.seqno + 1, self.first)
        follower.cursor.seek(Seqno(follower.start))

    # --- invariants ----------------------------------------------------------------------------------

    @invariant()
    def the_ladder_holds(self) -> None:
        if not hasattr(self, "log"):
            return
        status = self.log.status()
        assert status.visible_seqno == self.visible - 1
        assert status.durable_seqno == self.durable - 1
        assert status.last_seqno == len(self.entries) - 1
        assert status.first_seqno == self.first
        covered = self.log.seqno_index.range
        assert (covered.first, covered.last) == (self.first, self.visible - 1)
        place = self.log.seqno_index.exact(covered.last)
        assert place == self.log._end.publishing.visible_lsn

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
            gone = [one.header.gtid for _, one in reader.abandoned()]
        assert not set(gone) & {one[0] for one in self.entries}


TestRollbackAgainstList = RollbackAgainstList.TestCase
TestRollbackAgainstList.settings = settings(stateful_step_count=30)

"""The log against a plain list: append, commit, sync, reopen, kill, rotate, purge, in any order Hypothesis finds.

conventions.md, tier property: `RuleBasedStateMachine` of Log vs list.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fix_log import PATH, make_fragment, open_reader, read_all
from tranlog.errors import DiskFullError, PurgedError
from tranlog.ids import Seqno
from tranlog.log.reading.cursor import Cursor
from tranlog.log.writing.log import Log, LogOptions, hold
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

Entry = tuple[str, bytes] | None
"""Event id and content of a transaction; None for a no-op."""


class LogAgainstList(RuleBasedStateMachine):
    """`entries[n]` is what seqno n holds; `visible` and `durable` count them."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.entries: list[Entry] = []
        self.visible = 0
        self.durable = 0
        self.first = 0
        self.epoch = 0
        self.open_parts: list[bytes] = []
        self.log: Log
        self.follower: Cursor
        self.followed = 0

    @initialize(
        segment_bytes=st.sampled_from([1_000, 2_500, 20_000]),
        buffer_bytes=st.sampled_from([1, 300, 50_000]),
        checksum=st.booleans(),
    )
    def begin(self, segment_bytes: int, buffer_bytes: int, checksum: bool) -> None:
        self.options = LogOptions(segment_bytes=segment_bytes, buffer_bytes=buffer_bytes, checksum=checksum)
        self.open()

    def open(self) -> None:
        self.log = Log.open(PATH, source_id="db1", options=self.options, disk=self.disk, clock=self.clock)
        self.epoch += 1
        assert self.log.epoch == self.epoch
        self.open_parts = []
        self.entries.append(None)
        self.visible = self.durable = len(self.entries)
        self.follower = self.log.cursor()
        self.follower.seek(Seqno(max(self.followed, self.log.first_seqno)))
        self.followed = self.follower.next_seqno

    def content_of(self, number: int, size: int) -> bytes:
        return (f"<{number}>".encode() * (size // 3 + 1))[:size]

    # --- rules ---------------------------------------------------------------------------------------

    @rule(size=st.integers(0, 800), more=st.integers(0, 4))
    def append(self, size: int, more: int) -> None:
        number = len(self.entries)
        for part in range(more):
            if not self.open_parts:
                self.rotated()
            self.open_parts.append(self.content_of(number + part, size))
            self.log.append(make_fragment(f"e{number}", self.open_parts[-1], last=False))
        if not self.open_parts:
            self.rotated()
        self.open_parts.append(self.content_of(number, size // 2))
        gtid = self.log.append(make_fragment(f"e{number}", self.open_parts[-1]))
        assert (gtid.seqno, gtid.epoch) == (number, self.epoch)
        self.entries.append((f"e{number}", b"".join(self.open_parts)))
        self.open_parts = []

    def rotated(self) -> None:
        """Before a first fragment a full segment is closed: what is complete is then durable and visible."""
        if self.is_full():
            self.visible = self.durable = len(self.entries)

    def is_full(self) -> bool:
        return self.log._pending.start + len(self.log._pending) >= self.options.segment_bytes

    @rule(size=st.integers(0, 800))
    def leave_open(self, size: int) -> None:
        if not self.open_parts:
            self.rotated()
        self.open_parts.append(self.content_of(len(self.entries), size))
        self.log.append(make_fragment(f"e{len(self.entries)}", self.open_parts[-1], last=False))

    @precondition(lambda self: self.open_parts)
    @rule()
    def abandon(self) -> None:
        self.log.abandon_open()
        self.open_parts = []

    @rule(sync=st.booleans())
    def commit(self, sync: bool) -> None:
        assert self.log.commit(sync=sync) == len(self.entries) - 1
        self.visible = len(self.entries)
        if sync:
            self.durable = self.visible

    @rule(room=st.integers(0, 500))
    def fill_the_disk(self, room: int) -> None:
        self.disk.room = room
        number = len(self.entries)
        rotates = not self.open_parts and self.is_full()
        self.open_parts.append(b"x" * 700)
        try:
            self.log.append(make_fragment(f"e{number}", self.open_parts[-1]))
            if rotates:
                self.visible = self.durable = number
            self.log.commit(sync=False)
            self.entries.append((f"e{number}", b"".join(self.open_parts)))
            self.visible = len(self.entries)
        except DiskFullError:
            # Everything since the last commit, or since a rotation that still worked, is refused.
            assert self.visible <= self.log.visible_seqno + 1 <= number
            assert self.log.visible_seqno + 1 in ((self.visible, number) if rotates else (self.visible,))
            self.visible = self.log.visible_seqno + 1
            self.durable = max(self.durable, self.log.durable_seqno + 1)
            del self.entries[self.visible :]
        self.open_parts = []
        self.disk.room = None

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.open()
        assert self.log.recovered.clean

    @rule()
    def kill(self) -> None:
        """The process ends here; what it has written stays, what it has not is gone."""
        self.disk.kill()
        with open_reader(self.disk) as reader:
            assert reader.range().last_seqno == self.visible - 1
        self.log = Log.open(PATH, source_id="db1", options=self.options, disk=self.disk, clock=self.clock)
        kept = self.log.last_seqno
        assert kept >= self.visible
        self.log.close()
        del self.entries[kept:]
        self.entries.append(None)
        self.epoch += 1
        self.followed = min(self.followed, kept)
        self.open()

    @precondition(lambda self: self.options.checksum)  # without, a torn payload is not known for one
    @rule(seed=st.integers(0, 1 << 20))
    def cut_the_power(self, seed: int) -> None:
        """What was not durable may be gone; what was is there."""
        self.disk = self.disk.after_crash(random.Random(seed))
        self.log = Log.open(PATH, source_id="db1", options=self.options, disk=self.disk, clock=self.clock)
        kept = self.log.last_seqno
        assert kept >= self.durable
        self.log.close()
        del self.entries[kept:]
        self.entries.append(None)
        self.epoch += 1
        self.followed = min(self.followed, kept)
        self.open()

    @rule(share=st.floats(0, 1), held=st.none() | st.floats(0, 1))
    def purge(self, share: float, held: float | None) -> None:
        below = int(self.visible * share)
        if held is not None:
            hold(PATH, "pipe", Seqno(int(self.visible * held)), disk=self.disk, clock=self.clock)
        self.log.purge(below=Seqno(below))
        assert self.log.first_seqno <= max(below, self.first)
        if held is not None:
            assert self.log.first_seqno <= max(int(self.visible * held), self.first)
        self.first = self.log.first_seqno

    @rule(share=st.floats(0, 1))
    def seek_and_read(self, share: float) -> None:
        wanted = int(self.visible * share)
        with self.log.cursor() as cursor:
            try:
                cursor.seek(Seqno(wanted))
            except PurgedError:
                assert wanted < self.first
                return
            assert wanted >= self.first
            self.compare(cursor, wanted)

    @rule()
    def follow(self) -> None:
        """A cursor that stays open sees each transaction once, in order, as it becomes visible."""
        try:
            self.followed = self.compare(self.follower, self.followed)
        except PurgedError:
            assert self.followed < self.first
            self.followed = self.first
            self.follower.seek(Seqno(self.first))

    def compare(self, cursor: Cursor, start: int) -> int:
        at = start
        while (transaction := cursor.next()) is not None:
            assert transaction.header.seqno == at
            entry = self.entries[at]
            if entry is None:
                assert transaction.is_noop()
            else:
                assert (transaction.header.event_id, b"".join(transaction.payloads())) == entry
            at += 1
        assert at == max(self.visible, start)
        return at

    # --- invariants ----------------------------------------------------------------------------------

    @invariant()
    def the_ladder_holds(self) -> None:
        """glossary: first <= ... <= visible <= last, durable <= last."""
        if not hasattr(self, "log"):
            return
        status = self.log.status()
        assert status.visible_seqno == self.visible - 1
        assert status.durable_seqno == self.durable - 1
        assert status.last_seqno == len(self.entries) - 1
        assert status.first_seqno == self.first
        assert status.first_seqno <= status.committed_seqno <= status.visible_seqno <= status.last_seqno

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        with open_reader(self.disk) as reader:
            assert reader.range().last_seqno == self.visible - 1
            found = [one.header.seqno for one in read_all(reader.cursor())]
            assert found == list(range(self.first, self.visible))
        self.log.close()


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(stateful_step_count=30)

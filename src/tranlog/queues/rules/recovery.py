"""Recovery of a store from its containers: where the log ends, what is cut off, and when to refuse.

Owns the walk over records and groups, and the distinction between a torn tail and damage. `files.recovering` reads the
files and carries out the verdict. The hard idea: an end is accepted only if no record that a sync proved comes after
it.

Source: docs/format.md, "Groups, order, what a recovery believes"; Design for Hybrid SQL/CLFS-Based Store in Qpid,
"Recovery".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tranlog.ids import Lsn
from tranlog.lsn import lsn, lsn_segment, lsn_text
from tranlog.queues.rules import records
from tranlog.queues.rules.containers import SYNC_BYTES
from tranlog.queues.rules.records import (
    CHECKPOINT,
    CONTROL,
    FIRST,
    HEADER_BYTES,
    LAST,
    NEXT,
    SYNC,
    QueueRecord,
    Stopped,
    find_proofs,
    parse,
)
from tranlog.queues.rules.runs import RunWalk
from tranlog.queues.rules.state import NO_LSN, Contradiction, QueueState, positions_of, section_start


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDamage:
    """Why a store is not opened: the place, and what is wrong there."""

    number: int
    offset: int
    why: str


def check_row(numbers: Sequence[int]) -> StoreDamage | None:
    """Check that the containers in use, given in rising order, follow each other."""
    for before, after in pairwise(numbers):
        if after != before + 1:
            return StoreDamage(number=before + 1, offset=0, why="it is missing, and there are containers after it")
    return None


def check_begin(headers: Sequence[records.ContainerHeader]) -> bool:
    """Whether the oldest container in use is still the one from when the newest one was begun."""
    return headers[0].number <= lsn_segment(headers[-1].base_lsn)


def shows_given_back(oldest: records.ContainerHeader, number: int, free: records.ContainerHeader) -> bool:
    """Whether the header of the free container `number` shows that those below the oldest in use were freed.

    Containers are freed in order, so the last one shows it, under its own number or while it is taken into use again.
    """
    last = number == free.number == oldest.number - 1
    return free.store_id == oldest.store_id and (last or lsn_segment(free.base_lsn) >= oldest.number)


@dataclass(slots=True)
class LogScan:
    """A walk over the containers, from the lowest, and its result.

    `epoch` and `counter` are the last ones that a record named; `proven` is the highest durable_lsn. `end_number` and
    `end_offset` are the place after the last record that counts, `stop` what stands there. `ends` has the end of each
    container that ends with a Next.
    """

    state: QueueState
    epoch: int = 0
    counter: int = 0
    proven: Lsn = NO_LSN
    end_number: int = 0
    end_offset: int = HEADER_BYTES
    stop: Stopped | None = None
    damage: StoreDamage | None = None
    clean: bool = False
    groups_cut: int = 0
    last_type: int = 0
    _group: list[tuple[QueueRecord, int]] | None = field(default_factory=list)
    # Empty, not None, at first: the first records may be the rest of a group that began below the base, and was whole.

    def look_over(self, number: int, raw: bytes, *, walking: bool) -> bool:
        """Walk over a container, or look at what comes after the end; return whether to walk over the next one."""
        walked = walking and self.walk(number, raw)
        if not walked:
            self.behind(number, raw, self.end_offset if walking else HEADER_BYTES)
        return walked

    def walk(self, number: int, raw: bytes) -> bool:
        """Walk over a container, whose bytes are `raw`; return whether to walk over the next one."""
        runs = RunWalk(self.state, raw, number)
        more = self._walk(number, memoryview(raw), runs)
        runs.settle()
        return more

    def _walk(self, number: int, view: memoryview, runs: RunWalk) -> bool:
        offset = HEADER_BYTES
        self.end_number, self.end_offset = number, offset
        while True:
            if not self._group and (end := self._take_run(runs, offset)):
                self.end_offset = offset = end
            found = parse(view, offset, number, self.epoch)
            if isinstance(found, Stopped):
                self.stop = found
                return False
            if found.record_type not in CONTROL:
                runs.settle()
            try:
                self._take(found)
            except Contradiction as exc:
                self.damage = StoreDamage(number=number, offset=offset, why=str(exc))
                return False
            self.epoch = found.epoch
            self.last_type = found.record_type
            offset += found.length
            self.end_offset = offset
            if found.record_type == NEXT:
                return True

    def _take_run(self, runs: RunWalk, offset: int) -> int:
        """Take the most common groups of a log; return the offset after them, 0 if there are none here."""
        end, self.epoch = runs.take(offset, self.epoch)
        if end == offset:
            return 0
        self.last_type = records.DELETE  # no Sync
        self._group = None
        return end

    def _take(self, record: QueueRecord) -> None:
        if record.record_type in CONTROL:
            self._control(record)
            return
        if record.flags & FIRST:
            self.groups_cut += bool(self._group)
            self._group = []
        if self._group is None:
            raise Contradiction("a record that belongs to no group")
        # A section is not kept: a group may be as large as the messages in it.
        cut = section_start(record)
        size = 0 if cut is None else len(record.body) - cut
        record_type, flags, epoch, place, undo_prev, body = record
        kept = memoryview(bytes(body if cut is None else body[:cut]))
        self._group.append((QueueRecord(record_type, flags, epoch, place, undo_prev, kept), size))
        if record.flags & LAST:
            for one, section in self._group:
                self.state.apply(one, section)
            self._group = None

    def _control(self, record: QueueRecord) -> None:
        match record.record_type:
            case records.NEXT:
                if records.NEXT_BODY.unpack(record.body)[0] != self.end_number + 1:
                    raise Contradiction("a Next that leads to another container than the next one")
                return
            case records.OPEN:
                _, _, counter = records.OPEN_BODY.unpack(record.body)
            case _:
                proven, _, counter = records.PROOF_BODY.unpack_from(record.body)
                if proven > record.lsn:
                    raise Contradiction("a record that proves the records after it")
                self.proven = max(self.proven, Lsn(proven))
                if record.record_type == CHECKPOINT:
                    self.state.positions = positions_of(record)
        if counter < self.counter:
            raise Contradiction(f"the catalogue's counter goes back from {self.counter} to {counter}")
        self.counter = counter

    def behind(self, number: int, raw: bytes, offset: int) -> None:
        """Look at the bytes at and after a place that no record of the log reaches."""
        if self.damage is not None:
            return
        end = lsn(self.end_number, self.end_offset)
        for place, durable in find_proofs(raw, offset, number):
            if durable > end:
                why = "the log ends there" if self.stop is None else self.stop.why
                self.damage = StoreDamage(
                    number=self.end_number,
                    offset=self.end_offset,
                    why=f"{why}, and the record at {lsn_text(place)} says that it was durable up to "
                    f"{lsn_text(durable)}",
                )
                return

    def finish(self, newest: int) -> None:
        """Judge the end, after the walk over all containers. `newest`: the highest number."""
        if self.damage is not None:
            return
        if self.stop is None:  # the last one that was read ends in a Next
            self.damage = StoreDamage(number=newest + 1, offset=0, why="it is missing, and the one before leads to it")
        self.groups_cut += bool(self._group)
        self.clean = self.last_type == SYNC and self.stop is not None and not self.stop.bad
        self.clean = self.clean and self.proven == lsn(self.end_number, self.end_offset - SYNC_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCopy:
    """Why log and catalogue do not belong together: one of them is an older copy."""

    older: str
    why: str


def judge_catalogue(scan: LogScan, *, counter: int, epoch: int) -> OtherCopy | None:
    """Compare the catalogue's counter and epoch with those of the log."""
    if counter < scan.counter:
        return OtherCopy(
            older="catalogue",
            why=f"its counter is {counter}, and the log has seen {scan.counter}: what was declared since is not in it, "
            f"and {len(scan.state.messages)} messages of the log may be on queues that it does not know",
        )
    if epoch > scan.epoch:
        return OtherCopy(
            older="log",
            why=f"its last epoch is {scan.epoch}, and the catalogue was opened in epoch {epoch}: messages that were "
            "acknowledged since would come back",
        )
    return None


def next_epoch(scan: LogScan, headers: Sequence[records.ContainerHeader], catalogue: int) -> int:
    """Return the epoch of an opening: above every epoch that log or catalogue names."""
    return max(scan.epoch, catalogue, *(header.epoch for header in headers)) + 1

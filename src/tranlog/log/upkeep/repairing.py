"""Carrying out a repair: under the writer's lock, keeping in `cut/` whatever goes, and saying what was lost.

Owns the order on the disk; what to do is `repair`'s decision. The hard idea: a repair can be cut off at any call
and is then simply run again. So what goes is copied and synced before it goes; what will be lost is written down
before anything is; the epoch that was assigned last is, too, so that no GTID is assigned twice; and the newest
segments go first (or, from the front, the oldest), so that no step leaves a hole that was not there.

Source: docs/format.md, "cut/".
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from tranlog.clock import SYSTEM_CLOCK, Clock
from tranlog.disk import OS_DISK, Disk
from tranlog.errors import LogLockedError, LogMissingError, RepairRefusedError
from tranlog.ids import HISTORY_BYTES, NO_SEQNO, Seqno, segment_name
from tranlog.log.files.commit_point import is_member, write_missing
from tranlog.log.files.directory import (
    CUT_DIR,
    LOCK_NAME,
    directory_of,
    join,
    keep_bytes,
    list_segments,
    sign_lock,
    storing,
    take_lock,
)
from tranlog.log.files.holds import read_holds
from tranlog.log.files.index_table import INDEX_NAME
from tranlog.log.files.positions import POSITIONS_NAME, Positions, encode_positions, read_positions
from tranlog.log.records.spill import SPILL_TABLE_NAME, spill_name
from tranlog.log.rules.repair import (
    CannotRepair,
    CutOff,
    Decision,
    Keep,
    NothingToRepair,
    Remove,
    RepairPlan,
    Rewrite,
    Step,
    plan,
)
from tranlog.log.upkeep.verify import Progress, VerifyReport, examine

logger = logging.getLogger(__name__)

REPORT_PREFIX: Final = "repair-"
"""In cut/: what a repair was about to do and to lose, as JSON, written before it began."""

Agree = Callable[[RepairPlan, VerifyReport], None]
"""Called with what will be done, under the lock; raises to decline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOutcome:
    """How a repair went. `before` is the check that it acted upon; `decision` what that asked for.

    `after` is the check of the repaired log, None where nothing was done. `kept_in` are the files that hold what was
    taken away, and `report` the one that says what was lost, the last where damage lay after damage.
    """

    before: VerifyReport
    decision: RepairPlan | NothingToRepair
    after: VerifyReport | None
    kept_in: tuple[str, ...]
    report: str | None


def repair(
    path: str | os.PathLike[str],
    *,
    keep: Keep = Keep.FRONT,
    dry_run: bool = False,
    agree: Agree | None = None,
    disk: Disk = OS_DISK,
    clock: Clock = SYSTEM_CLOCK,
    progress: Progress | None = None,
) -> RepairOutcome:
    """Make a damaged log one that opens and verifies clean; with `dry_run` only say how, without the lock.

    What only a repaired log shows to be damaged is repaired as well, and `agree` is asked again. A repair that was
    interrupted is finished by another one. Raises LogLockedError, LogMissingError,
    LogUnreadableError, LogCodecError, HoldError, RepairRefusedError, DiskFullError, DiskFailedError, and what
    `agree` raises.
    """
    directory = directory_of(path)
    if not list_segments(directory, disk):
        raise LogMissingError(path=directory, why="it holds no segment (thl.data.*)")
    if dry_run:
        before, decision, _ = _look(directory, keep, disk, clock, progress)
        return RepairOutcome(before=before, decision=decision, after=None, kept_in=(), report=None)
    with storing(directory):
        lock = take_lock(directory, disk)
        try:
            sign_lock(directory, disk)
            before, decision, history = _look(directory, keep, disk, clock, progress)
            found, further, done = before, decision, list[str]()
            report = None
            while not isinstance(further, NothingToRepair):
                if agree is not None:
                    agree(further, found)
                if not lock.held():
                    raise LogLockedError(path=directory, holder=f"{LOCK_NAME} was replaced or removed meanwhile")
                report = write_report(directory, disk, further, found)
                done += _carry_out(directory, disk, further, history)
                found, further, history = _look(directory, keep, disk, clock, progress)
            after = None if report is None else found
            return RepairOutcome(before=before, decision=decision, after=after, kept_in=tuple(done), report=report)
        finally:
            lock.release()


def _look(
    path: str, keep: Keep, disk: Disk, clock: Clock, progress: Progress | None
) -> tuple[VerifyReport, RepairPlan | NothingToRepair, bytes]:
    """Return what was found, what to do, and the identity of the log's history: a new one where nothing bears it."""
    report, findings = examine(path, disk=disk, progress=progress)
    history = os.urandom(HISTORY_BYTES) if findings.history is None else findings.history
    findings = replace(findings, history=history)
    holds = [(one.name, one.restart_seqno) for one in read_holds(path, disk=disk)]
    decision: Decision = plan(findings, keep=keep, now_ms=clock.now_ms(), holds=holds)
    if isinstance(decision, CannotRepair):
        raise RepairRefusedError(path=path, why=decision.why)
    return report, decision, history


def write_report(path: str, disk: Disk, decision: RepairPlan, before: VerifyReport) -> str:
    """Write down what will be done and lost, durable, before it is; return where."""
    directory = join(path, CUT_DIR)
    disk.make_dir(directory)
    disk.sync_dir(path)
    count = 1
    while disk.exists(name := join(directory, f"{REPORT_PREFIX}{count:04d}.json")):
        count += 1
    told = {"problems": before.problems, "plan": decision}
    with closing(disk.open(name, write=True, create=True)) as file:
        raw = msgspec.json.format(msgspec.json.encode(told), indent=1)
        file.pwrite(raw + b"\n", 0)
        file.sync()
    disk.sync_dir(directory)
    return name


def _carry_out(path: str, disk: Disk, decision: RepairPlan, history: bytes) -> list[str]:
    """Do what was decided; return the files that hold what was taken away. Raises OSError."""
    for name in (INDEX_NAME, SPILL_TABLE_NAME):
        if disk.exists(join(path, name)):
            disk.unlink(join(path, name))
            disk.sync_dir(path)
    _note_missing(path, disk, decision)
    _forget_positions(path, disk, decision, history)
    kept = [_keep_spill(path, disk, number) for number in decision.spill if disk.exists(join(path, spill_name(number)))]
    return kept + take_steps(path, disk, decision.steps)


def take_steps(path: str, disk: Disk, steps: Sequence[Step]) -> list[str]:
    """Do what was decided of the segments; return the files that hold what was taken away. Raises OSError."""
    kept = []
    for step in steps:
        name = segment_name(step.segment)
        with closing(disk.open(join(path, name), write=True)) as file:
            match step:
                case Rewrite(offset=offset, size=size):
                    if size:
                        kept.append(keep_bytes(path, disk, file, name, offset, offset + size))
                    if step.ends:
                        file.truncate(offset)
                        file.sync()
                    if step.raw:
                        file.pwrite(step.raw, offset)
                        file.sync()
                    logger.info("Written again: %s. segment=%s offset=%d", step.why, name, offset)
                case CutOff(offset=offset, size=size):
                    kept.append(keep_bytes(path, disk, file, name, offset, offset + size))
                    file.truncate(offset)
                    file.sync()
                    logger.info("Cut off. segment=%s offset=%d bytes=%d", name, offset, size)
                case Remove(size=size):
                    kept.append(keep_bytes(path, disk, file, name, 0, size))
                    disk.unlink(join(path, name))
                    disk.sync_dir(path)
                    logger.info("Removed. segment=%s bytes=%d", name, size)
    return kept


def _keep_spill(path: str, disk: Disk, number: int) -> str:
    """Copy a spill segment: without the transactions that refer to it the next writer takes it away."""
    with closing(disk.open(join(path, spill_name(number)))) as file:
        return keep_bytes(path, disk, file, spill_name(number), 0, file.size())


def _note_missing(path: str, disk: Disk, decision: RepairPlan) -> None:
    """In the log of a member of a group, keep that its end goes: the member may have acked it."""
    left, lost = read_positions(path, disk), decision.lost
    ends = [span.last for span in lost.gtids] + [last for _, last in lost.unreadable]
    ends += [decision.last_seqno if left is None else left.durable_seqno]
    unread = lost.unread_bytes and decision.keep is Keep.FRONT
    last = max(*ends, Seqno(decision.last_seqno + 1)) if unread else max(ends)
    if last > decision.last_seqno and is_member(path, disk):
        write_missing(path, last, disk)


def _forget_positions(path: str, disk: Disk, decision: RepairPlan, history: bytes) -> None:
    """Keep nothing of the positions but epoch and history: readers scan, and the next writer begins a new one."""
    with closing(disk.open(join(path, POSITIONS_NAME), write=True, create=True)) as file:
        left = Positions(boot_id="", identity=0, epoch=decision.epoch, first_seqno=NO_SEQNO, history=history)
        file.pwrite(encode_positions(left), 0)
        file.sync()
    disk.sync_dir(path)

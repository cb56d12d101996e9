"""What tests of a node's log share: one on a disk in memory, and what a feeder would bring from one to another."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fix_log import HISTORY, PATH, make_fragment
from tranlog.change import Change, Fragment, Payload, Statement
from tranlog.log.options import LogOptions
from tranlog.log.reading.text import change_json
from tranlog.log.records.spill import parse_reference
from tranlog.payload import encode
from tranlog.replication.acting.following import LogChange, NodeLog
from tranlog.replication.rules.effects import BeginReign, EndReign, Put, PutChunk
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk


def follow(disk: SimDisk, clock: ManualClock | None = None, **options: int) -> NodeLog:
    """Open a node's log; small transactions spill."""
    given = LogOptions(**({"ahead_bytes": 0, "spill_above": 3_000} | options))  # type: ignore[arg-type]
    clock = clock or ManualClock()
    return NodeLog.follow(PATH, source_id="db1", history=HISTORY, options=given, disk=disk, clock=clock)


def bring(source: NodeLog, log: NodeLog, limit: int = 1 << 20) -> None:
    """Have a log get everything that another one has more, as a feeder sends it."""
    part, rest = 0, None
    while log.last != source.last:
        out = source.outgoing(log.last.seqno, source.last.seqno, limit, rest)
        if out.chunks is not None:
            for chunk in out.chunks(log.open_spills().get(out.oid, 0)):
                assert log.carry_out(PutChunk(chunk, 0, len(chunk.raw))) is LogChange.NOTHING
        assert log.carry_out(Put(out.raw, part, out.rest is None)) is LogChange.LOGGED
        part, rest = (0, None) if out.rest is None else (part + 1, out.rest)
        assert (log.last == out.last) is (rest is None)


def copied(log: NodeLog) -> tuple[list[tuple[int, bytes]], list[object]]:
    """Return what copies of a log have in common: every record's bytes, and of those that refer to chunks what tells
    no place."""
    references: list[object] = []
    with log.log.cursor() as cursor:
        for stretch in cursor.stretches():
            if stretch.spilled is not None:
                (record,) = stretch.spilled.in_log()
                told = parse_reference(record.payload)
                assert told is not None
                places = (told.oid, told.chunks, told.fragments, told.raw_bytes)
                references.append((record.header.gtid, record.header.event_id, places, list(stretch.chunks())))
    with log.log.cursor() as cursor:
        return list(cursor.raw()), references


def ops_of(change: Change) -> dict[str, object]:
    """Return a change as rollback data has it."""
    shown = change_json(change)
    return {name: getattr(shown, name) for name in shown.__struct_fields__}


def write(log: NodeLog, *names: str) -> None:
    """Commit transactions of a statement for each letter of a name."""
    for name in names:
        log.log.append(writing(name))
    log.sync()


def writing(name: str) -> Fragment:
    """Return a transaction of a statement for each letter of a name."""
    changes = tuple([Statement(schema="s", sql=letter, ddl=False) for letter in name])
    return make_fragment(name, encode(Payload(changes=changes)))


def reign(log: NodeLog, epoch: int, *names: str) -> None:
    """Commit transactions in an epoch."""
    log.carry_out(BeginReign(epoch))
    write(log, *names)
    log.carry_out(EndReign())


def cut_everywhere(
    before: Callable[[SimDisk], object],
    act: Callable[[SimDisk], object],
    check: Callable[[SimDisk], None],
    seeds: int,
) -> int:
    """Cut the power at each call of `act`, let the disk lose what it may, and check; return how many calls."""
    disk = SimDisk()
    before(disk)
    begun = disk.calls
    act(disk)
    calls = disk.calls - begun
    for number in range(1, calls + 1):
        for seed in range(seeds):
            disk = SimDisk()
            before(disk)
            disk.cut_at = disk.calls + number
            with pytest.raises(PowerCut):
                act(disk)
            check(disk.after_crash(random.Random(1000 * number + seed)))
    return calls

"""log/writing/journal.py: what a sync record says is so, whatever comes while the sync runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from fix_log import PATH, make_fragment, open_log, segment_path, sync_held
from tranlog.ids import Seqno
from tranlog.log.records.format import HEADER, RecordHeader, SyncRecord, parse_record
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log
from tranlog.lsn import lsn
from tranlog.testing.disk import SimDisk


def _append_open_and_abandon(log: Log) -> None:
    log.append(make_fragment("open", bytes(300), last=False))
    log.abandon_open()


def _fill_an_allocation(log: Log) -> None:
    log.allocate([make_fragment("allocated", bytes(300))]).complete(sync=False)


def _show_what_came(log: Log) -> None:
    log.append(make_fragment("shown", bytes(300)))
    log.commit(sync=False)


BETWEEN: dict[str, Callable[[Log], object]] = {
    "nothing": lambda log: None,
    "an append": lambda log: log.append(make_fragment("between", bytes(300))),
    "what is visible": _show_what_came,
    "one that is given up": _append_open_and_abandon,
    "an allocation": _fill_an_allocation,
    "a segment": lambda log: log.add_segment(),
}


def records(disk: SimDisk, number: int = 1) -> list[tuple[int, RecordHeader | SyncRecord]]:
    """Return the events and sync records of a segment, each with its offset."""
    raw, at, found = bytes(disk.content(segment_path(number))), HEADER.size, []
    while isinstance(outcome := parse_record(raw, at, number << 32 | at), RecordHeader | SyncRecord):
        found.append((at, outcome))
        at += outcome.record_length
    return found


@pytest.mark.parametrize("between", BETWEEN)
def test_a_sync_record_says_what_is_so_whatever_came_while_the_sync_ran(between: str) -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append(make_fragment("first"))
    log.commit()
    log.append(make_fragment("second"))
    with sync_held(log, disk):
        beside = threading.Thread(target=BETWEEN[between], args=(log,))
        beside.start()
        beside.join(0.1)  # the segment comes after the sync
    beside.join(60)
    assert not beside.is_alive()
    for number in range(3):
        log.append(make_fragment(f"after {number}"))
        log.commit()
    log.close()
    report = verify(PATH, disk=disk)
    assert report.sound, report
    with open_log(disk) as log:
        hashes = {seqno: log.h(Seqno(seqno)) for seqno in range(log.visible_seqno + 1)}
    for number in range(1, 3 if between == "a segment" else 2):
        durable = 0
        for at, record in records(disk, number):
            if isinstance(record, SyncRecord):
                assert durable <= record.durable_lsn <= lsn(number, at)
                assert record.seqno < 0 or record.h == hashes[record.seqno]
                durable = record.durable_lsn

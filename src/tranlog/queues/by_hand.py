"""A message store as an operator looks at it: its containers, its records, and a check of them.

Owns reading a store's files without the lock and without changing a byte. While a process has the store open, this
shows what was written when each file was read. Damage is judged as recovery judges it.

Source: docs/format.md, "The message store".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec

from tranlog.disk import Disk, OsDisk
from tranlog.ids import Lsn
from tranlog.lsn import lsn
from tranlog.queues.files.beside import ContainersBeside, of_one_moment, read_store, scan_beside
from tranlog.queues.files.recovering import read_headers
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.rules.records import HEADER_BYTES, NEXT, QueueRecord, first_lsn, parse, stream_of
from tranlog.queues.store import MessageStore


class ContainerLook(msgspec.Struct, frozen=True, kw_only=True):
    """A container as it stands on the disk. A free one has a number and nothing else.

    `last_lsn` is that of its last record, `written_bytes` counts header and records, `needed` the messages and
    undecided transactions that stand there, `needed_bytes` the header and content of those messages.
    """

    number: int
    free: bool
    epoch: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    written_bytes: int = 0
    needed: int = 0
    needed_bytes: int = 0


class StoreVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check of a whole store. `torn`: the bytes at the end that a crash left there."""

    containers: int
    messages: int
    in_doubt: int
    queues: int
    unknown_queues: int
    torn: str


def _records(files: ContainersBeside, number: int, epoch: int = 0) -> Iterator[QueueRecord]:
    """Go over the records of a container, up to whatever is none."""
    try:
        raw, offset = memoryview(files.read(number)), HEADER_BYTES
    except FileNotFoundError:
        return  # its owner has given it back meanwhile: nothing in it is needed any more
    while isinstance(found := parse(raw, offset, number, epoch), QueueRecord):
        yield found
        epoch = found.epoch
        offset += found.length
        if found.record_type == NEXT:
            return


def list_containers(path: str) -> list[ContainerLook]:
    """Return a store's containers, those in use first. Raises as `verify_store`, but for the catalogue."""
    files = ContainersBeside(path, OsDisk())
    headers, scan = scan_beside(files)
    state = scan.state
    needed: dict[int, int] = {}
    for message in state.messages.values():
        number = message.stands >> 32
        needed[number] = needed.get(number, 0) + message.total_length
    found = []
    for header in headers:
        last, written = first_lsn(header.number), HEADER_BYTES
        for record in _records(files, header.number):
            last = record.lsn
            written += record.length
        found.append(
            ContainerLook(
                number=header.number,
                free=False,
                epoch=header.epoch,
                first_lsn=first_lsn(header.number),
                last_lsn=last if written > HEADER_BYTES else 0,
                written_bytes=written,
                needed=state.live.get(header.number, 0),
                needed_bytes=needed.get(header.number, 0),
            )
        )
    return found + [ContainerLook(number=number, free=True) for number in files.free]


def dump_store(path: str, *, stream: str | None = None, thing: Lsn | None = None) -> Iterator[QueueRecord]:
    """Return the records: all, those of a stream, or of one message or transaction by its LSN.

    Raises StoreMissingError, StoreDamagedError for a damaged header. A damaged record ends what is shown of its
    container; after all others it is told, as `verify_store` does.
    """
    files = ContainersBeside(path, OsDisk())
    of_one_moment(files, read_headers)
    epoch = 0
    for number in files.in_use:
        for record in _records(files, number, epoch):
            epoch = record.epoch
            wanted = stream is None or stream_of(record.record_type) == stream
            if wanted and (thing is None or thing in (record.lsn, record.undo_prev)):
                yield record
    scan_beside(files)


def verify_store(path: str, *, disk: Disk | None = None) -> StoreVerdict:
    """Check every container, every record, and log against catalogue. Raises StoreDamagedError, CatalogueError."""
    files = ContainersBeside(path, OsDisk() if disk is None else disk)
    scan, catalogue = read_store(files)
    state, known = scan.state, {queue.id for queue in catalogue.queues.values()}
    state.abort_open()
    unknown = state.drop_unknown(known)
    end = lsn(scan.end_number, scan.end_offset)
    return StoreVerdict(
        containers=len(files.in_use),
        messages=len(state.messages) - len(state.homeless()),
        in_doubt=len(state.transactions),
        queues=len(known),
        unknown_queues=len({queue for _, queue in unknown}),
        torn=f"{end >> 32}:{end & 0xFFFFFFFF}: {scan.stop.why}" if scan.stop is not None and scan.stop.bad else "",
    )


def open_by_hand(path: str, options: QueueStoreOptions | None = None) -> MessageStore:
    """Open a store that is there, for one command. Raises as `MessageStore.open`."""
    ContainersBeside(path, OsDisk())
    return open_or_make(path, QueueStoreOptions() if options is None else options)


def open_or_make(path: str, options: QueueStoreOptions) -> MessageStore:
    """Open a store for one command; create it with these options if it is missing. Raises as `MessageStore.open`."""
    return MessageStore.open(path, options=dataclasses.replace(options, ack_sync_s=None))

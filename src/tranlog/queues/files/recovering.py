"""Opening a store: reading its containers, judging them, and writing what that requires.

Owns the order of the nine steps; `rules.recovery` decides. The hard idea: nothing is changed before everything has been
judged, and nothing is freed before the new epoch is durable. So if an opening is interrupted at any point, the next one
repeats it with the same result.

Source: docs/format.md, "Groups, order, what a recovery believes"; Design for Hybrid SQL/CLFS-Based Store in Qpid,
"Recovery".
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tranlog.clock import Clock
from tranlog.disk import Disk
from tranlog.errors import CatalogueError, StoreDamagedError
from tranlog.ids import Lsn
from tranlog.log.files.directory import keep_bytes
from tranlog.lsn import lsn, lsn_offset, lsn_segment, lsn_text
from tranlog.queues.files.catalogue import Catalogue
from tranlog.queues.files.containers import ContainerFiles
from tranlog.queues.files.journal import QueueJournal
from tranlog.queues.rules.containers import Need
from tranlog.queues.rules.records import (
    DELETE,
    DEQUEUE,
    DEQUEUE_BODY,
    HEADER_BYTES,
    OPEN,
    OPEN_BODY,
    OVERHEAD,
    QUEUE_GONE,
    ROLLBACK,
    WHOLE,
    ContainerHeader,
    container_name,
    end_before_zeros,
    first_lsn,
)
from tranlog.queues.rules.recovery import (
    LogScan,
    StoreDamage,
    check_begin,
    check_row,
    judge_catalogue,
    shows_given_back,
)
from tranlog.queues.rules.state import NO_LSN, Message, QueueState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRecovery:
    """What an opening found and did. `cut`: the file with the bytes that were cut off the end.

    `dropped`: places on queues that are not in the catalogue. `deleted`: messages that were on no queue or incomplete.
    `rolled_back`: transactions without an outcome. `groups_cut`: incomplete groups.
    """

    created: bool
    clean: bool
    epoch: int
    messages: int
    in_doubt: int
    rolled_back: int = 0
    dropped: int = 0
    deleted: int = 0
    groups_cut: int = 0
    cut: str | None = None


def create_containers(files: ContainerFiles, initial: int, *, now_ms: int) -> None:
    """Create the containers of a new store, and take the first one into use. Continues an interrupted creation."""
    files.check_free()
    while len(files.free) < initial:
        files.make_free()
    files.take(1, epoch=0, base=first_lsn(1), now_ms=now_ms)


def _refuse(files: ContainerFiles, damage: StoreDamage | None) -> None:
    if damage is not None:
        name = container_name(damage.number)
        raise StoreDamagedError(path=files.path, file=name, offset=damage.offset, why=damage.why)


def read_headers(files: ContainerFiles) -> list[ContainerHeader]:
    """Read the headers of the containers in use; the length of all is the first one's. Raises StoreDamagedError."""
    _refuse(files, check_row(files.in_use))
    headers = [files.read_header(number) for number in files.in_use]
    for header in headers:
        if (header.container_bytes, header.store_id) != (headers[0].container_bytes, headers[0].store_id):
            why = "its header names another length, or another store, than the ones before it"
            raise StoreDamagedError(path=files.path, file=container_name(header.number), offset=0, why=why)
    files.container_bytes, files.store_id = headers[0].container_bytes, headers[0].store_id
    if not check_begin(headers) and not any(
        header is not None and shows_given_back(headers[0], number, header)
        for number, header in ((number, files.read_free_header(number)) for number in files.free)
    ):
        newest = container_name(headers[-1].number)
        why = f"it is missing: it was in use when {newest} was begun, and was not given back since"
        raise StoreDamagedError(path=files.path, file=container_name(headers[0].number - 1), offset=0, why=why)
    return headers


def scan_log(files: ContainerFiles, state: QueueState) -> LogScan:
    """Walk over all containers. Raises StoreDamagedError if the log is damaged."""
    scan = LogScan(state=state)
    walking = True
    for number in files.in_use:
        walking = scan.look_over(number, files.read(number), walking=walking)
    scan.finish(files.in_use[-1])
    _refuse(files, scan.damage)
    return scan


def check_catalogue(scan: LogScan, files: ContainerFiles, catalogue: Catalogue) -> None:
    """Compare log and catalogue. Raises CatalogueError."""
    if catalogue.store_id != files.store_id:
        raise CatalogueError(
            path=catalogue.path,
            why=f"it is that of the store {catalogue.store_id.hex()}, and the log is that of {files.store_id.hex()}",
        )
    other = judge_catalogue(scan, counter=catalogue.counter, epoch=catalogue.epoch)
    if other is not None:
        raise CatalogueError(path=catalogue.path, why=f"the {other.older} is an older copy: {other.why}")


class StoreOpening:
    """The steps that follow the scan, in order. Raises OSError, and what the journal raises."""

    def __init__(
        self, disk: Disk, clock: Clock, files: ContainerFiles, catalogue: Catalogue, scan: LogScan, epoch: int
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._files = files
        self._catalogue = catalogue
        self._scan = scan
        self._epoch = epoch

    def run(self, journal: QueueJournal, *, created: bool) -> StoreRecovery:
        """Repair what a crash left, begin an epoch, and delete messages that are on no queue."""
        scan, state = self._scan, self._scan.state
        kept = self._end_the_log()
        rolled_back = state.abort_open()
        dropped = state.drop_unknown({queue.id for queue in self._catalogue.queues.values()})
        self._begin_epoch(journal)
        deleted = self._let_go(journal, rolled_back, dropped)
        for what, count in (("messages on no queue", deleted), ("places on unknown queues", len(dropped))):
            if count:
                logger.warning("Recovery dropped %s. path=%s count=%d", what, self._files.path, count)
        return StoreRecovery(
            created=created,
            clean=scan.clean,
            epoch=self._epoch,
            messages=len(state.messages),
            in_doubt=len(state.transactions),
            rolled_back=len(rolled_back),
            dropped=len(dropped),
            deleted=deleted,
            groups_cut=scan.groups_cut,
            cut=kept,
        )

    def _end_the_log(self) -> str | None:
        """Keep what follows the end, write zeros there, and write again what no Sync proves; synced."""
        scan, files = self._scan, self._files
        files.check_free()
        self._disk.sync_dir(files.path)  # a directory entry may be there and not be durable
        if scan.clean:
            return None
        kept = None
        number, end = scan.end_number, scan.end_offset
        raw = files.read(number)
        behind = raw[end : end_before_zeros(raw)]
        file = files.file(number)
        if behind:
            if scan.stop is not None and scan.stop.bad:
                stop = end + len(behind)
                kept = keep_bytes(files.path, self._disk, file, container_name(number), end, stop)
                logger.warning("The end of a message store was cut off. kept=%s why=%s", kept, scan.stop.why)
            file.pwrite(bytes(len(behind)), end)
        # After a failed sync the system may take bytes for written that are not.
        for one in range(max(lsn_segment(scan.proven), files.in_use[0]), number + 1):
            stop = end if one == number else files.container_bytes
            begin = lsn_offset(scan.proven) if one == lsn_segment(scan.proven) else HEADER_BYTES
            if begin < stop:
                files.file(one).pwrite(files.file(one).pread(stop - begin, begin), begin)
            files.file(one).sync()
        return kept

    def _begin_epoch(self, journal: QueueJournal) -> None:
        scan = self._scan
        end = lsn(scan.end_number, scan.end_offset)
        counter = self._catalogue.counter
        proven = scan.proven if scan.clean else end  # the Sync that ends a clean log may not be durable
        with journal.lock, journal:
            journal.open(scan.end_number, scan.end_offset, epoch=self._epoch, proven=proven, counter=counter)
            journal.admit(OVERHEAD + OPEN_BODY.size, Need.DRAIN)
            place = journal.put(OPEN, 0, NO_LSN, OPEN_BODY.pack(end, self._clock.now_ms(), counter))
            target = journal.place
        logger.debug("Epoch begun. path=%s epoch=%d at=%s", self._files.path, self._epoch, lsn_text(place))
        journal.commit(target)
        self._catalogue.note_epoch(self._epoch)
        journal.counter = self._catalogue.counter
        journal.sync_due = True

    def _let_go(self, journal: QueueJournal, rolled_back: list[Lsn], dropped: list[tuple[Message, int]]) -> int:
        """Log what was rolled back and dropped, and delete what is on no queue; return how many messages that were."""
        state = self._scan.state
        homeless = state.homeless()
        with journal.lock, journal:
            for transaction in rolled_back:
                journal.admit(OVERHEAD, Need.DRAIN)
                journal.put(ROLLBACK, WHOLE, transaction, b"")
            for message, queue_id in dropped:
                if message.places:
                    journal.admit(OVERHEAD + DEQUEUE_BODY.size, Need.DRAIN)
                    journal.put(DEQUEUE, WHOLE, message.id, DEQUEUE_BODY.pack(queue_id, 0, QUEUE_GONE))
            for message in homeless:
                journal.admit(OVERHEAD, Need.DRAIN)
                journal.put(DELETE, WHOLE, message.id, b"")
                state.delete(message.id)
            target = journal.place
        journal.commit(target)
        return len(homeless)

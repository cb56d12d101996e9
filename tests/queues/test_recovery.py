"""What a log of a message store adds up to, wherever it is cut: every byte, stale bytes behind it, damage within it.

The rows of the crash matrix, part B of the message store's conformance list, are the groups that are cut here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fix_effort import few_of
from tranlog.checksum import crc32
from tranlog.ids import Lsn
from tranlog.lsn import lsn
from tranlog.queues.rules import records
from tranlog.queues.rules.encoding import encode
from tranlog.queues.rules.records import (
    ATTEMPT,
    ATTEMPT_BODY,
    CHUNK,
    CHUNK_BODY,
    COMMIT,
    DELETE,
    DELETE_TX,
    DEQUEUE,
    DEQUEUE_BODY,
    DTX_START,
    END_TX,
    ENQUEUE,
    ENQUEUE_BODY,
    FIRST,
    HEADER_BYTES,
    LAST,
    MOVE,
    MOVE_BODY,
    MOVE_PLACE,
    OPEN,
    OPEN_BODY,
    PREPARE,
    PROOF_BODY,
    ROLLBACK,
    START,
    START_BODY,
    SYNC,
    TX_START,
    WHOLE,
)
from tranlog.queues.rules.recovery import LogScan, judge_catalogue
from tranlog.queues.rules.state import QueueState

SIZE = 12_288
EPOCH = 3


class LogBytes:
    """One container, written record by record. `ends` are the offsets behind each whole group."""

    def __init__(self, number: int = 1, epoch: int = EPOCH) -> None:
        self.number = number
        self.epoch = epoch
        self.raw = bytearray(HEADER_BYTES)
        self.ends = [HEADER_BYTES]

    def put(self, record_type: int, flags: int = WHOLE, of: int = 0, body: bytes = b"") -> Lsn:
        place = lsn(self.number, len(self.raw))
        self.raw += encode(record_type, flags, self.epoch, place, Lsn(of), body)
        if flags & LAST or record_type in records.CONTROL:
            self.ends.append(len(self.raw))
        return place

    def start(self, section: bytes, flags: int = FIRST, total: int = -1) -> Lsn:
        total = len(section) if total < 0 else total
        return self.put(START, flags, body=START_BODY.pack(0, 9, 0, total) + section)

    def chunk(self, of: Lsn, at: int, section: bytes, flags: int = WHOLE) -> Lsn:
        return self.put(CHUNK, flags, of, CHUNK_BODY.pack(at) + section)

    def enqueue(self, of: Lsn, queue: int, transaction: int = 0, flags: int = LAST) -> Lsn:
        return self.put(ENQUEUE, flags, of, ENQUEUE_BODY.pack(queue, transaction, 0, 0))

    def dequeue(self, of: Lsn, queue: int, transaction: int = 0, flags: int = WHOLE) -> Lsn:
        return self.put(DEQUEUE, flags, of, DEQUEUE_BODY.pack(queue, transaction, 0))

    def sync(self, durable: int) -> Lsn:
        return self.put(SYNC, 0, body=PROOF_BODY.pack(durable, 9, 1))


View = tuple[dict[int, list[Lsn]], list[bytes]]


def walked(raw: bytes | bytearray, number: int = 1) -> LogScan:
    scan = LogScan(state=QueueState())
    container = bytes(raw).ljust(SIZE, b"\0")
    assert not scan.walk(number, container)
    scan.behind(number, container, scan.end_offset)
    scan.finish(number)
    return scan


def view(scan: LogScan) -> View:
    """Return by queue what is on it, and what is in doubt, as a recovery gives it."""
    assert scan.damage is None
    scan.state.abort_open()
    found: dict[int, list[tuple[tuple[int, ...], Lsn]]] = {}
    for message in scan.state.messages.values():
        for place in message.places:
            if message.complete and place.free:
                found.setdefault(place.queue_id, []).append((place.order, message.id))
    rows = {queue: [one for _, one in sorted(row)] for queue, row in found.items()}
    return rows, [one.xid for one in scan.state.transactions.values()]


def single(log: LogBytes) -> None:
    one = log.start(b"x")
    log.enqueue(one, 7)
    log.put(DEQUEUE, FIRST, one, DEQUEUE_BODY.pack(7, 0, 0))
    log.put(DELETE, LAST, one)


def fan_out(log: LogBytes) -> None:
    one = log.start(b"x")
    for queue in (7, 8):
        log.enqueue(one, queue, flags=0)
    log.enqueue(one, 9)
    log.dequeue(one, 8)


def in_sections(log: LogBytes) -> None:
    one = log.start(b"abc", WHOLE, total=9)
    other = log.start(b"z")
    log.enqueue(other, 7)
    log.chunk(one, 3, b"def")
    log.chunk(one, 6, b"ghi", FIRST)
    log.enqueue(one, 7)


def local(log: LogBytes) -> None:
    one = log.start(b"x")
    log.enqueue(one, 7)
    tx = log.put(TX_START, FIRST)
    two = log.start(b"y", 0)
    log.enqueue(two, 8, tx, 0)
    log.dequeue(one, 7, tx, 0)
    log.put(COMMIT, LAST, tx)
    log.put(DELETE, WHOLE, one)
    log.put(END_TX, WHOLE, tx)
    log.put(DELETE_TX, WHOLE, tx)


def ahead_of_its_outcome(log: LogBytes) -> None:
    """Operations that were written before, each a group, and Commit alone."""
    one = log.start(b"x")
    log.enqueue(one, 7)
    for outcome in (ROLLBACK, COMMIT):
        tx = log.put(TX_START)
        two = log.start(b"y")
        log.enqueue(two, 8, tx)
        log.dequeue(one, 7, tx)
        log.put(outcome, WHOLE, tx)


def two_phases(log: LogBytes) -> None:
    one = log.start(b"x")
    log.enqueue(one, 7)
    for outcome in (ROLLBACK, COMMIT):
        tx = log.put(DTX_START, FIRST, body=b"xid")
        two = log.start(b"y", 0)
        log.enqueue(two, 8, tx, 0)
        log.dequeue(one, 7, tx, 0)
        log.put(PREPARE, LAST, tx)
        log.put(outcome, WHOLE, tx)
        log.put(END_TX, WHOLE, tx)
        log.put(DELETE_TX, WHOLE, tx)


def moved_here(log: LogBytes) -> None:
    """The Start was in a container that is used again."""
    place = MOVE_PLACE.pack(7, 55, 44, 3, 2, 1)
    for of in (33, 34):
        log.put(MOVE, WHOLE, of, MOVE_BODY.pack(9, 1, 5, 1) + place + b"hello")
    log.put(DEQUEUE, FIRST, 33, DEQUEUE_BODY.pack(7, 0, 0))
    log.put(DELETE, LAST, 33)


def moved(log: LogBytes) -> None:
    one = log.start(b"x")
    first = log.enqueue(one, 7)
    other = log.start(b"z")
    log.enqueue(other, 7)
    place = MOVE_PLACE.pack(7, first, first, 0, 0, 2)
    log.put(MOVE, WHOLE, one, MOVE_BODY.pack(9, 0, 1, 1) + place + b"x")
    log.dequeue(other, 7)


def several(log: LogBytes) -> None:
    """Taken at once, after a record that names another one, by another queue, and twice."""

    def put(queue: int) -> Lsn:
        one = log.start(b"x")
        log.enqueue(one, queue)
        return one

    def take(one: Lsn, queue: int) -> None:
        log.dequeue(one, queue, flags=FIRST)
        log.put(DELETE, LAST, one)

    one, two, three = put(7), put(8), put(7)
    take(two, 8)
    log.put(ATTEMPT, WHOLE, one, ATTEMPT_BODY.pack(7, 2))
    take(one, 7)
    four = put(7)
    take(two, 8)
    take(three, 8)
    put(8)
    take(four, 7)


MATRIX = [single, fan_out, in_sections, local, ahead_of_its_outcome, two_phases, moved, moved_here, several]


def written(life: Callable[[LogBytes], None], number: int = 1, epoch: int = EPOCH) -> LogBytes:
    log = LogBytes(number, epoch)
    log.put(OPEN, 0, body=OPEN_BODY.pack(0, 9, 1))
    life(log)
    return log


def views(log: LogBytes) -> Iterator[tuple[int, View]]:
    """Return for each end of a group what it leaves."""
    for end in log.ends:
        yield end, view(walked(log.raw[:end]))


@pytest.mark.parametrize("life", MATRIX)
def test_each_byte_at_which_a_log_is_cut_leaves_whole_groups(life: Callable[[LogBytes], None]) -> None:
    """Crash matrix, B and A of each row: torn, it is as before; whole, it is done. And so is a last sector of zeros."""
    log = written(life)
    wanted = dict(views(log))
    for cut in range(HEADER_BYTES, len(log.raw) + 1):
        found = walked(log.raw[:cut])  # a record may end in zeros
        expected = wanted[max(end for end in wanted if end <= max(cut, found.end_offset))]
        assert view(found) == expected, f"cut at {cut}"
        assert found.end_offset - cut < 3


@pytest.mark.long
@pytest.mark.parametrize("life", MATRIX)
@pytest.mark.parametrize("former", MATRIX)
def test_a_former_use_of_the_container_is_no_part_of_the_log(
    life: Callable[[LogBytes], None], former: Callable[[LogBytes], None]
) -> None:
    """Torn forms: old data in a container that was full before; its records are in place, but for their LSN."""
    log, old = written(life, number=2), written(former, number=1)
    wanted = dict(views_of(log, 2))
    for cut in range(HEADER_BYTES, len(log.raw) + 1):
        raw = log.raw[:cut] + old.raw[cut:]
        found = walked(raw, 2)
        assert view(found) == wanted[max(end for end in wanted if end <= max(cut, found.end_offset))], f"cut at {cut}"
        assert found.end_offset <= len(log.raw)


def views_of(log: LogBytes, number: int) -> Iterator[tuple[int, View]]:
    for end in log.ends:
        yield end, view(walked(log.raw[:end], number))


@pytest.mark.parametrize("life", MATRIX)
def test_a_record_behind_a_cut_is_not_taken_up_again(life: Callable[[LogBytes], None]) -> None:
    """An opening begins at the cut in a higher epoch; what stands behind it is of the one before."""
    log = written(life)
    for end in log.ends[:-1]:
        again = LogBytes(epoch=EPOCH + 1)
        again.raw += log.raw[HEADER_BYTES:end]
        again.put(OPEN, 0, body=OPEN_BODY.pack(0, 9, 1))
        found = walked(again.raw + log.raw[len(again.raw) :])
        assert found.end_offset == len(again.raw)
        assert view(found) == view(walked(log.raw[:end]))


@pytest.mark.parametrize("life", MATRIX)
def test_a_bad_byte_below_a_proof_is_damage(life: Callable[[LogBytes], None]) -> None:
    """R9: never skipped silently. Above the proof it is the torn end of a crash."""
    log = written(life)
    proven = len(log.raw)
    log.sync(lsn(1, proven))
    log.sync(lsn(1, proven))
    for at in range(HEADER_BYTES, proven):
        torn = bytearray(log.raw)
        torn[at] ^= 0x40
        damage = walked(torn).damage
        assert damage is not None and damage.offset <= at and damage.number == 1
    torn = bytearray(log.raw)
    torn[-1] ^= 1
    assert walked(torn).damage is None


@pytest.mark.parametrize("life", few_of(MATRIX, 2))
def test_groups_that_are_read_at_once_are_what_they_are_record_by_record(
    life: Callable[[LogBytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, with any byte changed, and where a record of another group, queue or transaction stands there."""
    log = written(life)
    raws = [bytes(log.raw)]
    for at in range(HEADER_BYTES, len(log.raw)):
        torn = bytearray(log.raw)
        torn[at] ^= 0x02
        raws.append(bytes(torn))
    begin = HEADER_BYTES
    while begin < len(log.raw):  # a right checksum, and one field that is another
        size = int.from_bytes(log.raw[begin : begin + 4], "big")
        if log.raw[begin + 4] in (START, ENQUEUE, DEQUEUE, DELETE, MOVE):
            raws += [resealed(log, begin, size, at) for at in range(4, size - 4)]
        begin += size

    def told() -> list[object]:
        scans = [walked(raw) for raw in raws]
        return [
            (one.damage or (view(one), held(one.state)), one.end_offset, one.stop, one.epoch, one.groups_cut)
            for one in scans
        ]

    at_once = told()
    monkeypatch.setattr(LogScan, "_take_run", lambda *_: 0)
    assert at_once == told()


def held(state: QueueState) -> object:
    """Return what a state knows of its messages, and of the containers in which they stand."""
    messages = [
        (one.id, one.stands, one.stored_at, one.header_length, one.total_length, one.got, one.chunks)
        + tuple((on.queue_id, on.visible, on.enqueued, on.expires_at, on.priority, on.attempts) for on in one.places)
        for one in state.messages.values()
    ]
    return messages, state.live, state.live_bytes


def resealed(log: LogBytes, begin: int, size: int, at: int) -> bytes:
    """Return a log with one bit of the record at `begin` changed, and its checksum right."""
    raw = bytearray(log.raw)
    raw[begin + at] ^= 0x01
    raw[begin + size - 4 : begin + size] = crc32(bytes(raw[begin : begin + size - 4])).to_bytes(4, "big")
    return bytes(raw)


@pytest.mark.long
def test_each_flipped_bit_of_a_small_container_is_found() -> None:
    """Its header to the last zero, and each record below the proof of a clean close; by container and offset."""
    log = written(fan_out)
    proven = len(log.raw)
    log.sync(lsn(1, proven))
    raw = bytearray(log.raw)
    raw[:HEADER_BYTES] = records.encode_header(records.ContainerHeader(SIZE, bytes(16), 1, EPOCH, Lsn(0), 9))
    assert isinstance(records.parse_header(bytes(raw[:HEADER_BYTES])), records.ContainerHeader)
    for bit in range(8 * HEADER_BYTES):
        raw[bit // 8] ^= 1 << bit % 8
        assert isinstance(records.parse_header(bytes(raw[:HEADER_BYTES])), str), f"bit {bit}"
        raw[bit // 8] ^= 1 << bit % 8
    starts = [HEADER_BYTES]
    while starts[-1] < proven:
        starts.append(starts[-1] + int.from_bytes(raw[starts[-1] : starts[-1] + 4], "big"))
    for bit in range(8 * HEADER_BYTES, 8 * len(raw)):
        raw[bit // 8] ^= 1 << bit % 8
        found = walked(raw)
        begin = max(start for start in starts if start <= bit // 8)
        if bit // 8 < proven:
            assert found.damage is not None and (found.damage.number, found.damage.offset) == (1, begin), f"bit {bit}"
        else:  # the proof itself: what it proves is there, and that it is torn is told
            assert found.damage is None and found.stop is not None and found.end_offset == proven, f"bit {bit}"
        raw[bit // 8] ^= 1 << bit % 8


def test_a_hole_of_zeros_below_a_proof_is_damage() -> None:
    log = written(fan_out)
    proven = len(log.raw)
    log.sync(lsn(1, proven))
    for end in log.ends[:-2]:
        torn = bytearray(log.raw)
        torn[end:proven] = bytes(proven - end)
        damage = walked(torn).damage
        assert damage is not None and "durable up to" in damage.why


def test_what_refers_to_a_message_that_is_gone_is_passed_over() -> None:
    """Conformance A5.51; a transaction whose start is below the base has its outcome here."""
    log = written(lambda log: None)
    log.enqueue(Lsn(77), 7, flags=WHOLE)
    log.chunk(Lsn(77), 5, b"x")
    log.dequeue(Lsn(77), 7)
    log.put(DELETE, WHOLE, 77)
    one = log.start(b"x")
    log.enqueue(one, 7, transaction=66)
    log.put(COMMIT, WHOLE, 66)
    log.put(ROLLBACK, WHOLE, 55)
    found = walked(log.raw)
    assert view(found) == ({7: [one]}, [])
    assert not found.state.transactions


def test_the_rest_of_a_group_that_began_below_the_base_counts() -> None:
    log = LogBytes(number=2)
    one = log.start(b"x", flags=0)
    log.enqueue(one, 7, transaction=66, flags=0)
    log.put(COMMIT, LAST, 66)
    assert view(walked(log.raw, 2)) == ({7: [one]}, [])


@pytest.mark.parametrize(
    "contradiction",
    [
        lambda log, one: log.chunk(one, 0, b"y"),
        lambda log, one: log.chunk(one, 1, b"y"),
        lambda log, one: log.enqueue(one, 7, flags=WHOLE),
        lambda log, one: log.put(ENQUEUE, 0, one, ENQUEUE_BODY.pack(9, 0, 0, 0)),
        lambda log, one: log.put(records.NEXT, 0, body=records.NEXT_BODY.pack(7)),
        lambda log, one: log.sync(lsn(9, 9)),
        lambda log, one: log.put(OPEN, 0, body=OPEN_BODY.pack(0, 9, 0)),
        lambda log, one: log.put(START, WHOLE, body=START_BODY.pack(1, 9, 0, 1) + b"x"),
        lambda log, one: log.put(MOVE, WHOLE, one, MOVE_BODY.pack(9, 0, 1, 4_000_000_000) + b"x"),
    ],
    ids=["chunk again", "chunk too long", "on a queue twice", "no group", "next", "proof", "counter", "kind", "places"],
)
def test_records_that_contradict_each_other_are_damage(contradiction: Callable[[LogBytes, Lsn], object]) -> None:
    """Conformance A5.52: never passed over."""
    log = written(lambda log: None)
    one = log.start(b"x")
    log.enqueue(one, 7)
    at = len(log.raw)
    contradiction(log, one)
    damage = walked(log.raw).damage
    assert damage is not None and damage.offset == at


def test_the_catalogue_is_held_against_the_log() -> None:
    scan = walked(written(single).raw)
    assert (scan.counter, scan.epoch) == (1, EPOCH)
    assert judge_catalogue(scan, counter=1, epoch=EPOCH) is None
    assert judge_catalogue(scan, counter=9, epoch=1) is None
    older = judge_catalogue(scan, counter=0, epoch=EPOCH)
    assert older is not None and older.older == "catalogue"
    older = judge_catalogue(scan, counter=1, epoch=EPOCH + 1)
    assert older is not None and older.older == "log"

"""Appending in a hurry: the fast way and the careful one give the same log, and neither outruns whatever comes up."""

from __future__ import annotations

import random
import threading

import pytest

from fix_effort import few_of
from fix_log import PATH, contents, make_fragment, open_log, run_threads, segment_names
from tranlog.change import Fragment
from tranlog.errors import DiskFullError, LogClosedError, RecordLimitError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.records.format import EventWriter, encode_event
from tranlog.log.rules.pending import Pending
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

ODD = ("", "a", "é", "\U0001f600", "x" * 300, "nul\0", "\ud800")
TABLES: tuple[tuple[tuple[str, str], ...] | None, ...] = (
    (),
    None,
    (("shop", "orders"),),
    (("shop", "orders"), ("a", "b")),
    (("s" * 40_000, "t" * 40_000),),
)


def random_fragment(rng: random.Random, *, odd: bool = True) -> Fragment:
    def text(usual: str) -> str:
        return rng.choice(ODD) if odd and rng.random() < 0.1 else usual

    return Fragment(
        source_id=text("bench"),
        event_id=text(f"0-1-{rng.randrange(1_000)}"),
        shard_id=text(rng.choice(("shop", "bank"))),
        tstamp=rng.choice((0, 1_800_000_000_000, -1 if odd and rng.random() < 0.1 else 5)),
        tables=rng.choice(TABLES if odd else TABLES[:4]),
        payload=bytes(rng.randrange(0, 400)),
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_record_is_the_same_whoever_encodes_it(seed: int) -> None:
    """`EventWriter` keeps what repeats; nothing of it shows in a record, nor in what a refused one is told."""
    rng = random.Random(seed)
    writer, checksum = EventWriter(), seed % 2 == 0
    for seqno in range(200):
        fragment = random_fragment(rng)
        pieces: list[bytes] = []
        refused: RecordLimitError | None
        try:
            head, trailer = encode_event(
                seqno=seqno,
                fragno=0,
                last_frag=True,
                epoch=3,
                source_id=fragment.source_id,
                event_id=fragment.event_id,
                shard_id=fragment.shard_id,
                tstamp=fragment.tstamp,
                tables=fragment.tables,
                payload=fragment.payload,
                checksum=checksum,
            )
        except RecordLimitError as exc:
            refused = exc
        else:
            refused = None
        if refused is not None:
            with pytest.raises(RecordLimitError) as told:
                writer.write(pieces, fragment, seqno, 3, checksum, 1 << 30)
            assert not pieces and (told.value.event_id, str(told.value)) == (refused.event_id, str(refused))
            continue
        record = head + fragment.payload + trailer
        assert writer.write(pieces, fragment, seqno, 3, checksum, len(record) - 1) == 0 and not pieces
        assert writer.write(pieces, fragment, seqno, 3, checksum, len(record)) == len(record)
        assert b"".join(pieces) == record


def test_what_is_pending_is_counted_cut_and_sealed() -> None:
    pending = Pending(source_id="s", checksum=True, most=1_000)
    pending.epoch, pending.start = Epoch(1), 16
    assert not pending.add(make_fragment("no room is given"), 7)
    pending.room, pending.sync_due = 2_000, False
    assert pending.add(make_fragment("a", b"1" * 100), 7)
    whole = len(pending)
    assert not pending.add(make_fragment("a part", b"2", last=False), 7)
    assert not pending.add(make_fragment("above most", bytes(1_000)), 7)
    assert not pending.add(make_fragment("past the room", bytes(2_000 - whole - 50)), 7)
    assert (len(pending), pending.last, pending.ids[1]) == (whole, 0, "a")
    pending.put(b"part of the next one")
    pending.cut(whole)
    assert len(pending) == len(pending.joined()) == whole and pending.joined(3) == pending.joined() + bytes(3)
    extent = pending.seal()
    assert (extent.first, extent.last, list(extent.starts), extent.end) == (0, 0, [16], 16 + whole)
    assert (extent.ids, extent.owners, pending.starts) == (("db1", "a"), {7}, [])
    pending.written()
    assert (pending.start, len(pending), pending.joined()) == (16 + whole, 0, b"")
    pending.allocate(500, ("db1", "b"))
    assert (pending.start, pending.last, pending.appended, pending.room) == (500, 1, 0, 0)
    pending.room = 2_000
    pending.go_back(Seqno(0), ("db1", "a"))
    assert (pending.last, pending.ids, pending.room) == (0, ("db1", "a"), 0)


# --- many at once ---------------------------------------------------------------------------------------------------


def some_fragments(rng: random.Random) -> list[Fragment]:
    """Return transactions: most of one fragment, some of several, one that a segment cannot hold."""
    fragments: list[Fragment] = []
    for number in range(rng.randrange(1, 60)):
        kind = rng.random()
        if kind < 0.1:
            fragments += [make_fragment(f"part {number}.{n}", bytes(rng.randrange(200)), last=False) for n in range(3)]
        size = rng.randrange(9_000, 12_000) if kind > 0.97 else rng.randrange(600)
        fragments.append(make_fragment(f"e{number}", bytes(size)))
    return fragments


@pytest.mark.parametrize("seed", few_of(range(30), 6))
def test_many_at_once_are_the_same_segments_as_one_by_one(seed: int) -> None:
    """Byte for byte: records, rotation, proofs of syncs, spill."""
    rng = random.Random(seed)
    disks = SimDisk(), SimDisk()
    options = {
        "segment_bytes": rng.choice((2_000, 5_000, 1_000_000)),
        "spill_above": rng.choice((2_000, 8_000, 1_000_000)),
        "buffer_bytes": rng.choice((500, 3_000, 100_000)),
        "ahead_bytes": rng.choice((0, 4_096)),
    }
    one, many = [open_log(disk, clock=ManualClock(), **options) for disk in disks]
    for _ in range(6):
        fragments = some_fragments(rng)
        last: Gtid | None = None
        for fragment in fragments:
            last = one.append(fragment)
        assert many.append_many(iter(fragments)) == last
        sync = rng.random() < 0.5
        assert one.commit(sync=sync) == many.commit(sync=sync)
        assert one.status().last_seqno == many.status().last_seqno == last.seqno if last else False
    assert contents(one) == contents(many)
    one.close()
    many.close()
    assert segment_names(disks[0]) == segment_names(disks[1])
    for name in segment_names(disks[0]):
        raw = [disk.open(f"{PATH}/{name}").pread(1 << 24, 0) for disk in disks]
        assert raw[0] == raw[1], f"seed {seed}: {name}"


def test_none_at_once_is_none() -> None:
    log = open_log(SimDisk())
    assert log.append_many([]) is None and log.last_seqno == 0


def test_those_before_a_refused_one_are_appended() -> None:
    log = open_log(SimDisk())
    row = [make_fragment(f"e{n}") for n in range(5)]
    with pytest.raises(RecordLimitError):
        log.append_many([*row, make_fragment("nul\0"), *row])
    assert log.append_many(row) == Gtid(log.epoch, Seqno(10))
    assert log.commit() == 10
    assert [event_id for _, event_id, _ in contents(log)] == [f"e{n}" for n in range(5)] * 2
    assert log.last_event_id() == "e4"


def test_an_iterable_that_fails_appends_nothing() -> None:
    log = open_log(SimDisk())

    def failing() -> object:
        yield make_fragment("a")
        raise KeyError("no more")

    with pytest.raises(KeyError):
        log.append_many(failing())  # type: ignore[arg-type]
    assert log.last_seqno == 0


def test_nothing_is_let_in_by_the_fast_way_once_the_log_is_closed() -> None:
    log = open_log(SimDisk())
    log.append_many([make_fragment("a"), make_fragment("b")])
    log.close()
    for _ in range(2):
        with pytest.raises(LogClosedError):
            log.append(make_fragment("late"))
        with pytest.raises(LogClosedError):
            log.append_many([make_fragment("late")])


def test_whoever_lost_something_to_a_full_disk_is_told_by_its_next_append() -> None:
    """Also where the append would have gone the fast way; then it goes on."""
    disk = SimDisk()
    log = open_log(disk)
    log.commit()
    log.append_many([make_fragment("mine 1"), make_fragment("mine 2")])

    def commit_on_full_disk() -> None:
        log.append(make_fragment("other"))
        disk.room = 0
        with pytest.raises(DiskFullError):
            log.commit()
        disk.room = None

    run_threads(commit_on_full_disk)
    with pytest.raises(DiskFullError):
        log.append_many([make_fragment("refused 1"), make_fragment("refused 2")])
    assert log.append_many([make_fragment("later")]) == Gtid(log.epoch, Seqno(1))
    log.commit()
    assert [event_id for _, event_id, _ in contents(log)] == ["later"]


def test_threads_that_append_many_keep_their_order_and_their_transactions_whole() -> None:
    """Fragments of one transaction are never apart, whatever the others append at once."""
    log = open_log(SimDisk(), buffer_bytes=2_000, segment_bytes=20_000)
    start = threading.Barrier(4, timeout=60)

    def body(name: str) -> None:
        start.wait()
        for at in range(0, 60, 6):
            log.append_many([make_fragment(f"{name} {n}", bytes(50), last=n % 3 != 1) for n in range(at, at + 6)])
            log.commit(sync=at % 12 == 0)

    run_threads(*[lambda name=name: body(name) for name in "abcd"])  # type: ignore[misc]
    seen: dict[str, list[int]] = {name: [] for name in "abcd"}
    with log.cursor() as cursor:
        cursor.seek(Seqno(1))
        while (transaction := cursor.next()) is not None:
            event_ids = [record.header.event_id for record in transaction.records()]
            name = event_ids[-1].split()[0]
            numbers = [int(event_id.split()[1]) for event_id in event_ids]
            assert len(numbers) == (2 if numbers[0] % 3 == 1 else 1)
            seen[name] += numbers
    assert all(numbers == list(range(60)) for numbers in seen.values())

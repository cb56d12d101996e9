"""What is large is written in slices, and lets others go first: docs/performance.md, "A gigabyte in flight"."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

import tranlog.log.writing.steps
from fix_log import contents, make_fragment, open_log
from tranlog.change import Fragment
from tranlog.log.writing.log import Log
from tranlog.log.writing.steps import Steps
from tranlog.slices import SEND_BESIDE_BYTES, SEND_BYTES, SLICE_BYTES, Outflow, slices
from tranlog.testing.disk import SimDisk, SimFile

# --- the decision, alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_slices_are_the_same_bytes_in_parts_of_bounded_size(seed: int) -> None:
    rng = random.Random(seed)
    sizes = (0, 1, 100, SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, 3 * SLICE_BYTES + 5)
    pieces = [rng.randbytes(rng.choice(sizes)) for _ in range(rng.randrange(30))]
    parts = list(slices(pieces))
    assert b"".join(parts) == b"".join(pieces)
    assert all(0 < len(part) <= SLICE_BYTES for part in parts)
    # No two parts that follow one another would have fitted into one, unless one is of a piece that had to be cut.
    for part, following in pairwise(parts):
        cut = isinstance(part, memoryview) or isinstance(following, memoryview)
        assert cut or len(part) + len(following) > SLICE_BYTES


def test_a_large_piece_is_cut_without_a_copy_and_asked_for_when_it_is_due() -> None:
    large = bytes(10 * SLICE_BYTES)
    asked = []

    def pieces() -> Iterator[bytes]:
        for number in range(3):
            asked.append(number)
            yield large

    parts = slices(pieces())
    first = next(parts)
    assert isinstance(first, memoryview) and first.obj is large
    assert asked == [0]


def test_much_is_sent_at_once_where_nobody_syncs_and_little_where_somebody_does() -> None:
    outflow = Outflow(1_000, 7)
    sent: list[tuple[int, int, bool]] = []
    syncs, end = 7, 1_000
    for step in range(450):
        end += SLICE_BYTES
        outflow.wrote(end)
        beside = 200 <= step < 250
        syncs += beside
        while (out := outflow.due(syncs)) is not None:
            sent.append((*out, beside))
    # Side by side from the first offset on, nothing twice, and never more than one large step behind.
    assert [begin for _, begin, _ in sent] == [1_000 + sum(size for size, _, _ in sent[:at]) for at in range(len(sent))]
    assert end - (sent[-1][0] + sent[-1][1]) < SEND_BYTES
    assert {size for size, _, beside in sent if beside} == {SEND_BESIDE_BYTES}
    assert [size for size, _, _ in sent].count(SEND_BYTES) >= 6


# --- letting others go first -------------------------------------------------------------------------------------


def pieces_of(event_id: str, count: int = 3, size: int = 4 * SLICE_BYTES) -> list[Fragment]:
    return [make_fragment(event_id, bytes([number]) * size, last=number == count - 1) for number in range(count)]


def write_in_its_place(log: Log) -> None:
    log.allocate(pieces_of("large")).complete()


def write_spilling(log: Log) -> None:
    with log.begin() as transaction:
        for piece in pieces_of("large"):
            transaction.add(piece)


@pytest.mark.parametrize("write", [write_in_its_place, write_spilling])
def test_no_slice_is_written_before_those_who_commit_were_let_through(
    write: Callable[[Log], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    give_way, pwrite = Steps.give_way, SimFile.pwrite

    def told(steps: Steps) -> bool:
        done.append(0)
        return give_way(steps)

    def written(file: SimFile, raw: bytes | memoryview, offset: int) -> None:
        done.append(len(raw))
        pwrite(file, raw, offset)

    monkeypatch.setattr(Steps, "give_way", told)
    monkeypatch.setattr(SimFile, "pwrite", written)
    with open_log(SimDisk(), spill_buffer_bytes=1) as log:
        done.clear()
        write(log)
        large = [at for at, size in enumerate(done) if size > SLICE_BYTES // 2]
        assert len(large) == 12
        assert all(done[at] <= SLICE_BYTES and done[at - 1] == 0 for at in large)
        assert contents(log)[-1][1] == "large"


@pytest.mark.parametrize("write", [write_in_its_place, write_spilling])
def test_a_commit_that_hangs_stops_no_large_transaction(
    write: Callable[[Log], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is let go first for a moment, not for ever: who hangs in a write holds the log's lock."""
    hanging, through = threading.Event(), threading.Event()
    beside: list[int] = []
    commits: list[threading.Thread] = []
    pwrite = SimFile.pwrite

    def commit(log: Log) -> None:
        log.append(make_fragment("small", b"a small one"))
        log.commit(sync=False)

    def written(file: SimFile, raw: bytes | memoryview, offset: int) -> None:
        if b"a small one" in bytes(raw):
            hanging.set()
            assert through.wait(60)
        elif len(raw) > SLICE_BYTES // 2:
            if not commits:
                commits.append(threading.Thread(target=commit, args=(log,)))
                commits[0].start()
                assert hanging.wait(60)
            beside.append(len(raw))
            if len(beside) == 6:
                through.set()
        pwrite(file, raw, offset)

    with open_log(SimDisk(), spill_buffer_bytes=1) as log:
        monkeypatch.setattr(SimFile, "pwrite", written)
        write(log)
        commits[0].join(60)
        log.commit()
        assert len(beside) == 12
        assert {one[1] for one in contents(log)[-2:]} == {"large", "small"}


def test_what_is_moved_to_spill_does_not_wait_for_the_lock_that_it_holds_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tranlog.log.writing.steps, "_GIVE_WAY_S", 3_600)
    with open_log(SimDisk(), spill_above=6 * SLICE_BYTES, buffer_bytes=1_000) as log:
        for piece in pieces_of("large"):
            log.append(piece)
        log.commit()
        assert log.spill_segments()
        assert contents(log)[-1][1] == "large"

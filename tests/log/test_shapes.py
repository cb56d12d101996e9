"""What is handed over as one transaction is one: looked at before anything of it is appended."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from fix_log import PATH, contents, fill, make_fragment, open_log, run_threads
from tranlog.change import Fragment
from tranlog.errors import AppendOrderError, ConfigError, RecordLimitError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log
from tranlog.testing.disk import SimDisk


def row(*last: bool, size: int) -> list[Fragment]:
    return [make_fragment("wrong", bytes([number]) * size, last=one) for number, one in enumerate(last)]


@pytest.mark.parametrize("size", [50, 2_000])
@pytest.mark.parametrize("last", [(False,), (False, False), (True, False), (True, True), (False, True, True), ()])
def test_a_transaction_says_once_and_at_its_end_that_it_is_over(last: tuple[bool, ...], size: int) -> None:
    """From buffer_bytes on it was acknowledged and could not be read; below that it was taken as two."""
    calls: tuple[Callable[[Log], object], ...] = (
        lambda log: log.transact(row(*last, size=size)),
        lambda log: log.allocate(row(*last, size=size)),
    )
    for call in calls:
        disk = SimDisk()
        with open_log(disk, buffer_bytes=1_000) as log:
            fill(log, 1)
            with pytest.raises(AppendOrderError, match=rf"{PATH} refuses a transaction .*nothing was stored"):
                call(log)
            assert log.last_seqno == 1
            fill(log, 1, start=1)
            assert [one[1] for one in contents(log)] == ["e0", "e1"]
        assert verify(PATH, disk=disk).sound


def test_an_empty_stream_is_no_transaction() -> None:
    with open_log(SimDisk()) as log:
        for call in (lambda: log.transact(iter(())), lambda: log.transact([]), lambda: log.begin().commit()):
            with pytest.raises(AppendOrderError, match="without a fragment"):
                call()
        fill(log, 1)


def test_a_whole_transaction_is_not_glued_to_an_open_one() -> None:
    with open_log(SimDisk()) as log:
        log.append(make_fragment("open", last=False))
        for size in (20, 300_000):
            with pytest.raises(AppendOrderError, match="abandon_open"):
                log.transact([make_fragment("whole", bytes(size))])
        log.append(make_fragment("open"))
        log.commit()
        assert [one[1] for one in contents(log)] == ["open"]


def test_one_thread_with_two_allocations_waits_for_nobody_at_a_rotation() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:

        def work() -> None:
            for number in range(5):
                one = log.allocate([make_fragment(f"one {number}", bytes(2_000))])
                two = log.allocate([make_fragment(f"two {number}", bytes(2_000))])
                log.append(make_fragment(f"three {number}", bytes(50)))
                one.complete(sync=False)
                two.complete()
                log.commit()

        thread = threading.Thread(target=lambda: run_threads(work), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), "it waits for its own allocation"
        names = [one[1] for one in contents(log)]
        assert names == [f"{kind} {number}" for number in range(5) for kind in ("one", "two", "three")]
    assert len([name for name in disk.list_dir(PATH) if name.startswith("thl.data.")]) > 3


@pytest.mark.parametrize("left", [-1, 0, 1, 2, 3])
def test_the_last_seqno_there_is_is_refused_by_an_error_of_ours(left: int) -> None:
    after = Gtid(Epoch(1), Seqno((1 << 63) - 1 - left))
    disk, kept = SimDisk(), max(left - 1, 0)
    if left < 1:
        with pytest.raises(ConfigError, match="start_after"):
            open_log(disk, start_after=after)
        return
    with open_log(disk, start_after=after) as log:
        fill(log, kept)
        for call in (
            lambda: log.append(make_fragment("late")),
            lambda: log.transact([make_fragment("late", last=False), make_fragment("late")]),
            lambda: log.allocate([make_fragment("late")]),
        ):
            with pytest.raises(RecordLimitError, match="the last possible seqno"):
                call()
        assert len(contents(log)) == kept and log.last_seqno == (1 << 63) - 1
        log.commit()

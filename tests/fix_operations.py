"""What the log's writer can do, one operation at a time; what must be there afterwards; a disk that counts calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tranlog.change import Fragment
from tranlog.disk import Disk
from tranlog.errors import LogError
from tranlog.ids import Seqno
from tranlog.log.writing.log import Log, LogOptions
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk, SimFile

PATH = "/log"
CHANGES = ("pwrite", "truncate", "unlink", "rename", "make_dir")
"""Calls of a disk before which the writer looks whether it may: between the look and them a moment is left."""


def fragment(event_id: str, size: int, *, last: bool = True) -> Fragment:
    return Fragment(
        source_id="db",
        event_id=event_id,
        shard_id="s",
        tstamp=1,
        tables=(("s", "t"),),
        payload=event_id.encode() * (size // len(event_id)),
        last=last,
    )


def parts(event_id: str, count: int, size: int) -> list[Fragment]:
    return [fragment(event_id, size, last=at == count - 1) for at in range(count)]


class Told:
    """What a program was told: `synced` are event ids whose commit returned, `handed` what it handed over whole."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.handed: dict[str, bytes] = {}

    def whole(self, *fragments: Fragment) -> list[Fragment]:
        self.handed[fragments[-1].event_id] = b"".join(one.payload for one in fragments)
        return list(fragments)


Operation = Callable[[Log, Told, str], object]


def _appended(log: Log, told: Told, name: str) -> None:
    for one in told.whole(fragment(name, 300)):
        log.append(one)


def _committed(log: Log, told: Told, name: str) -> None:
    _appended(log, told, name)
    log.commit()
    told.synced.append(name)


def _shown(log: Log, told: Told, name: str) -> None:
    _appended(log, told, name)
    log.commit(sync=False)


def _given_up(log: Log, told: Told, name: str) -> None:
    log.append(fragment(name, 100, last=False))
    log.abandon_open()


def _rotated(log: Log, told: Told, name: str) -> None:
    _committed(log, told, name)
    log.add_segment()


def _in_parts(log: Log, told: Told, name: str) -> None:
    for one in told.whole(*parts(name, 3, 200)):
        log.append(one)
    log.commit()
    told.synced.append(name)


def transacted(log: Log, told: Told, name: str, count: int = 2, size: int = 150) -> None:
    log.transact(told.whole(*parts(name, count, size)))
    told.synced.append(name)


def _spilled(log: Log, told: Told, name: str) -> None:
    with log.begin() as opened:
        for one in told.whole(*parts(name, 4, 400)):
            opened.add(one)
    told.synced.append(name)


def _allocated(log: Log, told: Told, name: str) -> None:
    with log.allocate(told.whole(*parts(name, 2, 300))):
        pass
    told.synced.append(name)


OPERATIONS: dict[str, Operation] = {
    "append": _appended,
    "append, commit": _committed,
    "commit without sync": _shown,
    "append in parts": _in_parts,
    "append that spills": lambda log, told, name: [log.append(one) for one in told.whole(*parts(name, 6, 500))],
    "append_many": lambda log, told, name: log.append_many(told.whole(fragment(name, 90))),
    "transact": transacted,
    "transact, large": lambda log, told, name: transacted(log, told, name, 2, 800),
    "transact, spilled": lambda log, told, name: transacted(log, told, name, 4, 900),
    "spilled": _spilled,
    "allocate": _allocated,
    "give up": _given_up,
    "purge": lambda log, told, name: log.purge(below=Seqno(max(log.visible_seqno - 12, 0))),
    "rotate": _rotated,
    "index": lambda log, told, name: log.flush_index(),
    "expire": lambda log, told, name: log.expire(),
}
ROUND = tuple(OPERATIONS)


def open_log(disk: Disk, seed: int, path: str = PATH) -> Log:
    rng = random.Random(seed)
    options = LogOptions(
        segment_bytes=rng.choice((2_500, 5_000)),
        buffer_bytes=rng.choice((400, 1_000)),
        ahead_bytes=rng.choice((0, 2_000)),
        index_flush_s=None,
        spill_above=2_000,
        spill_buffer_bytes=500,
        spill_chunk_bytes=300,
        spill_segment_bytes=2_000,
        retention_s=rng.choice((None, 50.0)),
    )
    return Log.open(path, source_id="db", options=options, disk=disk, clock=ManualClock())


def contents(log: Log) -> list[tuple[str, bytes]]:
    with log.cursor() as cursor:
        found = []
        expected = log.first_seqno
        while (one := cursor.next()) is not None:
            assert one.header.seqno == expected, "a hole in the row of seqnos"
            expected = Seqno(expected + 1)
            if not one.is_noop():
                found.append((one.header.event_id, b"".join(one.payloads())))
        return found


def check(log: Log, told: Told) -> None:
    """What is there was handed over whole, each once and in order; of what was acknowledged none is missing."""
    found = contents(log)
    for event_id, content in found:
        assert told.handed[event_id] == content, f"{event_id} is not what was handed over"
    names = [event_id for event_id, _ in found]
    assert len(set(names)) == len(names), "one is there twice"
    order = [name for name in told.handed if name in set(names)]
    assert names == order, "another order"
    kept = [
        name for name in told.synced if not names or list(told.handed).index(name) >= list(told.handed).index(names[0])
    ]
    missing = set(kept) - set(names)
    assert not missing, f"acknowledged and gone: {missing}"


class Stepped:
    """A disk, or what it has opened, that calls `step` with a call's name and arguments before it makes the call.

    What was synced is left to the operating system: no power is lost here.
    """

    def __init__(self, inner: Any, step: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._inner, self._step = inner, step

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)

        def call(*given: Any, **named: Any) -> Any:
            self._step(name, given + tuple(named.items()))
            if name in ("sync", "sync_dir") and not isinstance(self._inner, SimDisk | SimFile):
                return None
            found = inner(*given, **named)
            return Stepped(found, self._step) if name in ("open", "lock") else found

        return call


def struck_log(disk: Any, seed: int, name: str, path: str = PATH) -> tuple[Log, Told]:
    """Return a log in use, in which the operation `name` comes next."""
    told = Told()
    log = open_log(disk, seed, path)
    for at, before in enumerate(random.Random(f"{seed}/{name}").sample(ROUND, 5)):
        with suppress(LogError):
            OPERATIONS[before](log, told, f"before{at}")
    return log, told

"""Replays traces that were recorded on the ancestor's index against ours: `make traces FILE=path`.

Owns the reading of a trace, the rules by which the two are compared, and the small program. A trace is right when
ours equals a plain list of what was registered, and the ancestor's answers equal it too, but for the two deviations
that are the ancestor's: after a cut at the end its `last_sync` may be too high, after one at the front its
`last_txn_end` may be missing. Lookups are compared by order: below <= true <= above.

Source: the README beside vlsn-traces.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tranlog.ids import NO_EPOCH, NO_SEQNO, Lsn, Seqno
from tranlog.log.rules.index import SeqnoIndex
from tranlog.log.rules.index_values import BuiltFrom, Entry, IndexOptions, IndexRange
from tranlog.lsn import lsn

_BUILT_FROM = BuiltFrom(epoch=NO_EPOCH, end=Lsn(0))


class TraceMismatchError(Exception):
    """Ours, the plain list and the trace do not agree."""


def entry_of(item: Sequence[Any]) -> Entry:
    """Return the entry that `[vlsn, file, offset, kind]` means. Raises TraceMismatchError for another kind."""
    seqno, segment, offset, kind = item
    if kind not in ("LN", "COMMIT", "ABORT", "MATCH"):
        raise TraceMismatchError(f"an entry of kind {kind!r}")
    return Entry(Seqno(seqno), lsn(segment, offset), sync_point=kind != "LN", txn_end=kind in ("COMMIT", "ABORT"))


class _Replay:
    """One trace: the index under test, what it has stored, and the plain list beside it."""

    def __init__(self, trace: dict[str, Any]) -> None:
        self.options = IndexOptions(
            stride=trace["stride"], max_mappings=trace["max_mappings"], max_distance=trace["max_distance"]
        )
        self.index = SeqnoIndex(after=Seqno(0), options=self.options)
        self.stored: dict[int, bytes] = {}
        self.entries: dict[int, Entry] = {}
        self.sync_may_be_high = False
        self.txn_end_may_be_lost = False

    def step(self, op: list[Any]) -> None:
        index = self.index
        match op:
            case ["put", item]:
                entry = entry_of(item)
                self.entries[entry.seqno] = entry
                if not index.register(entry):
                    raise TraceMismatchError(f"seqno {entry.seqno} was taken for one that is registered already")
                self.sync_may_be_high &= not entry.sync_point
                self.txn_end_may_be_lost &= not entry.txn_end
            case ["flush"]:
                self.flush()
            case ["close_reopen"]:
                self.flush()
                self.reopen()
            case ["crash_recover", items]:
                self.reopen()
                self.index.recover(entry_of(item) for item in items)
                self.flush()  # the ancestor stores what its recovery merged
            case ["truncate_tail", cut, segment, offset]:
                last = self.entries.get(cut - 1)
                if last is None or last.lsn != lsn(segment, offset):
                    raise TraceMismatchError(f"the cut at {cut} names a place that was not registered")
                index.truncate_end(last)
                self.entries = {seqno: one for seqno, one in self.entries.items() if seqno < cut}
                self.flush()
                self.sync_may_be_high = True
            case ["truncate_head", upto, segment]:
                if self.sync_may_be_high and index.range.last_sync < upto:
                    index.synced(Seqno(upto))  # the ancestor took what it cuts here for a sync point
                index.truncate_front(Seqno(upto), lsn(segment + 1, 0))
                self.entries = {seqno: one for seqno, one in self.entries.items() if seqno > upto}
                self.flush()
                self.txn_end_may_be_lost = True
            case _:
                raise TraceMismatchError(f"an operation {op!r}")

    def reopen(self) -> None:
        if self.stored:
            self.index, _ = SeqnoIndex.restore(self.stored, options=self.options)
        else:
            self.index = SeqnoIndex(after=Seqno(0), options=self.options)

    def flush(self) -> None:
        plan = self.index.flush_plan(_BUILT_FROM)
        if plan is not None:
            for key in plan.deletes:
                self.stored.pop(key, None)
            self.stored.update(plan.puts)
            self.index.flushed(plan)

    def compare_range(self, theirs: Sequence[int]) -> None:
        ours, right = self.index.range, range_of(self.entries)
        if ours != right:
            raise TraceMismatchError(f"the range is {ours}, and what is registered makes {right}")
        first, last, last_sync, last_txn_end = (Seqno(one) for one in theirs)
        if (first, last) != (right.first, right.last):
            raise TraceMismatchError(
                f"first and last are {right.first}, {right.last}; the ancestor has {first}, {last}"
            )
        if last_sync != right.last_sync and not (self.sync_may_be_high and last_sync > right.last_sync):
            raise TraceMismatchError(f"last_sync is {right.last_sync}; the ancestor has {last_sync}")
        if last_txn_end != right.last_txn_end and not (self.txn_end_may_be_lost and last_txn_end == NO_SEQNO):
            raise TraceMismatchError(f"last_txn_end is {right.last_txn_end}; the ancestor has {last_txn_end}")

    def compare_lookups(self, lookups: Sequence[Sequence[Any]]) -> None:
        index = self.index
        for seqno, true_place, _, _ in lookups:
            true = lsn(*true_place)
            exact, below, above = index.exact(Seqno(seqno)), index.lte(Seqno(seqno)), index.gte(Seqno(seqno))
            if exact not in (None, true):
                raise TraceMismatchError(f"seqno {seqno} is at {true_place}, and its mapping says {exact}")
            if below is None or below.lsn > true or below.seqno > seqno:
                raise TraceMismatchError(f"the place below seqno {seqno} is {below}, and it stands at {true}")
            if above is None or above.lsn < true or above.seqno < seqno:
                raise TraceMismatchError(f"the place above seqno {seqno} is {above}, and it stands at {true}")
        covered = index.range
        if covered.first != NO_SEQNO:
            last = self.entries[covered.last].lsn
            if index.exact(covered.last) != last:
                raise TraceMismatchError(f"the last seqno, {covered.last}, is not mapped exactly")


def range_of(entries: dict[int, Entry]) -> IndexRange:
    """Return the range that a plain list of what is registered makes."""
    if not entries:
        return IndexRange()
    return IndexRange(
        Seqno(min(entries)),
        Seqno(max(entries)),
        max((one.seqno for one in entries.values() if one.sync_point), default=NO_SEQNO),
        max((one.seqno for one in entries.values() if one.txn_end), default=NO_SEQNO),
    )


def replay(trace: dict[str, Any]) -> None:
    """Replay one trace. Raises TraceMismatchError naming the operation at which something differs."""
    test = _Replay(trace)
    for number, (op, theirs) in enumerate(zip(trace["ops"], trace["range_after"], strict=True)):
        try:
            test.step(op)
            test.compare_range(theirs)
        except TraceMismatchError as exc:
            raise TraceMismatchError(f"after operation {number}, {json.dumps(op)}: {exc}") from exc
    test.compare_lookups(trace["lookups"])


def traces(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the traces of a file, one JSON object a line. Raises TraceMismatchError for a line that is none."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                trace = json.loads(line)
                trace["ops"], trace["range_after"], trace["lookups"]
            except (ValueError, KeyError, TypeError) as exc:
                raise TraceMismatchError(f"line {number} is no trace: {exc}") from exc
            yield trace


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay every trace of a file; return 1 at the first one that differs, 2 for a file that cannot be read."""
    parser = argparse.ArgumentParser(prog="make traces FILE=path", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="traces, one JSON object a line")
    given = parser.parse_args(arguments)
    checked = 0
    try:
        for trace in traces(given.file):
            try:
                replay(trace)
            except TraceMismatchError as exc:
                raise TraceMismatchError(f"trace {checked + 1} (seed {trace.get('seed')}): {exc}") from exc
            checked += 1
    except TraceMismatchError as exc:
        print(f"{checked} traces agree; {exc}")
        return 1
    except OSError as exc:
        print(f"cannot read {given.file}: {exc.strerror}", file=sys.stderr)
        return 2
    print(f"{checked} traces checked, all agree")
    return 0 if checked else 1


if __name__ == "__main__":
    sys.exit(main())

"""`tranlog log critical-path`: how parallel a log can be applied by write sets, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer

from tranlog.codecs.opening import open_readable
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.pipeline.rules.critical_path import CriticalPath
from tranlog.pipeline.upkeep.critical_path import critical_path as path_of
from tranlog.pipeline.upkeep.critical_path import name_of
from tranlog.service.frame.command import AsJson, answer, option
from tranlog.service.frame.progress import Progress
from tranlog.service.frame.tables import table_lines
from tranlog.service.upkeep.segments import Directory, log_of


def critical_path(
    ctx: typer.Context,
    first: Annotated[int | None, option("--from", "SEQNO", "The first seqno; default: the log's first.", min=0)] = None,
    last: Annotated[int | None, option("--to", "SEQNO", "The last seqno; default: the log's last.", min=0)] = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Show how much parallelism write sets allow when this log is applied, and which keys are hot.

    A transaction waits for those that touched the same keys, and takes as long as it has row changes. The longest chain
    is the critical path: no number of channels is faster. Next to it is what 4, 16 and 64 channels would reach, if the
    target has the source's keys and commits and waits cost nothing. Values of keys that transactions of the critical
    path waited for are hot.

    \b
    Example:
      tranlog log critical-path
      tranlog log critical-path --from 1000 --to 2000 --json
    """
    with closing(open_readable(log_of(ctx, directory))) as log, Progress() as progress:
        held = log.range()
        begin, end = (held.first_seqno if first is None else first), (held.last_seqno if last is None else last)
        if begin < held.first_seqno and held.first_seqno != NO_SEQNO:
            raise log.purged(Seqno(begin))
        if not begin <= end <= held.last_seqno:
            raise typer.BadParameter(f"the log holds seqno {held.first_seqno} to {held.last_seqno}")
        found = path_of(log, Seqno(begin), Seqno(end), progress.update)
        names = [name_of(log, one.value, one.seqno) or f"hash {one.value:08x}" for one in found.hot]
    answer(_json(begin, end, found, names), _lines(begin, end, found, names), as_json)


def _lines(first: int, last: int, found: CriticalPath, names: list[str]) -> Iterator[str]:
    yield f"seqno {first} to {last}: {found.transactions} transactions with {found.changes} row changes"
    yield f"critical path: {found.on_path} transactions with {found.length} row changes"
    yield f"at best {found.best:.2f} times as fast as one channel"
    yield from table_lines(
        (">channels", ">times as fast"), [(one, f"{times:.2f}") for one, times in found.at_once.items()]
    )
    if found.serial:
        yield ""
        yield from table_lines((">alone", "why"), [(count, why) for why, count in found.serial.items()])
    if names:
        yield ""
        rows = [(one.waited, name, one.seqno) for one, name in zip(found.hot, names, strict=True)]
        yield from table_lines((">waited", "for", ">seqno, one of them"), rows)


def _json(first: int, last: int, found: CriticalPath, names: list[str]) -> dict[str, object]:
    return {
        "first_seqno": first,
        "last_seqno": last,
        "transactions": found.transactions,
        "changes": found.changes,
        "path_transactions": found.on_path,
        "path_changes": found.length,
        "best": round(found.best, 2),
        "at_once": {str(channels): times for channels, times in found.at_once.items()},
        "serial": found.serial,
        "hot": [
            {"key": name, "waited": one.waited, "seqno": one.seqno} for one, name in zip(found.hot, names, strict=True)
        ],
    }

"""`tranlog rollback`: what a node's rollbacks took out of its log, to be looked at, committed again or discarded.

Owns the commands' words and their output; the files are `replication/acting/rollback.py`'s.

Source: tokumx-replication, "Collect Rollback Data".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from tranlog.errors import ConfigError, LogError
from tranlog.ids import Gtid
from tranlog.listing import time_text
from tranlog.log.reading.reader import LogReader
from tranlog.payload import decode
from tranlog.replication.acting.rollback import (
    SavedTransaction,
    discard,
    read_operations,
    read_rollback,
    read_transactions,
    saved_rollbacks,
)
from tranlog.replication.rules.syncup import Saved
from tranlog.service.frame.command import AsJson, Yes, answer, confirm, new_app, print_json
from tranlog.service.frame.exits import ExitCode
from tranlog.service.frame.tables import table_lines
from tranlog.service.upkeep.segments import Directory, log_of
from tranlog.target.sql_text import NoSqlForm, SqlKind, script_head, transaction_script

rollback_app = new_app(
    help="What rollbacks took out of a node's log.\n\n\b\nExample:\n  tranlog --conf a.toml rollback list"
)
Number = Annotated[int, typer.Argument(metavar="NUMBER", help="As `tranlog rollback list` shows it.", min=0)]


@rollback_app.command("list")
def list_command(ctx: typer.Context, directory: Directory = None, as_json: AsJson = False) -> None:
    """List the rollbacks whose data is kept: when, back to where, and how much.

    \b
    Example:
      tranlog --conf a.toml rollback list
    """
    path = log_of(ctx, directory)
    with _back_in(path) as is_back:
        found = [read_rollback(path, rid, is_back) for rid in saved_rollbacks(path)]
    shown = [_named(msgspec.structs.asdict(one)) for one in found]
    rows = [
        (one.rid, time_text(one.time), one.matchpoint, one.last, one.transactions, one.operations, one.back)
        for one in found
    ]
    heads = (">rollback", "time", "back to", "from", ">transactions", ">operations", ">in the log again")
    answer({"rollbacks": shown}, table_lines(heads, rows), as_json)


@contextmanager
def _back_in(path: str) -> Iterator[Callable[[Gtid], bool]]:
    """Yield what says whether the log at `path` holds a transaction; nothing does where that cannot be read."""
    with ExitStack() as opened:
        try:
            log = opened.enter_context(LogReader.open(path))
        except LogError as exc:
            print(f"the log cannot be read, so none of them is taken to be in it again: {exc}", file=sys.stderr)
            yield lambda _: False
            return

        def is_back(gtid: Gtid) -> bool:
            header = log.header(gtid.seqno)
            return header is not None and header.gtid == gtid

        yield is_back


def _named(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "matchpoint": str(fields["matchpoint"]), "last": str(fields["last"])}


@rollback_app.command("show")
def show(ctx: typer.Context, number: Number, directory: Directory = None, as_json: AsJson = False) -> None:
    """Show the operations of a rollback, the newest first. With --json each is a line.

    \b
    Example:
      tranlog --conf a.toml rollback show 0
    """
    path = _known(ctx, directory, number)
    for one in read_operations(path, number):
        answer(_operation(one), _lines(one), as_json)


def _operation(one: Saved) -> dict[str, Any]:
    time = datetime.fromtimestamp(one.time // 1000, UTC).replace(microsecond=one.time % 1000 * 1000)
    return {
        "_id": {"rid": one.rid, "seq": one.seq},
        "gtid": one.gtid.to_base64(),
        "gtidString": one.gtid_string,
        "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "op": one.op,
    }


def _lines(one: Saved) -> Iterator[str]:
    """Yield an operation as the ancestor's shell prints it."""
    shown = _operation(one)
    named = {"gtid": f'BinData(0,"{shown["gtid"]}")', "time": f'ISODate("{shown["time"]}")'}
    yield "{"
    for name, value in shown.items():
        text = json.dumps(value, indent=4, separators=(",", " : "), ensure_ascii=False).replace("\n", "\n    ")
        yield f'    "{name}" : {named.get(name, text)}{"" if name == "op" else ","}'
    yield "}"


@rollback_app.command("export")
def export(
    ctx: typer.Context,
    number: Number,
    directory: Directory = None,
    sql: Annotated[SqlKind | None, typer.Option("--sql", help="SQL of this kind of database.")] = None,
) -> int:
    """Print the transactions of a rollback, the oldest first, as lines of JSON from which they can be committed again.

    Each has its GTID, its event id, `ops` for people, and `payloads`: of each operation the payload in base64.
    docs/replication.md has a program that commits them.

    One that is in the log again is left out, and said: another node had it, too.

    With --sql it is a script for the database's own program. Of a transaction that has no such form the script has a
    comment, which says why, and the exit code is 1.

    \b
    Example:
      tranlog --conf a.toml rollback export 0 > again.jsonl
      tranlog --conf a.toml rollback export 0 --sql postgres > again.sql
    """
    path = _known(ctx, directory, number)
    with _back_in(path) as is_back:
        found = _still_gone(read_transactions(path, number), is_back)
        if sql is not None:
            return _print_script(found, sql)
        for one in found:
            print_json(one)
    return ExitCode.DONE


def _still_gone(found: Iterable[SavedTransaction], is_back: Callable[[Gtid], bool]) -> Iterator[SavedTransaction]:
    for one in found:
        if is_back(Gtid.parse(one.gtid)):
            print(f"{one.gtid} is in the log again, and left out", file=sys.stderr)
        else:
            yield one


def _print_script(found: Iterable[SavedTransaction], kind: SqlKind) -> int:
    left_out = 0
    print(script_head(kind))
    for one in found:
        changes = [change for payload in one.payloads for change in decode(payload).changes]
        script = transaction_script(changes, kind)
        print(f"-- {one.gtid} {json.dumps(one.event_id)}")
        if isinstance(script, NoSqlForm):
            left_out += 1
            script = f"-- left out: {json.dumps(script.why, ensure_ascii=False)}"
        print(script)
    if left_out:
        print(f"{left_out} transactions have no such form and are left out: `grep 'left out'`", file=sys.stderr)
    return ExitCode.CHECK_FAILED if left_out else ExitCode.DONE


@rollback_app.command("discard")
def discard_command(
    ctx: typer.Context,
    number: Annotated[int | None, typer.Argument(metavar="[NUMBER]", help="One of them.", min=0)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them; the next rollback is number 0.")] = False,
    yes: Yes = False,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Remove what a rollback saved, for ever.

    \b
    Example:
      tranlog --conf a.toml rollback discard 0 -y
      tranlog --conf a.toml rollback discard --all
    """
    if (number is None) is not everything:
        raise ConfigError(option="NUMBER", value=number, why="give a rollback's number, or --all")
    path = log_of(ctx, directory) if number is None else _known(ctx, directory, number)
    numbers = saved_rollbacks(path) if number is None else [number]
    if numbers and not yes:
        confirm(f"Discard the data of {len(numbers)} rollback(s) of {path}?")
    for one in numbers:
        discard(path, one)
    answer({"discarded": numbers}, f"discarded the data of {len(numbers)} rollback(s)", as_json)


def _known(ctx: typer.Context, directory: str | None, number: int) -> str:
    """Return the log's directory. Raises ConfigError where it has no such rollback."""
    path = log_of(ctx, directory)
    known = saved_rollbacks(path)
    if number not in known:
        kept = ", ".join(map(str, known)) or "none"
        raise ConfigError(option="NUMBER", value=number, why=f"{path} has no data of this rollback; it has: {kept}")
    return path

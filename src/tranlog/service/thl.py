"""The `thl` command: look into a log without changing a byte of it.

Owns the commands and their options, by the ancestor's names; the text forms are in `listing`, what damage means in
`log.verify`. The hard idea: an answer is either about what was asked for or an error. A seqno that the log does not
hold is never answered with its neighbour (B7-23), and a listing that cannot go on does not end as if it were done.

Source: thl-internals, "'thl' Utility"; conformance/tungsten.md A9, B7.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import typer

from tranlog.disk import OsDisk
from tranlog.errors import LogClosedError, PayloadError
from tranlog.ids import Seqno
from tranlog.log.cursor import Cursor, StoredTransaction
from tranlog.log.format import Record, RecordHeader
from tranlog.log.reader import LogReader
from tranlog.log.verify import verify as check_log
from tranlog.payload import Payload, decode
from tranlog.service import listing
from tranlog.service.command import Progress, new_app, print_json, require_command, run_app, say
from tranlog.service.config import find_log
from tranlog.service.exits import ExitCode

LOCATING: Final = ("-service", "--service", "-conf", "--conf", "-dir", "--dir")

app = new_app(add_completion=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The seqnos that a listing is to show, both ends included; None: from the first, to the last."""

    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What of the wanted seqnos the log holds. `note` says what is missing from a listing that shows the rest."""

    low: Seqno
    high: Seqno
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """Nothing of what is wanted is there."""

    message: str
    code: ExitCode


def choose(wanted: Wanted, first: int, last: int) -> Shown | NotFound:
    """Decide what to show of a log that holds `first` to `last` (-1: nothing). Pure.

    Source: conformance/tungsten.md A9, `list`; B7-23.
    """
    if last < 0:
        if wanted.low is None and wanted.high is None:
            return NotFound(message="No events found; log is empty", code=ExitCode.DONE)
        seqno = wanted.high if wanted.low is None else wanted.low
        return NotFound(message=f"Unable to find sequence number: {seqno}", code=ExitCode.CHECK_FAILED)
    low = first if wanted.low is None else wanted.low
    high = last if wanted.high is None else wanted.high
    if low > last or high < first:
        seqno = low if low > last else high
        return NotFound(message=f"Unable to find sequence number: {seqno}", code=ExitCode.CHECK_FAILED)
    notes = []
    if low < first:
        notes.append(f"seqno {low} to {first - 1} are not in this log: it starts at {first}")
    if high > last:
        notes.append(f"the log ends at seqno {last}")
    return Shown(low=Seqno(max(low, first)), high=Seqno(min(high, last)), note="; ".join(notes))


@app.callback(invoke_without_command=True)
def locate(
    ctx: typer.Context,
    service: Annotated[
        str | None,
        typer.Option("-service", "--service", metavar="NAME", help="The service of NAME.toml or tranlog.toml here."),
    ] = None,
    conf: Annotated[
        str | None, typer.Option("-conf", "--conf", metavar="FILE", help="The configuration; default: tranlog.toml.")
    ] = None,
    directory: Annotated[
        str | None, typer.Option("-dir", "--dir", metavar="PATH", help="The log directory itself.")
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show all diagnostics, and the traceback of an error.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show diagnostics on stderr.")] = False,
) -> None:
    """Look into a transaction log: list what it holds, check it. Changes nothing, needs no lock.

    \b
    Example:
      thl -service shop list -seqno 5
      thl -dir log list -low 100 -high 200 -headers
      thl -conf tranlog.toml verify

    Exit codes: 0 done, 1 not found, 2 bad usage, 3 damaged log, 4 log missing or unreadable.
    """
    require_command(ctx)
    ctx.obj = (service, conf, directory)


@app.command("list")
def list_(
    ctx: typer.Context,
    seqno: Annotated[int | None, typer.Option("-seqno", "--seqno", metavar="N", help="Only this transaction.")] = None,
    low: Annotated[int | None, typer.Option("-low", "--low", metavar="N", help="From this seqno on.")] = None,
    high: Annotated[
        int | None, typer.Option("-high", "--high", metavar="N", help="Up to this seqno, inclusive.")
    ] = None,
    headers: Annotated[
        bool,
        typer.Option("-headers", "--headers", help="One line per fragment: seqno, epoch, fragno, last, time, ids."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("-json", "--json", help="One line of JSON per fragment; with -headers one JSON array.")
    ] = False,
) -> int:
    """Print transactions, fragment by fragment, up to the last one that readers may see.

    \b
    Example:
      thl -service shop list -seqno 5
      thl -dir log list -low 100 -high 200
      thl -dir log list -headers -json
    """
    wanted = wanted_range(seqno=seqno, low=low, high=high)
    with _reader(ctx) as reader:
        held = reader.range()
        match choose(wanted, held.first_seqno, held.last_seqno):
            case NotFound(message=message, code=code):
                if headers and as_json and code is ExitCode.DONE:
                    print("[\n]")
                say(message)
                return code
            case Shown(low=first, high=last, note=note):
                if note:
                    say(note)
                with reader.cursor() as cursor:
                    for line in _lines(cursor, first, last, headers=headers, as_json=as_json):
                        print(line)
                return ExitCode.DONE


def wanted_range(*, seqno: int | None, low: int | None, high: int | None) -> Wanted:
    """Check the three options against each other. Raises typer.BadParameter."""
    for name, value in (("-seqno", seqno), ("-low", low), ("-high", high)):
        if value is not None and value < 0:
            raise typer.BadParameter("a seqno is 0 or more", param_hint=name)
    if seqno is not None:
        if low is not None or high is not None:
            raise typer.BadParameter("stands alone, without -low and -high", param_hint="-seqno")
        return Wanted(low=seqno, high=seqno)
    if low is not None and high is not None and low > high:
        raise typer.BadParameter(f"{low} is above -high {high}", param_hint="-low")
    return Wanted(low=low, high=high)


@app.command("index")
def index(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("-json", "--json", help="One line of JSON per segment.")] = False,
) -> None:
    """Print the segments, each with its first and last seqno; -1 for both in a segment without a transaction.

    \b
    Example:
      thl -service shop index
    """
    with _reader(ctx) as reader:
        for segment in reader.index():
            empty = segment.last_seqno < segment.first_seqno
            first, last = (-1, -1) if empty else (segment.first_seqno, segment.last_seqno)
            if as_json:
                print_json({"file": segment.name, "firstSeqno": first, "lastSeqno": last, "bytes": segment.bytes})
            else:
                print(listing.index_line(segment.name, first, last))


@app.command("info")
def info(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("-json", "--json", help="One JSON object.")] = False,
) -> None:
    """Print where the log is, how large it is and which seqnos it holds.

    \b
    Example:
      thl -dir log info
    """
    with _reader(ctx) as reader:
        held = reader.range()
        disk = OsDisk()
        segments = [
            listing.SegmentShown(
                file=segment.name,
                bytes=segment.bytes,
                modified_ms=disk.modified_ms(os.path.join(reader.path, segment.name)),
            )
            for segment in reader.index()
        ]
        shown = listing.overview(os.path.abspath(reader.path), segments, first=held.first_seqno, last=held.last_seqno)
        if as_json:
            print_json(shown)
        else:
            for line in listing.overview_lines(shown):
                print(line)


@app.command("verify")
def verify(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("-json", "--json", help="One JSON object.")] = False,
) -> int:
    """Read every record and check it: framing, checksums, the order of seqnos, fragments and segments.

    Goes on behind damage, to tell its extent. A log may be checked while it is written.

    \b
    Example:
      thl -service shop verify
    """
    path = _log_of(ctx)
    with Progress() as progress:
        found = check_log(path, progress=lambda done, total: progress.update(f"checked {done} of {total} bytes"))
    if as_json:
        print_json({**msgspec.to_builtins(found), "sound": found.sound})
    else:
        for line in listing.verify_lines(found):
            print(line)
    if found.sound:
        return ExitCode.DONE
    say(
        f"thl: {len(found.problems)} problems in the log at {path}; nothing was changed. Restore the segments that are "
        "named from a copy; what lies before the first problem can be read and applied"
    )
    return ExitCode.DATA


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `thl` and return its exit code."""
    return run_app(app, arguments, prog="thl", hoisted=LOCATING)


def _log_of(ctx: typer.Context) -> str:
    service, conf, directory = ctx.obj
    return find_log(conf=conf, service=service, directory=directory)


def _reader(ctx: typer.Context) -> LogReader:
    return LogReader.open(_log_of(ctx))


def _records(cursor: Cursor, first: Seqno, last: Seqno) -> Iterator[StoredTransaction]:
    cursor.seek(first)
    for seqno in range(first, last + 1):
        transaction = cursor.next()
        if transaction is None:
            raise LogClosedError(f"it was cut back to before seqno {seqno} while it was read")
        yield transaction


def _lines(cursor: Cursor, first: Seqno, last: Seqno, *, headers: bool, as_json: bool) -> Iterator[str]:
    if not headers:
        show = listing.fragment_json if as_json else _fragment_text
        for transaction in _records(cursor, first, last):
            for record in transaction.records():
                yield show(record.header, _decode(record))
        return
    headers_found = (
        header
        for transaction in _records(cursor, first, last)
        for header in (
            (transaction.header,) if transaction.fragments == 1 else (record.header for record in transaction.records())
        )
    )
    yield from (
        _json_array(map(listing.header_json, headers_found)) if as_json else map(listing.header_line, headers_found)
    )


def _json_array(items: Iterable[str]) -> Iterator[str]:
    """Yield the lines of an array whose items stand below each other, without holding more than one."""
    yield "["
    held = None
    for item in items:
        if held is not None:
            yield held + ","
        held = item
    if held is not None:
        yield held
    yield "]"


def _fragment_text(header: RecordHeader, payload: Payload) -> str:
    return "\n".join(listing.fragment_lines(header, payload))


def _decode(record: Record) -> Payload:
    try:
        return decode(record.payload)
    except PayloadError as exc:
        raise PayloadError(why=exc.why, seqno=record.header.seqno) from exc

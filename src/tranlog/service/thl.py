"""The `thl` command: look into a log; nothing but `repair` changes a byte of it.

Owns the commands and their options, by the ancestor's names; the text forms are in `listing`, what damage means in
`log.verify`. The hard idea: an answer is either about what was asked for or an error. A seqno that the log does not
hold is never answered with its neighbour (B7-23), and a listing that cannot go on does not end as if it were done.

Source: thl-internals, "'thl' Utility"; conformance/tungsten.md A9, B7.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec
import typer

from tranlog.disk import OsDisk
from tranlog.errors import LogClosedError, PayloadError
from tranlog.ids import Gtid, Seqno
from tranlog.log.cursor import Cursor, StoredTransaction
from tranlog.log.diff import SHOWN
from tranlog.log.diff import diff as diff_logs
from tranlog.log.format import Record, RecordHeader, RollbackMark
from tranlog.log.lookup import OtherEpoch, find_event, find_gtid, find_time, parse_gtid, parse_time
from tranlog.log.reader import LogReader
from tranlog.log.repair import Keep, NothingToRepair, RepairPlan
from tranlog.log.repairing import repair as repair_log
from tranlog.log.verify import VerifyReport
from tranlog.log.verify import verify as check_log
from tranlog.payload import Payload, decode
from tranlog.service import integrity, listing
from tranlog.service.command import Progress, confirm, new_app, print_json, require_command, run_app, say
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
    """Look into a transaction log: list what it holds, check it, compare it. Only repair changes it or needs a lock.

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
    gtid: Annotated[
        str | None,
        typer.Option("-gtid", "--gtid", metavar="GTID", help="Only this one: 'GTID(1, 15)', or base64 of 16 bytes."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "-time",
            "--time",
            metavar="TIME",
            help="From the first one in the log that was committed at this time or later, e.g. '2011-07-01 15:15:17'; "
            "UTC unless it names an offset.",
        ),
    ] = None,
    event: Annotated[
        str | None,
        typer.Option("-event", "--event", metavar="ID", help="Only the newest one with this event id."),
    ] = None,
    abandoned: Annotated[
        bool,
        typer.Option(
            "-abandoned",
            "--abandoned",
            help="What rollbacks abandoned and is still in the files, each run of it behind the mark that took it.",
        ),
    ] = False,
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
      thl -dir log list -gtid 'GTID(1, 15)'
      thl -dir log list -time '2011-07-01 15:15:17' -high 200
      thl -dir log list -event 000868:0000000000001025
      thl -dir log list -abandoned -headers
    """
    wanted = wanted_range(seqno=seqno, low=low, high=high)
    sought = sought_by(gtid=gtid, time=time, event=event, wanted=wanted)
    if abandoned and sought is not None:
        raise typer.BadParameter("stands beside -seqno, -low and -high only", param_hint="-abandoned")
    with _reader(ctx) as reader:
        if abandoned:
            for line in _abandoned_lines(reader, wanted, headers=headers, as_json=as_json):
                print(line)
            return ExitCode.DONE
        if sought is not None:
            found = look_up(reader, sought, wanted)
            if isinstance(found, NotFound):
                say(found.message)
                return found.code
            wanted = found
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


Sought: TypeAlias = Gtid | int | str
"""What a listing looks for: a GTID, a time in ms, or an event id."""


def sought_by(*, gtid: str | None, time: str | None, event: str | None, wanted: Wanted) -> Sought | None:
    """Read the options that look something up, and check them against the others. Raises typer.BadParameter."""
    given = [name for name, value in (("-gtid", gtid), ("-time", time), ("-event", event)) if value is not None]
    if not given:
        return None
    if len(given) > 1 or wanted.low is not None or (wanted.high is not None and given != ["-time"]):
        beside = "beside -high only" if given == ["-time"] else "alone"
        raise typer.BadParameter(f"stands {beside}", param_hint=given[0])
    try:
        return parse_gtid(gtid) if gtid is not None else parse_time(time) if time is not None else event
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint=given[0]) from exc


def look_up(reader: LogReader, sought: Sought, wanted: Wanted) -> Wanted | NotFound:
    """Find what is sought, as the range of seqnos to show."""
    match sought:
        case Gtid():
            one = find_gtid(reader, sought)
            if isinstance(one, OtherEpoch):
                there = f"seqno {sought.seqno} is {one.found.gtid} in this log"
                return NotFound(message=f"Unable to find {sought}: {there}", code=ExitCode.CHECK_FAILED)
            what = str(sought)
        case int():
            one = find_time(reader, sought)
            what = f"a transaction of {listing.time_text(sought)} or later"
        case str():
            one = find_event(reader, sought)
            what = f"event id {sought}"
    if one is None:
        return NotFound(message=f"Unable to find {what}", code=ExitCode.CHECK_FAILED)
    return Wanted(low=one.seqno, high=wanted.high if isinstance(sought, int) else one.seqno)


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
        "named from a copy, or see by `thl repair --dry-run` what a repair would lose; what lies before the first "
        "problem can be read and applied"
    )
    return ExitCode.DATA


@app.command("repair")
def repair(
    ctx: typer.Context,
    keep: Annotated[
        Keep,
        typer.Option(
            "-keep",
            "--keep",
            help="Where transactions are missing: keep the front, all before the first damage, or the back, all "
            "segments behind the last damage.",
        ),
    ] = Keep.FRONT,
    dry_run: Annotated[bool, typer.Option("-dry-run", "--dry-run", help="Only say what would be done.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("-json", "--json", help="One JSON object.")] = False,
) -> int:
    """Make a damaged log one that opens and verifies clean, and say what was lost.

    Needs the writer's lock: stop whoever writes the log. What is cut off or taken away is kept in cut/, and so is a
    report. Headers, sync and rotate records are written again where no transaction is missing. A repair that was
    interrupted is finished by another one. A copy of the damaged segment is always better: restore that, if there is
    one.

    \b
    Example:
      thl -service shop repair --dry-run
      thl -service shop repair
      thl -dir log repair --keep back -y
    """
    path = _log_of(ctx)

    def agree(plan: RepairPlan, report: VerifyReport) -> None:
        for problem in report.problems:
            say(f"repair: {problem.segment}, offset {problem.offset}: {problem.why}")
        for line in integrity.plan_lines(plan):
            say(f"repair: {line}")
        if not yes:
            confirm(f"Repair the log at {path}?")

    with Progress() as progress:
        outcome = repair_log(
            path,
            keep=keep,
            dry_run=dry_run,
            agree=None if yes and as_json else agree,
            progress=lambda done, total: progress.update(f"checked {done} of {total} bytes"),
        )
    plan = outcome.decision
    if as_json:
        told = None if isinstance(plan, NothingToRepair) else plan
        sound = outcome.before.sound if outcome.after is None else outcome.after.sound
        print_json({"plan": told, "kept_in": outcome.kept_in, "report": outcome.report, "sound": sound})
    elif isinstance(plan, NothingToRepair):
        print("nothing to repair")
    elif dry_run:
        for line in integrity.plan_lines(plan):
            print(line)
    else:
        for line in (*integrity.lost_lines(plan.lost), *integrity.outcome_lines(outcome)):
            print(line)
    if dry_run:
        return ExitCode.DONE if isinstance(plan, NothingToRepair) else ExitCode.CHECK_FAILED
    return ExitCode.DONE if outcome.after is None or outcome.after.sound else ExitCode.DATA


@app.command("diff")
def diff(
    ctx: typer.Context,
    one: Annotated[str, typer.Argument(metavar="A", help="A log directory.")],
    other: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    full: Annotated[
        bool,
        typer.Option("-full", "--full", help="Read and compare everything, instead of searching for the first one."),
    ] = False,
    shown: Annotated[
        int, typer.Option("-shown", "--shown", metavar="N", min=0, help="How many transactions to list of each.")
    ] = SHOWN,
    as_json: Annotated[bool, typer.Option("-json", "--json", help="One JSON object.")] = False,
) -> int:
    """Print where two logs first disagree, and what each alone has.

    A few looks find the first difference in logs of any size, since equal GTIDs mean equal history; that presumes
    that neither log was changed by a hand. With --full nothing is presumed. What was purged from one of them is not
    compared. Exit code 1 if they disagree or have no seqno in common.

    \b
    Example:
      thl diff log copy/log
      thl diff --full --json log copy/log
    """
    with LogReader.open(one) as left, LogReader.open(other) as right, Progress() as progress:
        found = diff_logs(
            left,
            right,
            full=full,
            shown=shown,
            progress=lambda done, total: progress.update(f"compared {done} of {total} transactions"),
        )
    if as_json:
        print_json({**msgspec.to_builtins(found), "agree": found.agree})
    else:
        for line in integrity.diff_lines(found):
            print(line)
    return ExitCode.DONE if found.agree else ExitCode.CHECK_FAILED


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


def _abandoned_lines(reader: LogReader, wanted: Wanted, *, headers: bool, as_json: bool) -> Iterator[str]:
    """Yield what rollbacks abandoned, in the forms of any other listing; a line with the mark before each run."""

    def items() -> Iterator[str]:
        shown: RollbackMark | None = None
        for mark, record in reader.abandoned():
            seqno = record.header.seqno
            if not (wanted.low or 0) <= seqno <= (seqno if wanted.high is None else wanted.high):
                continue
            if mark is not shown:
                shown = mark
                yield listing.mark_json(mark) if as_json else listing.mark_line(mark)
            if headers:
                yield (listing.header_json if as_json else listing.header_line)(record.header)
            else:
                yield (listing.fragment_json if as_json else _fragment_text)(record.header, _decode(record))

    return _json_array(items()) if headers and as_json else items()


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

"""`thl list` and `thl tail`: which transactions are wanted, and in which form.

Owns the selectors and the forms of a listing, and which of them go together. The hard idea: an answer is either about
what was asked for or an error. A seqno that the log does not hold is never answered with its neighbour (B7-23), and a
listing that cannot continue does not end as if it were complete.

Source: thl-internals, "'thl' Utility".
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from tranlog.codecs.shown import NativeShown, NotThere, SegmentLine, ShownForm, ShownLog, Sought
from tranlog.ids import Gtid, Seqno, segment_number
from tranlog.listing import Style, json_array, python_charset
from tranlog.log.reading.lookup import parse_time
from tranlog.service.frame.command import flag, option, say, stop_signals
from tranlog.service.frame.exits import ExitCode
from tranlog.service.frame.progress import Progress
from tranlog.service.thl.located import open_shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The seqnos that a listing is to show, both ends included; None: from the first, to the last."""

    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSeqnos:
    """What of the wanted seqnos the log holds. `note` says what is missing from a listing that shows the rest."""

    low: Seqno
    high: Seqno
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """Nothing of what is wanted is there."""

    message: str
    code: ExitCode


def choose(wanted: Wanted, first: int, last: int, held_from: Callable[[int], int]) -> WantedSeqnos | NotFound:
    """Decide what to show of a log that holds `first` to `last` (-1: nothing). `held_from` passes gaps.

    Source: B7-23.
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
    elif (begins := held_from(low)) > low:
        if begins > high:
            return NotFound(message=f"Unable to find sequence number: {low}", code=ExitCode.CHECK_FAILED)
        notes.append(f"seqno {low} to {begins - 1} are not in this log")
    if high > last:
        notes.append(f"the log ends at seqno {last}")
    return WantedSeqnos(low=Seqno(max(low, first)), high=Seqno(min(high, last)), note="; ".join(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The last so many transactions."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfFile:
    """What one segment holds."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """A GTID, an event id: that one. A time: from the first at or after it on, up to `high`."""

    sought: Sought
    high: int | None = None


Selection: TypeAlias = Wanted | Newest | OfFile | LookUp


def select(
    *,
    seqno: int | None = None,
    low: int | None = None,
    high: int | None = None,
    last: int | None = None,
    file: str | None = None,
    gtid: str | None = None,
    time: str | None = None,
    event: str | None = None,
) -> Selection:
    """Read the selectors and check them against each other. Pure. Raises typer.BadParameter."""
    for name, value in (("-seqno", seqno), ("-low", low), ("-high", high)):
        if value is not None and value < 0:
            raise typer.BadParameter("a seqno is 0 or more", param_hint=name)
    ranged = [name for name, value in (("-low", low), ("-high", high)) if value is not None]
    alone = [
        name
        for name, value in (
            ("-gtid", gtid),
            ("-time", time),
            ("-event", event),
            ("-file", file),
            ("-last", last),
            ("-seqno", seqno),
        )
        if value is not None
    ]
    if len(alone) > 1:
        raise typer.BadParameter(f"cannot be combined with {alone[1]}", param_hint=alone[0])
    if alone and ranged and (alone[0] != "-time" or low is not None):
        why = "goes with -high only" if alone[0] == "-time" else f"cannot be combined with {' and '.join(ranged)}"
        raise typer.BadParameter(why, param_hint=alone[0])
    if seqno is not None:
        return Wanted(low=seqno, high=seqno)
    if last is not None:
        return Newest(count=last)
    if file is not None:
        if os.path.basename(file) != file or segment_number(file) is None:
            raise typer.BadParameter("a segment's plain name, such as thl.data.0000000001", param_hint="-file")
        return OfFile(name=file)
    try:
        if gtid is not None:
            return LookUp(sought=Gtid.parse(gtid))
        if time is not None:
            return LookUp(sought=parse_time(time), high=high)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint=alone[0]) from exc
    if event is not None:
        return LookUp(sought=event)
    if low is not None and high is not None and low > high:
        raise typer.BadParameter(f"{low} is above -high {high}", param_hint="-low")
    return Wanted(low=low, high=high)


def form_of(*, sql: bool, headers: bool, as_json: bool) -> ShownForm:
    """Return the form that these options ask for. Raises typer.BadParameter."""
    if sql and (headers or as_json):
        raise typer.BadParameter(f"cannot be combined with {'-headers' if headers else '-json'}", param_hint="-sql")
    if sql:
        return ShownForm.SQL
    if headers:
        return ShownForm.HEADERS_JSON if as_json else ShownForm.HEADERS
    return ShownForm.JSON if as_json else ShownForm.TEXT


def style_of(*, specs: bool, charset: str | None, hexadecimal: bool, timezone: str) -> Style:
    """Return how values and times are to be shown. Raises typer.BadParameter for a name that nobody knows."""
    if charset is not None and python_charset(charset) is None:
        raise typer.BadParameter(f"no charset is called {charset!r}", param_hint="-charset")
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise typer.BadParameter(f"no time zone is called {timezone!r}", param_hint="-timezone") from exc
    plain = timezone.upper() in ("UTC", "GMT", "ETC/UTC")
    return Style(specs=specs, charset=charset, hex=hexadecimal, **({} if plain else {"zone": zone}))


SeqnoOption = Annotated[int | None, option("-seqno", "N", "Only this transaction.")]
LowOption = Annotated[int | None, option("-low", "N", "From this seqno on.")]
HighOption = Annotated[int | None, option("-high", "N", "Up to this seqno, inclusive.")]
GtidOption = Annotated[str | None, option("-gtid", "GTID", "Only this one: 'GTID(1, 15)', or base64 of 16 bytes.")]
SqlOption = Annotated[bool, flag("-sql", "Statements only, `;` after each; row changes as comments.")]
SpecsOption = Annotated[bool, flag("-specs", "With each column's name its type, length and more.")]
HeadersOption = Annotated[bool, flag("-headers", "One line per fragment: seqno, epoch, fragno, last, time, ids.")]
JsonOption = Annotated[bool, flag("-json", "One line of JSON per fragment; with -headers one JSON array.")]
CharsetOption = Annotated[str | None, option("-charset", "NAME", "Read bytes as text of this charset, e.g. latin1.")]
HexOption = Annotated[bool, flag("-hex", "Show bytes in hexadecimal, whatever the charset.")]
TimezoneOption = Annotated[str, option("-timezone", "ZONE", "Show times in this zone, e.g. Europe/Berlin.")]
NoChecksumOption = Annotated[bool, flag("-no-checksum", "Also show records whose checksum does not match.")]


def list_(
    ctx: typer.Context,
    seqno: SeqnoOption = None,
    low: LowOption = None,
    high: HighOption = None,
    last: Annotated[int | None, option("-last", "N", "The last N transactions.", min=1)] = None,
    file: Annotated[str | None, option("-file", "NAME", "The transactions of this segment.")] = None,
    gtid: GtidOption = None,
    time: Annotated[
        str | None,
        option(
            "-time",
            "TIME",
            "From the first one in the log that was committed at this time or later, e.g. '2011-07-01 15:15:17'; "
            "UTC unless it names an offset.",
        ),
    ] = None,
    event: Annotated[str | None, option("-event", "ID", "Only the newest one with this event id.")] = None,
    abandoned: Annotated[
        bool,
        flag(
            "-abandoned",
            "What rollbacks abandoned and the files still hold, each run after the mark that abandoned it.",
        ),
    ] = False,
    sql: SqlOption = False,
    specs: SpecsOption = False,
    headers: HeadersOption = False,
    as_json: JsonOption = False,
    charset: CharsetOption = None,
    hexadecimal: HexOption = False,
    timezone: TimezoneOption = "UTC",
    no_checksum: NoChecksumOption = False,
    by: Annotated[int | None, option("-by", "N", "Ignored, as it always was.", hidden=True)] = None,
) -> int:
    """Print transactions, fragment by fragment, up to the last one that readers may see.

    \b
    Example:
      thl -service shop list -seqno 5
      thl -dir log list -low 100 -high 200
      thl -dir log list -last 10 -headers
      thl -dir log list -headers -json
      thl -dir log list -sql -file thl.data.0000000003
      thl -dir log list -gtid 'GTID(1, 15)'
      thl -dir log list -time '2011-07-01 15:15:17' -high 200
      thl -dir log list -event 000868:0000000000001025
      thl -dir log list -abandoned -headers
    """
    selection = select(seqno=seqno, low=low, high=high, last=last, file=file, gtid=gtid, time=time, event=event)
    if abandoned and not isinstance(selection, Wanted):
        raise typer.BadParameter("goes with -seqno, -low and -high only", param_hint="-abandoned")
    form = form_of(sql=sql, headers=headers, as_json=as_json)
    style = style_of(specs=specs, charset=charset, hexadecimal=hexadecimal, timezone=timezone)
    with closing(open_shown(ctx, checksum=not no_checksum)) as log:
        for note in log.notes():
            say(f"note: {note}")
        if abandoned:
            if not isinstance(log, NativeShown):
                raise typer.BadParameter("the Java replicator's logs have no rollback marks", param_hint="-abandoned")
            assert isinstance(selection, Wanted)
            _print(log.abandoned(selection.low or 0, selection.high, form, style), form)
            return ExitCode.DONE
        wanted = resolve(log, selection)
        found = choose(wanted, *log.ends(), log.held_from) if isinstance(wanted, Wanted) else wanted
        match found:
            case NotFound(message=message, code=code):
                if form is ShownForm.HEADERS_JSON and code is ExitCode.DONE:
                    print("[\n]")
                say(message)
                return code
            case WantedSeqnos(low=first, high=end, note=told):
                if told:
                    say(told)
                with Progress(quiet=sys.stdout.isatty()) as progress:  # on a terminal the lines are the progress

                    def passed(seqno: int) -> None:
                        progress.update(f"listed up to seqno {seqno} of {end}")

                    _print(log.lines(first, end, form, style, passed), form)
    return ExitCode.DONE


def _print(lines: Iterator[str], form: ShownForm) -> None:
    for line in json_array(lines) if form is ShownForm.HEADERS_JSON else lines:
        print(line)


def resolve(log: ShownLog, selection: Selection) -> Wanted | NotFound:
    """Turn what is selected into seqnos. Raises typer.BadParameter for a segment that is not there."""
    match selection:
        case Wanted():
            return selection
        case Newest(count=count):
            first, last = log.ends()
            return Wanted(low=None if last < 0 else max(first, last - count + 1), high=None)
        case OfFile(name=name):
            return _of_file(name, log.segments())
        case LookUp(sought=sought, high=high):
            with Progress() as progress:
                found = log.look_up(sought, lambda seqno: progress.update(f"searched up to seqno {seqno}"))
            if isinstance(found, NotThere):
                return NotFound(message=f"Unable to find {found.why}", code=ExitCode.CHECK_FAILED)
            return Wanted(low=found, high=high if isinstance(sought, int) else found)


def _of_file(name: str, segments: list[SegmentLine]) -> Wanted | NotFound:
    for one in segments:
        if one.name == name:
            if one.last_seqno < 0:
                return NotFound(message=f"No events found; {name} holds none", code=ExitCode.DONE)
            return Wanted(low=one.first_seqno, high=one.last_seqno)
    there = f"{segments[0].name} to {segments[-1].name}" if segments else "no segment"
    return NotFound(message=f"Unable to find {name}: the log has {there}", code=ExitCode.CHECK_FAILED)


def tail(
    ctx: typer.Context,
    last: Annotated[
        int, typer.Option("-n", "-last", "--last", metavar="N", min=0, help="Start with the last N transactions.")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("-f", "-follow", "--follow", help="Keep printing new transactions, until Ctrl-C.")
    ] = False,
    hold: Annotated[str | None, option("-hold", "NAME", "With -f: keep what is not printed from being purged.")] = None,
    sql: SqlOption = False,
    specs: SpecsOption = False,
    headers: HeadersOption = False,
    as_json: Annotated[bool, flag("-json", "One line of JSON per fragment.")] = False,
    charset: CharsetOption = None,
    hexadecimal: HexOption = False,
    timezone: TimezoneOption = "UTC",
    no_checksum: NoChecksumOption = False,
) -> int:
    """Print the newest transactions, and with -f those that come, as soon as they are visible.

    \b
    Example:
      thl -service shop tail
      thl -dir log tail -f -n 0 -headers
      thl -dir log tail -f -json | head -100
      thl -dir log tail -f -hold audit
    """
    if headers and as_json:
        raise typer.BadParameter("cannot be combined with -headers: a stream is no array", param_hint="-json")
    form = form_of(sql=sql, headers=headers, as_json=as_json)
    style = style_of(specs=specs, charset=charset, hexadecimal=hexadecimal, timezone=timezone)
    with closing(open_shown(ctx, checksum=not no_checksum)) as log:
        if hold is not None and not (follow and isinstance(log, NativeShown)):
            raise typer.BadParameter("goes with -f, and with a native log", param_hint="-hold")
        first, newest = log.ends()
        begin = max(first, newest - last + 1, 0)
        if not follow:
            if newest < 0:
                say("No events found; log is empty")
            elif last:
                _print(log.lines(begin, newest, form, style), form)
            return ExitCode.DONE
        stop = threading.Event()
        with stop_signals(stop.set, quiet=True):  # that is how it ends
            for line in log.follow(begin, form, style, stop, hold):
                print(line, flush=True)
    return ExitCode.DONE

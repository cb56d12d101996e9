"""What listings of both codecs have in common: styles, moments, charsets, and a line for a header.

Owns these texts, which are the ancestor's. What a fragment holds is shown by each codec's own `reading.text`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Protocol

import msgspec

from tranlog.change import Options
from tranlog.ids import Gtid
from tranlog.types import Datetime, datetime_text

NO_SQL_OF_ROWS: Final = "SQL rendering of row change events is not supported"

# Java's names of charsets that Python calls otherwise; the others need only lower case.
_CHARSETS: Final = {
    "iso8859_1": "latin-1",
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "ms932": "cp932",
    "windows-31j": "cp932",
    "x-windows-949": "cp949",
    "macroman": "mac-roman",
    "x-macroman": "mac-roman",
    "us-ascii": "ascii",
    "unicode": "utf-16",
    "unicodebigunmarked": "utf-16-be",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How events are to be shown: the options of `thl list`.

    `charset` replaces the one that a statement names; `hex` shows bytes of rows in hexadecimal; `specs` adds each
    column's type; `zone` is for instants, whereas a DATE, TIME or DATETIME is a wall clock's.
    """

    charset: str | None = None
    hex: bool = False
    specs: bool = False
    zone: tzinfo = UTC


PLAIN: Final = Style()


def printable(text: str) -> str:
    """Return a text without what breaks a line or a column, or moves a terminal's cursor: as Python escapes it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def python_charset(name: str) -> str | None:
    """Return Python's name of a charset by Java's (or MySQL's); None for one that is not known or no charset."""
    wanted = _CHARSETS.get(name.strip().lower(), name.strip())
    try:
        found = codecs.lookup(wanted)
        "".encode(found.name)
    except (LookupError, ValueError, UnicodeError):
        return None
    return found.name


def _fraction(nanos: int) -> str:
    return f"{nanos:09d}".rstrip("0") or "0"


def time_text(millis: int, zone: tzinfo = UTC, *, nanos: int = 0) -> str:
    """Return ms since 1970 as Java's Timestamp: `2011-07-01 15:15:17.0`. `nanos` are below the millisecond."""
    seconds, rest = divmod(millis, 1000)
    if zone is not UTC:
        try:
            there = datetime.fromtimestamp(0, UTC) + timedelta(seconds=seconds)
            offset = there.astimezone(zone).utcoffset()
        except (OverflowError, ValueError):  # beyond the calendar's years no zone has rules
            offset = None
        seconds += int(offset.total_seconds()) if offset is not None else 0
    return f"{datetime_text(Datetime(seconds * 1_000_000))}.{_fraction(rest * 1_000_000 + nanos)}"


def options_text(options: Options) -> str:
    """Return `k = v, k = v`."""
    return ", ".join([f"{name} = {value}" for name, value in options])


def metadata_text(metadata: Options) -> str:
    """Return `k=v;k=v`, a name alone where its value is empty."""
    return ";".join([f"{name}={value}" if value else name for name, value in metadata])


def bool_text(value: bool) -> str:
    """Return `true` or `false`."""
    return "true" if value else "false"


class ShownHeader(Protocol):
    """What `thl list -headers` shows of a fragment: its record's header has it in either codec."""

    @property
    def seqno(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def fragno(self) -> int: ...
    @property
    def last_frag(self) -> bool: ...
    @property
    def tstamp(self) -> int: ...
    @property
    def event_id(self) -> str: ...
    @property
    def source_id(self) -> str: ...


def header_line(record: ShownHeader, zone: tzinfo = UTC, comments: str = "") -> str:
    """Return one tab-separated line: seqno, epoch, fragno, last fragment, time, event id, source id, comments."""
    return "\t".join(
        (
            str(record.seqno),
            str(record.epoch),
            str(record.fragno),
            bool_text(record.last_frag),
            time_text(record.tstamp, zone),
            printable(record.event_id),
            printable(record.source_id),
            printable(comments),
            "",
        )
    )


class HeaderJson(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One object of `thl list -headers -json`.

    Where the log has them: `h`, the running hash up to the transaction, and its GTID, as text and as base64.
    """

    seqno: int
    epoch: int
    frag: int
    last_frag: bool
    time: str
    event_id: str
    source_id: str
    comments: str = ""
    h: str | msgspec.UnsetType = msgspec.UNSET
    gtid: str | msgspec.UnsetType = msgspec.UNSET
    gtid_base64: str | msgspec.UnsetType = msgspec.UNSET


def header_json(
    record: ShownHeader, zone: tzinfo = UTC, h: str | None = None, comments: str = "", gtid: Gtid | None = None
) -> str:
    """Return one object of `thl list -headers -json`, a line per member."""
    shown = HeaderJson(
        seqno=record.seqno,
        epoch=record.epoch,
        frag=record.fragno,
        last_frag=record.last_frag,
        time=time_text(record.tstamp, zone),
        event_id=record.event_id,
        source_id=record.source_id,
        h=msgspec.UNSET if h is None else h,
        gtid=msgspec.UNSET if gtid is None else str(gtid),
        gtid_base64=msgspec.UNSET if gtid is None else gtid.to_base64(),
        comments=comments,
    )
    return msgspec.json.format(msgspec.json.encode(shown), indent=1).decode().replace("\n ", "\n")


def json_array(items: Iterable[str]) -> Iterator[str]:
    """Yield an array whose items stand below each other, without holding more than one."""
    yield "["
    held: str | None = None
    for item in items:
        if held is not None:
            yield held + ","
        held = item
    if held is not None:
        yield held
    yield "]"

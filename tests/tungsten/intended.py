"""What is ours by intent where the ancestor's own output differs: each kind of difference, with its reason.

Owns the list that `golden` goes by. A kind is told by the difference itself and by what is found in the log, never by
the name of a case. `theirs` and `ours` are lines of a text, or a file, or a value of a dump; `before` is the line
before them in the ancestor's text.

Source: conformance/tungsten.md B4, B7; README of the golden directories.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is found in a log, beside any one output."""

    unfinished_newest: bool = False
    """The newest segment has less than a header."""
    java_objects: bool = False
    """A payload is a serialized Java object."""
    row_changes: bool = False
    """There are row changes."""
    hole: bool = False
    """A segment is missing from the row, or ends without leading to the next."""
    duplicate_or_gap: bool = False
    """Events are out of order."""
    unknown_checksum: bool = False
    """A record says that its checksum is of a type that nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place where our output is not the ancestor's."""

    case: str
    what: str
    """Which output: the name of the file that holds the ancestor's, or of the directory."""
    place: str
    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    before: str = ""
    to_the_end: bool = False
    """Nothing follows it in either text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of intended difference."""

    name: str
    reason: str
    covers: Callable[[Difference, Facts], bool]


FATAL: Final = "Fatal error: "
OUR_ERROR: Final = "ERROR: "
_ADDRESS: Final = re.compile(r"(.* = )(?:\[B@|[\w.]+SerialBlob@)[0-9a-f]+")
_FILE_AND_OFFSET: Final = re.compile(r"file=(\S+) offset=(\d+)|offset=(\d+)|<LOGDIR>/(thl\.data\.\d+)")
_OPEN_END: Final = re.compile(r"(LogIndexEntry thl\.data\.\d+\()(\d+):9223372036854775807\)")
_NUMBER: Final = re.compile(r"(events|max seq#) = (\d+)")
_MAX: Final = re.compile(r"min=(-?\d+) max=(-?\d+) files=(\d+)")
_SEGMENT: Final = re.compile(r"thl\.data\.\d{10}")


def _object_address(found: Difference, facts: Facts) -> bool:
    return len(found.theirs) == len(found.ours) and all(
        (match := _ADDRESS.fullmatch(theirs)) is not None and ours.startswith(match[1])
        for theirs, ours in zip(found.theirs, found.ours, strict=True)
    )


def _blank_line(found: Difference, facts: Facts) -> bool:
    return found.theirs == ("",) and not found.ours and re.search(r" = .*\.\d{9}$", found.before) is not None


def _events(found: Difference, facts: Facts) -> bool:
    if not found.what.endswith("info.txt") or len(found.theirs) != 1 or len(found.ours) != 1:
        return False
    theirs, ours = (re.fullmatch(r"events = (\d+)", line[0]) for line in (found.theirs, found.ours))
    return theirs is not None and ours is not None and int(ours[1]) == int(theirs[1]) + 1


def _wording(found: Difference, facts: Facts) -> bool:
    if len(found.theirs) != 1 or len(found.ours) != 1:
        return False
    theirs, ours = found.theirs[0], found.ours[0]
    if not (theirs.startswith(FATAL) and ours.startswith(OUR_ERROR)):
        return False
    named = _FILE_AND_OFFSET.search(theirs)
    if named is None:
        return True
    file, offset = named[1] or named[4], named[2] or named[3]
    return (file is None or file in ours) and (offset is None or f"offset {offset}," in ours)


def _unfinished_newest(found: Difference, facts: Facts) -> bool:
    if not facts.unfinished_newest or found.what.removeprefix("nochk-") not in _LISTINGS:
        return False
    if not found.theirs:
        return found.to_the_end and bool(found.ours)
    if found.what.endswith("info.txt"):
        pairs = [(_NUMBER.fullmatch(t), _NUMBER.fullmatch(o)) for t, o in zip(found.theirs, found.ours, strict=False)]
        return len(found.theirs) == len(found.ours) and all(t and o and int(o[2]) > int(t[2]) for t, o in pairs)
    return _open_end(found, facts)


def _open_end(found: Difference, facts: Facts) -> bool:
    return len(found.theirs) == len(found.ours) and all(
        (match := _OPEN_END.fullmatch(theirs)) is not None and ours.startswith(match[1])
        for theirs, ours in zip(found.theirs, found.ours, strict=True)
    )


def _missing_seqno(found: Difference, facts: Facts) -> bool:
    return found.what.startswith("list-seqno-") and found.ours == (f"{OUR_ERROR}Unable to find sequence number",)


def _refused_at_open(found: Difference, facts: Facts) -> bool:
    return (
        found.what in ("recovered", "appended")
        and len(found.ours) == 1
        and found.ours[0].startswith(f"{OUR_ERROR}damaged log: ")
        and any(line.startswith("reading fails there too") for line in found.theirs)
    )


def _cut_kept(found: Difference, facts: Facts) -> bool:
    return found.what in ("recovered", "appended") and found.place.startswith("cut/") and not found.theirs


def _purge_hole(found: Difference, facts: Facts) -> bool:
    return found.what == "after" and found.theirs == ("a segment above the end that the purge made",) and not found.ours


def _hole_named(found: Difference, facts: Facts) -> bool:
    if not facts.hole or found.what.removeprefix("after-") not in _LISTINGS:
        return False
    if len(found.ours) == 1 == len(found.theirs):
        theirs, ours = (re.fullmatch(r"(LogIndexEntry \S+\(\d+:)(\d+)\)", one[0]) for one in (found.theirs, found.ours))
        if theirs is not None and ours is not None:
            return theirs[1] == ours[1] and int(ours[2]) < int(theirs[2])
    return len(found.ours) == 1 and found.ours[0].startswith(OUR_ERROR) and _SEGMENT.search(found.ours[0]) is not None


def _unknown_checksum(found: Difference, facts: Facts) -> bool:
    return facts.unknown_checksum and found.place.endswith(".crcOk") and found.ours == ("false",)


def _nul_in_json(found: Difference, facts: Facts) -> bool:
    return (
        found.what == "headers.json"
        and any("\\u0000" in line for line in found.ours)
        and [line.replace("\0", "\\u0000") for line in found.theirs] == list(found.ours)
    )


def _specs_hex(found: Difference, facts: Facts) -> bool:
    return (
        found.what == "list-specs-hex.txt"
        and facts.row_changes
        and found.to_the_end
        and bool(found.theirs)
        and found.theirs[-1] == f"{FATAL}2"
    )


def _java_object(found: Difference, facts: Facts) -> bool:
    return facts.java_objects and found.what == "dump.jsonl" and found.place.endswith(".event") and not found.ours


def _empty_array(found: Difference, facts: Facts) -> bool:
    return found.what == "headers.json" and not found.theirs and found.ours == ("[", "]")


_LISTINGS: Final = (
    "list.txt",
    "list-sql.txt",
    "list-specs-hex.txt",
    "headers.txt",
    "headers.json",
    "index.txt",
    "info.txt",
)

KINDS: Final = (
    Kind(
        name="object address",
        reason="the ancestor prints an empty BLOB and undecoded text as the address of a Java object, another one in "
        "each run; ours are the bytes: nothing, or hexadecimal",
        covers=_object_address,
    ),
    Kind(
        name="empty line",
        reason="the ancestor ends a DATETIME with a fraction by a line break of its own; ours is one line per value",
        covers=_blank_line,
    ),
    Kind(
        name="events",
        reason="B7-6: the ancestor's `info` counts max - min, one event too few",
        covers=_events,
    ),
    Kind(
        name="empty array",
        reason="of an empty log the ancestor's `list -headers -json` prints nothing, which is no JSON; ours is []",
        covers=_empty_array,
    ),
    Kind(
        name="wording",
        reason="the ancestor's error in our words: the same file and offset, what happened, and what to do next",
        covers=_wording,
    ),
    Kind(
        name="newest segment unfinished",
        reason="B7-3: with a newest segment that has no header yet, the ancestor hides the whole segment before it "
        "from readers and prints an unknown end; ours shows every complete transaction",
        covers=_unfinished_newest,
    ),
    Kind(
        name="unknown end",
        reason="the ancestor prints 2^63 - 1 for the end of a segment that holds no transaction yet; ours is -1 for "
        "both ends, as both print it for an empty log",
        covers=_open_end,
    ),
    Kind(
        name="missing seqno",
        reason="B7-23: asked for a seqno that the log does not hold, the ancestor shows the event before it; ours says "
        "that it is not there",
        covers=_missing_seqno,
    ),
    Kind(
        name="damage refused at open",
        reason="damage in an older segment, or a record type that no reader passes, is met by the ancestor only when "
        "somebody reads; it opens the log for writing and appends behind it. Ours refuses, naming file and offset",
        covers=_refused_at_open,
    ),
    Kind(
        name="cut kept",
        reason="what an opening for writing cuts off is kept in cut/, so that nothing is lost unseen; the ancestor "
        "takes no notice of that folder",
        covers=_cut_kept,
    ),
    Kind(
        name="purge to the end",
        reason="B7-2: a purge to the end of the log keeps the last segment at the ancestor's, which leaves a hole; "
        "ours removes it",
        covers=_purge_hole,
    ),
    Kind(
        name="hole named",
        reason="B7-4: the ancestor does not notice a missing segment, merges its range into the one before, and ends a "
        "listing there as if it were done; ours names the segment",
        covers=_hole_named,
    ),
    Kind(
        name="unknown checksum type",
        reason="a checksum of a type that nobody knows proves nothing, so ours does not call it right; the ancestor's "
        "reader refuses such a record when it checks, and takes it when it does not",
        covers=_unknown_checksum,
    ),
    Kind(
        name="NUL in JSON",
        reason="the ancestor prints a NUL in an event id as it is, which no reader of JSON takes; ours is \\u0000, as "
        "RFC 8259 wants it",
        covers=_nul_in_json,
    ),
    Kind(
        name="-specs -hex of rows",
        reason="the ancestor's `list -specs -hex` ends with `Fatal error: 2` at the first row change; ours prints it",
        covers=_specs_hex,
    ),
    Kind(
        name="Java object",
        reason="payloads of the JavaSerializer are kept as they are and not decoded; the record's header is shown",
        covers=_java_object,
    ),
)
"""Every kind of difference that is meant. What none of them covers is an error, of ours or of this list."""


def kind_of(found: Difference, facts: Facts) -> Kind | None:
    """Return the kind that covers a difference, None for one that is not meant."""
    return next((kind for kind in KINDS if kind.covers(found, facts)), None)

"""The properties of the THL document under their own names, and what each is here.

Owns the table of names, from the ancestors' to ours, and the reading of their values; what an option means and which
values are possible is said in `options`. The hard idea: an ancestor's name is never ignored. It does what its table
says, or it is refused with the reason and with what to do in its place; and where it is given beside ours, both must
say the same.

Source: thl-internals, "Configuration"; tokumx-replication, expireOplogDays and expireOplogHours. docs/operations.md has
the table for people.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from tranlog.errors import ConfigError
from tranlog.log.options import LogOptions

T = TypeVar("T")

_INTERVAL_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
_INTERVAL: Final = re.compile(r"(?:\d+[dhms])+")
SERIALIZER: Final = "com.continuent.tungsten.replicator.thl.serializer.ProtobufSerializer"
"""The ancestor's default, whose form ours is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """An ancestor's property: `ours` is our option, "" where its value needs none; `read` raises ValueError.

    `refused` says why a property cannot be given at all, and what to do in its place.
    """

    name: str
    ours: str = ""
    read: Callable[[object], object] | None = None
    refused: str = ""


def read_interval_ms(value: object) -> int:
    """Read an interval as the ancestor does: `7d`, `12h`, `30m`, `45s`, `1d12h`; a plain number is milliseconds."""
    if isinstance(value, str) and _INTERVAL.fullmatch(value.strip()):
        return sum(int(part[:-1]) * _INTERVAL_MS[part[-1]] for part in re.findall(r"\d+[dhms]", value))
    try:
        return _number(value)
    except ValueError as exc:
        raise ValueError("an interval is written 7d, 12h, 30m or 45s, or as a number of milliseconds") from exc


def _number(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,18}\s*", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("it is a whole number, 0 or more")
    return value


def _buffer_bytes(value: object) -> int:
    """Never less than a page of the storage, as there."""
    size = _number(value)
    if size < PAGE_BYTES:
        raise ValueError(f"it is never less than the page size, {PAGE_BYTES} bytes")
    return size


def _flag(value: object) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("it is true or false")
    return value


def _retention_s(value: object) -> float | None:
    """0 keeps everything, as there."""
    return read_interval_ms(value) / 1000 or None


def _flush_interval_s(value: object) -> float:
    return _number(value) / 1000


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("it is a text")
    return value


def _serializer(value: object) -> None:
    if value not in (SERIALIZER, "protobuf"):
        raise ValueError(
            f'events are protobuf messages; it is "protobuf" or {SERIALIZER}. A log of Java\'s own '
            "serialization is not readable without its classes"
        )


_CATALOG: Final = "positions are kept at the target, in the transaction that changes it: set {0} in [target]"

PAGE_BYTES: Final = 4096
"""Of the storage."""

PROPERTIES: Final = (
    Property(name="bufferSize", ours="buffer_bytes", read=_buffer_bytes),
    Property(name="doCheckSum", ours="checksum", read=_flag),
    Property(name="eventSerializer", read=_serializer),
    Property(name="flushIntervalMillis", ours="flush_interval_s", read=_flush_interval_s),
    Property(name="fsyncOnFlush", ours="sync_on_flush", read=_flag),
    Property(
        name="logConnectionTimeout",
        refused="a reader holds one file while its cursor is open, and never drops it for being idle; leave it out, "
        "and close cursors",
    ),
    Property(name="logDir", ours="dir", read=_text),
    Property(name="logFileRetention", ours="retention_s", read=_retention_s),
    Property(name="logFileSize", ours="segment_bytes", read=_number),
    Property(
        name="resetPeriod",
        refused="it is about Java's object streams, which keep every object sent until they are reset; the records of "
        "this log are sent as they are. Leave it out",
    ),
    Property(name="URL", refused=_CATALOG.format("URL (or dsn)")),
    Property(name="user", refused=_CATALOG.format("user")),
    Property(name="password", refused=_CATALOG.format("password")),
)
"""Each property of the document's table."""

EXPIRE: Final = {"expireOplogDays": 86_400, "expireOplogHours": 3_600}
"""TokuMX's two names for retention_s, which add up; both 0 keeps everything. Seconds of each."""


def resolve(given: Mapping[str, object]) -> dict[str, tuple[str, object]]:
    """Return what the ancestors' names among `given` say: by our option's name, who said it and the value.

    Shape: only options that were given; nothing for a property that needs none. Raises ConfigError for a refused
    one, a value that cannot be, and two names that contradict each other.
    """
    found: dict[str, tuple[str, object]] = {}
    for one in PROPERTIES:
        if one.name not in given:
            continue
        raw = given[one.name]
        if one.read is None:
            shown = "(hidden)" if one.name in ("password", "URL") else raw
            raise ConfigError(option=one.name, value=shown, why=one.refused)
        value = _read(one.name, raw, one.read)
        if one.ours:
            found[one.ours] = (one.name, value)
    days_and_hours = [name for name in EXPIRE if name in given]
    if days_and_hours:
        seconds = sum(_read(name, given[name], _number) * EXPIRE[name] for name in days_and_hours)
        _agree(found, "retention_s", " and ".join(days_and_hours), float(seconds) or None)
    return found


def _read(name: str, raw: object, read: Callable[[object], T]) -> T:
    try:
        return read(raw)
    except ValueError as exc:
        raise ConfigError(option=name, value=raw, why=str(exc)) from exc


def _agree(found: dict[str, tuple[str, object]], ours: str, name: str, value: object) -> None:
    if ours in found and found[ours][1] != value:
        raise ConfigError(option=name, value=value, why=f"{found[ours][0]} differs; give one of them")
    found[ours] = (name, value)


def log_options(**given: object) -> LogOptions:
    """Return the options of a log from our names and the ancestors', checked.

    `log_options(segment_bytes=50_000_000, logFileRetention="7d")`. Raises ConfigError, also where two names of one
    option differ.
    """
    fields = {field.name for field in dataclasses.fields(LogOptions)}
    ancestors = {one.name for one in PROPERTIES} | EXPIRE.keys()
    for name in given:
        if name not in fields | ancestors:
            raise ConfigError(option=name, value=given[name], why="there is no such option; see LogOptions")
    found = resolve(given)
    if "dir" in found:
        name, value = found["dir"]
        raise ConfigError(option=name, value=value, why="it is the first argument of Log.open")
    values = {name: value for name, value in given.items() if name in fields}
    for ours, (name, value) in found.items():
        if ours in values and values[ours] != value:
            raise ConfigError(option=name, value=given.get(name), why=differs(ours, values[ours]))
        values[ours] = value
    options = LogOptions(**values)  # type: ignore[arg-type]
    options.check()
    return options


def differs(ours: str, value: object) -> str:
    """Return why an ancestor's name cannot stand beside ours."""
    return f"{ours} = {value!r} is given too and differs; give one of them"

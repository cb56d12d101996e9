"""The options of the data source `thl`, read once and checked.

Owns names, forms and combinations of the options, and the meaning of a start or an end in a given log. The hard idea: a
seqno and a GTID name one transaction, but a time or an event id must be looked up. This is done once, when a query is
planned or a stream begins; from then on they are seqnos.

| option | what it says |
|---|---|
| path | the log's directory; this or `node` is needed |
| node | `thl://HOST:PORT,HOST:PORT`, some nodes of a group: the log of one of them is read, up to what is committed |
| readPreference, tags | which node: as `open_remote`; tags as a JSON list of objects, the first that fits |
| readPreferenceTimeout | seconds for which the preferred role alone is looked for, as `prefer_s` of `open_remote` |
| consistency, consistencyTimeout | how far the node must be, and seconds to wait for it: as `open_remote` |
| tlsCa, tlsCertificate, tlsKey | PEM files, of each machine that reads: beyond loopback |
| startSeqno, startGtid, startTime, startEvent | the first transaction to read, one way to say it; default: the first |
| endSeqno, endGtid, endTime, endEvent | the last one to read, one way to say it; default: the last |
| upto | `committed` (default) or `visible` |
| unit | one row per `change` (default) or per `transaction` |
| columns | names, apart by commas; those of the unit by default. Only what is asked for is decoded |
| shards, schemas, tables | names, apart by commas; a table as `schema.table`. Or a JSON list, for names with commas |
| partitions | how many tasks read; default: one per segment |
| maxTransactionsPerTrigger, maxBytesPerTrigger | of a stream: how much a micro-batch takes; at least one transaction |

Times are those of `parse_time`: the start is the first transaction at or after it, the end the last one before the
first that is later. An event id is the newest transaction with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from tranlog.errors import ConfigError, NotInLogError, PurgedError
from tranlog.ids import Gtid, Seqno
from tranlog.log.reading.arrow import ALL, COLUMNS, KNOWN_COLUMNS, Selection, Unit
from tranlog.log.reading.lookup import OtherEpoch, find_event, find_gtid, find_time, parse_time
from tranlog.log.reading.reader import LogReader
from tranlog.replication.acting.client import addresses_of
from tranlog.replication.acting.remote_log import CONSISTENT_S, RemoteLog, open_remote
from tranlog.replication.rules.reading import parse_consistency, parse_preference
from tranlog.tls import group_side

T = TypeVar("T")
_KINDS: Final = ("Seqno", "Gtid", "Time", "Event")
OPTIONS: Final = (
    "path",
    *(f"start{kind}" for kind in _KINDS),
    *(f"end{kind}" for kind in _KINDS),
    *("upto", "unit", "columns", "shards", "schemas", "tables", "partitions"),
    *("maxTransactionsPerTrigger", "maxBytesPerTrigger", "hold"),
    *(
        "node",
        "readPreference",
        "readPreferenceTimeout",
        "tags",
        "consistency",
        "consistencyTimeout",
        "tlsCa",
        "tlsCertificate",
        "tlsKey",
    ),
)

_OF_CREATE_TABLE: Final = ("owner", "location")
"""What Spark 4.3 gives to a source for such a table, with each option under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The start or end of a query, as given by the options; if nothing is set, the log's own."""

    seqno: int | None = None
    gtid: Gtid | None = None
    time_ms: int | None = None
    event_id: str | None = None

    def first(self, log: LogReader, name: str) -> int | None:
        """Return the first seqno to read; None for the first that there is. Raises ConfigError, NotInLogError."""
        if self.time_ms is not None:
            found = find_time(log, self.time_ms)
            return log.range().last_seqno + 1 if found is None else found.seqno
        return self._exact(log, name)

    def last(self, log: LogReader, name: str) -> int | None:
        """Return the last seqno to read; None for the last that there is. Raises ConfigError, NotInLogError."""
        if self.time_ms is not None:
            found = find_time(log, self.time_ms + 1)
            return None if found is None else found.seqno - 1
        return self._exact(log, name)

    def _exact(self, log: LogReader, name: str) -> int | None:
        if self.gtid is not None:
            check_gtid(log, self.gtid, f"{name}Gtid")
            return self.gtid.seqno
        if self.event_id is not None:
            found = find_event(log, self.event_id)
            if found is None:
                raise ConfigError(option=f"{name}Event", value=self.event_id, why="the log holds no such event id")
            return found.seqno
        return self.seqno


def check_gtid(log: LogReader, gtid: Gtid, what: str) -> None:
    """Raise NotInLogError unless the log holds this transaction; PurgedError if it held it once."""
    found = find_gtid(log, gtid)
    if isinstance(found, OtherEpoch):
        raise NotInLogError(what=what, gtid=gtid, found=f"has {found.found.gtid} there")
    if found is None:
        held = log.range()
        if 0 <= gtid.seqno < held.first_seqno:
            raise PurgedError(seqno=gtid.seqno, first=held.first_seqno)
        raise NotInLogError(what=what, gtid=gtid, found=f"ends at seqno {held.last_seqno}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWish:
    """The group and the node to read, as in `open_remote`. `tls`: authority, certificate, key."""

    url: str
    prefer: str = "nearest"
    prefer_s: float = 0.0
    tags: tuple[Mapping[str, str], ...] = ({},)
    consistency: str = "none"
    timeout_s: float = CONSISTENT_S
    tls: tuple[str, str, str | None] | None = None

    def open(self) -> RemoteLog:
        """Open the log of such a node. Raises as `open_remote`."""
        return open_remote(
            self.url,
            prefer=self.prefer,
            prefer_s=self.prefer_s,
            tags=self.tags,
            consistency=self.consistency,
            timeout=self.timeout_s,
            tls=None if self.tls is None else group_side(*self.tls),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """The options of a query, checked. Units are in their names; None leaves a thing to the log.

    Either `path` or `node` says whose log it is.
    """

    path: str = ""
    node: NodeWish | None = None
    start: Bound = Bound()
    end: Bound = Bound()
    upto: str = "committed"
    unit: Unit = Unit.CHANGE
    columns: tuple[str, ...] = COLUMNS[Unit.CHANGE]
    selection: Selection = ALL
    partitions: int | None = None
    max_transactions: int | None = None
    max_bytes: int | None = None
    hold: str | None = None

    def open(self) -> LogReader:
        """Open the log. Raises as `LogReader.open` and `open_remote`."""
        return LogReader.open(self.path) if self.node is None else self.node.open()

    def catch_up(self, reader: LogReader, seqno: Seqno) -> None:
        """Wait until a node holds what was seen at another one; what it still lacks then counts as missing."""
        if isinstance(reader, RemoteLog) and self.node is not None:
            reader.await_seqno(seqno, self.node.timeout_s)


def parse_options(given: Mapping[str, str]) -> QueryOptions:
    """Parse Spark's options, whose names may be in upper or lower case. Raises ConfigError."""
    known = {name.lower(): name for name in OPTIONS}
    options: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in known:
            why = f"thl has the options {', '.join(OPTIONS)}"
            if name in _OF_CREATE_TABLE:
                why = "thl is no source of a CREATE TABLE: CREATE TEMPORARY VIEW name USING thl OPTIONS (path '…')"
            raise ConfigError(option=name, value=None, why=why)
        options[known[name.lower()]] = value
    path, node = options.get("path", ""), _node(options)
    if bool(path) == (node is not None):
        raise ConfigError(option="path", value=path, why="a log's directory is needed, or `node`, and not both")
    upto = _choice(options, "upto", ("committed", "visible"))
    for name, other in (("upto", upto == "visible"), ("hold", "hold" in options)):
        if node is not None and other:
            raise ConfigError(
                option=name, value=options[name], why="stands without `node`: a node shows what is committed"
            )
    unit = Unit(_choice(options, "unit", tuple(Unit)))
    columns = tuple(_words(options, "columns") or COLUMNS[unit])
    for column in columns:
        if column not in KNOWN_COLUMNS[unit]:
            why = f"one row per {unit} has the columns {', '.join(KNOWN_COLUMNS[unit])}"
            raise ConfigError(option="columns", value=column, why=why)
    return QueryOptions(
        path=path.removeprefix("file:"),
        node=node,
        start=_bound(options, "start"),
        end=_bound(options, "end"),
        upto=upto,
        unit=unit,
        columns=columns,
        selection=_selection(options),
        partitions=_number(options, "partitions", least=1),
        max_transactions=_number(options, "maxTransactionsPerTrigger", least=1),
        max_bytes=_number(options, "maxBytesPerTrigger", least=1),
        hold=options.get("hold"),
    )


def _node(options: Mapping[str, str]) -> NodeWish | None:
    """Return the options of a node; None where none is named. Raises ConfigError."""
    url = options.get("node")
    given = [name for name in OPTIONS[OPTIONS.index("node") + 1 :] if name in options]
    if url is None:
        if given:
            raise ConfigError(option=given[0], value=options[given[0]], why="stands without `node`")
        return None
    addresses_of(url)
    authority, certificate, key = (options.get(name) for name in ("tlsCa", "tlsCertificate", "tlsKey"))
    if (authority is None) != (certificate is None) or (key is not None and certificate is None):
        why = "tlsCa and tlsCertificate go together, and tlsKey with them"
        raise ConfigError(option="tlsCa", value=authority, why=why)
    tls = None
    if authority is not None and certificate is not None:
        tls = authority, certificate, key
    wish = NodeWish(
        url=url,
        prefer=parse_preference(options.get("readPreference", "nearest")).value,
        prefer_s=_number(options, "readPreferenceTimeout", least=0) or 0,
        tags=_tags(options),
        consistency=options.get("consistency", "none"),
        timeout_s=_number(options, "consistencyTimeout", least=1) or CONSISTENT_S,
        tls=tls,
    )
    parse_consistency(wish.consistency)
    return wish


def _tags(options: Mapping[str, str]) -> tuple[Mapping[str, str], ...]:
    text = options.get("tags")
    if text is None:
        return ({},)
    try:
        return msgspec.json.decode(text, type=tuple[dict[str, str], ...])
    except msgspec.DecodeError as exc:
        raise ConfigError(option="tags", value=text, why=f'reads [{{"site": "x"}}, {{}}]: {exc}') from exc


def _bound(options: Mapping[str, str], end: str) -> Bound:
    given = [f"{end}{kind}" for kind in _KINDS if f"{end}{kind}" in options]
    if len(given) > 1:
        raise ConfigError(option=given[1], value=options[given[1]], why=f"{given[0]} says already where to {end}")
    return Bound(
        seqno=_number(options, f"{end}Seqno", least=0),
        gtid=_parsed(options, f"{end}Gtid", Gtid.parse),
        time_ms=_parsed(options, f"{end}Time", parse_time),
        event_id=options.get(f"{end}Event"),
    )


def _parsed(options: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as exc:
        raise ConfigError(option=name, value=text, why=str(exc)) from exc


def _selection(options: Mapping[str, str]) -> Selection:
    shards, schemas, tables = (_words(options, name) for name in ("shards", "schemas", "tables"))
    if shards is None and schemas is None and tables is None:
        return ALL
    pairs = []
    for table in tables or ():
        # Both names may hold dots: what reads so is meant.
        found = [(table[:at], table[at + 1 :]) for at, letter in enumerate(table) if letter == "." and table[at + 1 :]]
        if not found:
            raise ConfigError(option="tables", value=table, why="a table is named as schema.table")
        pairs += found
    return Selection(
        shards=None if shards is None else frozenset(shards),
        schemas=None if schemas is None else frozenset(schemas),
        tables=None if tables is None else frozenset(pairs),
    )


def _words(options: Mapping[str, str], name: str) -> list[str] | None:
    text = options.get(name)
    if text is None:
        return None
    if text.lstrip().startswith("["):
        try:
            words = json.loads(text)
        except ValueError as exc:
            raise ConfigError(option=name, value=text, why=f"it begins as a JSON list and is none: {exc}") from exc
        if not all(isinstance(word, str) for word in words):
            raise ConfigError(option=name, value=text, why="a list of texts is wanted")
    else:
        words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ConfigError(option=name, value=text, why="there is an empty name in it")
    return list(words)


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = options.get(name, choices[0]).lower()
    if text not in choices:
        raise ConfigError(option=name, value=text, why=f"it is one of {', '.join(f'`{one}`' for one in choices)}")
    return text


def _number(options: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise ConfigError(option=name, value=text, why="must be a whole number") from None
    if number < least:
        raise ConfigError(option=name, value=number, why=f"must be {least} or more")
    return number

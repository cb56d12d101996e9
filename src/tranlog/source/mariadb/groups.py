"""From the events of a binary log to whole transactions.

Owns where a transaction starts and ends, what a savepoint takes back, and the refusal of what cannot be carried. Rows
are decoded later. Pure: where the events of a transaction wait is the caller's `EventStore`. The hard idea: nothing of
a transaction is handed on before its commit event is there, since a lost connection, a ROLLBACK or a savepoint may
still take it back, and a log cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, Literal, Protocol
from zlib import crc32

import msgspec

from tranlog.change import TableName
from tranlog.errors import PositionLostError, UnsupportedEventError
from tranlog.raising import BEGIN_ANEW
from tranlog.source.mariadb.events import (
    AFTER_FLAGS,
    COMPRESSED,
    HEADER,
    HEADER_BYTES,
    INFORMATIVE,
    ROWS_EVENTS,
    EventFormatError,
    EventType,
    GtidEvent,
    event_name,
    parse_gtid,
    parse_gtid_list,
    parse_rotate,
    table_map_name,
    uncompressed_event,
)
from tranlog.source.mariadb.position import BinlogPosition, DomainGtid, LastTransaction

START_ANEW: Final = f"What is before it is in the log. {BEGIN_ANEW}"


class EventStore(Protocol):
    """Where the events of one transaction wait for its commit."""

    def append(self, event: bytes) -> None:
        """Add an event after the others."""

    def __iter__(self) -> Iterator[bytes]:
        """Return the events in the order in which they came; each iteration starts at the first."""

    def close(self) -> None:
        """Forget the events."""


XaStep = Literal["prepare", "commit", "rollback"]


class EventGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One committed transaction of the source, still in its own bytes.

    `position` is the one after it, `timestamp` the seconds of its last event, `size` the bytes of its events.
    `taken_back` are half-open ranges of event numbers that a ROLLBACK or a savepoint undid. `void`: the group is one
    of the parts of a two-phase ALTER that change nothing. `changes` counts events of captured rows, and statements.
    `statements` counts those. `beyond` are, of one beyond its limit, the captured tables whose rows were dropped.
    `xa` says what it does to the XA transaction `gtid.xid`. `gtids_before` are the GTIDs before one that
    prepares. `again`: it comes
    for the second time, since the stream was opened before the position.
    """

    gtid: GtidEvent
    position: BinlogPosition
    timestamp: int
    size: int
    events: EventStore
    taken_back: tuple[tuple[int, int], ...]
    void: bool
    changes: int
    statements: int
    beyond: tuple[TableName, ...]
    xa: XaStep | None
    gtids_before: tuple[DomainGtid, ...]
    again: bool

    def is_taken_back(self, number: int) -> bool:
        """Whether the event with this number, from 0, was undone within its transaction."""
        return any(start <= number < end for start, end in self.taken_back)


_KEPT: Final = frozenset(
    {
        *map(int, ROWS_EVENTS),
        *map(int, (EventType.TABLE_MAP, EventType.ANNOTATE_ROWS)),
        *map(int, (EventType.INTVAR, EventType.RAND, EventType.USER_VAR, EventType.EXECUTE_LOAD_QUERY)),
    }
)
_PARTS_OF_FILES: Final = frozenset(
    map(int, (EventType.BEGIN_LOAD_QUERY, EventType.APPEND_BLOCK, EventType.DELETE_FILE))
)
"""Of the file of a LOAD DATA in statement format, whose statement comes after it."""
# Plain numbers: a member of an enum costs several times as much to look up and to compare.
_GTID: Final = int(EventType.GTID)
_XID: Final = int(EventType.XID)
_TABLE_MAP: Final = int(EventType.TABLE_MAP)
_ROWS: Final = frozenset(int(kind) for kind in ROWS_EVENTS)
_TABLE_NUMBER: Final = slice(HEADER_BYTES, HEADER_BYTES + 6)
_NAMED_TABLES: Final = 5
_QUERY: Final = int(EventType.QUERY)
_STATEMENTS: Final = frozenset({_QUERY, int(EventType.EXECUTE_LOAD_QUERY)})
_INFORMATIVE: Final = frozenset(int(kind) for kind in INFORMATIVE)


class GroupAssembler:
    """Takes the events of a stream one by one and returns a transaction with its last event.

    Shape: transactions in the order of the binlog, each once. After an exception nothing more may be fed.
    Raises: UnsupportedEventError, EventFormatError.
    """

    def __init__(
        self,
        position: BinlogPosition,
        *,
        new_store: Callable[[], EventStore],
        transaction_bytes_max: int,
        captures: Callable[[str], bool] = lambda _: True,
        opened_at: tuple[DomainGtid, ...] | None = None,
        names_beyond: bool = False,
    ) -> None:
        """`opened_at`: the stream begins after these GTIDs, before `position`.

        `names_beyond`: of a transaction beyond its limit the rows are dropped and the tables named; else it is refused.
        """
        self._names_beyond = names_beyond
        self._new_store = new_store
        self._limit = transaction_bytes_max
        self._captures = captures
        self._schemas: dict[bytes, bool] = {}
        self._gtids = position.by_domain()
        self._reached = dict(self._gtids) if opened_at is None else {gtid.domain: gtid for gtid in opened_at}
        # Up to these everything comes again.
        self._again = {d: gtid for d, gtid in self._gtids.items() if self._reached.get(d) != gtid}
        self._position = position
        self._file = position.file
        self._files: set[str] = set()  # that this stream has come through
        self._seen: set[int] = set()  # domains of which it has brought a transaction
        self._gtid: GtidEvent | None = None
        self._xa: XaStep | None = None
        self._store: EventStore | None = None
        self.incomplete = 0
        """Transactions that a crash of the server left without an end, and that were therefore dropped."""

    @property
    def position(self) -> BinlogPosition:
        """The position after the last whole transaction."""
        return self._position

    @property
    def repeats(self) -> bool:
        """Whether transactions up to the position are still to come again."""
        return bool(self._again)

    @property
    def inside(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._gtid is not None

    def close(self) -> None:
        """Forget a transaction that has begun."""
        if self._store is not None:
            self._store.close()
        self._store = None
        self._gtid = None

    def feed(self, event: bytes) -> EventGroup | None:
        """Take the next event; return the transaction that it completes."""
        kind = event[4]
        if kind in COMPRESSED:
            event = uncompressed_event(event)
            kind = event[4]
        if kind in _KEPT:
            self._keep(event)
            return None
        if kind == _GTID:
            self._begin(event)
            return None
        if kind == _XID:
            return self._complete(event)
        if kind == EventType.XA_PREPARE and self._gtid is not None:
            # With its first byte set it is a commit in one phase.
            self._xa = None if event[HEADER_BYTES : HEADER_BYTES + 1] == b"\1" else "prepare"
            return self._complete(event)
        if kind == _QUERY:
            return self._query(event)
        if kind == EventType.ROTATE:
            self._file, _ = parse_rotate(event)
            self._files.add(self._file)
            self._drop_incomplete()
            return None
        if kind == EventType.GTID_LIST:
            if len(self._files) > 1:
                self._check_unbroken(event)
            return None
        if kind == EventType.FORMAT_DESCRIPTION:
            self._drop_incomplete()
            return None
        if kind in _INFORMATIVE or (kind in _PARTS_OF_FILES and self._gtid is not None):
            return None
        raise self._unsupported(event)

    def _begin(self, event: bytes) -> None:
        if self._gtid is not None:
            raise EventFormatError(why=f"{self._place(event)}: a transaction begins inside {self._gtid.gtid}")
        gtid = parse_gtid(event)
        self._gtid = gtid
        self._store = self._new_store()
        self._xa = None
        self._count = self._changes = self._statements = 0
        self._beyond: _Beyond | None = None
        self._size = self._stored = len(event)
        _, _, _, size, end, _ = HEADER.unpack_from(event)
        self._start = end - size
        self._checksum = 0
        self._passed: set[bytes] = set()
        self._savepoints: dict[str, int] = {}
        self._taken_back: list[tuple[int, int]] = []

    def _keep(self, event: bytes) -> None:
        store = self._store
        if store is None:
            raise EventFormatError(why=f"{self._place(event)}: a {event_name(event[4])} outside of a transaction")
        self._size += len(event)
        kind = event[4]
        if kind == _TABLE_MAP:
            self._meet_table(event)
        elif kind in _ROWS:
            # The number of the table and the flags are the server's own; what stands after is the transaction's.
            self._checksum = crc32(memoryview(event)[AFTER_FLAGS:], self._checksum ^ kind)
            if event[_TABLE_NUMBER] in self._passed:
                return
            self._changes += 1
        if self._beyond is None or self._beyond.keeps(event):
            store.append(event)
            self._count += 1
            self._stored += len(event)
            if self._stored > self._limit:
                self._pass_limit(event, store)

    def _pass_limit(self, event: bytes, store: EventStore) -> None:
        """Drop the rows of a transaction and name its tables. Raises UnsupportedEventError where that is not enough."""
        beyond, whole_size, whole = _Beyond(), self._stored, self._beyond is None
        if self._names_beyond and whole:
            self._beyond, self._store = beyond, self._new_store()
            self._count = self._stored = 0
            for one in store:
                if beyond.keeps(one):
                    self._store.append(one)
                    self._count += 1
                    self._stored += len(one)
        if not self._names_beyond or not whole or self._stored > self._limit:
            assert self._gtid is not None
            tables = tables_of(store)
            named = f", with changes of {tables}," if tables else ""
            raise self._stop(
                event,
                f"the transaction with GTID {self._gtid.gtid}{named} has {whole_size} bytes so far, and "
                f"the option "
                f"transaction_bytes_max allows {self._limit}",
                "Raise the option if the disks have room for it, then start capture again",
            )
        store.close()

    def _meet_table(self, event: bytes) -> None:
        """Note whether rows of a table are to be kept; what is not captured takes no room."""
        names = event[AFTER_FLAGS : _end_of_names(event)]
        self._checksum = crc32(names, self._checksum)
        schema = names[1 : 1 + names[0]]
        wanted = self._schemas.get(schema)
        if wanted is None:
            wanted = self._schemas[schema] = self._captures(schema.decode(errors="replace"))
        if wanted:
            self._passed.discard(event[_TABLE_NUMBER])
        else:
            self._passed.add(event[_TABLE_NUMBER])

    def _query(self, event: bytes) -> EventGroup | None:
        if self._gtid is None:
            raise EventFormatError(why=f"{self._place(event)}: a statement outside of a transaction")
        words = _control_words(event)
        if self._gtid.ends_xa and words is not None and words[0] == "XA":
            self._xa = "commit" if words[1].upper().startswith("COMMIT") else "rollback"
            return self._complete(event)
        if self._gtid.standalone:
            self._keep_statement(event)
            return self._complete(event)
        if words is None:
            self._keep_statement(event)
            return None
        match words[0]:
            case "BEGIN":
                return None
            case "COMMIT":
                return self._complete(event)
            case "ROLLBACK" if len(words) == 1:
                self._taken_back.append((0, self._count))
                return self._complete(event)
            case "ROLLBACK":
                start = self._savepoints.get(words[1])
                if start is None:
                    raise self._stop(event, f"a rollback to the savepoint {words[1]}, which was not set", START_ANEW)
                self._taken_back.append((start, self._count))
                return None
            case "XA" if self._gtid.xid is not None and words[1].upper().startswith("END"):
                return None
            case "SAVEPOINT":
                self._savepoints[words[1]] = self._count
                return None
            case _:
                raise self._stop(event, f"the statement {' '.join(words)}", START_ANEW)

    def _keep_statement(self, event: bytes) -> None:
        self._changes += 1
        self._statements += 1
        self._checksum = crc32(_text_of(event), self._checksum)
        self._keep(event)

    def _complete(self, event: bytes) -> EventGroup:
        gtid, store = self._gtid, self._store
        if gtid is None or store is None:
            raise EventFormatError(why=f"{self._place(event)}: a transaction ends that did not begin")
        timestamp, _, _, _, end, _ = HEADER.unpack_from(event)
        last = LastTransaction(
            gtid.gtid.domain, (end - self._start) & 0xFFFFFFFF, crc32(timestamp.to_bytes(4, "little"), self._checksum)
        )
        reached, domain = self._reached, gtid.gtid.domain
        before = tuple(reached[one] for one in sorted(reached)) if self._xa == "prepare" else ()
        reached[domain] = gtid.gtid
        again = domain in self._again
        if not again:
            self._advance(gtid.gtid, end, last)
        elif self._again[domain] == gtid.gtid:
            del self._again[domain]
        self._gtid = None
        self._store = None
        return EventGroup(
            gtid=gtid,
            position=self._position,
            timestamp=timestamp,
            size=self._size,
            events=store,
            taken_back=tuple(self._taken_back),
            void=gtid.alter_phase in ("start", "rollback"),
            changes=self._changes,
            statements=self._statements,
            beyond=() if self._beyond is None else tuple(self._beyond.tables),
            xa=self._xa,
            gtids_before=before,
            again=again,
        )

    def _advance(self, gtid: DomainGtid, end: int, last: LastTransaction) -> None:
        gtids = self._gtids
        gtids[gtid.domain] = gtid
        self._seen.add(gtid.domain)
        ordered = (gtid,) if len(gtids) == 1 else tuple(gtids[domain] for domain in sorted(gtids))
        self._position = BinlogPosition(
            gtids=ordered, file=self._file, offset=end, server=self._position.server, last=last
        )

    def _check_unbroken(self, event: bytes) -> None:
        """Refuse a file that does not begin where the one before it ended: a reset does not end a running stream.

        At another server domains may be mixed otherwise: one of several, of which nothing came yet, may be behind.
        """
        for domain, begins in {gtid.domain: gtid for gtid in parse_gtid_list(event)}.items():
            ends = self._gtids.get(domain)
            if (
                domain in self._again
                or ends == begins
                or (
                    ends is not None
                    and domain not in self._seen
                    and len(self._gtids) > 1
                    and begins.sequence < ends.sequence
                )
            ):
                continue
            raise PositionLostError(
                event_id=str(self._position),
                why=f"{self._file} begins after GTID {begins}, and what was read before it ends at {ends or 'none'}: "
                "the server's binlog was reset, or lost a part",
            )

    def _drop_incomplete(self) -> None:
        # A server writes a transaction whole into one file. Where a file ends inside one, the server died while
        # writing, and undid the transaction when it came back.
        if self._gtid is not None:
            self.incomplete += 1
            self.close()

    def _place(self, event: bytes) -> str:
        return f"{self._file}, before offset {HEADER.unpack_from(event)[4]}"

    def _stop(self, event: bytes, what: str, remedy: str) -> UnsupportedEventError:
        return UnsupportedEventError(
            what=f"{what} cannot be captured ({self._place(event)})", event_id=str(self._position), remedy=remedy
        )

    def _unsupported(self, event: bytes) -> UnsupportedEventError:
        kind = event[4]
        name = event_name(kind)
        if kind == EventType.INCIDENT:
            return self._stop(
                event, "an INCIDENT event: the server lost changes before it could write them", START_ANEW
            )
        return self._stop(event, f"a {name}", START_ANEW)


class _Beyond:
    """What is kept of a transaction beyond its limit: the tables that its rows are of, and its statements."""

    def __init__(self) -> None:
        self._names: dict[bytes, TableName] = {}
        self.tables: dict[TableName, None] = {}

    def keeps(self, event: bytes) -> bool:
        """Take an event of captured tables; return whether it is one of those that stay. Raises EventFormatError."""
        kind, number = event[4], event[_TABLE_NUMBER]
        if kind == _TABLE_MAP:
            self._names[number] = table_map_name(event)
        elif kind in _ROWS:
            if number not in self._names:
                raise EventFormatError(why="rows of a table without a table map")
            self.tables[self._names[number]] = None
        return kind in _STATEMENTS


def tables_of(events: Iterable[bytes]) -> str:
    """Name the tables whose changes wait, for a message; the first few."""
    names: dict[str, None] = {}
    for event in events:
        if event[4] == _TABLE_MAP and len(names) < _NAMED_TABLES:
            with suppress(EventFormatError):
                names[".".join(table_map_name(event))] = None
    return ", ".join(names)


def _end_of_names(event: bytes) -> int:
    """Return where the names of schema and table end in a TABLE_MAP event."""
    try:
        table = AFTER_FLAGS + event[AFTER_FLAGS] + 2
        return table + event[table] + 2
    except IndexError as exc:
        raise EventFormatError(why=f"a table map of {len(event)} bytes") from exc


def _text_of(event: bytes) -> bytes:
    """Return the text of a QUERY event; empty for one that is too short, which is refused when it is read."""
    if len(event) < HEADER_BYTES + 13:
        return b""
    return event[HEADER_BYTES + 13 + event[HEADER_BYTES + 8] + int.from_bytes(event[30:32], "little") + 1 :]


_CONTROL: Final = (b"BEGIN", b"COMMIT", b"ROLLB", b"SAVEP", b"RELEA", b"XA")


def _control_words(event: bytes) -> tuple[str, ...] | None:
    """Return the words of a statement that steers a transaction, a savepoint's name in small letters; else None."""
    text = _text_of(event)
    head = text[:6].upper()
    if not head.startswith(_CONTROL):
        return None
    words = text.decode(errors="replace").split(None, 1)
    first = words[0].upper()
    rest = words[1].strip() if len(words) > 1 else ""
    if first in ("BEGIN", "COMMIT") and not rest:
        return (first,)
    if first == "ROLLBACK":
        if not rest:
            return (first,)
        if rest[:3].upper() == "TO ":
            return (first, rest[3:].strip().lower())
    if first == "SAVEPOINT":
        return (first, rest.lower())
    if first in ("XA", "RELEASE"):
        return (first, rest)
    return None

"""The catalogue of a store: queues, exchanges, bindings and configuration, in SQL.

Owns the contents of the tables, each change as one SQL transaction, and the two numbers that show whether log and
catalogue belong together. The hard idea: a message counts only on a queue in the catalogue, so an older copy of the
catalogue would cause messages to be dropped. Each transaction raises a counter, which the log repeats; each opening
writes its epoch here. The id of a new object is the counter's new value, so no id is used twice.
Transient queues, and bindings to them, are kept in memory; their ids are below 0.

Which database it is: `files.catalogue_sqlite`, `files.catalogue_postgres`.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid, first section; docs/format.md, "The message store".
"""

from __future__ import annotations

import contextlib
from types import NoneType
from typing import Any, Protocol

import msgspec

from tranlog.errors import CatalogueError, DeclaredOtherwiseError, UnknownQueueError

CATALOGUE_FORMAT = 1
NAME_BYTES_MOST = 255
_COLUMNS = {
    "store": "store_id, format, created_at, counter, epoch",
    "exchange": "id, name, type, alternate, arguments",
    "queue": "id, name, arguments",
    "binding": "id, exchange_id, queue_id, destination_id, routing_key, arguments",
    "config": "name, value",
}
"""The tables, those first to which others refer."""
_KINDS: dict[str, tuple[type | tuple[type, ...], ...]] = {
    "store": (bytes, int, int, int, int),
    "exchange": (int, str, str, (str, NoneType), bytes),
    "queue": (int, str, bytes),
    "binding": (int, int, (int, NoneType), (int, NoneType), str, bytes),
    "config": (str, bytes),
}
"""What the columns hold: SQLite keeps whatever is put into them."""


def tables_text(*, integer: str, blob: str, digest: str) -> str:
    """Return the statements that create the tables, with a database's names of two types.

    `digest`: the expression for a binding's arguments in an index, since databases limit the size of index entries.
    """
    return f"""
create table store(
    store_id {blob} not null, format {integer} not null, created_at {integer} not null,
    counter {integer} not null, epoch {integer} not null);
create table exchange(
    id {integer} primary key, name text not null unique, type text not null,
    alternate text, arguments {blob} not null);
create table queue(
    id {integer} primary key, name text not null unique, arguments {blob} not null);
create table binding(
    id {integer} primary key,
    exchange_id {integer} not null references exchange(id) on delete cascade,
    queue_id {integer} references queue(id) on delete cascade,
    destination_id {integer} references exchange(id) on delete cascade,
    routing_key text not null, arguments {blob} not null,
    check ((queue_id is null) <> (destination_id is null)));
create unique index binding_once on binding(
    exchange_id, (coalesce(queue_id, 0)), (coalesce(destination_id, 0)), routing_key, {digest});
create table config(name text primary key, value {blob} not null);
"""


class CatalogueDatabase(Protocol):
    """Where the tables are: an open session. `where` names it in errors. Methods raise CatalogueError."""

    where: str

    def run(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, with a question mark for each value; return its rows."""

    def begin(self) -> None:
        """Begin a transaction that writes."""

    def commit(self) -> None:
        """Commit it; durable."""

    def roll_back(self) -> None:
        """End a transaction that failed, if there is one. Raises nothing."""

    def has_tables(self) -> bool:
        """Whether the tables are there."""

    def make_tables(self) -> None:
        """Make the tables, in a transaction."""

    def hold(self, store_id: bytes) -> None:
        """Lock this store's catalogue against other processes."""

    def close(self) -> None:
        """End the session."""


class Queue(msgspec.Struct, frozen=True):
    """A queue of the catalogue. Its id is never given out twice; that of a transient one is below 0."""

    id: int
    name: str
    arguments: bytes

    @property
    def transient(self) -> bool:
        """Whether it is in memory alone, with its messages."""
        return self.id < 0


class Exchange(msgspec.Struct, frozen=True):
    """An exchange of the catalogue. `alternate` names the one for what it cannot route."""

    id: int
    name: str
    type: str
    alternate: str | None
    arguments: bytes


class QueueBinding(msgspec.Struct, frozen=True):
    """A binding from an exchange to a queue, or to another exchange: one of the two ids is None."""

    id: int
    exchange_id: int
    queue_id: int | None
    destination_id: int | None
    routing_key: str
    arguments: bytes


class Catalogue:
    """An open catalogue, and what it holds. One thread at a time; the store's lock guards it.

    `queues` and `exchanges` are by name. `counter` rises with each change in SQL, `changes` with those in memory, too.
    `epoch` is that of the last opening.
    """

    def __init__(self, database: CatalogueDatabase, *, reading: bool = False) -> None:
        """Work on a database; with `reading` beside an owner."""
        self.path = database.where
        self.store_id = b""
        self.counter = 0
        self.epoch = 0
        self.initial_containers: int | None = None
        """How many containers the store was made with; None where that is not known."""
        self._database = database
        self._reading = reading
        self._queues: dict[str, Queue] = {}
        self._stored_queues: dict[str, Queue] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._bindings: list[QueueBinding] = []
        self._stored_bindings: list[QueueBinding] = []
        self._transient_queues: dict[str, Queue] = {}
        self._transient_bindings: list[QueueBinding] = []
        self._last_transient = 0
        self.changes = 0
        self._unsure = False

    def load(self, new_id: bytes | None, now_ms: int, initial_containers: int = 0) -> None:
        """Read the catalogue; one without tables becomes a new store's, with this id if given. Raises CatalogueError.

        `initial_containers`: the number of containers of a new store, which is stored.
        """
        database = self._database
        if not database.has_tables():
            if new_id is None:
                raise CatalogueError(path=self.path, why="it is empty, and there are containers with messages")
            first = (new_id, CATALOGUE_FORMAT, now_ms, 1, 0)
            self.replace({"store": [first], "config": [("initial_containers", b"%d" % initial_containers)]})
        self._read()
        if not self._reading:
            database.hold(self.store_id)

    def replace(self, tables: dict[str, list[tuple[Any, ...]]]) -> None:
        """Replace all rows by these, by table, in one transaction; create missing tables."""
        database = self._database
        try:
            database.begin()
            if not database.has_tables():
                database.make_tables()
            for table in reversed(_COLUMNS):
                database.run(f"delete from {table}")
            for table, columns in _COLUMNS.items():
                marks = ", ".join("?" for _ in columns.split(","))
                for row in tables.get(table, ()):
                    database.run(f"insert into {table}({columns}) values ({marks})", *row)
            database.commit()
        except BaseException:
            database.roll_back()
            raise

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return all rows, by table."""
        return {table: self._database.run(f"select {columns} from {table}") for table, columns in _COLUMNS.items()}

    def _read(self) -> None:
        tables = self.rows()
        if why := _why_odd(tables):
            raise CatalogueError(path=self.path, why=why)
        if len(tables["store"]) != 1:
            raise CatalogueError(path=self.path, why=f"its table store has {len(tables['store'])} rows instead of one")
        self.store_id, found, _, self.counter, self.epoch = tables["store"][0]
        if found != CATALOGUE_FORMAT:
            raise CatalogueError(
                path=self.path, why=f"it has format {found}, and this release knows {CATALOGUE_FORMAT}"
            )
        kept = dict(tables["config"]).get("initial_containers")
        self.initial_containers = None if kept is None else int(kept)
        self._stored_queues = {one.name: one for one in (Queue(*row) for row in tables["queue"])}
        self._exchanges = {one.name: one for one in (Exchange(*row) for row in tables["exchange"])}
        self._stored_bindings = sorted((QueueBinding(*row) for row in tables["binding"]), key=lambda one: one.id)
        self._unsure = False
        self._join()

    def _join(self) -> None:
        """Have queues and bindings be those in SQL and those in memory."""
        exchanges = {one.id for one in self._exchanges.values()}
        self._transient_bindings = [one for one in self._transient_bindings if one.exchange_id in exchanges]
        self._queues = self._stored_queues | self._transient_queues
        self._bindings = self._stored_bindings + self._transient_bindings
        self.changes += 1

    def _sure(self) -> None:
        """Read it again after a change of which nobody knows whether it was committed. Raises CatalogueError."""
        if self._unsure:
            self._database.begin()
            try:
                self._read()
            finally:
                self._database.roll_back()

    @property
    def queues(self) -> dict[str, Queue]:
        """By name."""
        self._sure()
        return self._queues

    @property
    def exchanges(self) -> dict[str, Exchange]:
        """By name."""
        self._sure()
        return self._exchanges

    @property
    def bindings(self) -> list[QueueBinding]:
        """In the order in which they were made, those to transient queues last."""
        self._sure()
        return self._bindings

    def _change(self, *statements: tuple[Any, ...]) -> None:
        """Raise the counter and run statements, in one transaction; then read what there is."""
        self._sure()
        database = self._database
        try:
            database.begin()
            raising = "update store set counter = counter + 1 where store_id = ? and counter = ? returning counter"
            if not database.run(raising, self.store_id, self.counter):
                raise CatalogueError(path=self.path, why="somebody else has changed it while this store was open")
            for text, *values in statements:
                database.run(text, *values)
            self._unsure = True  # until it is read again: of a commit that fails nobody knows whether it is there
            database.commit()
        except BaseException:
            database.roll_back()
            with contextlib.suppress(CatalogueError):
                self._sure()
            raise
        self._read()

    @property
    def _new_id(self) -> int:
        return self.counter + 1

    def _next_transient(self) -> int:
        self._last_transient -= 1
        return self._last_transient

    # --- what can be asked of it ---------------------------------------------------------------------

    def note_epoch(self, epoch: int) -> None:
        """Write down the epoch of an opening."""
        self._change(("update store set epoch = ?", epoch))

    def queue(self, name: str) -> Queue:
        """Return a queue. Raises UnknownQueueError."""
        if self._unsure:
            self._sure()
        found = self._queues.get(name)
        if found is None:
            raise UnknownQueueError(what=f"queue {name!r}")
        return found

    def exchange(self, name: str) -> Exchange:
        """Return an exchange. Raises UnknownQueueError."""
        found = self.exchanges.get(name)
        if found is None:
            raise UnknownQueueError(what=f"exchange {name!r}")
        return found

    def declare_queue(self, name: str, arguments: bytes = b"", *, transient: bool = False) -> Queue:
        """Return the queue of that name; it is created if missing. Raises DeclaredOtherwiseError."""
        known = self.queues.get(name)
        if known is None:
            _check_text(f"queue {name!r}", "name", name)
            if transient:
                self._transient_queues[name] = Queue(self._next_transient(), name, arguments)
                self._join()
            else:
                row = (self._new_id, name, arguments)
                self._change(("insert into queue(id, name, arguments) values (?, ?, ?)", *row))
            return self.queues[name]
        if known.transient != transient:
            why = f"it is there, and {'transient' if known.transient else 'not transient'}"
            raise DeclaredOtherwiseError(what=f"queue {name!r}", why=why)
        if known.arguments != arguments:
            raise DeclaredOtherwiseError(what=f"queue {name!r}", why="it is there with other arguments")
        return known

    def declare_exchange(
        self, name: str, kind: str, *, alternate: str | None = None, arguments: bytes = b""
    ) -> Exchange:
        """Return the exchange of that name; it is created if missing. Raises DeclaredOtherwiseError."""
        known = self.exchanges.get(name)
        if known is None:
            _check_text(f"exchange {name!r}", "name", name)
            if alternate is not None:
                _check_text(f"exchange {name!r}", "alternate", alternate)
            row = (self._new_id, name, kind, alternate, arguments)
            self._change((f"insert into exchange({_COLUMNS['exchange']}) values (?, ?, ?, ?, ?)", *row))
            return self.exchanges[name]
        if (known.type, known.alternate, known.arguments) != (kind, alternate, arguments):
            raise DeclaredOtherwiseError(what=f"exchange {name!r}", why="it is there with other properties")
        return known

    def delete_queue(self, name: str) -> Queue:
        """Delete a queue and its bindings; return what it was. Raises UnknownQueueError."""
        found = self.queue(name)
        if found.transient:
            del self._transient_queues[name]
            self._transient_bindings = [one for one in self._transient_bindings if one.queue_id != found.id]
            self._join()
        else:
            self._change(("delete from queue where id = ?", found.id))
        return found

    def delete_exchange(self, name: str) -> Exchange:
        """Delete an exchange and its bindings; return what it was. Raises UnknownQueueError."""
        found = self.exchange(name)
        self._change(("delete from exchange where id = ?", found.id))
        return found

    def bind(
        self,
        exchange: str,
        *,
        queue: str | None = None,
        destination: str | None = None,
        key: str,
        arguments: bytes = b"",
    ) -> QueueBinding:
        """Bind an exchange to a queue or to another exchange; an existing binding stays as it is.

        Raises UnknownQueueError, DeclaredOtherwiseError.
        """
        row = self._ends(exchange, queue, destination, key, arguments)
        known = self._find(row)
        if known is None:
            _check_text("the binding", "key", key, least=0)
            if row[1] is not None and row[1] < 0:
                self._transient_bindings.append(QueueBinding(self._next_transient(), *row))
                self._join()
            else:
                insert = f"insert into binding({_COLUMNS['binding']}) values (?, ?, ?, ?, ?, ?)"
                self._change((insert, self._new_id, *row))
            known = self._find(row)
            assert known is not None
        return known

    def unbind(
        self,
        exchange: str,
        *,
        queue: str | None = None,
        destination: str | None = None,
        key: str,
        arguments: bytes = b"",
    ) -> None:
        """Remove a binding. Raises UnknownQueueError."""
        known = self._find(self._ends(exchange, queue, destination, key, arguments))
        if known is None:
            raise UnknownQueueError(what=f"binding of exchange {exchange!r} to {queue or destination!r} by {key!r}")
        if known.id < 0:
            self._transient_bindings.remove(known)
            self._join()
        else:
            self._change(("delete from binding where id = ?", known.id))

    def _ends(
        self, exchange: str, queue: str | None, destination: str | None, key: str, arguments: bytes
    ) -> tuple[int, int | None, int | None, str, bytes]:
        assert (queue is None) != (destination is None)
        queue_id = None if queue is None else self.queue(queue).id
        destination_id = None if destination is None else self.exchange(destination).id
        return self.exchange(exchange).id, queue_id, destination_id, key, arguments

    def _find(self, row: tuple[int, int | None, int | None, str, bytes]) -> QueueBinding | None:
        for one in self.bindings:
            if (one.exchange_id, one.queue_id, one.destination_id, one.routing_key, one.arguments) == row:
                return one
        return None

    def close(self) -> None:
        """Close it."""
        self._database.close()


def _why_odd(tables: dict[str, list[tuple[Any, ...]]]) -> str:
    """Return what was written by somebody else: a value of another kind, or a binding of what is not there."""
    for table, kinds in _KINDS.items():
        for row in tables[table]:
            if not all(map(isinstance, row, kinds)):
                return f"its table {table} has values of another kind: {row!r}"
    exchanges = {None, *(row[0] for row in tables["exchange"])}
    queues = {None, *(row[0] for row in tables["queue"])}
    for number, exchange, queue, destination, *_ in tables["binding"]:
        if not {exchange, destination} <= exchanges or queue not in queues:
            return f"its binding {number} is of an exchange or a queue that is not there"
    for name, value in tables["config"]:
        if name == "initial_containers" and not value.isdigit():
            return f"its initial_containers are {value!r}"
    return ""


def why_no_name(field: str, text: str, *, least: int = 1) -> str | None:
    """Return why nothing can have this name or key: it is empty, too long, not UTF-8; None where something can.

    Raises TypeError for what is no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"a {field} is a str, not {text!r}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return f"its {field} is no UTF-8"
    return (
        None if least <= size <= NAME_BYTES_MOST else f"its {field} has {size} bytes, not {least} to {NAME_BYTES_MOST}"
    )


def _check_text(what: str, field: str, text: str, *, least: int = 1) -> None:
    """Raise DeclaredOtherwiseError for a name or key that none can have."""
    why = why_no_name(field, text, least=least)
    if why is not None:
        raise DeclaredOtherwiseError(what=what, why=why)

"""A SQLite database as capture sees it: its tables, our tables in it, and what covers it against foreign writers.

Owns reading the schema into table maps, installing `_tranlog_source` and `_tranlog_outbox`, and covering each user
table: by guards, or by the triggers of `triggers`, which capture what foreign programs write.
The hard idea of the guards: each user table has triggers that name an SQL function which only our connections
register. SQLite resolves the name when a statement is prepared, so a foreign write fails at once and loudly, and
never evaluates it, so ours cost nearly nothing.

What is not captured, by decision: generated columns, virtual and stored (they follow from the others wherever the
table is made as it is here, and cannot be written); virtual tables and the shadow tables that they make (the source
names them in a warning); temporary and attached tables. SQLite calls a table a shadow by its name alone; one that the
virtual table does not make, such as the content of an FTS5 index, is captured like any other.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import apsw
import msgspec

from tranlog.change import Column, ForeignKey, TableMap, TableName
from tranlog.errors import ForeignWriterError, SourceSetupError, UnsupportedTypeError
from tranlog.payload import encode_table_map
from tranlog.shard import ShardRule, ShardRuleKind, foreign_key_groups
from tranlog.source.sqlite.bulk import InsertFacts
from tranlog.source.sqlite.raw import OUTBOX_TABLE, SCHEMA, real_columns
from tranlog.source.sqlite.statement import fold, quote
from tranlog.source.sqlite.triggers import (
    CAPTURE_PREFIX,
    CODECS,
    TABLES_TABLE,
    add_triggers,
    answer_for_triggers,
    make_room,
    number_of,
    numbered_tables,
    stored_row,
    trigger_texts,
    typed_value,
)
from tranlog.types import LogicalType, Value

SOURCE_TABLE = "_tranlog_source"
OWN_PREFIX = "_tranlog_"
OWN_TABLES = (SOURCE_TABLE, OUTBOX_TABLE, TABLES_TABLE)
OUTBOX_VERSION = 4
TRIGGER_VERSION = 5
"""The layout with foreign writes captured by triggers."""
GUARD_FUNCTION = "tranlog_write_through_source_sqlite_connect"
"""A foreign writer reads this name in its error: no such function."""
GUARD_PREFIX = "_tranlog_guard_"
GUARDED_OPERATIONS = ("insert", "update", "delete")

_CREATE_SOURCE = f"""
CREATE TABLE {SOURCE_TABLE}(
    uuid TEXT NOT NULL,        -- names this database in every event id
    version INTEGER NOT NULL,  -- of these two tables
    history BLOB,              -- the claim: identity of the history of the log that this source is for
    holder TEXT,               -- and of the directory in which that log goes on
    tables BLOB NOT NULL       -- the tables as our connections made them, or `install` found them
)"""
_CREATE_OUTBOX = f"""
CREATE TABLE {OUTBOX_TABLE}(
    id INTEGER PRIMARY KEY,
    last INTEGER NOT NULL,     -- 1: the last piece of its transaction
    tstamp INTEGER NOT NULL,   -- ms since 1970
    token INTEGER NOT NULL,    -- random, part of the event id
    synced INTEGER NOT NULL,   -- 0: committed without a sync of the WAL
    changes BLOB NOT NULL      -- in their raw form, with the tables' maps and shards of that moment
)"""


_COLUMNS_OF_SELECT = 900
"""Of a table with more columns, rows are read by several SELECTs: two results a column, and SQLite's limit is 2,000."""

_SchemaRow: TypeAlias = tuple[str, str, str | None]
"""Of sqlite_schema: type, name, SQL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """How one table's rows are read, from the preupdate hook or by SELECT.

    `kept` (None: all): indexes of the columns that are carried, in what the hook reports. `reals` are carried
    columns of REAL affinity: SQLite may report their integers as such. `by_select`: the table has virtual
    generated columns, past which the hook cannot be read. `place_key` (None: by rowid): the key of a table WITHOUT
    ROWID, as indexes of carried columns.
    """

    map: TableMap
    kept: tuple[int, ...] | None
    reals: tuple[int, ...]
    by_select: bool
    place_key: tuple[int, ...] | None
    select_all: str
    where: str
    plain: bool
    """The hook gives the row whole, placed by rowid: the fast way serves."""
    rowid: int | None
    """Which carried column is the rowid itself: INTEGER PRIMARY KEY."""
    parents: tuple[str, ...]
    """The tables that its foreign keys name."""
    codec: str
    """How the database holds text, as Python names it."""

    @property
    def captured(self) -> bool:
        """Whether its rows can be told at all."""
        return not (self.by_select and self.place_key is not None)

    def read(
        self, db: apsw.Connection, clause: str = "", bindings: Sequence[Value] = ()
    ) -> Iterator[tuple[Value, ...]]:
        """Yield rows with what is stored, text that is not UTF-8 as its bytes; `clause` is what follows FROM.

        Raises UnsupportedTypeError for such a text of a database that holds text in UTF-16.
        """
        names = [quote(column.name) for column in self.map.columns]
        parts = []
        for at in range(0, len(names), _COLUMNS_OF_SELECT):
            columns = map(typed_value, names[at : at + _COLUMNS_OF_SELECT])
            select = f"SELECT {', '.join(columns)} FROM {quote(SCHEMA)}.{quote(self.map.table)} NOT INDEXED {clause}"
            parts.append(db.execute(select, bindings))
        for found in zip(*parts, strict=True):
            row = found[0] if len(found) == 1 else tuple([value for part in found for value in part])
            try:
                yield stored_row(row, self.codec)
            except UnicodeDecodeError as exc:
                kind = f"text that is not {self.codec.upper()}"
                raise UnsupportedTypeError(table=self.map.name, column="(any)", type_name=kind) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSchema:
    """The user's tables at one schema version, by name."""

    version: int
    plans: dict[str, TablePlan]
    rule: ShardRule
    """The rule `table` with the whole database's foreign keys."""
    by_trigger: bool
    """Whether foreign writes are captured by triggers; else guards refuse them."""
    unguarded: frozenset[str]
    """Tables without their guards or triggers, or with others: a foreign program has made or changed them."""
    virtual: dict[str, str]
    """The SQL of each virtual table."""
    triggers: bool
    """Whether there are triggers but the guards."""
    texts: dict[str, tuple[_SchemaRow, ...]]
    """What sqlite_schema says of each table and its indexes, by the table's folded name."""
    guards: dict[str, dict[str, str]]
    """Name and SQL of each table's guards or triggers of ours, by the table's folded name."""
    overtaken: frozenset[str]
    """Folded names of tables with a trigger of the user's that was made after ours, and runs before them."""
    last_guard: int
    """The largest number that a guard's name has."""
    last_row: int
    """The largest rowid in sqlite_schema."""

    def maps(self) -> list[TableMap]:
        """Return the captured tables' maps by (schema, table)."""
        return sorted((plan.map for plan in self.plans.values()), key=lambda table: (table.schema, table.table))

    def left_out(self) -> dict[str, str]:
        """Return the user's tables that are not among them, by name, and what each of them is."""
        found = dict.fromkeys(self.virtual, "virtual table")
        shadows = tuple(f"{name}_" for name in found)
        for parts in self.texts.values():
            for kind, name, _ in parts:
                own = name in OWN_TABLES or name.startswith(shadows)
                if kind == "table" and name.startswith(OWN_PREFIX) and name not in found and not own:
                    found[name] = f"table with a name of capture's ({OWN_PREFIX}…)"
        return found


def has_table(db: apsw.Connection, schema: str, name: str) -> bool:
    """Whether a table is there now; apsw's own question is answered from a schema that may be old."""
    found = db.execute(f"SELECT 1 FROM {quote(schema)}.sqlite_schema WHERE type = 'table' AND name = ?", (name,))
    return found.fetchone() is not None


def schema_version(db: apsw.Connection, schema: str = SCHEMA) -> int:
    """Return the number that every change of the schema raises, as the open transaction sees it."""
    for (version,) in db.execute(f"PRAGMA {schema}.schema_version"):
        assert isinstance(version, int)
        return version
    raise AssertionError("PRAGMA schema_version returned nothing")


def read_schema(db: apsw.Connection, known: SqliteSchema | None = None, *, created: bool = False) -> SqliteSchema:
    """Read the schema; call it inside a transaction, so that its parts agree.

    Of `known`, what it was before, the plans of tables that are still the same are taken over. `created`: nothing but a
    CREATE was done since; then only what is new is read, however many tables there are.
    """
    version = schema_version(db)
    base = known if created else None
    last_row = last_guard = 0
    triggers = False
    texts: dict[str, tuple[_SchemaRow, ...]] = {}
    guards: dict[str, dict[str, str]] = {}
    overtaken: set[str] = set()
    virtual: dict[str, str] = {}
    if base is not None:
        last_row, last_guard, triggers = base.last_row, base.last_guard, base.triggers
        texts, guards, virtual = dict(base.texts), dict(base.guards), dict(base.virtual)
        overtaken.update(base.overtaken)
    changed: set[str] = set()
    listed = "SELECT rowid, type, name, tbl_name, rootpage, sql FROM main.sqlite_schema WHERE rowid > ? ORDER BY rowid"
    rows: list[Any] = db.execute(listed, (last_row,)).fetchall()
    for row, kind, name, of, page, sql in rows:
        last_row, table = row, fold(of)
        if kind != "trigger":
            texts[table] = (*texts.get(table, ()), (kind, name, sql))
            changed.add(table)
            if kind == "table" and not page:
                virtual[name] = sql
        elif name.startswith(GUARD_PREFIX) and GUARD_FUNCTION in sql:
            guards[table] = {**guards.get(table, {}), name: sql}
            number = name[len(GUARD_PREFIX) :].partition("_")[0]
            last_guard = max(last_guard, int(number)) if number.isdecimal() else last_guard
        elif name.startswith(CAPTURE_PREFIX):
            guards[table] = {**guards.get(table, {}), name: sql}
        else:
            triggers = True
            if table in guards:
                overtaken.add(table)
    plans: dict[str, TablePlan] = {}
    if known is not None and known.virtual == virtual:  # else a table may have become a shadow, or have been one
        if base is None:
            changed = {name for name in texts.keys() | known.texts.keys() if texts.get(name) != known.texts.get(name)}
        plans = {
            name: plan
            for name, plan in known.plans.items()
            if fold(name) not in changed and changed.isdisjoint(map(fold, plan.parents))
        }
    encoding: Any
    ((encoding,),) = db.execute("PRAGMA main.encoding").fetchall()
    columns = "SELECT name, type, wr, strict FROM pragma_table_list"
    found: list[Any] = []
    if base is not None and base.virtual == virtual:
        for table in changed.union(map(fold, base.plans.keys() - plans.keys())):
            found += db.execute(f"{columns}(?) WHERE schema = 'main'", (table,))
    else:
        found += db.execute(f"{columns} WHERE schema = 'main' ORDER BY name")
    for name, kind, without_rowid, strict in found:
        if name in plans or name.startswith(("sqlite_", OWN_PREFIX)):
            continue
        if kind == "shadow":
            own = next((sql for kind, _, sql in texts[fold(name)] if kind == "table"), None)
            if not _is_no_shadow(name, own, guards, virtual):
                continue
        if kind == "table" or kind == "shadow":
            plans[name] = _read_table(db, name, bool(without_rowid), strict=bool(strict), codec=CODECS[encoding])
    canonical = {fold(name): name for name in plans}
    edges: list[tuple[TableName, TableName]] = [
        ((SCHEMA, child), (SCHEMA, canonical.get(fold(parent), parent)))
        for child, plan in plans.items()
        for parent in plan.parents
    ]
    rule = ShardRule(kind=ShardRuleKind.TABLE, groups=foreign_key_groups(edges))
    by_trigger = _is_by_trigger(db) if fold(SOURCE_TABLE) in texts else False
    numbers = numbered_tables(db) if by_trigger else {}

    def is_covered(plan: TablePlan) -> bool:
        found = guards.get(fold(plan.map.table), {})
        if not by_trigger:
            return len(found) == len(GUARDED_OPERATIONS) and all(name.startswith(GUARD_PREFIX) for name in found)
        number = number_of(found)
        return (
            fold(plan.map.table) not in overtaken
            and numbers.get(number) == _numbered(plan, rule)
            and found == trigger_texts(plan.map, number)
        )

    return SqliteSchema(
        version=version,
        plans=plans,
        rule=rule,
        by_trigger=by_trigger,
        unguarded=frozenset([name for name, plan in plans.items() if not is_covered(plan)]),
        virtual=virtual,
        triggers=triggers,
        texts=texts,
        guards=guards,
        overtaken=frozenset(overtaken),
        last_guard=last_guard,
        last_row=last_row,
    )


def _is_by_trigger(db: apsw.Connection) -> bool:
    return (TRIGGER_VERSION,) in db.execute(f"SELECT version FROM main.{SOURCE_TABLE}").fetchall()


def _numbered(plan: TablePlan, rule: ShardRule) -> tuple[bytes, str]:
    return encode_table_map(plan.map), rule.shard_of(plan.map.schema, plan.map.table)


def _is_no_shadow(name: str, own: str | None, guards: Container[str], virtual: Mapping[str, str]) -> bool:
    """Whether a table that SQLite takes for a virtual one's shadow, by its name, is an ordinary one; `own` is its SQL.

    It is if we guard it, since it was there before; or if the virtual table does not make it.
    """
    table = fold(name)
    if table in guards:
        return True
    owner = next((sql for of, sql in virtual.items() if fold(of) == table.rpartition("_")[0]), None)
    return owner is not None and own is not None and _fit_beside(own, owner)


@lru_cache(maxsize=256)
def _fit_beside(*made: str) -> bool:
    """Whether statements that make tables can be run one after the other, in an empty database."""
    scratch = apsw.Connection(":memory:")
    try:
        for sql in made:
            scratch.execute(sql)
    except apsw.Error:
        return False
    finally:
        scratch.close()
    return True


def _read_table(db: apsw.Connection, name: str, without_rowid: bool, *, strict: bool, codec: str) -> TablePlan:
    columns: list[Column] = []
    kept: list[int] = []
    keys: list[tuple[int, int]] = []
    number: dict[str, int] = {}
    every: set[str] = set()
    virtual = False
    rows = db.execute(
        'SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?, ?)', (name, SCHEMA)
    ).fetchall()
    key_index = db.execute("SELECT 1 FROM pragma_index_list(?, ?) WHERE origin = 'pk'", (name, SCHEMA)).fetchone()
    sole = sum(bool(pk) for _, _, _, pk, _ in rows) == 1
    rowid: int | None = None
    rowid_column = ""  # INTEGER PRIMARY KEY is the rowid itself, unless it says DESC: then it has an index
    for at, (column, declared, notnull, pk, hidden) in enumerate(rows):
        assert isinstance(column, str) and isinstance(declared, str) and isinstance(pk, int)
        every.add(fold(column))
        if hidden:
            virtual = virtual or hidden == 2
            continue
        if pk:
            keys.append((pk, len(columns)))
        rowid_alias = bool(pk) and not without_rowid and key_index is None
        if rowid_alias:
            rowid_column, rowid = quote(column), len(columns)
        number[fold(column)] = len(columns)
        # Only the rowid is an integer in any case: INTEGER as another key may hold texts and reals, and NULL with DESC.
        looks_rowid = bool(pk) and sole and fold(declared) == "integer" and not rowid_alias
        kept.append(at)
        columns.append(
            Column(
                name=column,
                # In a STRICT table ANY converts nothing; elsewhere the same word makes numbers of texts.
                source_type="" if strict and fold(declared) == "any" else declared,
                logical=LogicalType.ANY,
                nullable=looks_rowid or not (notnull or rowid_alias or (pk and without_rowid)),
            )
        )
    primary_key = tuple(index for _, index in sorted(keys))
    table = TableMap(
        schema=SCHEMA,
        table=name,
        columns=tuple(columns),
        primary_key=primary_key,
        unique_keys=tuple(_unique_keys(db, name, number)),
        foreign_keys=tuple(_foreign_keys(db, name, number)),
    )
    names = ", ".join(quote(column.name) for column in columns)
    if without_rowid:
        key = [quote(columns[index].name) for index in primary_key]
        where = " AND ".join(f"{part} = ?{n} AND {part} COLLATE BINARY = ?{n}" for n, part in enumerate(key, start=1))
    else:
        alias = next((word for word in ("rowid", "_rowid_", "oid") if word not in every), rowid_column)
        where = f"{alias} = ?1" if alias else ""
    every_kept = len(kept) == len(rows)
    parents = db.execute('SELECT DISTINCT "table" FROM pragma_foreign_key_list(?, ?)', (name, SCHEMA)).fetchall()
    return TablePlan(
        map=table,
        kept=None if every_kept else tuple(kept),
        reals=real_columns(table),
        by_select=virtual,
        place_key=primary_key if without_rowid else None,
        select_all=f"SELECT {names} FROM {quote(SCHEMA)}.{quote(name)} NOT INDEXED",
        where=where,
        plain=every_kept and not without_rowid,
        rowid=rowid,
        parents=tuple([str(parent) for (parent,) in parents]),
        codec=codec,
    )


def _unique_keys(db: apsw.Connection, name: str, number: dict[str, int]) -> Iterator[tuple[int, ...]]:
    """Yield the unique keys over whole carried columns, without the primary key, partial and expression indexes."""
    listed = (
        "SELECT name FROM pragma_index_list(?, ?) WHERE \"unique\" AND NOT partial AND origin <> 'pk' ORDER BY name"
    )
    for (index,) in db.execute(listed, (name, SCHEMA)).fetchall():
        parts = db.execute("SELECT name FROM pragma_index_info(?, ?) ORDER BY seqno", (index, SCHEMA)).fetchall()
        key = [number.get(fold(part)) if isinstance(part, str) else None for (part,) in parts]
        found = tuple(at for at in key if at is not None)
        if found and len(found) == len(key):
            yield found


def _foreign_keys(db: apsw.Connection, name: str, number: dict[str, int]) -> Iterator[ForeignKey]:
    """Yield the references from carried columns, in the order of declaration."""
    listed = 'SELECT id, "table", "from", "to" FROM pragma_foreign_key_list(?, ?) ORDER BY id DESC, seq'
    keys: dict[int, tuple[str, list[int | None], list[str]]] = {}
    for number_of_key, parent, column, target in db.execute(listed, (name, SCHEMA)).fetchall():
        assert isinstance(number_of_key, int) and isinstance(parent, str) and isinstance(column, str)
        _, columns, targets = keys.setdefault(number_of_key, (parent, [], []))
        columns.append(number.get(fold(column)))
        if isinstance(target, str):
            targets.append(target)
    for parent, columns, targets in keys.values():
        found = tuple(at for at in columns if at is not None)
        if len(found) != len(columns):
            continue
        if len(targets) != len(found):  # REFERENCES parent, without columns: its primary key
            primary = db.execute("SELECT name FROM pragma_table_info(?, ?) WHERE pk ORDER BY pk", (parent, SCHEMA))
            targets = [str(column) for (column,) in primary]
        yield ForeignKey(columns=found, ref_schema=SCHEMA, ref_table=parent, ref_columns=tuple(targets))


def read_insert_facts(db: apsw.Connection, plan: TablePlan) -> InsertFacts:
    """Read what an INSERT into a table may do besides storing what it was given."""
    name = plan.map.table
    listed = (
        "SELECT type, sql FROM main.sqlite_schema WHERE type IN ('table', 'index') AND tbl_name = ? COLLATE NOCASE "
        "AND sql IS NOT NULL"
    )
    texts: dict[str, list[str]] = {"table": [], "index": []}
    for kind, sql in db.execute(listed, (name,)):
        texts[str(kind)].append(str(sql))
    triggers = db.execute(
        "SELECT 1 FROM main.sqlite_schema WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE "
        "AND NOT (name GLOB ?2 AND instr(sql, ?3)) AND NOT name GLOB ?4 LIMIT 1",
        (name, GUARD_PREFIX + "*", GUARD_FUNCTION, CAPTURE_PREFIX + "*"),
    ).fetchall()
    defaults = [
        None if default is None else str(default)
        for default, hidden in db.execute("SELECT dflt_value, hidden FROM pragma_table_xinfo(?, ?)", (name, SCHEMA))
        if not hidden
    ]
    ((encoding,),) = db.execute("PRAGMA main.encoding").fetchall()
    return InsertFacts(
        table=tuple(texts["table"]),
        indexes=tuple(texts["index"]),
        triggers=bool(triggers),
        defaults=tuple(defaults),
        utf8=encoding == "UTF-8",
        rowid=plan.rowid,
    )


# --- our tables and the guards ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The one row of `_tranlog_source`."""

    uuid: str
    history: bytes | None
    holder: str | None
    by_trigger: bool


def read_installed(db: apsw.Connection, path: str) -> Installed | None:
    """Return the database's identity, None where nothing is installed. Raises SourceSetupError for a newer layout."""
    if not has_table(db, SCHEMA, SOURCE_TABLE):
        return None
    for (version,) in db.execute(f"SELECT version FROM main.{SOURCE_TABLE}").fetchall():
        if version not in (OUTBOX_VERSION, TRIGGER_VERSION):
            raise SourceSetupError(
                why=f"{path} was set up by another release (layout {version}, this one knows {OUTBOX_VERSION} "
                f"and {TRIGGER_VERSION})",
                remedy="Use that release, or a newer one",
            )
        ((name, history, holder),) = db.execute(f"SELECT uuid, history, holder FROM main.{SOURCE_TABLE}").fetchall()
        assert isinstance(name, str) and isinstance(history, bytes | None) and isinstance(holder, str | None)
        return Installed(uuid=name, history=history, holder=holder, by_trigger=version == TRIGGER_VERSION)
    raise SourceSetupError(
        why=f"{path} has a table {SOURCE_TABLE} without its row",
        remedy="Restore the database from a copy",
    )


def install_in(db: apsw.Connection, *, by_trigger: bool | None = None) -> None:
    """Make our tables and cover every user table, inside the caller's transaction; done already is harmless.

    `by_trigger`: whether foreign writes are captured by triggers; None leaves it as it is, at first by guards.
    """
    if not has_table(db, SCHEMA, SOURCE_TABLE):
        db.execute(_CREATE_SOURCE)
        db.execute(_CREATE_OUTBOX)
        first = (str(uuid.uuid4()), OUTBOX_VERSION)
        db.execute(f"INSERT INTO main.{SOURCE_TABLE} VALUES(?, ?, NULL, NULL, x'')", first)
    if by_trigger is not None:
        cover_by(db, by_trigger=by_trigger)
    schema = read_schema(db)
    guard_tables(db, schema, schema.unguarded)
    _note(db, table_marks(db))


def cover_by(db: apsw.Connection, *, by_trigger: bool) -> None:
    """Cover by triggers, or by guards, what was covered by the other, inside the caller's transaction."""
    before = read_schema(db)
    if before.by_trigger == by_trigger:
        return
    if by_trigger:
        make_room(db)
    db.execute(f"UPDATE main.{SOURCE_TABLE} SET version = ?", (TRIGGER_VERSION if by_trigger else OUTBOX_VERSION,))
    guard_tables(db, read_schema(db), before.plans.keys() - before.unguarded)


def table_marks(db: apsw.Connection) -> dict[str, int]:
    """Return what tells one state of a table from another: of each that is captured, the CRC-32 of its stored SQL."""
    listed = (
        "SELECT s.name, s.sql, l.type FROM main.sqlite_schema s JOIN pragma_table_list l ON l.schema = 'main' "
        "AND l.name = s.name AND l.type IN ('table', 'shadow') WHERE s.type = 'table'"
    )
    rows: list[Any] = db.execute(listed).fetchall()
    guarded: set[str] = set()
    virtual: dict[str, Any] = {}
    if any(kind == "shadow" for _, _, kind in rows):
        guards = (
            "SELECT tbl_name FROM main.sqlite_schema WHERE type = 'trigger' "
            "AND (name GLOB ?1 AND instr(sql, ?2) OR name GLOB ?3)"
        )
        ours = (GUARD_PREFIX + "*", GUARD_FUNCTION, CAPTURE_PREFIX + "*")
        guarded = {fold(str(of)) for (of,) in db.execute(guards, ours)}
        virtual = dict(db.execute("SELECT name, sql FROM main.sqlite_schema WHERE type = 'table' AND NOT rootpage"))
    return {
        name: zlib.crc32(sql.encode())
        for name, sql, kind in rows
        if not name.startswith(("sqlite_", OWN_PREFIX))
        and (kind == "table" or _is_no_shadow(name, sql, guarded, virtual))
    }


class TableStates(NamedTuple):
    """The tables before a transaction's first DDL: as they were noted, and as they were found."""

    noted: dict[str, int]
    found: dict[str, int]


def table_states(db: apsw.Connection) -> TableStates:
    """Return what `note_tables` needs to know of the tables, before the open transaction changes any."""
    return TableStates(noted_marks(db), table_marks(db))


def note_tables(db: apsw.Connection, before: TableStates) -> None:
    """Note in `_tranlog_source` what the open transaction has made of the tables, which were as in `before`.

    A table that was not as noted even then stays so: what a foreign program did to it is not covered by ours. Done
    again, for a COMMIT that was refused, it takes the place of what it noted first.
    """
    noted, after = dict(before.noted), table_marks(db)
    for name in before.found.keys() | after.keys():
        if before.found.get(name) != after.get(name) and noted.get(name) == before.found.get(name):
            if name in after:
                noted[name] = after[name]
            else:
                del noted[name]
    _note(db, noted)


def _note(db: apsw.Connection, marks: dict[str, int]) -> None:
    db.execute(f"UPDATE main.{SOURCE_TABLE} SET tables = ?", (msgspec.msgpack.encode(marks),))


def noted_marks(db: apsw.Connection) -> dict[str, int]:
    """Return the marks of the tables as our connections, `install` or capture noted them last."""
    ((raw,),) = db.execute(f"SELECT tables FROM main.{SOURCE_TABLE}").fetchall()
    assert isinstance(raw, bytes)
    return msgspec.msgpack.decode(raw, type=dict[str, int])


def check_tables(db: apsw.Connection, path: str) -> None:
    """Refuse tables that are not as noted, inside a transaction. Raises ForeignWriterError."""
    noted, found = noted_marks(db), table_marks(db)
    for name in sorted(noted.keys() | found.keys()):
        if noted.get(name) != found.get(name):
            did = "dropped or renamed" if name not in found else "altered" if name in noted else "made"
            raise ForeignWriterError(
                table=f"{SCHEMA}.{name}",
                why=f"a foreign program has {did} it in {path}, which the log does not know",
                remedy="Bring the target's tables to the same state, with their rows, then adopt it by "
                "tranlog.source.sqlite.install(path). Write through tranlog.source.sqlite.connect",
            )


def guard_tables(db: apsw.Connection, schema: SqliteSchema, names: Collection[str]) -> SqliteSchema:
    """Give each of the tables its guards or triggers, in the caller's transaction; return the schema with them."""
    guards, number = dict(schema.guards), schema.last_guard
    for name in sorted(names):
        for trigger in guards.get(fold(name), ()):  # an incomplete set is replaced
            db.execute(f"DROP TRIGGER main.{quote(trigger)}")
        if schema.by_trigger:
            plan = schema.plans[name]
            guards[fold(name)] = add_triggers(db, plan.map, *_numbered(plan, schema.rule))
            continue
        number += 1
        guards[fold(name)] = {}
        made = [f"{GUARD_PREFIX}{number}_{operation}" for operation in GUARDED_OPERATIONS]
        for trigger, operation in zip(made, GUARDED_OPERATIONS, strict=True):
            # CASE, since SQLite would fold "0 AND f()" before it looks f up
            text = (
                f"{quote(trigger)} AFTER {operation.upper()} ON {quote(name)} "
                f"WHEN CASE 1 WHEN 0 THEN {GUARD_FUNCTION}() END BEGIN SELECT 1; END"
            )
            db.execute(f"CREATE TRIGGER main.{text}")
            guards[fold(name)][trigger] = f"CREATE TRIGGER {text}"
    ((last_row,),) = db.execute("SELECT max(rowid) FROM main.sqlite_schema").fetchall()
    assert isinstance(last_row, int)
    return replace(
        schema,
        version=schema_version(db),
        unguarded=schema.unguarded.difference(names),
        guards=guards,
        overtaken=schema.overtaken.difference(map(fold, names)),
        last_guard=number,
        last_row=last_row,
    )


def uncover_named(db: apsw.Connection, schema: SqliteSchema, sql: str) -> None:
    """Drop our triggers on tables that a statement may name: an ALTER fails on a column that a trigger names."""
    text = fold(sql)
    for table, found in schema.guards.items():
        if table in text:
            for trigger in found:
                db.execute(f"DROP TRIGGER IF EXISTS main.{quote(trigger)}")


def register_guard(db: apsw.Connection) -> None:
    """Let this connection write covered tables."""
    answer_for_triggers(db)
    flags = apsw.SQLITE_INNOCUOUS | apsw.SQLITE_DETERMINISTIC
    db.create_scalar_function(GUARD_FUNCTION, _guard, 0, flags=flags)


def _guard(*_: object) -> int:
    return 0

"""Triggers that write the outbox, so that programs without our connection are captured: `capture_by_trigger`.

Owns the triggers' text, the numbers by which they name tables, and what becomes of the rows that they write. The hard
idea: SQL cannot build the raw form, and JSON loses bytes and bits, so a trigger copies the values themselves into
columns of the outbox that have no type. The table's map and shard stand once in `_tranlog_tables`, under a number that
is never used for another map or shard. A trigger sees rows and not transactions: its rows have `last` = 2, and all that
capture finds committed together becomes one transaction. Connections of ours have the hook, and a trigger does nothing
there: they answer a question about SQLite's compile options that every other library answers with NULL.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple

import apsw

from tranlog.change import Op, TableMap
from tranlog.errors import SourceSetupError
from tranlog.source.sqlite.raw import OUTBOX_TABLE, ChangesDamagedError, PieceTable, piece_table
from tranlog.source.sqlite.statement import quote
from tranlog.types import CharsetBytes, Value

TABLES_TABLE: Final = "_tranlog_tables"
CAPTURE_PREFIX: Final = "_tranlog_capture_"
CODECS: Final = {"UTF-8": "utf-8", "UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}
"""How a database holds text: its encoding, as Python names it."""
BY_TRIGGER: Final = 2
"""What `last` is of a row that a trigger wrote: the end of a transaction is not known."""

_CREATE_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS main.{TABLES_TABLE}(
    number INTEGER PRIMARY KEY, -- by which the rows of triggers name it, times 4, plus what happened
    map BLOB NOT NULL,          -- the table's map
    shard TEXT NOT NULL         -- its shard by the rule `table`
)"""
_OPERATIONS: Final = (
    ("insert", Op.INSERT, ("NEW",)),
    ("update", Op.UPDATE, ("OLD", "NEW")),
    ("delete", Op.DELETE, ("OLD",)),
)
_COLUMNS_MOST: Final = 450
"""Of a table. A row of the outbox holds two values for each, and reading takes two results a value; SQLite's limit is
2,000."""
_FIRST_COLUMNS: Final = ("last", "tstamp", "token", "synced", "changes")
_OUR_OPTION: Final = "TRANLOG_CAPTURES"


def trigger_texts(table: TableMap, number: int) -> dict[str, str]:
    """Return the triggers of a table as SQLite stores them, by name."""
    texts = {}
    for at, (operation, _, sides) in enumerate(_OPERATIONS):
        values = [f"{side}.{quote(column.name)}" for side in sides for column in table.columns]
        columns = ", ".join((*_FIRST_COLUMNS, *[f"c{number}" for number in range(len(values))]))
        stored = ", ".join((str(BY_TRIGGER), "julianday('now')", "random()", "0", str(4 * number + at), *values))
        name = f"{CAPTURE_PREFIX}{number}_{operation}"
        texts[name] = (
            f"CREATE TRIGGER {quote(name)} AFTER {operation.upper()} ON {quote(table.table)} "
            "WHEN sqlite_compileoption_get(-1) IS NULL BEGIN "
            f"INSERT INTO {OUTBOX_TABLE}({columns}) VALUES({stored}); END"
        )
    return texts


def number_of(names: Collection[str]) -> int:
    """Return the number that triggers of these names write; 0 where they are not all of one number."""
    found = {name.removeprefix(CAPTURE_PREFIX).partition("_")[0] for name in names if name.startswith(CAPTURE_PREFIX)}
    number = found.pop() if len(found) == 1 else ""
    return int(number) if number.isdecimal() else 0


def numbered_tables(db: apsw.Connection) -> dict[int, tuple[bytes, str]]:
    """Return map and shard of each number that was ever given."""
    rows: list[Any] = db.execute(f"SELECT number, map, shard FROM main.{TABLES_TABLE}").fetchall()
    return {number: (encoded, shard) for number, encoded, shard in rows}


def make_room(db: apsw.Connection) -> None:
    """Make the table of numbers, in the caller's transaction."""
    db.execute(_CREATE_TABLES)


def check_width(table: TableMap) -> None:
    """Raise SourceSetupError for a table with too many columns."""
    if len(table.columns) > _COLUMNS_MOST:
        raise SourceSetupError(
            why=f"table {table.name} has {len(table.columns)} columns, and triggers capture {_COLUMNS_MOST} at most",
            remedy='Use foreign_writes = "refuse", and write through tranlog.source.sqlite.connect',
        )


def add_triggers(db: apsw.Connection, table: TableMap, encoded: bytes, shard: str) -> dict[str, str]:
    """Number a table as it is now and make its triggers, in the caller's transaction; return their texts.

    Raises SourceSetupError for a table with too many columns.
    """
    check_width(table)
    have = value_columns(db)
    for at in range(have, 2 * len(table.columns)):
        db.execute(f"ALTER TABLE main.{OUTBOX_TABLE} ADD COLUMN c{at}")
    db.execute(f"INSERT INTO main.{TABLES_TABLE}(map, shard) VALUES(?, ?)", (encoded, shard))
    texts = trigger_texts(table, db.last_insert_rowid())
    for text in texts.values():
        db.execute(text.replace("CREATE TRIGGER ", "CREATE TRIGGER main.", 1))
    return texts


def value_columns(db: apsw.Connection) -> int:
    """Return how many columns for triggers' values the outbox has."""
    ((count,),) = db.execute(
        "SELECT count(*) FROM pragma_table_info(?, 'main') WHERE name GLOB 'c[0-9]*'", (OUTBOX_TABLE,)
    ).fetchall()
    assert isinstance(count, int)
    return count


def held_bytes(db: apsw.Connection) -> int:
    """Return how many bytes of changes the outbox holds, the values that triggers wrote among them."""
    values = [f"sum(octet_length(c{number}))" for number in range(value_columns(db))]
    pieces = f"sum(octet_length(changes)) FILTER (WHERE last <> {BY_TRIGGER})"
    (sizes,) = db.execute(f"SELECT {', '.join((pieces, *values))} FROM main.{OUTBOX_TABLE}").fetchall()
    return sum([size for size in sizes if isinstance(size, int)])


def answer_for_triggers(db: apsw.Connection) -> None:
    """Have the triggers do nothing on this connection."""
    options = apsw.compile_options

    def option(*given: Any) -> str | None:
        (number,) = given
        if number == -1:
            return _OUR_OPTION
        return options[number] if isinstance(number, int) and 0 <= number < len(options) else None

    db.create_scalar_function(
        "sqlite_compileoption_get", option, 1, flags=apsw.SQLITE_INNOCUOUS | apsw.SQLITE_DETERMINISTIC
    )


class TriggerRow(NamedTuple):
    """What a trigger wrote: the number and operation in `changes`, and the values."""

    changes: int
    values: Sequence[Value]


class TriggerTables:
    """The numbered tables of one database, as its reader needs them. Not for threads."""

    def __init__(self) -> None:
        self._tables: dict[int, PieceTable] = {}

    def look(self, db: apsw.Connection, changes: Iterable[int]) -> None:
        """Read what rows need, in the transaction in which they are read."""
        if any(one >> 2 not in self._tables for one in changes):
            self._tables = {number: piece_table(*found) for number, found in numbered_tables(db).items()}

    def change(self, row: TriggerRow) -> tuple[PieceTable, tuple[TableMap, Op, bytes]]:
        """Return the table of a row, and the change that it is, with its images. Raises ChangesDamagedError."""
        table, at = self._tables.get(row.changes >> 2), row.changes & 3
        if table is None or at >= len(_OPERATIONS):
            raise ChangesDamagedError(why=f"the number {row.changes} names no table in {TABLES_TABLE}")
        _, op, sides = _OPERATIONS[at]
        width = len(table.map.columns)
        if len(row.values) < width * len(sides):
            raise ChangesDamagedError(why=f"a row of table {table.map.name} does not have its {width} columns")
        images = [row.values[side * width : (side + 1) * width] for side in range(len(sides))]
        return table, table.change(None if op is Op.INSERT else images[0], None if op is Op.DELETE else images[-1])


def read_values(db: apsw.Connection, first: int, last: int) -> Generator[tuple[Value, ...], None, None]:
    """Yield the values of the outbox's rows between two ids, both inclusive, as they are stored.

    Raises UnicodeDecodeError for text that is not UTF-16 in a database that holds text so.
    """
    names = [f"c{at}" for at in range(value_columns(db))]
    clause = f"FROM main.{OUTBOX_TABLE} WHERE id BETWEEN ? AND ? ORDER BY id"
    cursor = db.cursor()
    try:
        try:
            for row in cursor.execute(f"SELECT {', '.join(names)} {clause}", (first, last)):
                yield row
                first += 1
            return
        except UnicodeDecodeError:
            pass  # text that is not UTF-8: on from there by bytes
        encoding: Any
        ((encoding,),) = db.execute("PRAGMA main.encoding").fetchall()
        pairs = map(typed_value, names)
        for found in cursor.execute(f"SELECT {', '.join(pairs)} {clause}", (first, last)):
            yield stored_row(found, CODECS[encoding])
    finally:
        cursor.close(True)


def typed_value(name: str) -> str:
    """Return what is selected of a column for `stored_row`, given as SQL."""
    return f"typeof({name}), CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END"


def stored_row(found: Sequence[Any], codec: str) -> tuple[Value, ...]:
    """Return a row from what was selected of it: for each value its type, and the value, of a text the bytes."""
    return tuple(
        [_text(found[at + 1], codec) if found[at] == "text" else found[at + 1] for at in range(0, len(found), 2)]
    )


def _text(raw: bytes, codec: str) -> str | CharsetBytes:
    try:
        return raw.decode(codec)
    except UnicodeDecodeError:
        if codec != "utf-8":
            raise
        return CharsetBytes("utf8", raw)

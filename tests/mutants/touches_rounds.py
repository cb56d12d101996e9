"""Rounds of two transactions at a real SQLite: where their order matters, their write sets must say so.

A round draws rows of a parent and a child table, and two transactions, one after the other. Then they are done the
other way round from the same rows, each change held to hit exactly the row as it was. Where that fails, or leaves
other rows, one must wait for the other, by what they touch.

`python touches_rounds.py FOLDER FIRST ROUNDS` prints one JSON object: the first round in which something was wrong, and
what. FOLDER is not used.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import cast

import apsw

from mutants.rounds import play_rounds
from tranlog.change import Column, ForeignKey, Op, TableMap
from tranlog.row_bytes import encode_row
from tranlog.row_touches import RowTouches
from tranlog.types import LogicalType
from tranlog.write_set import Use, parse_write_set

Row = tuple[int | None, ...]
Change = tuple[str, Row | None, Row | None]
Touch = tuple[Use, int]


class RefusedError(Exception):
    """A change does not find its row, or breaks a constraint."""


def table(name: str, *columns: str, unique: int | None = None, refers: Sequence[tuple[int, str]] = ()) -> TableMap:
    made = [Column(name=column, source_type="integer", logical=LogicalType.INTEGER) for column in columns]
    references = [
        ForeignKey(columns=(at,), ref_schema="main", ref_table="parent", ref_columns=(to,)) for at, to in refers
    ]
    return TableMap(
        schema="main",
        table=name,
        columns=tuple(made),
        primary_key=(0,),
        unique_keys=() if unique is None else ((unique,),),
        foreign_keys=tuple(references),
    )


MAPS = {
    "parent": table("parent", "id", "code", "note", unique=1),
    "child": table("child", "id", "of_id", "of_code", refers=((1, "id"), (2, "code"))),
}
SCHEMA = """
PRAGMA foreign_keys = ON;
CREATE TABLE parent (id INTEGER PRIMARY KEY, code INTEGER UNIQUE, note INTEGER);
CREATE TABLE child (
  id INTEGER PRIMARY KEY, of_id INTEGER REFERENCES parent (id), of_code INTEGER REFERENCES parent (code));
"""


def database(rows: dict[str, set[Row]]) -> apsw.Connection:
    db = apsw.Connection(":memory:")
    db.execute(SCHEMA)
    for name in MAPS:
        for row in sorted(rows.get(name, ()), key=repr):
            db.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", row)
    return db


def contents(db: apsw.Connection) -> dict[str, set[Row]]:
    found = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in MAPS}
    return {name: {cast(Row, row) for row in rows} for name, rows in found.items()}


def apply(db: apsw.Connection, change: Change) -> None:
    """Do one change, and hold it to hit the row as it was. Raises RefusedError."""
    name, before, after = change
    columns = [column.name for column in MAPS[name].columns]
    found = " AND ".join(f"{column} IS ?" for column in columns)
    try:
        if before is None:
            assert after is not None
            db.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", after)
        elif after is None:
            db.execute(f"DELETE FROM {name} WHERE {found}", before)
        else:
            placed = ", ".join(f"{column} = ?" for column in columns)
            db.execute(f"UPDATE {name} SET {placed} WHERE {found}", (*after, *before))
    except apsw.ConstraintError as exc:
        raise RefusedError(str(exc)) from exc
    if db.changes() != 1:
        raise RefusedError(f"{db.changes()} rows of {name} are {before}")


def draw_row(chance: random.Random, name: str) -> Row:
    values = (1, 2, 3)
    if name == "parent":
        return (chance.choice(values), chance.choice((None, *values)), chance.choice(values))
    return (chance.choice(values), chance.choice((None, *values)), chance.choice((None, None, *values)))


def draw(chance: random.Random, db: apsw.Connection, count: int) -> list[Change]:
    """Do some changes that chance draws; return those that were possible."""
    done: list[Change] = []
    for _ in range(20):
        if len(done) == count:
            break
        name = chance.choice(("parent", "child"))
        there = sorted(contents(db)[name], key=repr)
        before = chance.choice(there) if there and chance.random() < 0.7 else None
        after: Row | None = draw_row(chance, name)
        if before is not None:
            if chance.random() < 0.3:
                after = None
            elif after is not None and chance.random() < 0.8:  # one column
                at = chance.randrange(3)
                after = (*before[:at], after[at], *before[at + 1 :])
        if before == after:
            continue
        try:
            apply(db, (name, before, after))
        except RefusedError:
            continue
        done.append((name, before, after))
    return done


def touched(changes: Sequence[Change]) -> tuple[Touch, ...]:
    touches = RowTouches()
    touches.begin()
    for name, before, after in changes:
        op = Op.INSERT if before is None else Op.DELETE if after is None else Op.UPDATE
        touches.rows(MAPS[name], op, [encode_row(before or ()) + encode_row(after or ())])
    tables = tuple(dict.fromkeys(("main", name) for name, _, _ in changes))
    found = parse_write_set(touches.take(tables), tables)
    assert found is not None
    return tuple((use, one) for use, hashes in zip(Use, found.touches, strict=True) for one in hashes)


def waits(one: Sequence[Touch], other: Sequence[Touch]) -> bool:
    """Whether two transactions that touch this keep their order."""
    return any(
        value == same and (Use.KEY in (use, its) or use is its is Use.ROW) for use, value in one for its, same in other
    )


def play(seed: int) -> str | None:
    """Play one round; return what was wrong in it, None where nothing was."""
    chance = random.Random(seed)
    with closing(database({})) as db:
        draw(chance, db, chance.randrange(2, 8))
        begin = contents(db)
        first = draw(chance, db, chance.choice((1, 1, 2)))
        second = draw(chance, db, chance.choice((1, 1, 2)))
        end = contents(db)
    if waits(touched(first), touched(second)):
        return None
    with closing(database(begin)) as db:
        try:
            for change in (*second, *first):
                apply(db, change)
        except RefusedError as exc:
            return f"missed: {first} before {second}: {exc}"
        if contents(db) != end:
            return f"missed: {first} before {second} leaves other rows"
    return None


if __name__ == "__main__":
    play_rounds(play, first=int(sys.argv[2]), rounds=int(sys.argv[3]))

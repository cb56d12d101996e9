"""What becomes of a statement that the source recorded: it is passed over, it is run, its edits are carried out, or the
pipeline stops at it.

Owns that decision, the same at every kind of target, and its errors. Leaves running a statement to the target. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from tranlog.change import Statement, TableName
from tranlog.ddl import keeps_rows, touched
from tranlog.errors import DdlStopError
from tranlog.statements import FOLDED_NAMES, TEMPORARY, StatementKind, statement_kind
from tranlog.table_edits import Edit, table_edits, truncated_tables
from tranlog.target.target import ApplyUnit

_BY_OPTION: Final = 'ddl = "ignore"'
_BY_ROWS: Final = "what it does to tables comes with the first change after it"
_TRUNCATES: Final = frozenset({"mariadb", "postgres"})
"""Kinds of source of whose TRUNCATE it is known which tables it emptied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What becomes of a statement: it is passed over, for this reason; else its edits are carried out, or the tables
    `truncated` are emptied; else it is run.

    `emptied` are the tables that it empties. Where rows of one are still here, the target raises `rows_are_here`.
    """

    passed_over: str = ""
    emptied: Sequence[TableName] = ()
    edits: tuple[Edit, ...] = ()
    truncated: tuple[TableName, ...] = ()


def rule(
    unit: ApplyUnit,
    statement: Statement,
    *,
    ddl: str,
    kind: str,
    runs_ddl_of: Collection[str],
    has_sequences: bool,
) -> Ruling:
    """Return what becomes of a unit's statement.

    `ddl` is the option. `runs_ddl_of` and `has_sequences` are what Dialect says of the target's `kind`.

    Raises DdlStopError.
    """
    sql = text_of(statement)
    options = dict(reversed(statement.options))
    folds = options.get(FOLDED_NAMES) == "1"
    found = touched(sql, schema=statement.schema, folds=folds)
    upkeep = statement_kind(sql, marked_ddl=False) is StatementKind.ADMINISTRATION or (found and not found.names)
    if (statement.ddl or upkeep) and ddl == "ignore":
        return Ruling(passed_over=_BY_OPTION, emptied=found.emptied if found is not None else ())
    source = source_of(unit)
    if source in runs_ddl_of or (source == kind and not statement.ddl):
        return Ruling()
    if options.get(TEMPORARY) == "1":
        return Ruling(passed_over="a temporary table is its session's own")
    if upkeep:
        return Ruling(passed_over="users, rights and upkeep are each server's own")
    if found and found.sequence and not has_sequences:
        return Ruling(passed_over="a sequence is no table")
    readable = ddl == "follow" and isinstance(statement.sql, str) and not statement.error_code
    if readable and not statement.ddl and source in _TRUNCATES:
        if truncated := truncated_tables(sql, schema=statement.schema, folds=folds):
            return Ruling(truncated=truncated)
    if ddl == "follow" and statement.ddl and found is not None:
        edits = None
        if readable and source != "postgres":
            edits = table_edits(sql, schema=statement.schema, folds=folds)
        if edits:
            return Ruling(edits=edits)
        if edits is not None or keeps_rows(sql):
            return Ruling(passed_over=_BY_ROWS, emptied=found.emptied)
    what = "" if statement.ddl else ", and it changes rows, so it is not passed over with the DDL"
    why = f"it is from {source or 'a database that it does not name'}, and this target is {kind}{what}"
    if source == kind:
        why = f"{kind} records a text as it was sent, which may hold more than DDL, and rows that come by themselves"
    remedy = f"Do {by_hand(unit.seqno)}"
    if statement.ddl and not (found and found.emptied):
        remedy += ', or set ddl = "ignore"'
    raise DdlStopError(seqno=unit.seqno, text=shortened(sql), why=why, remedy=remedy)


def source_of(unit: ApplyUnit) -> str:
    """Return of what kind the database is that a unit comes from, empty where nothing says so."""
    return next((value for name, value in unit.metadata if name == "dbms_type"), "")


def rows_are_here(unit: ApplyUnit, statement: Statement, name: TableName, ddl: str) -> DdlStopError:
    """Return the refusal to pass over a statement that takes rows away, while rows of `name` are still here.

    A name without a table stands for all of its schema.
    """
    schema, table = name
    remedy = f"Take the rows of all tables of {schema} away here. Do {by_hand(unit.seqno)}"
    if table:
        remedy = (
            f"Take those rows away from {schema}.{table} here and start again; where others stay, do "
            f"{by_hand(unit.seqno)}"
        )
    why = f'it takes rows away, which are still here: ddl = "{ddl}" does not pass over that'
    return DdlStopError(seqno=unit.seqno, text=shortened(text_of(statement)), why=why, remedy=remedy)


def stopped(seqno: int, text: str, why: str) -> DdlStopError:
    """Return the error for a statement that is left to the operator."""
    return DdlStopError(seqno=seqno, text=text, why=why, remedy=f"Do {by_hand(seqno)}")


def by_hand(seqno: int) -> str:
    """Return what to do where a statement is the operator's: who passes over it leaves its whole transaction out."""
    return (
        f"at the target what it did, and all other changes of its transaction (`thl list -seqno {seqno}` shows them), "
        f"then `tranlog position set {seqno}`"
    )


def text_of(statement: Statement) -> str:
    """Return a statement's text, as far as it is one."""
    return statement.sql if isinstance(statement.sql, str) else statement.sql.decode(errors="replace")


def shortened(sql: str) -> str:
    """Return a statement's text in one line, for messages."""
    text = " ".join(sql.split())
    return text if len(text) <= 200 else text[:199] + "…"

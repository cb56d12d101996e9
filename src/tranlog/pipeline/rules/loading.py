"""Loads in a pipeline: which tables are loading, and which of their changes are applied.

Pure. The hard idea: a table is loaded in the order of its key, up to the border `upto`. A change below it concerns a
row that is loaded, and is applied. A change above it concerns a row of a later chunk, which contains the change, and is
passed over. For an update that crosses the border, half of it is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from tranlog.change import Change, Op, Options, RowChange, TableMap, TableName
from tranlog.errors import PayloadError, TargetTableError
from tranlog.gaps import TableGap, load_again
from tranlog.ids import Seqno
from tranlog.loads import ANY_PIPELINE, LoadBegin, LoadChunk, LoadEnd, LoadMark, is_key, parse_key
from tranlog.table_notes import is_note
from tranlog.types import UNCHANGED, Value

Row = tuple[Value, ...]


class TableLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How far a table is loaded: `upto` a key, inclusive, as `key_text` writes it; None: nothing, or all if `done`.

    `key` are the names of the key's columns. `gap`: no load of it has come to its end since the gap of this seqno, for
    the reason `why`; `load` is empty where none has begun. `given_up`: why its load ended without all of it.
    """

    schema: str
    table: str
    load: str
    key: tuple[str, ...] = ()
    upto: str | None = None
    done: bool = False
    gap: Seqno | None = None
    why: str = ""
    given_up: str = ""


Loads = Mapping[TableName, TableLoad]
"""What a pipeline has of each table that was ever loaded."""
_DECODER: Final = msgspec.json.Decoder(TableLoad)


class LoadBegun(msgspec.Struct, frozen=True, kw_only=True):
    """The load begins: these tables are to be emptied, or, where not `replace`, to be empty."""

    tables: tuple[TableMap, ...]
    replace: bool


class LoadMoved(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a chunk, or nothing, are to be applied with the new state."""


class NotForUs(msgspec.Struct, frozen=True, kw_only=True):
    """The transaction is for others, and is passed over."""


def step(loads: Loads, mark: LoadMark, pipeline: str) -> tuple[Loads, LoadBegun | LoadMoved | NotForUs]:
    """Return how far the tables are loaded after a transaction of a load, and what is to be done with it.

    A chunk counts only where its load began here: a pipeline that starts inside one has its rows from elsewhere.
    """
    if mark.pipeline not in (ANY_PIPELINE, pipeline):
        return loads, NotForUs()
    match mark.step:
        case LoadBegin(tables=tables, replace=replace):
            new = {(t.schema, t.table): TableLoad(schema=t.schema, table=t.table, load=mark.load) for t in tables}
            for name in new.keys() & loads.keys():
                new[name] = msgspec.structs.replace(new[name], gap=loads[name].gap, why=loads[name].why)
            return {**loads, **new}, LoadBegun(tables=tables, replace=replace)
        case LoadChunk(table=table, key=key, keys=keys):
            before = loads.get(table)
            if before is None or before.load != mark.load or before.done:
                return loads, NotForUs()
            after = msgspec.structs.replace(before, key=key, upto=keys.upto)
            if keys.upto is None:
                after = msgspec.structs.replace(after, done=True, gap=None, why="")
            return {**loads, table: after}, LoadMoved()
        case LoadEnd(given_up=given_up):
            ended = _given_up(loads, mark.load, dict(given_up))
            return ({**loads, **ended}, LoadMoved()) if ended else (loads, NotForUs())


def _given_up(loads: Loads, load: str, reasons: Mapping[str, str]) -> Loads:
    """Return the tables that a load which is at its end has not loaded, as ones that wait for another."""
    return {
        name: msgspec.structs.replace(
            state, given_up=" ".join(reasons.get(".".join(name), "").split()) or "it ended without all of its rows"
        )
        for name, state in loads.items()
        if state.load == load and not state.done
    }


def after_gap(loads: Loads, gap: TableGap, tables: Iterable[TableName], seqno: Seqno) -> Loads:
    """Return how far tables are loaded after a gap: of `tables`, those of it and those joined to them, nothing is."""

    def why(table: TableName) -> str:
        named = ", ".join(map(".".join, gap.tables))
        return gap.reason if table in gap.tables else f"foreign keys join it to {named}: {gap.reason}"

    new = {name: TableLoad(schema=name[0], table=name[1], load="", gap=seqno, why=why(name)) for name in sorted(tables)}
    return {**loads, **new}


def waits(state: TableLoad) -> bool:
    """Whether a table waits for a load, and none of it is under way."""
    return bool(state.given_up) or (state.gap is not None and not state.load)


def waiting(loads: Loads) -> dict[str, str]:
    """Return the tables that wait for a load, since a gap or since one was given up, and what is said of each.

    `schema.table`. The command names all that wait since the same gap or load.
    """
    together: dict[Seqno | str, list[str]] = {}
    found = [state for _, state in sorted(loads.items()) if waits(state)]
    for state in found:
        together.setdefault(_since(state), []).append(f"{state.schema}.{state.table}")
    return {
        f"{state.schema}.{state.table}": f"{_told(state)}: {load_again(tuple(together[_since(state)]))}"
        for state in found
    }


def _since(state: TableLoad) -> Seqno | str:
    return state.load if state.gap is None else state.gap


def _told(state: TableLoad) -> str:
    """Say what a table waits for, without the command."""
    begun = f"its load {state.load} was given up ({state.given_up})"
    if state.gap is None:
        return f"is not loaded to its end: {begun}, and changes of rows that are not loaded are passed over"
    gap = f"waits for a load since the gap of seqno {state.gap} ({state.why})"
    return f"{gap}, " + (f"{begun}, " if state.given_up else "") + "and its changes are passed over"


def stored(before: Loads, after: Loads) -> Options:
    """Return what a target is to store of a step: (table, state) of the tables that it changed."""
    return tuple(
        [
            (msgspec.json.encode(name).decode(), msgspec.json.encode(state).decode())
            for name, state in after.items()
            if before.get(name) != state
        ]
    )


def read_stored(rows: Mapping[str, str]) -> Loads:
    """Return what `stored` had stored. Raises PayloadError for what it did not write."""
    try:
        states = [_DECODER.decode(text) for name, text in rows.items() if not is_note(name)]
    except msgspec.DecodeError as exc:
        raise PayloadError(why=f"a row of tranlog_load cannot be read: {exc}") from exc
    return {(state.schema, state.table): state for state in states}


def loading(loads: Loads) -> Loads:
    """Return the tables that are not loaded to their end."""
    return {name: state for name, state in loads.items() if not state.done}


def counting(open_loads: Loads, changes: Iterable[Change], seqno: Seqno) -> Iterator[Change]:
    """Yield of a transaction's changes those that count yet. Raises TargetTableError where that cannot be told."""
    for change in changes:
        state = open_loads.get((change.table.schema, change.table.table)) if isinstance(change, RowChange) else None
        if state is None:
            yield change
            continue
        assert isinstance(change, RowChange)
        found = _counts(state, change, seqno)
        if found is not None:
            yield found


def _counts(state: TableLoad, change: RowChange, seqno: Seqno) -> RowChange | None:
    if state.upto is None:
        return None
    border = parse_key(state.upto)

    def is_loaded(row: Row | None) -> bool:
        if row is None:
            return False
        table = change.table
        key = table.key_of(row)
        if tuple([table.columns[at].name for at in table.primary_key]) != state.key or not is_key(key):
            raise TargetTableError(
                table=table.name,
                why="its primary key changed while it is being loaded",
                seqno=seqno,
                remedy=f"Leave the transaction out, and load the table again: tranlog load --tables {table.name}",
            )
        return key <= border

    here, comes = is_loaded(change.before), is_loaded(change.after)
    if change.op is not Op.UPDATE or here == comes:
        return change if here or comes else None
    if here:
        return RowChange(change.table, Op.DELETE, change.before, None)
    assert change.before is not None and change.after is not None
    after = tuple([b if a is UNCHANGED else a for b, a in zip(change.before, change.after, strict=True)])
    if UNCHANGED in after:
        raise TargetTableError(
            table=change.table.name,
            why="a row's key moved into what is loaded, and the source did not send the values that stayed",
            seqno=seqno,
            remedy=f"Leave the transaction out, and load the table again: tranlog load --tables {change.table.name}",
        )
    return RowChange(change.table, Op.INSERT, None, after)

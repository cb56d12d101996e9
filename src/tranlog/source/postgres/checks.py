"""What is looked at of a PostgreSQL database before it is captured.

Owns the list, and what a start does not ask: rights to read, free slots, how much WAL is kept, the clock. What a start
refuses is asked by the code that refuses it; a publication that is missing is made, and rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final

from tranlog.clock import Clock
from tranlog.errors import PositionLostError, SourceSetupError
from tranlog.findings import CheckResult, Severity, compare_clocks, fine, listed, names_of, tried, warning
from tranlog.source.kinds import CapturedUpTo
from tranlog.source.postgres.catalog import PostgresCatalog, quoted_table
from tranlog.source.postgres.connection import PostgresControl, PostgresSourceOptions
from tranlog.source.postgres.position import why_lost
from tranlog.source.postgres.slot_making import new_logs_start
from tranlog.source.postgres.source import read_event_id
from tranlog.source.postgres.stream import SlotStream

_NOW_MS: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8"
_SLOTS: Final = """
SELECT current_setting('max_replication_slots')::int - count(*)::int FROM pg_replication_slots"""
_SLOT_LIMIT: Final = "SELECT setting::int8 * 1024 * 1024 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'"
_UNREADABLE: Final = """
SELECT p.schemaname, p.tablename FROM pg_publication_tables p
 WHERE p.pubname = $1 AND NOT has_table_privilege(format('%I.%I', p.schemaname, p.tablename), 'SELECT') ORDER BY 1, 2"""


def examine(options: PostgresSourceOptions, clock: Clock, captured: CapturedUpTo | None) -> Iterator[CheckResult]:
    """Yield what is found; `captured` None: the log has no event."""
    with closing(PostgresControl(options)) as control:
        catalog = PostgresCatalog(options, control)
        found = tried(
            "connection", lambda: f"PostgreSQL {control.rows('SHOW server_version')[0][0]} at {options.where}"
        )
        yield found
        if found.severity is Severity.WRONG:
            return
        settings = list(listed("settings", catalog.server_problems(), otherwise="wal_level is logical"))
        yield from settings
        yield tried("clock", lambda: compare_clocks(clock, lambda: int(control.rows(_NOW_MS)[0][0])))
        yield tried("tables", lambda: _tables(options, catalog))
        if any(one.severity is Severity.WRONG for one in settings):
            return
        yield tried("rights", lambda: _rights(options, control))
        yield tried("position", lambda: _position(options, control, catalog, captured))
        yield tried("retention", lambda: _retention(options, control, catalog))


def _tables(options: PostgresSourceOptions, catalog: PostgresCatalog) -> str:
    if catalog.has_publication():
        if options.identity != "set":
            catalog.check_tables()
        return f"the publication {options.publication_name} tells enough of each change"
    if options.identity != "set":
        catalog.make_publication(keep=False)
    return f"the publication {options.publication_name} is made by the first capture"


def _rights(options: PostgresSourceOptions, control: PostgresControl) -> CheckResult | str:
    ((user,),) = control.rows("SELECT quote_ident(current_user)")
    unreadable = [quoted_table(*one) for one in control.rows(_UNREADABLE, (options.publication_name,))]
    if not unreadable:
        return f"{user} may replicate, and read what is published"
    text = f"{user} may not read {names_of(unreadable)}: no load and no comparison of these"
    return warning("rights", text, f"Run at the source: GRANT SELECT ON {', '.join(unreadable)} TO {user}")


def _position(
    options: PostgresSourceOptions, control: PostgresControl, catalog: PostgresCatalog, captured: CapturedUpTo | None
) -> CheckResult | str:
    """Look whether the slot has what follows the log's end, over the connection of a replica. Raises SourceError."""
    with closing(SlotStream(options)) as stream:
        history = stream.history()
    slot = catalog.slot()
    if captured is not None:
        position = read_event_id(captured.event_id)
        why = why_lost(position, history, slot)
        if position.slot != options.slot_name:
            why = f"the log follows the slot {position.slot}, and the options name {options.slot_name}"
        if why is not None:
            raise PositionLostError(event_id=captured.event_id, why=why)
        return f"the slot {options.slot_name} still holds what follows the log's end"
    if slot is not None:
        new_logs_start(options, slot)
        return f"the slot {options.slot_name} waits for its first capture"
    ((free,),) = control.rows(_SLOTS)
    if free <= 0:
        raise SourceSetupError(
            why=f"all replication slots of {options.where} are taken, and capture needs one",
            remedy="Raise max_replication_slots at the source and restart it, or drop a slot that nobody needs: "
            "SELECT slot_name, active FROM pg_replication_slots",
        )
    if free == 1:
        text = (
            f"one replication slot of {options.where} is free: capture takes it, and each snapshot of a load needs one"
        )
        remedy = "Raise max_replication_slots at the source and restart it, if tables are to be loaded"
        return warning("position", text, remedy)
    return f"the slot {options.slot_name} is made by the first capture"


def _retention(options: PostgresSourceOptions, control: PostgresControl, catalog: PostgresCatalog) -> CheckResult:
    slot, kept = catalog.slot(), catalog.retained_bytes()
    if slot is None or kept is None:
        return fine("retention", "no slot keeps WAL")
    ((limit,),) = control.rows(_SLOT_LIMIT)
    if note := slot_note(options, slot.wal_status, kept):
        return warning("retention", note.rstrip("."), "Start `tranlog capture`, or raise max_slot_wal_keep_size")
    if 0 <= limit < 2 * kept:
        text = f"the slot keeps {kept} bytes of WAL, and the server invalidates it above {limit}"
        remedy = "Start `tranlog capture`; or raise max_slot_wal_keep_size: ALTER SYSTEM SET max_slot_wal_keep_size = "
        return warning("retention", text, f"{remedy}'{8 * kept >> 20} MB'; SELECT pg_reload_conf()")
    bound = "without a bound" if limit < 0 else f"up to {limit}"
    return fine("retention", f"the slot keeps {kept} bytes of WAL, {bound}")


def slot_note(options: PostgresSourceOptions, wal_status: str, kept: int | None) -> str:
    """Return what an operator should know; `wal_status` as pg_replication_slots has it, `kept` None: it keeps none."""
    notes = []
    if wal_status in ("unreserved", "lost"):
        notes.append(f"The slot's WAL is {wal_status}: it passed max_slot_wal_keep_size.")
    elif kept is None:
        notes.append(f"There is no slot {options.slot_name}.")
    elif kept >= options.retained_warn_bytes:
        notes.append("The slot fills the source's disk: capture must run and reach its log.")
    return " ".join(notes)

"""What capture made at a PostgreSQL: its slots, publications and event triggers, and taking them away.

Owns finding and dropping them. The hard idea: a slot has no comment that tells whose it is, so all slots of the
database that pgoutput serves are shown and only the configured one is dropped; a publication that capture made carries
a comment, and one that was given stays.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from tranlog.errors import SourceSetupError
from tranlog.source.kinds import SourceObject
from tranlog.source.postgres.catalog import PUBLICATION_COMMENT, TRIGGER, TRIGGERS, quoted
from tranlog.source.postgres.connection import PostgresControl, PostgresSourceOptions

_SLOTS: Final = """
SELECT slot_name, active_pid, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8, wal_status = 'lost'
  FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput' ORDER BY slot_name"""
_PUBLICATIONS: Final = """
SELECT pubname, obj_description(oid, 'pg_publication') = $1 FROM pg_publication
 WHERE obj_description(oid, 'pg_publication') = $1 OR pubname = $2 ORDER BY pubname"""
_TRIGGERS: Final = "SELECT evtname FROM pg_event_trigger WHERE evtname = ANY ($1::name[]) ORDER BY evtname"


def list_installed(options: PostgresSourceOptions) -> list[SourceObject]:
    """Return what stands at the source. Raises SourceSetupError, SourceUnavailableError."""
    with closing(PostgresControl(options)) as control:
        return _found(control, options)


def _found(control: PostgresControl, options: PostgresSourceOptions) -> list[SourceObject]:
    found = [
        SourceObject(
            kind="slot",
            name=name,
            configured=name == options.slot_name,
            state=("nobody follows it" if pid is None else f"followed by process {pid}")
            + (", invalidated" if lost else f", keeps {kept or 0} bytes"),
        )
        for name, pid, kept, lost in control.rows(_SLOTS)
    ]
    for name, ours in control.rows(_PUBLICATIONS, (PUBLICATION_COMMENT, options.publication_name)):
        state = "made by tranlog" if ours else "given"
        found.append(
            SourceObject(kind="publication", name=name, configured=name == options.publication_name, state=state)
        )
    for (name,) in control.rows(_TRIGGERS, (list(TRIGGERS),)):
        found.append(SourceObject(kind="event trigger", name=name, configured=True, state="records DDL"))
    return found


def uninstall(options: PostgresSourceOptions) -> list[SourceObject]:
    """Drop the configured slot, the publication if capture made it, and the event triggers; return what was dropped.

    Raises SourceSetupError, also for a slot that somebody follows: then nothing was dropped.
    """
    with closing(PostgresControl(options)) as control:
        found = _found(control, options)
        dropped = [one for one in found if one.configured and (one.kind != "publication" or one.state != "given")]
        for one in dropped:
            if one.kind == "slot" and not one.state.startswith("nobody"):
                raise SourceSetupError(
                    why=f"the slot {one.name} is {one.state}", remedy="Stop capture, then run this command again"
                )
        for one in dropped:
            if one.kind == "slot":
                control.rows("SELECT pg_drop_replication_slot($1::text::name)", (one.name,))
            else:
                control.rows(f"DROP {one.kind.upper()} {quoted(one.name)}")
        if any(one.kind == "event trigger" for one in dropped):
            control.rows(f"DROP SCHEMA IF EXISTS {TRIGGER} CASCADE")
        return dropped

"""Making a logical replication slot: the server first waits for transactions that are open, however long they are.

Owns a statement that waits so, over a session of its own, and the making of the slot that capture follows.

Source: PostgreSQL's manual, "Streaming Replication Protocol" (CREATE_REPLICATION_SLOT), "TCP Settings"
(client_connection_check_interval).
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult

from tranlog.clock import Clock
from tranlog.errors import SourceSetupError, SourceUnavailableError
from tranlog.source.postgres.catalog import PostgresCatalog
from tranlog.source.postgres.connection import PostgresSourceOptions, connect, translated
from tranlog.source.postgres.position import SlotState, slot_dropping
from tranlog.source.reconnecting import PAUSE_SLICE_S

logger = logging.getLogger(__name__)

_CANCEL_S: Final = 2.0
"""So long a cancel may take, of a server that may be gone."""


class PatientStatement:
    """A statement that the server may answer late, and that is cancelled when it is dropped. Threads: one."""

    def __init__(self, options: PostgresSourceOptions, *, waits: bool = False, **more: str) -> None:
        """Open the session; the arguments as in `connect`. Raises SourceUnavailableError, SourceSetupError."""
        self._connection = connect(options, waits=waits, **more)
        try:
            # A server that waits looks by this whether we are still there. A replication command does not begin to
            # look, so the statement after this one does.
            self._connection.execute("SET client_connection_check_interval = '1s'")
            self._connection.execute("SET lock_timeout = 0")  # waiting for a transaction is waiting for a lock
        except (psycopg.Error, OSError) as exc:
            self.drop()
            raise translated(exc, options) from exc
        self.pid = self._connection.pgconn.backend_pid

    def send(self, sql: str) -> None:
        """Send the statement. Raises psycopg.Error."""
        self._connection.pgconn.send_query(sql.encode())

    def answer(self) -> PGresult | None:
        """Return the rows of the answer; None while there is none. Raises psycopg.Error."""
        pgconn = self._connection.pgconn
        pgconn.consume_input()
        if pgconn.is_busy():
            return None
        result = pgconn.get_result()
        if result is None:
            raise psycopg.OperationalError("the server ended the session")
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise error_from_result(result)
        while pgconn.get_result() is not None:  # its end, after which there is nothing to cancel
            pass
        return result

    def wait(self, timeout_s: float) -> None:
        """Wait until the server says something, up to `timeout_s`."""
        select.select([self._connection.pgconn.socket], [], [], timeout_s)

    def drop(self) -> None:
        """Cancel the statement if it is under way, and close the session; dropping twice is harmless."""
        with suppress(psycopg.Error, OSError):
            if self._connection.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                self._connection.cancel_safe(timeout=_CANCEL_S)
        with suppress(psycopg.Error, OSError):
            self._connection.close()


def make_slot(
    options: PostgresSourceOptions, catalog: PostgresCatalog, clock: Clock, stopping: Callable[[], bool]
) -> SlotState | None:
    """Make and return the slot to follow; from `load_wait_s` on a warning says which transactions it waits for.

    Raises SourceSetupError, SourceUnavailableError; the latter also where `stopping` came first.
    """
    failover = ", failover => true" if options.failover else ""
    statement = PatientStatement(options)
    told_at = clock.monotonic()
    try:
        statement.send(f"SELECT pg_create_logical_replication_slot('{options.slot_name}', 'pgoutput'{failover})")
        while statement.answer() is None:
            now = clock.monotonic()
            if stopping():
                why = _why(catalog.waits_for(statement.pid))
                raise SourceUnavailableError(where=options.where, why=f"{why}, and capture is to stop")
            if now - told_at >= options.load_wait_s:
                told_at = now
                logger.warning("%s. slot=%s", _why(catalog.waits_for(statement.pid)), options.slot_name)
            statement.wait(PAUSE_SLICE_S)
    except (psycopg.Error, OSError) as exc:
        raise translated(exc, options) from exc
    finally:
        statement.drop()
    logger.info("A replication slot was made. name=%s", options.slot_name)
    return catalog.slot()


def new_logs_start(options: PostgresSourceOptions, slot: SlotState | None) -> int:
    """Return the LSN at which a new log begins at a slot. Raises SourceSetupError for one that is invalidated."""
    if slot is None or slot.confirmed_lsn is None or slot.wal_status == "lost":
        raise SourceSetupError(
            why=f"the slot {options.slot_name} is invalidated: the server removed WAL that it needed",
            remedy=f"Drop it: {slot_dropping(options.slot_name)}; capture makes another",
        )
    return slot.confirmed_lsn


def _why(found: list[str]) -> str:
    who = f": {'; '.join(found)}" if found else ""
    return f"making the replication slot waits until transactions that are open at the source have ended{who}"

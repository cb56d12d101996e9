"""Freeing a SQLite source's outbox, as far as it is capture's: telling writers what the log has, and freeing the rest.

Owns when the progress file is written and when capture itself frees. What may go is `claim`'s rule. Writers free in
transactions of their own; capture frees a part, and then pauses, only of what was durable for a minute. Nothing but
the outbox's size depends on any of this.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import apsw

from tranlog.clock import Clock
from tranlog.errors import SourceUnavailableError
from tranlog.source.sqlite.claim import DurableUpTo, OutboxPlace, SourceClaim, free, write_progress
from tranlog.source.sqlite.opening import Patience, db_transaction
from tranlog.source.sqlite.raw import OUTBOX_TABLE
from tranlog.source.sqlite.schema import SOURCE_TABLE

logger = logging.getLogger(__name__)

_TELL_EVERY_S = 0.2
"""The progress file is written so often at most: each time costs two syncs."""
_FREE_AFTER_S = 60.0
_FREE_EVERY_S = 0.1
"""What was durable for so long and no writer has freed, capture frees: a part, then a pause."""
_FREE_AFTER_ALONE_S = 1.0
_HOLD_S = 0.02
"""Where triggers write, nobody else frees: capture does after a second, for so long at a time."""


@dataclass(slots=True)
class OutboxFreeing:
    """Frees one source's outbox up to what its log holds durably, from one start to the next.

    Without a claim it frees nothing. Threads: one.
    """

    path: str
    uuid: str
    claim: SourceClaim | None
    reader: apsw.Connection
    open_writer: Callable[[], tuple[apsw.Connection, Patience]]
    clock: Clock
    warned: set[str]
    """What was warned of, also before this start."""
    alone: bool = False
    """Whether no writer frees: then capture does soon, and as much as it can in a moment."""
    _writer: apsw.Connection | None = None
    _durable: OutboxPlace | None = None
    _told: OutboxPlace | None = None
    _tell_at: float = 0.0
    _free_at: float = 0.0
    _due: deque[tuple[float, int]] = field(default_factory=deque)
    """Since when rows are durable: at that time those up to that id."""
    _overdue: int = 0
    _freed: int = 0

    def release(self, place: OutboxPlace) -> None:
        """Let writers free what lies below a row; the row itself stays until a later one is durable."""
        self._durable = place
        due, now = self._due, self.clock.monotonic()
        if len(due) > 1 and due[-1][0] - due[-2][0] < 1:
            due.pop()  # one a second is enough; the older rows of the two wait a little longer
        due.append((now, place.id))
        self.tell()

    def tell(self, *, now: bool = False) -> None:
        """Write the progress file when that is due, or `now`."""
        place, claim = self._durable, self.claim
        if place is None or claim is None or place == self._told:
            return
        if not now and self.clock.monotonic() < self._tell_at:
            return
        self._tell_at = self.clock.monotonic() + _TELL_EVERY_S
        reader = self.reader
        try:
            if reader.execute(f"SELECT history, holder FROM main.{SOURCE_TABLE}").fetchall() != [claim]:
                return  # the next look says whose it is
            write_progress(reader.filename, DurableUpTo(uuid=self.uuid, history=claim.history, place=place))
        except (apsw.Error, OSError) as exc:
            if "progress file" not in self.warned:
                self.warned.add("progress file")
                logger.warning(
                    "progress file not written, so writers free nothing path=%s why=%s", reader.filename, exc
                )
            return
        self._told = place

    def free_overdue(self) -> None:
        """Free a part of what is durable for long, and no writer has freed. A writer's lock is not waited for.

        Raises SourceUnavailableError.
        """
        now, due, claim, place = self.clock.monotonic(), self._due, self.claim, self._durable
        while due and now - due[0][0] >= (_FREE_AFTER_ALONE_S if self.alone else _FREE_AFTER_S):
            self._overdue = due.popleft()[1]
        if self._overdue == self._freed or now < self._free_at or claim is None or place is None:
            return
        self._free_at = now + _FREE_EVERY_S
        try:
            left = self.reader.execute(f"SELECT 1 FROM main.{OUTBOX_TABLE} WHERE id < ? LIMIT 1", (self._overdue,))
            if not left.fetchall():
                self._freed = self._overdue
                return
            if self._writer is None:
                # What it does need not survive a loss of power: then it is done again.
                self._writer, patience = self.open_writer()
                self._writer.execute("PRAGMA main.synchronous=NORMAL")
                patience.timeout_s = 0
            durable = DurableUpTo(uuid=self.uuid, history=claim.history, place=place)
            with db_transaction(self._writer, write=True):
                more = True
                while more:
                    _, more = free(self._writer, durable, below=self._overdue)
                    more = more and self.alone and self.clock.monotonic() - now < _HOLD_S
        except (apsw.FullError, apsw.BusyError):
            return  # writers go first; the rows stay until the next time, and nothing depends on it
        except apsw.Error as exc:
            raise SourceUnavailableError(where=self.path, why=str(exc)) from exc

    def close(self) -> None:
        """Say what the log has, then close the connection that frees."""
        self.tell(now=True)
        if self._writer is not None:
            self._writer.close(True)
            self._writer = None

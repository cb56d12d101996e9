"""Following a server's binlog: the stream, the position in it, and lost connections.

Owns the next whole transaction, and where it stands. The hard idea: a transaction is held back until its commit event
is there, in memory or in a temporary file, so a lost connection never leaves half a transaction in the log: the half
is dropped here, and the server is asked again from the last whole one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from tranlog.clock import Clock
from tranlog.errors import PositionLostError, SourceSetupError, SourceUnavailableError, UnsupportedEventError
from tranlog.source.mariadb.branches import PreparedBranches
from tranlog.source.mariadb.captured import CapturedTables
from tranlog.source.mariadb.connection import Control, MariadbSourceOptions
from tranlog.source.mariadb.events import EventFormatError, Xid
from tranlog.source.mariadb.groups import EventGroup, GroupAssembler
from tranlog.source.mariadb.history import continue_from
from tranlog.source.mariadb.position import BinlogPosition
from tranlog.source.mariadb.server_binlog import ServerBinlog
from tranlog.source.mariadb.stream import BinlogStream
from tranlog.source.mariadb.transaction import CHECK_FILE, SourceTransaction
from tranlog.source.reconnecting import PAUSE_SLICE_S, Reconnecting
from tranlog.source.waiting import WaitingEvents

logger = logging.getLogger(__name__)

_BRANCHES_EVERY_S: Final = 10.0


class BinlogFollower:
    """One server's transactions, one by one. Threads: one, except `stop`."""

    def __init__(
        self,
        options: MariadbSourceOptions,
        clock: Clock,
        control: Control,
        binlog: ServerBinlog,
        captured: CapturedTables,
    ) -> None:
        self._options = options
        self._clock = clock
        self._control = control
        self._binlog = binlog
        self._captured = captured
        self._stream: BinlogStream | None = None
        self._assembler: GroupAssembler | None = None
        self._events: deque[bytes] = deque()
        self._pending: EventGroup | None = None
        self.retry = Reconnecting(clock, reconnect_s=options.reconnect_s)
        self._branches = PreparedBranches(options.memory_bytes)
        self._branches_at = 0.0
        self.reads_again = False
        """Whether the stream begins before the position, for the sake of prepared branches, and is not there yet."""
        self.position = BinlogPosition()
        """The end of the last transaction that is done."""
        self.stopping = False  # plain, since a signal handler may set it

    @property
    def connected(self) -> bool:
        """Whether a stream is open."""
        return self._stream is not None

    @property
    def prepared(self) -> tuple[str, ...]:
        """XA transactions with captured changes that are prepared: xid and tables."""
        return self._branches.names()

    def start(self, position: BinlogPosition, prepared: Iterable[Xid], *, accepted: bool) -> None:
        """Connect at a position, where these XA transactions are prepared. `accepted`: the server need prove nothing.

        Raises SourceUnavailableError, SourceSetupError, PositionLostError.
        """
        self.position = position
        self._branches.expect(prepared)
        self.reads_again = True
        self.retry.lost_at = None
        self.retry.came()  # what was lost before this start is over
        self._connect(accepted=accepted)

    def _connect(self, *, accepted: bool = False) -> None:
        """Check the set-up and the position, and open the stream there."""
        self._binlog.check_setup()
        self.position = continue_from(self._binlog, self._options, self.position, accepted=accepted)
        opened_at = self.position.prepared if self.reads_again else None
        if opened_at is not None:
            self._branches.clear()
        self._captured.learn()
        try:
            begins = self.position.gtids if opened_at is None else opened_at
            stream = BinlogStream(self._options, msgspec.structs.replace(self.position, gtids=begins))
        except PositionLostError as exc:
            if opened_at is None:
                raise
            raise self._binlog.lost_branches(self.position, exc.why) from exc
        self._stream = stream
        if self.stopping:  # `stop` sets this first, then looks for the stream
            stream.interrupt()
        self._assembler = GroupAssembler(
            self.position,
            new_store=lambda: WaitingEvents(self._options.memory_bytes, self._options.spool_directory),
            transaction_bytes_max=self._options.transaction_bytes_max,
            captures=self._options.captures,
            opened_at=opened_at,
            names_beyond=self._options.on_gap == "gap" and self._options.statements == "stop",
        )
        self.reads_again = opened_at is not None
        if self.reads_again and not self._assembler.repeats:
            self._know_branches()
        self.retry.connected()

    def close(self) -> None:
        """Close the connections and drop what has come of transactions that are not done; prepared ones are kept."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._control.close()
        self._events.clear()
        if self._assembler is not None:
            self._assembler.close()
            self._assembler = None
        if self._pending is not None:
            self._pending.events.close()
            self._pending = None

    def forget_branches(self) -> None:
        """Free what the prepared transactions take; until the next `start`."""
        self._branches.clear()

    def stop(self) -> None:
        """Make a waiting `next_group` return soon, and later ones at once, until `stopping` is taken back."""
        self.stopping = True
        stream = self._stream
        if stream is not None:
            stream.interrupt()

    def next_group(self, wait_s: float) -> EventGroup | None:
        """Return the next whole transaction; None when there is none within `wait_s`. It stays pending until done.

        A lost connection is opened again, for up to `reconnect_s`. Raises SourceUnavailableError after that;
        PositionLostError, SourceSetupError, UnsupportedEventError, DiskFullError, DiskFailedError.
        """
        if self._pending is not None:
            return self._pending
        deadline = self._clock.monotonic() + wait_s
        while True:
            assembler = self._assembler
            while self._events:
                assert assembler is not None
                event = self._events.popleft()
                try:
                    group = assembler.feed(event)
                except EventFormatError as exc:
                    raise self._damaged(exc) from exc
                if group is not None and group.again:
                    self._branches.take(group)
                    if not assembler.repeats:
                        self._know_branches()
                elif group is not None:
                    self.retry.came()
                    self._pending = group
                    return group
            if self.stopping:
                return None
            left = max(0.0, deadline - self._clock.monotonic())
            if self._stream is None:
                if not self._reconnect(left):
                    return None
                continue
            try:
                # What has begun to come is waited for, however long a large event takes: the server sends it whole.
                events = self._stream.take(max(left, PAUSE_SLICE_S) if self._is_inside() else left)
            except EventFormatError as exc:
                raise self._damaged(exc) from exc
            except PositionLostError as exc:  # the stream knows where it was opened, not how far the log has come
                raise PositionLostError(event_id=str(self.position), why=exc.why) from exc
            except SourceUnavailableError as exc:
                self.lose(exc)
                continue
            if not events and not self._is_inside():
                return None
            self._events.extend(events)

    def transaction(self, group: EventGroup) -> SourceTransaction | None:
        """Return a transaction as it is to be made into fragments; None where none of its changes is captured."""
        held = self._branches.changes_of(group)
        if held is None:
            return None
        after = self._branches.position_after(group)
        return SourceTransaction(group=group, held=held, before=self.position, after=after)

    def done(self, group: EventGroup) -> None:
        """Move the position to the end of the pending transaction."""
        self._pending = None
        self.position = self._branches.position_after(group)
        self._branches.take(group)

    def _know_branches(self) -> None:
        """Take note that all branches that are prepared at the position have been read."""
        self.reads_again = False
        unmet = self._branches.unmet
        if unmet:
            raise SourceSetupError(
                why=f"{self._options.where} has prepared XA transactions that its binlog does not hold any more: "
                + "; ".join(unmet),
                remedy="End them by XA COMMIT or XA ROLLBACK, then start the log",
            )
        self.position = msgspec.structs.replace(self.position, prepared=self._branches.oldest())

    def _is_inside(self) -> bool:
        """Whether a part of what belongs together has come, and its end has not."""
        if self._stream is None or self._assembler is None:
            return False
        return self.reads_again or self._assembler.inside or self._stream.inside

    def lose(self, error: SourceUnavailableError) -> None:
        """Drop the connection, and with it a transaction whose end had not come."""
        logger.warning("The connection to the source was lost. where=%s why=%s", self._options.where, error.why)
        self.close()
        self.retry.lost(error)

    def _reconnect(self, wait_s: float) -> bool:
        """Try to connect until it works or `wait_s` is over. Raises what `start` raises, the server's absence late."""
        connected = self.retry.again(self._connect_anew, wait_s, lambda: self.stopping)
        if connected:
            logger.warning("The source is connected again. where=%s position=%s", self._options.where, self.position)
        return connected

    def _connect_anew(self) -> None:
        self._captured.forget()  # the server may have come back with other tables
        try:
            self._connect()
        except SourceUnavailableError:
            self._control.close()
            raise

    def warn_of_branches(self) -> None:
        """Say once of each branch that it waits for long, and that the binlog before it is purged."""
        if not self._branches:
            return
        now = self._clock.monotonic()
        if now < self._branches_at:
            return
        self._branches_at = now + _BRANCHES_EVERY_S
        oldest = self._binlog.oldest_file()
        for text in self._branches.warnings(self._clock.now_ms() // 1000, self._options.xa_warn_s, oldest):
            logger.warning("%s", text)

    def _damaged(self, error: EventFormatError) -> UnsupportedEventError:
        assembler = self._assembler
        position = assembler.position if assembler is not None else self.position
        return UnsupportedEventError(
            what=f"an event after it in {position.file or 'the binlog'} is damaged or of a form that is not known: "
            f"{error.why}",
            event_id=str(position),
            remedy=CHECK_FILE,
        )

"""The replication connection: the server sends its changes, a thread of ours takes them off the socket.

Owns the streaming protocol at libpq's level, the thread, and the queue behind it. What messages mean is decided
elsewhere. The hard idea: the server cuts a reader that does not answer, however long the log takes, so a thread does
nothing but read and answer. It confirms what the log holds and nothing else. The position of a keepalive is told as
received only, with no confirmation beside it, since a server that shuts down waits until one of both is at its end.

Source: PostgreSQL's manual, "Streaming Replication Protocol"; psycopg's manual, "psycopg.pq".
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from tranlog.errors import SourceError, SourceUnavailableError
from tranlog.source.postgres.connection import PostgresSourceOptions, connect, translated, undecodable
from tranlog.source.postgres.copied import take_data
from tranlog.source.postgres.messages import MessageFormatError, feedback, parse_keepalive
from tranlog.source.postgres.position import ServerHistory, parse_history, parse_lsn

_JOIN_S: Final = 10.0
_SILENCE_MIN_S: Final = 60.0
_BATCH_MESSAGES: Final = 4_096
_BATCH_BYTES: Final = 1 << 20
_GATHER_BYTES: Final = 8 << 10
_GATHER_S: Final = 0.002
"""So long the server may go on sending when less than that came at once: it sends message by message, and a call for
each of them costs more than all that becomes of it."""
_KEEPALIVE: Final = ord("k")
_UNDECODABLE: Final = ("22", "54", "XX")
"""Classes of errors that a transaction meets again each time: its data, its size, the server's own faults."""


class _SlotReader(threading.Thread):
    """Moves messages from the connection to a queue, and answers the server; alone uses the connection."""

    def __init__(self, pgconn: pq.abc.PGconn, *, limit: int, feedback_s: float) -> None:
        super().__init__(name="tranlog-slot", daemon=True)
        self._pgconn = pgconn
        self._limit = limit
        self._feedback_s = feedback_s
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()  # guards all below
        self._batches: deque[tuple[list[bytes], int]] = deque()
        self._bytes = 0
        self._failure: Exception | None = None
        self._ended = False
        self._interrupted = False
        self._asked = False
        self._durable = 0
        self.wal_end = 0
        """The server has sent everything that was committed before this LSN."""
        # the thread's own
        self._told = 0
        self._heard = 0.0

    # In the thread.

    def run(self) -> None:
        try:
            self._loop()
        except Exception as exc:  # whatever it is, the reader must hear of it
            with self._changed:
                self._failure = exc
                self._changed.notify_all()

    def _loop(self) -> None:
        pgconn = self._pgconn
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(pgconn.socket, select.POLLIN)
        listening = True
        self._heard = told_at = time.monotonic()
        while True:
            with self._changed:
                if self._ended:
                    break
                room = self._bytes < self._limit
                wanted, self._asked = self._asked, False
            now = time.monotonic()
            if not room:
                self._heard = now  # nobody listens: silence means nothing
            came, asked = self._drain() if room else (0, False)
            if asked or wanted or now - told_at >= self._feedback_s:
                told_at = now
                self._tell(reply=not asked)
            if now - self._heard > max(_SILENCE_MIN_S, 10 * self._feedback_s):
                raise ConnectionError(f"the server said nothing for {now - self._heard:.0f} s")
            if room != listening:
                poll.modify(pgconn.socket, select.POLLIN if room else 0)
                listening = room
            if 0 < came < _GATHER_BYTES:
                time.sleep(_GATHER_S)
            ready = dict(poll.poll(max(0.0, told_at + self._feedback_s - time.monotonic()) * 1000))
            if self._wake in ready:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            if pgconn.socket in ready and room:
                pgconn.consume_input()
        self._tell(reply=False)

    def _drain(self) -> tuple[int, bool]:
        """Take what libpq has; return how many bytes, and whether the server wants an answer at once."""
        asked = False
        came = 0
        while True:
            batch: list[bytes] = []
            size, length, other = take_data(
                self._pgconn.get_copy_data,
                batch,
                messages_max=_BATCH_MESSAGES,
                bytes_max=min(_BATCH_BYTES, self._limit),
            )
            self._put(batch, size)
            came += size
            if length < 0:
                raise self._end()
            if other:
                if other[0] != _KEEPALIVE:
                    raise MessageFormatError(f"a message {chr(other[0])!r} of the stream")
                keepalive = parse_keepalive(other)
                self.wal_end = max(self.wal_end, keepalive.wal_end)
                self._heard = time.monotonic()
                asked = asked or keepalive.reply_wanted
            if not length:
                return came, asked
            with self._changed:
                if self._bytes >= self._limit:
                    return came, asked

    def _put(self, batch: list[bytes], size: int) -> None:
        if not batch:
            return
        self._heard = time.monotonic()
        with self._changed:
            self._batches.append((batch, size))
            self._bytes += size
            self._changed.notify_all()

    def _end(self) -> Exception:
        """Return why the server ended the stream."""
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return error_from_result(result)
        return ConnectionError("the server ended the stream")

    def _tell(self, *, reply: bool) -> None:
        with self._changed:
            durable = self._durable
        new = durable if durable > self._told else 0
        self._pgconn.put_copy_data(
            feedback(received=max(self.wal_end, durable), durable=new, now_micros=time.time_ns() // 1000, reply=reply)
        )
        deadline = time.monotonic() + 1.0
        while self._pgconn.flush() and time.monotonic() < deadline:
            select.select([], [self._pgconn.socket], [], 0.1)
        self._told = max(self._told, durable)

    # For the reader.

    def take(self, timeout_s: float) -> list[bytes]:
        """Return a batch of what is there, waiting for something; raise what ended the thread when nothing is left."""
        with self._changed:
            if not self._batches and self._failure is None and not self._interrupted and timeout_s > 0:
                self._changed.wait_for(
                    lambda: self._batches or self._failure is not None or self._interrupted, timeout_s
                )
            if not self._batches:
                if self._failure is not None:
                    raise self._failure
                return []
            messages, size = self._batches.popleft()
            was_full = self._bytes >= self._limit
            self._bytes -= size
            has_room = was_full and self._bytes < self._limit
        if has_room:
            os.eventfd_write(self._wake, 1)
        return messages

    def confirm(self, lsn: int) -> None:
        """Have the server told, with the next answer, that the log is durable up to here."""
        with self._changed:
            self._durable = max(self._durable, lsn)

    def ask(self) -> None:
        """Have the server say at once how far it has sent."""
        with self._changed:
            self._asked = True
        os.eventfd_write(self._wake, 1)

    def interrupt(self) -> None:
        """Make a waiting `take`, and all that follow, return at once."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def end(self) -> None:
        """Send a last answer and end the thread."""
        with self._changed:
            self._ended = True
        os.eventfd_write(self._wake, 1)
        if self.ident is not None:
            self.join(_JOIN_S)
        os.close(self._wake)


class SlotStream:
    """One replication connection, from the slot's position on until it is lost or closed.

    Shape: messages of pgoutput in order. Threads: one, except `interrupt`.
    """

    def __init__(self, options: PostgresSourceOptions) -> None:
        """Connect, and read nothing yet. Raises SourceUnavailableError, SourceSetupError."""
        self._options = options
        self._connection: psycopg.Connection[Any] = connect(options, replication="database")
        self._reader: _SlotReader | None = None
        self._taken = 0  # all that was committed before this LSN was taken

    def history(self) -> ServerHistory:
        """Return what the server says of itself. Raises SourceUnavailableError, SourceSetupError."""
        system, timeline, end_lsn, *_ = self._ask("IDENTIFY_SYSTEM")
        switches: dict[int, int] = {}
        if int(timeline) > 1:
            _, content = self._ask(f"TIMELINE_HISTORY {int(timeline)}")
            switches = parse_history(content)
        return ServerHistory(system=system, timeline=int(timeline), end_lsn=parse_lsn(end_lsn), switches=switches)

    def begin(self) -> None:
        """Have the server send, from where the slot stands. Raises SourceUnavailableError, SourceSetupError."""
        options = self._options
        publication = '"' + options.publication_name.replace('"', '""') + '"'
        literal = publication.replace("'", "''")
        self._command(
            f"START_REPLICATION SLOT \"{options.slot_name}\" LOGICAL 0/0 (proto_version '2', streaming 'on', "
            f"messages 'true', publication_names '{literal}')",
            pq.ExecStatus.COPY_BOTH,
        )
        self._reader = _SlotReader(self._connection.pgconn, limit=options.queue_bytes, feedback_s=options.feedback_s)
        self._reader.start()

    def _command(self, command: str, expected: int) -> pq.abc.PGresult:
        try:
            result = self._connection.pgconn.exec_(command.encode())
            if result.status != expected:
                raise error_from_result(result)
        except psycopg.Error as exc:
            raise translated(exc, self._options) from exc
        return result

    def _ask(self, command: str) -> list[str]:
        result = self._command(command, pq.ExecStatus.TUPLES_OK)
        return [(result.get_value(0, column) or b"").decode() for column in range(result.nfields)]

    @property
    def wal_end(self) -> int:
        """The server has sent everything that was committed before this LSN; it may still be in the queue."""
        return 0 if self._reader is None else self._reader.wal_end

    def take(self, timeout_s: float) -> list[bytes]:
        """Return the messages that have come, waiting up to `timeout_s` for some; empty when none came.

        Raises: SourceUnavailableError when the connection is lost: open another one. SourceSetupError;
        MessageFormatError.
        """
        assert self._reader is not None
        sent = self._reader.wal_end
        try:
            messages = self._reader.take(timeout_s)
        except MessageFormatError:
            raise
        except Exception as exc:
            raise self._meaning(exc) from exc
        if not messages:
            self._taken = sent
        return messages

    def has_sent(self, lsn: int) -> bool:
        """Whether all that was committed before `lsn` was taken; where that is not known, the server is asked."""
        if self._taken < lsn and self._reader is not None:
            self._reader.ask()
        return self._taken >= lsn

    def _meaning(self, error: Exception) -> SourceError:
        if isinstance(error, psycopg.Error):
            if (error.sqlstate or "")[:2] in _UNDECODABLE:
                return undecodable(error, self._options)
            return translated(error, self._options)
        return SourceUnavailableError(where=self._options.where, why=str(error) or type(error).__name__)

    def confirm(self, lsn: int) -> None:
        """Have the server told that the log is durable up to here."""
        if self._reader is not None:
            self._reader.confirm(lsn)

    def interrupt(self) -> None:
        """Make a waiting `take` return at once, now and later. From any thread."""
        if self._reader is not None:
            self._reader.interrupt()

    def close(self) -> None:
        """Tell the server what is durable, and end the connection and the thread; closing twice is harmless."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.end()
        with suppress(psycopg.Error):
            self._connection.close()

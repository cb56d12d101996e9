"""The replication connection: the server sends its binary log, a thread of ours takes it off the socket.

Owns the dump protocol, the thread, and its queue. What events mean is decided elsewhere. The hard idea: the
server cuts a reader that is slow for too long, so the thread that reads the socket does nothing else; it moves bytes
into a queue bounded by bytes, and only when that is full does the server wait.

Source: MariaDB's manual, "Replica registration", "COM_BINLOG_DUMP".
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from tranlog.errors import PositionLostError, SourceError, SourceUnavailableError
from tranlog.servers.mariadb import close, error_number
from tranlog.source.mariadb.connection import SAME_SERVER_ID, MariadbSourceOptions, connect, setup_error, translated
from tranlog.source.mariadb.position import BinlogPosition, gtid_text
from tranlog.source.mariadb.wire import EventSplitter, ServerWord

logger = logging.getLogger(__name__)

_COM_BINLOG_DUMP: Final = 0x12
_COM_REGISTER_SLAVE: Final = 0x15
_DUMP: Final = struct.Struct("<IHI")  # position, flags, server id; a file name may follow
_END_AT_THE_END: Final = 1
_SEND_ANNOTATE_ROWS: Final = 2
_FIRST_EVENT_AT: Final = 4
_GTID_CAPABLE: Final = 4
_CHUNK_BYTES: Final = 256 << 10
_SILENCE_MIN_S: Final = 10.0
_JOIN_S: Final = 10.0


class _Pump(threading.Thread):
    """Moves bytes from the socket to a queue, and does nothing else."""

    def __init__(self, sock: socket.socket, limit: int) -> None:
        super().__init__(name="tranlog-binlog", daemon=True)
        self._sock = sock
        self._limit = limit
        self._changed = threading.Condition()  # guards all below
        self._chunks: deque[bytes] = deque()
        self._bytes = 0
        self._failure: Exception | None = None
        self._ended = False
        self._interrupted = False

    def run(self) -> None:
        try:
            while True:
                with self._changed:
                    while self._bytes >= self._limit and not self._ended:
                        self._changed.wait()
                    if self._ended:
                        return
                chunk = self._sock.recv(_CHUNK_BYTES)
                with self._changed:
                    if not chunk:
                        raise ConnectionError("the server closed the connection")
                    self._chunks.append(chunk)
                    self._bytes += len(chunk)
                    self._changed.notify_all()
        except Exception as exc:  # whatever it is, the reader must hear of it
            with self._changed:
                self._failure = exc
                self._changed.notify_all()

    def take(self, timeout_s: float) -> list[bytes]:
        """Return what is there, waiting for something; raise what ended the thread when nothing is left."""
        with self._changed:
            if not self._chunks and self._failure is None and not self._interrupted and timeout_s > 0:
                self._changed.wait_for(
                    lambda: self._chunks or self._failure is not None or self._interrupted, timeout_s
                )
            chunks = list(self._chunks)
            self._chunks.clear()
            self._bytes = 0
            self._changed.notify_all()
            if not chunks and self._failure is not None:
                raise self._failure
            return chunks

    def interrupt(self) -> None:
        """Make a waiting `take`, and all that follow, return at once."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def end(self) -> None:
        """Let the thread end where it waits for room."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class BinlogStream:
    """One replication connection, from one position on until it is lost or closed.

    Shape: events in order, without their checksums, which were verified.
    Threads: one, except `interrupt`.
    """

    def __init__(
        self, options: MariadbSourceOptions, position: BinlogPosition, *, place: tuple[str, int] | None = None
    ) -> None:
        """Connect and begin the dump: after the position's GTIDs, or at `place`, a file and an offset, up to the end.

        Raises: SourceUnavailableError, SourceSetupError; PositionLostError when the server refuses the position.
        """
        self._options = options
        self._position = position
        self._place = place
        self._splitter = EventSplitter()
        silence_s = max(_SILENCE_MIN_S, 4 * options.heartbeat_s)
        self._connection = connect(options, read_timeout=silence_s, write_timeout=silence_s)
        try:
            self._begin(silence_s)
        except BaseException:
            close(self._connection)
            raise
        self._pump = _Pump(self._raw("_sock"), options.queue_bytes)
        self._pump.start()

    def _raw(self, name: str) -> Any:
        # PyMySQL has no public way to its packets; the version is pinned.
        return getattr(self._connection, name)

    def _begin(self, silence_s: float) -> None:
        options = self._options
        server_id = options.replica_id
        settings = (
            "SET @master_binlog_checksum = @@global.binlog_checksum, @mariadb_slave_capability = %s, "
            "@master_heartbeat_period = %s"
        )
        flags = _SEND_ANNOTATE_ROWS if options.annotate else 0
        # With @slave_connect_state set the server looks neither at the position nor at a file name.
        file, offset = "", _FIRST_EVENT_AT
        if self._place is not None:
            file, offset = self._place
            flags = _END_AT_THE_END
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(settings, (_GTID_CAPABLE, round(options.heartbeat_s * 1e9)))
                if self._place is None:
                    after = gtid_text(self._position.gtids)
                    cursor.execute("SET @slave_connect_state = %s, @slave_gtid_strict_mode = 1", (after,))
            # Server id; empty host, user and password; port, rank and the id of our own source: none.
            self._raw("_execute_command")(_COM_REGISTER_SLAVE, struct.pack("<IBBBHII", server_id, 0, 0, 0, 0, 0, 0))
            self._raw("_read_ok_packet")()
            self._raw("_execute_command")(_COM_BINLOG_DUMP, _DUMP.pack(offset, flags, server_id) + file.encode())
            # The first packet tells whether the server takes the position; it goes through the splitter as well.
            # PyMySQL's own buffer is empty: so far the server has only answered.
            sock = self._raw("_sock")
            sock.settimeout(silence_s)
            head = _exactly(sock, 4)
            first = head + _exactly(sock, int.from_bytes(head[:3], "little"))
        except (pymysql.err.MySQLError, OSError) as exc:
            if error_number(exc) == ER.ACCESS_DENIED_ERROR:
                # The login was good; the server words a missing right to replicate in the same way.
                text = "REPLICATION SLAVE is missing: " + str(exc.args[-1])
                raise setup_error(ER.SPECIFIC_ACCESS_DENIED_ERROR, text, options) from exc
            raise translated(exc, options) from exc
        self._events = deque(self._splitter.feed(first))
        self._heed()

    def take(self, timeout_s: float) -> Sequence[bytes]:
        """Return the events that have come, waiting up to `timeout_s` for some; empty when none came.

        Raises: SourceUnavailableError when the connection is lost: open another stream. PositionLostError,
        SourceSetupError, EventFormatError.
        """
        if self._events:
            events = list(self._events)
            self._events.clear()
            return events
        self._heed()
        try:
            chunks = self._pump.take(timeout_s)
        except Exception as exc:
            raise SourceUnavailableError(where=self._options.where, why=str(exc) or type(exc).__name__) from exc
        events = []
        for chunk in chunks:
            events += self._splitter.feed(chunk)
        if not events:
            self._heed()
        return events

    @property
    def ended(self) -> bool:
        """Whether the server has sent all that there was, and will send no more."""
        return self._splitter.word is not None and self._splitter.word.code == 0

    @property
    def inside(self) -> bool:
        """Whether a part of an event has come, and its end has not."""
        return self._splitter.inside

    def _heed(self) -> None:
        """Raise what ended the stream, if something did."""
        if self._splitter.failure is not None:
            raise self._splitter.failure
        if self._splitter.word is not None:
            raise self._meaning(self._splitter.word)

    def _meaning(self, word: ServerWord) -> SourceError:
        options = self._options
        if word.code == ER.MASTER_FATAL_ERROR_READING_BINLOG and "max_allowed_packet" not in word.text:
            return PositionLostError(event_id=str(self._position), why=f"{options.where} says {word.text!r}")
        error = pymysql.err.OperationalError(word.code, word.text)
        if word.code == 0:
            return SourceUnavailableError(where=options.where, why=word.text)
        if word.code == SAME_SERVER_ID:
            return setup_error(word.code, word.text, options)
        return translated(error, options)

    def interrupt(self) -> None:
        """Make a waiting `take` return at once, now and later. From any thread."""
        self._pump.interrupt()

    def close(self) -> None:
        """End the connection and the thread; closing twice is harmless."""
        self._pump.end()
        sock = self._raw("_sock")
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread out of its read
        self._pump.join(_JOIN_S)
        with suppress(pymysql.err.MySQLError, OSError, ValueError):
            # Not `close`: that would send a command into the dump.
            self._raw("_force_close")()


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = sock.recv(count)
        if not part:
            raise ConnectionError("the server closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)

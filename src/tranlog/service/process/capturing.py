"""Opening a source and its log for capture, and running capture beside something else.

Owns how a log that has no records yet is begun: after whatever knows a position, and at the source's position where
a cleared log left one. The capture loop itself is `capture`'s. The hard idea: a log is only ever empty by accident or
by intent, never by right, so before the first GTID is assigned everybody who may have seen a higher one is asked.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tranlog.capture.capture import Capture
from tranlog.capture.load_requests import LoadRequest, read_requests, write_request
from tranlog.clock import SystemClock
from tranlog.errors import ConfigError, TargetError, TargetUnavailableError
from tranlog.ids import Gtid
from tranlog.log.files.cleared import behind_all
from tranlog.log.upkeep.clearing import has_records
from tranlog.log.writing.log import Log
from tranlog.pipeline.filters.comparison import summed
from tranlog.pipeline.upkeep.position import read_rows
from tranlog.service.config.config import Config
from tranlog.service.process.apart import check_apart
from tranlog.service.process.last_error import keeping_error
from tranlog.service.process.sockets import CAPTURE_NAME
from tranlog.source.kinds import source_kind
from tranlog.source.source import ServerSource
from tranlog.target.target import ChannelRow

logger = logging.getLogger(__name__)

FIRST_LOAD = "first"
"""The id of the load with which a log begins."""
SWITCH_INTERVAL_S = 1e-4
"""A durable commit lets go of the interpreter some six times, and waits this long for it each time that another thread
is busy; with Python's own 5 ms that is a tenth as many commits."""


def find_beginning(config: Config, *, new_log: bool) -> Gtid | None:
    """Return after which position of the target a log without records begins; its own mark is the log's to use.

    A channel that has applied nothing counts too: it stands before what it will apply first. With `new_log` the
    target is not asked. Raises TargetUnavailableError where it does not answer.
    """
    if new_log or has_records(config.log_dir):
        return None
    return behind_all([Gtid(row.epoch, row.applied_seqno) for row in _positions_at_target(config)])


def _positions_at_target(config: Config) -> list[ChannelRow]:
    if config.target is None:
        return []
    try:
        return read_rows(config.target, config.pipeline.name)
    except TargetError as exc:
        where = exc.where if isinstance(exc, TargetUnavailableError) else "[target]"
        why = (
            f"{exc}. The log has no records, and a new one must begin after what the target holds, so that no GTID "
            "is used twice; --new-log begins at seqno 0 without asking it"
        )
        raise TargetUnavailableError(where=where, why=why) from exc


@contextmanager
def open_capture(
    config: Config, *, new_log: bool, accept_server: bool = False, take_source: bool = False
) -> Iterator[tuple[Capture, Log]]:
    """Open log and source for a capture that has not begun; both are closed at the end.

    `accept_server`: an operator vouches for a MariaDB that cannot prove to have the log's history. `take_source`: one
    gives this log a SQLite source that another log has claimed.
    While it is open, threads take turns every `SWITCH_INTERVAL_S`. Raises what opening either raises, and
    `find_beginning`. A source that is not there leaves the log as it is, also
    without the no-op with which a writer begins.
    """
    options = config.wanted_source()
    check_apart(config)
    with ExitStack() as opened:
        with keeping_error(config.log_dir, CAPTURE_NAME):
            source = source_kind(options.kind).open(options)
            if accept_server:
                if not isinstance(source, ServerSource):
                    why = "only a MariaDB source has a server to accept"
                    raise ConfigError(option="--accept-server", value=True, why=why)
                source.accept_server = True
            after = find_beginning(config, new_log=new_log)
            opened.callback(source.close)
            opened.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            log = opened.enter_context(
                Log.open(config.log_dir, source_id=source.source_id, options=config.log, start_after=after)
            )
            if log.last_event_id() is None and after is None:
                _begin_loaded(config, log)

        yield (
            Capture(source, log, options=config.capture, take_source=take_source, summing=summed, load=config.load),
            log,
        )


def _begin_loaded(config: Config, log: Log) -> None:
    """Have a log that never captured anything begin with the rows that are there, as far as they are wanted."""
    if config.load is None or read_requests(log.path, log.disk):
        return
    write_request(log.path, LoadRequest(load=FIRST_LOAD, tables=config.load, asked_at=SystemClock().now_ms()), log.disk)


class CaptureThread:
    """A capture that runs beside something else; `ended` is called in its thread when it ends, however it ends.

    Threads: `start` and `stop` by one.
    """

    def __init__(self, capture: Capture, *, ended: Callable[[], None]) -> None:
        self._capture = capture
        self._ended = ended
        self._thread = threading.Thread(target=self._run, name="capture")
        self.error: Exception | None = None

    def start(self) -> None:
        """Begin capturing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop capturing and wait until it has; an error that ended it stays in `error`."""
        self._capture.stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._capture.run()
        except Exception as exc:  # it belongs to the main thread, which raises it
            self.error = exc
        finally:
            self._ended()

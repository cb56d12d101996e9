"""Automatic flushes: what is appended and complete becomes visible by itself, every so often.

Owns the thread and its end. The hard idea: such a flush is a commit by somebody who owns nothing. It makes visible, and
durable if it syncs, but acknowledges nothing to anybody: whoever appended knows of durability by `commit` alone. If the
disk refuses it, those whose transactions it took are told at their next call, as after anybody's commit.

Source: thl-internals, flushIntervalMillis, fsyncOnFlush.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tranlog.errors import DiskFullError, LogError

logger = logging.getLogger(__name__)


class Flushing:
    """Calls `flush` every `interval_s` seconds in a thread of its own, until it is stopped or the log is closed."""

    def __init__(self, flush: Callable[[], object], *, interval_s: float, name: str) -> None:
        self._flush = flush
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"flush {name}", daemon=True)

    def start(self) -> None:
        """Begin; the first flush comes after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """Make it end soon, without waiting; twice is harmless."""
        self._stop.set()

    def join(self) -> None:
        """Wait for its end, which `stop` or the closing of the log brings about."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._flush()
            except DiskFullError as exc:
                logger.warning("A flush was refused; writers that lost transactions get the error. why=%s", exc)
            except LogError as exc:
                if not self._stop.is_set():
                    logger.warning("Automatic flushes have ended. why=%s", exc)
                return

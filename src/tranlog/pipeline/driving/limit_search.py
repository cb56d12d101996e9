"""The place of a run's limit in the log as it is now.

Owns looking ahead of the channels. `limits` owns what a limit is, and how a header shows it. The channels watch for
limits in transactions that enter the log later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tranlog.errors import ConfigError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.reading.readable import ReadableLog
from tranlog.pipeline.applying.channel import content_of
from tranlog.pipeline.rules.limits import Limit, UntilGtid, UntilSeqno, Watched, reached
from tranlog.pipeline.rules.progress import nearest_limit


class LimitSearch:
    """The search of one run. `restart` reads the position of the slowest channel. Threads: one.

    A search may be long: `keep_alive` is called every `every_s` meanwhile, and `stop` ends it.
    """

    def __init__(
        self,
        reader: ReadableLog,
        limit: Limit | None,
        *,
        restart: Callable[[], Seqno],
        keep_alive: Callable[[], object],
        every_s: float,
        stop: threading.Event,
    ) -> None:
        self._reader = reader
        self._limit = limit
        self._restart = restart
        self._keep_alive = keep_alive
        self._every_s = every_s
        self._stop = stop
        self._found: Seqno | None = None
        self._looked = NO_SEQNO
        """Up to where it was looked for in vain."""

    def look_ahead(self, until: Seqno | None) -> tuple[Seqno | None, Watched | None, Seqno]:
        """Return the limit as a seqno if the log shows it, else what the tasks must watch for, and from where on.

        What is committed is searched here, so that channels at different positions all end at the first match after the
        slowest one; none has passed later transactions. `until`: another limit; the nearer one counts. Raises
        ConfigError for a GTID of another history.
        """
        if self._found is not None:
            return nearest_limit(until, self._found), None, NO_SEQNO
        match self._limit:
            case None:
                return until, None, NO_SEQNO
            case UntilSeqno(seqno=seqno):
                return nearest_limit(until, seqno), None, NO_SEQNO
            case UntilGtid(gtid=gtid):
                header = self._reader.header(gtid.seqno)
                if header is not None and header.epoch != gtid.epoch:
                    why = f"this log has GTID({header.epoch}, {gtid.seqno}) in its place"
                    raise ConfigError(option="--until-gtid", value=str(gtid), why=why)
                return nearest_limit(until, gtid.seqno), None, NO_SEQNO
            case watched:
                slowest = self._restart()
                upto = self._reader.range().committed_seqno
                # The slowest may not have come to where it was looked for already, window by window.
                first = Seqno(max(slowest, self._looked) + 1)
                found = self._search(watched, first, upto)
                if found is None:
                    self._looked = max(self._looked, upto)
                    return until, watched, upto
                self._found = found  # a later look begins after it
                return nearest_limit(until, found), None, NO_SEQNO

    def _search(self, watched: Watched, first: Seqno, last: Seqno) -> Seqno | None:
        if first > last:
            return None
        beat_at = time.monotonic() + self._every_s
        with self._reader.cursor(committed_only=True) as cursor:
            cursor.seek(first)
            while not self._stop.is_set():
                header = cursor.next_header(0.0)
                if time.monotonic() >= beat_at:  # it may be long, and nobody is to take us for dead
                    self._keep_alive()
                    beat_at = time.monotonic() + self._every_s
                if header is None or header.seqno > last:
                    return None
                found = reached(watched, header, lambda: content_of(cursor.current()))
                if found is not None:
                    return found
        return None

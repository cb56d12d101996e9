"""When the index is stored, and by whom: at once where the log's shape changes, beside the commits otherwise.

Owns the decision that a flush is due, the thread that carries it out, and the order of the two kinds; what is stored
is `index`'s, how it lies in the file `index_table`'s. The hard idea: a commit only takes a view, which is a few
references and one small copy; another thread turns it into bytes and writes them. A view that a younger one has
overtaken is dropped: the younger one holds everything of it. An index that was lost has gaps; with its first flush
another thread begins to fill them (`index_fill`), and each flush stores what is filled by then.

Source: docs/conformance.md, I22, I24, I25.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tranlog.clock import Clock
from tranlog.disk import Disk
from tranlog.errors import LogError
from tranlog.ids import Lsn
from tranlog.log.files.directory import join
from tranlog.log.files.index_table import INDEX_NAME, IndexTable
from tranlog.log.files.segments import Segments
from tranlog.log.options import LogOptions
from tranlog.log.rules.index import IndexView, SeqnoIndex
from tranlog.log.rules.index_values import BuiltFrom
from tranlog.log.writing.index_fill import IndexFill
from tranlog.lsn import lsn_offset, lsn_segment

logger = logging.getLogger(__name__)


class IndexFlush:
    """Stores the index of one log.

    Threads: the log's lock guards every method but what its own threads run; those take neither this lock nor wait for
    anybody who holds it. One lives for one flush, one for the gaps of an index.
    """

    def __init__(
        self,
        path: str,
        disk: Disk,
        clock: Clock,
        segments: Segments,
        options: LogOptions,
        give_way: Callable[[], object],
    ) -> None:
        self._path = path
        self._clock = clock
        self._segments = segments
        self._options = options
        self._table = IndexTable(join(path, INDEX_NAME), disk)
        self._table_lock = threading.Lock()  # guards the table and the two fields after it
        self._stored = 0  # the youngest view that is stored
        self._failing = False
        self._taken = 0  # the youngest view that was taken
        self._end = Lsn(0)  # where that one ends
        self._gaps = False  # there are some, and nobody fills them yet
        self._next_s = self._wait_until()
        self._storing: threading.Thread | None = None
        self._done: threading.Thread | None = None  # has stored what it was to, and may be alive for a while
        self._fill = IndexFill(segments, give_way, filled=self._flush_soon)
        self._filling: threading.Thread | None = None

    def adopt(self, index: SeqnoIndex) -> None:
        """Take the index that opening the log has recovered; one with gaps is flushed with the first commit."""
        self._segments.adopt_index(index)
        self._gaps = index.mappings.gap() is not None
        self._next_s = self._wait_until()

    def _flush_soon(self) -> None:
        if self._next_s is not None:
            self._next_s = self._clock.monotonic()

    def store(self, built_from: BuiltFrom) -> None:
        """Store what is in the index now; a disk that refuses stops nothing, since the index can be built again."""
        view = self._take(built_from)
        if view is not None:
            self._store(view, self._taken)

    def is_due(self, end: Lsn) -> bool:
        """Whether it is time to store the index of a log that ends at `end`."""
        if self._bytes_behind(end) >= self._options.index_flush_bytes:
            return True
        return self._next_s is not None and self._clock.monotonic() >= self._next_s

    def store_beside(self, built_from: BuiltFrom) -> None:
        """Store the index in another thread; everything in it is durable."""
        if self._gaps:
            self._filling = self._begin(self._fill.run)
            self._gaps = self._filling is None
        if self._storing is not None and self._storing is not self._done and self._storing.is_alive():
            return
        view = self._take(built_from)
        if view is not None:
            self._storing = self._begin(self._store_apart, view, self._taken)

    def _store_apart(self, view: IndexView, number: int) -> None:
        self._store(view, number)
        self._done = threading.current_thread()

    def _begin(self, target: Callable[..., None], *args: object) -> threading.Thread | None:
        thread = threading.Thread(target=target, args=args, name=f"tranlog index of {self._path}", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:  # no more threads here: the next flush is another try
            self._told(str(exc))
            return None
        return thread

    def end_filling(self) -> None:
        """Fill no more; the next flush stores what was filled. Waits for one step."""
        if self._filling is not None:
            self._fill.end()
            self._filling.join()
            self._filling = None

    def close(self) -> None:
        """Wait for a flush that is under way, and let go of the file; closing twice is harmless."""
        self.end_filling()
        if self._storing is not None:
            self._storing.join()
            self._storing = None
        self._table.close()

    def _take(self, built_from: BuiltFrom) -> IndexView | None:
        self._taken += 1
        self._end = built_from.end
        self._next_s = self._wait_until()
        return self._segments.view_index(built_from)

    def _wait_until(self) -> float | None:
        wait_s = self._options.index_flush_s
        return None if wait_s is None else self._clock.monotonic() + (0 if self._gaps else wait_s)

    def _bytes_behind(self, end: Lsn) -> int:
        """Return what a scan would have to read after the last view; rotation stores the index in any case."""
        same = lsn_segment(end) == lsn_segment(self._end)
        return lsn_offset(end) - (lsn_offset(self._end) if same else 0)

    def _store(self, view: IndexView, number: int) -> None:
        with self._table_lock:
            if number < self._stored:
                return
            plan = view.plan()
            try:
                self._table.store(plan, view.image)
            except (OSError, LogError) as exc:  # one of ours: the log may not be written any more, which it says itself
                self._told(str(exc))
                return
            self._stored = number
            self._failing = False
            self._segments.index_stored(plan)

    def _told(self, why: str) -> None:
        """Say a failure, the first one in a row."""
        if not self._failing:
            self._failing = True
            logger.warning(
                "The index could not be stored; opening and seeking take longer. path=%s why=%s", self._path, why
            )

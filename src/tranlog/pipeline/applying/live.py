"""Verification at a position, on the target's side: a snapshot there, its sums, and the verdict.

Owns the snapshot that channel 0 opens at a verification in the log, and the thread that reads it while the channel
continues. The hard idea: such a transaction is serial, so when channel 0 takes it, the target holds all before it and
nothing after it. The guarded update that stores the tables as open proves that this task still had the channel when the
snapshot was opened; the thread begins only after that. A task that ends before the verdict leaves the tables open, and
the next task stores that they are not judged.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from tranlog.change import Options, TableMap, TableName
from tranlog.errors import TargetError, TargetTableError, TranlogError
from tranlog.pipeline.applying.group import Taken
from tranlog.pipeline.applying.loading import LoadingTables
from tranlog.pipeline.applying.task import ChannelTask, TaskEnd
from tranlog.pipeline.filters.comparison import (
    NOT_MADE,
    SplitSum,
    TableSum,
    compare_shown,
    row_differences,
    sent_rows,
)
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.filters.filter_text import filters_hash
from tranlog.pipeline.rules.loading import waiting
from tranlog.row_blocks import RowBlock
from tranlog.target.target import DIFFERS, EQUAL, NOT_JUDGED, OPEN, Target, TargetPositions, VerdictRow
from tranlog.verification import VerifyBegin, VerifyMark, VerifySum, verify_mark_of

logger = logging.getLogger(__name__)

SHOWN_BUCKETS: Final = 64
"""So many of the buckets that differ are told."""
SHOWN_ROWS: Final = 100
"""So many of the rows that differ are told."""
_STORE_AGAIN_S: Final = 1.0
_STORE_TRIES: Final = 60
_STOP_WAIT_S: Final = 10.0


class VerdictDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The details of a verdict. `differences`: keys and differing columns, with both values; `buckets` that differ."""

    why: str = ""
    source_rows: int = 0
    target_rows: int = 0
    source_checksum: str = ""
    target_checksum: str = ""
    buckets: tuple[int, ...] = ()
    differences: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it as it is stored."""
        return msgspec.json.encode(self).decode()


class LiveVerifying:
    """One channel's verifications. Threads: the channel's, and one for each verification."""

    def __init__(self, task: ChannelTask, open_target: Callable[[], Target], loading: LoadingTables) -> None:
        self._pipeline = task.options.pipeline
        self._filters = task.options.filters
        self._takes_steps = task.channel == 0
        self._open_target = open_target
        self._loading = loading
        self._judging: dict[str, _Judging] = {}

    def stand(self, positions: TargetPositions) -> None:
        """Store "not judged" for the tables that an ended task left open."""
        for row in positions.read_verdicts(self._pipeline) if self._takes_steps else ():
            judging = self._judging.get(row.verify)
            if row.verdict == OPEN and not (judging and judging.token == row.token):
                detail = VerdictDetail(why="the channel was started again before it had judged")
                positions.judge(self._pipeline, msgspec.structs.replace(row, verdict=NOT_JUDGED, detail=detail.text()))

    def take(self, taken: Taken, metadata: Options, token: int) -> bool:
        """Add to a transaction what verifications require; False: it is a step that stores nothing.

        A step is taken when all before it is in the target. Raises PayloadError.
        """
        mark = verify_mark_of(metadata) if taken.serial and metadata else None
        if mark is None:
            return True
        if mark.pipeline != self._pipeline:
            return False
        if isinstance(mark.step, VerifySum):
            if mark.verify in self._judging:
                self._judging[mark.verify].give(mark.step)
            return False
        self._drop(mark.verify)
        self._judging = {verify: judging for verify, judging in self._judging.items() if not judging.is_over}
        refused = self._refused(mark.step)
        judging, why = None, ""
        if len(refused) < len(mark.step.tables):
            try:
                target = self._open_target()
                try:
                    target.rows.hold_snapshot()
                except BaseException:
                    target.close()
                    raise
                judging = _Judging(self, mark, target, taken.header.seqno, token)
            except TranlogError as exc:
                why = f"the target gave no snapshot: {exc}"
        rows = []
        for table in mark.step.tables:
            name = (table.schema, table.table)
            row = VerdictRow(table=table.name, verify=mark.verify, seqno=taken.header.seqno, token=token)
            if reason := refused.get(name, why):
                row = msgspec.structs.replace(row, verdict=NOT_JUDGED, detail=VerdictDetail(why=reason).text())
            elif judging is not None:
                judging.rows[name] = (table, row)
            rows.append(row)
        if judging is not None:
            self._judging[mark.verify] = judging
        taken.verdicts = tuple(rows)
        return True

    def _refused(self, begin: VerifyBegin) -> dict[TableName, str]:
        """Return why tables cannot be judged here."""
        tables = [(table.schema, table.table) for table in begin.tables]
        if begin.filters != filters_hash(self._filters):
            return dict.fromkeys(tables, "the pipeline runs with other filters than those of the request")
        loads = self._loading.open
        waits = waiting(loads)
        return {name: waits.get(".".join(name), "it is being loaded") for name in tables if name in loads}

    def begin(self, group: Sequence[Taken]) -> None:
        """Begin to read the snapshot of a step whose target transaction is committed; it is alone in its group."""
        for judging in self._judging.values():
            if group and group[0].verdicts and judging.seqno == group[0].header.seqno:
                judging.start()

    def finish(self, end: TaskEnd) -> TaskEnd:
        """Wait at a limit for the verdicts of the verifications for which all sums of the source are there.

        Returns `end`.
        """
        for judging in self._judging.values() if end is TaskEnd.LIMIT else ():
            judging.finish()
        return end

    def close(self) -> None:
        """End the verifications without a verdict; closing twice is harmless."""
        for verify in list(self._judging):
            self._drop(verify)

    def _drop(self, verify: str) -> None:
        judging = self._judging.pop(verify, None)
        if judging is not None:
            judging.stop()

    def chain(self) -> Chain:
        """Return the pipeline's filters, for one thread."""
        return Chain(self._filters)

    def store(self, row: VerdictRow, stopped: threading.Event) -> None:
        """Store a verdict, over a connection of its own; retry if the target fails."""
        for _ in range(_STORE_TRIES):
            try:
                with contextlib.closing(self._open_target()) as target:
                    target.positions.judge(self._pipeline, row)
                return
            except TargetError as exc:
                logger.warning("a verdict could not be stored table=%s why=%s", row.table, exc)
            if stopped.wait(_STORE_AGAIN_S):
                return


class _Judging:
    """One verification in a snapshot of the target. `rows`: the tables that are judged, and their open rows."""

    def __init__(self, owner: LiveVerifying, mark: VerifyMark, target: Target, seqno: int, token: int) -> None:
        assert isinstance(mark.step, VerifyBegin)
        self._owner = owner
        self._begin = mark.step
        self._target = target
        self.seqno, self.token = seqno, token
        self.rows: dict[TableName, tuple[TableMap, VerdictRow]] = {}
        self._given: dict[TableName, VerifySum] = {}
        self._sums: dict[TableName, SplitSum | str] = {}
        self._news = threading.Condition()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verify", daemon=True)

    @property
    def is_over(self) -> bool:
        """Whether it has come to its end."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def start(self) -> None:
        """Begin to read, if that has not begun."""
        if self._thread.ident is None:
            self._thread.start()

    def give(self, found: VerifySum) -> None:
        """Take the source's sum of a table."""
        with self._news:
            self._given[found.table] = found
            self._news.notify()

    def finish(self) -> None:
        """Wait for the end where all sums of the source are here."""
        with self._news:
            whole = self.rows.keys() <= self._given.keys()
        if whole and self._thread.ident is not None:
            self._thread.join()

    def stop(self) -> None:
        """End, and close the snapshot; what is not judged is said to be so."""
        self._stopped.set()
        with self._news:
            self._news.notify()
        if self._thread.ident is None:
            self._target.close()
        else:
            self._thread.join(_STOP_WAIT_S)

    def _run(self) -> None:
        left = dict(self.rows)
        with contextlib.closing(self._target):
            for name, (table, _) in self.rows.items():
                self._sums[name] = self._sum(table)
                self._judge(left)
        while left and not self._stopped.is_set():
            with self._news:
                self._news.wait_for(lambda: self._stopped.is_set() or any(name in self._given for name in left))
            self._judge(left)
        for _, row in left.values():
            detail = VerdictDetail(why="the channel ended before it had judged")
            self._owner.store(msgspec.structs.replace(row, verdict=NOT_JUDGED, detail=detail.text()), self._stopped)

    def _sum(self, table: TableMap) -> SplitSum | str:
        """Return the sum of a table's rows in the snapshot, or why there is none."""
        try:
            comparison = compare_shown(self._owner.chain(), table)
            if comparison is None:
                return "the pipeline's filters leave it out"
            buckets = frozenset(self._begin.buckets.get(table.name, ()))
            if self._target.rows.keys((comparison.compared.schema, comparison.compared.table)) is None:
                return SplitSum(comparison.compared, buckets, is_there=False)
            with contextlib.closing(self._target.rows.blocks(comparison.compared)) as blocks:  # type: ignore[type-var]
                return SplitSum(comparison.compared, buckets).take(self._until_stopped(blocks))
        except _StoppedError:
            return "the channel ended before it had judged"
        except TranlogError as exc:
            return str(exc)
        except Exception as exc:  # the channel goes on without this verdict
            logger.exception("a table's sum could not be computed table=%s", table.name)
            return f"{type(exc).__name__}: {exc}"

    def _until_stopped(self, blocks: Iterator[RowBlock]) -> Iterator[RowBlock]:
        for block in blocks:
            if self._stopped.is_set():
                raise _StoppedError
            yield block

    def _judge(self, left: dict[TableName, tuple[TableMap, VerdictRow]]) -> None:
        """Store the verdicts of the tables of which both sides are known, and take them out of `left`."""
        with self._news:
            both = [name for name in left if name in self._given and name in self._sums]
        for name in both:
            table, row = left[name]
            try:
                verdict, detail = self._verdict(table, self._given[name], self._sums[name])
            except (TranlogError, ValueError) as exc:
                verdict, detail = NOT_JUDGED, VerdictDetail(why=str(exc))
            self._owner.store(msgspec.structs.replace(row, verdict=verdict, detail=detail.text()), self._stopped)
            del left[name]

    def _verdict(self, table: TableMap, given: VerifySum, here: SplitSum | str) -> tuple[str, VerdictDetail]:
        if given.why or isinstance(here, str):
            side = f"at the source: {given.why}" if given.why else f"at the target: {here}"
            return NOT_JUDGED, VerdictDetail(why=side)
        ours = TableSum.unpack(here.table, given.sums)
        if ours.rows and not here.is_there:
            missing = f"at the target: {here.table.name}: there is no such table. {TargetTableError.remedy}"
            return NOT_JUDGED, VerdictDetail(why=missing)
        buckets = ours.differing(here.total)
        differences = []
        if given.rows is not None and here.rows is not None:
            differences = row_differences(here.table, sent_rows(given.rows), here.rows)
        comparison = compare_shown(self._owner.chain(), table)
        notes = () if comparison is None else comparison.notes
        if not here.is_there:
            notes += (NOT_MADE,)
        detail = VerdictDetail(
            source_rows=ours.rows,
            target_rows=here.total.rows,
            source_checksum=ours.checksum(),
            target_checksum=here.total.checksum(),
            buckets=tuple(buckets[:SHOWN_BUCKETS]),
            differences=tuple([(one.key, one.what) for one in differences[:SHOWN_ROWS]]),
            notes=notes,
        )
        return (DIFFERS if buckets else EQUAL), detail


class _StoppedError(Exception):
    """The thread is to end."""

"""`tranlog verify --live`: the source against the target at a position of the log, while both are written.

Owns asking for it and what is shown; the snapshots are taken by capture and by channel 0 of the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Final, TypeVar

import msgspec

from tranlog.capture.load_requests import LoadRequest, ask, read_requests
from tranlog.capture.verify_requests import (
    VerifyProgress,
    VerifyRequest,
    read_verify_progress,
    remove_verify_request,
    write_verify_request,
)
from tranlog.change import TableName
from tranlog.clock import Clock
from tranlog.codecs.opening import open_readable
from tranlog.errors import ConfigError, TransientTargetError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.loads import joined
from tranlog.pipeline.applying.live import VerdictDetail
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.filters.filter_text import filters_hash, filters_text
from tranlog.pipeline.upkeep.verify import select_tables
from tranlog.service.config.config import Config
from tranlog.service.config.sections import LOADABLE
from tranlog.service.frame.command import say
from tranlog.service.frame.progress import Progress
from tranlog.source.kinds import source_kind
from tranlog.target.options import is_own, open_target
from tranlog.target.target import DIFFERS, EQUAL, NOT_JUDGED, OPEN, Target, VerdictRow

_LOOK_EVERY_S: Final = 0.2

FoundT = TypeVar("FoundT")


class LiveVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a table. `seqno`: where the snapshots stood in the log, -1 where none was taken."""

    table: str
    verdict: str
    seqno: Seqno = NO_SEQNO
    verified_through: Seqno = NO_SEQNO
    detail: VerdictDetail = VerdictDetail()


class LiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a live verification found. `verified_through`: the seqno up to which every table was equal, -1 for none.

    `repaired`: the tables that differed before they were loaded again. `loaded`: they, and those that foreign keys at
    the target join to them.
    """

    equal: bool
    repaired: tuple[LiveVerdict, ...] = ()
    loaded: tuple[str, ...] = ()
    verified_through: Seqno
    tables: tuple[LiveVerdict, ...]


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be loaded again. `references`: as in LoadRequest. `refused`: what is not, and why."""

    tables: tuple[str, ...] = ()
    references: tuple[tuple[str, str], ...] = ()
    refused: dict[str, str] = {}


def plan_repair(
    differing: Sequence[str],
    here: Mapping[TableName, str],
    references: Sequence[tuple[TableName, TableName]],
    losing: Callable[[TableName], Sequence[TableName]],
) -> Repair:
    """Return what a repair of tables loads: they, and those that foreign keys at the target join to them.

    `here`: the source's name of each table of the pipeline, by its name at the target; `references` and `losing` are
    the target's. A table by which one that is not the pipeline's would lose rows is refused.
    """
    ours = [(here[one], here[other]) for one, other in references if one in here and other in here]
    there = {name: at for at, name in here.items()}
    tables: dict[str, None] = {}
    refused = {}
    for name in differing:
        together = sorted(joined([name], ours))
        lost = sorted({".".join(at) for one in together if one in there for at in losing(there[one]) if at not in here})
        if lost:
            refused[name] = f"foreign keys would delete or change rows of {', '.join(lost)}, which the pipeline lacks"
        else:
            tables |= dict.fromkeys([name, *together])
    return Repair(tables=tuple(tables), references=tuple(ours), refused=refused)


class LiveVerification:
    """One call of the command: what it verifies, and until when it waits. `rows`: how many to show of each table."""

    def __init__(
        self, config: Config, target: Target, *, pipeline: str, rows: int, timeout_s: float, clock: Clock
    ) -> None:
        self._config = config
        self._target = target
        self._pipeline = pipeline
        self._rows = rows
        self._timeout_s = timeout_s
        self._clock = clock
        self._filters = [*config.pipeline.apply.filters]
        self._shown: list[tuple[str, TableName]] = []  # all of the pipeline's, and their names after its filters

    def tables(self, wanted: Sequence[str]) -> list[str]:
        """Return the tables to verify, all for none. Raises ConfigError for what cannot be verified, by name."""
        open_readable(self._config.log_dir).close()  # so that there is one
        source = self._config.wanted_source()
        if source.kind not in LOADABLE:
            why = f"tables of this kind cannot be verified live; those of {' and '.join(LOADABLE)} can"
            raise ConfigError(option="source.kind", value=source.kind, why=why)
        deadline = self._clock.monotonic() + self._timeout_s
        if self._read(lambda target: target.positions.read_pipeline(self._pipeline), deadline) is None:
            why = f"no pipeline of this name has run at {self._target.where}"
            raise ConfigError(option="--pipeline", value=self._pipeline, why=why)
        with closing(source_kind(source.kind).tables(source)) as reader:
            every = reader.tables()
            found = select_tables(every, wanted, option="--tables")
            chain = Chain(self._filters)
            for table in every:
                if not is_own(table) and (seen := chain.table(table)) is not None:
                    self._shown.append((table.name, (seen.table.schema, seen.table.table)))
            names_shown = {name for name, _ in self._shown}
            shown = [table for table in found if table.name in names_shown]
            if chain.functions:
                names = ", ".join([table.name for table in shown])
                why = f"{chain.functions[0]} cannot run over a snapshot, so these tables cannot be verified live"
                raise ConfigError(option="--tables", value=names, why=why)
            if left_out := [table.name for table in found if table not in shown] if wanted else []:
                why = "the pipeline's filters leave it out"
                raise ConfigError(option="--tables", value=", ".join(left_out), why=why)
        return [table.name for table in shown]

    def _read(self, read: Callable[[Target], FoundT], deadline: float) -> FoundT:
        """Return what is read at the target, which a lock or a lost connection may put off; up to `deadline`."""
        while True:
            try:
                return read(self._target)
            except TransientTargetError:
                if self._clock.monotonic() >= deadline:
                    raise
                self._clock.sleep(_LOOK_EVERY_S)
                self._target.reconnect()

    def run(self, tables: Sequence[str], progress: Progress) -> list[LiveVerdict]:
        """Verify tables; those that differ once more, with their rows. Raises DiskFailedError, TargetError."""
        found = {one.table: one for one in self._once(tables, {}, progress)}
        differing = {
            name: one.detail.buckets[: self._rows]
            for name, one in found.items()
            if one.verdict == DIFFERS and self._rows
        }
        if differing:
            for one in self._once(list(differing), differing, progress):
                if one.verdict != NOT_JUDGED:
                    found[one.table] = one
        return [found[name] for name in tables]

    def repair(self, differing: Sequence[str]) -> Repair:
        """Return what is to be loaded again for tables that differ, by the foreign keys at the target."""

        def plan(target: Target) -> Repair:
            references = target.rows.references()
            shown = self._shown if references else []
            here = {keys.name: name for name, at in shown if (keys := target.rows.keys(at)) is not None}
            return plan_repair(differing, here, references, target.rows.losing)

        return self._read(plan, self._clock.monotonic() + self._timeout_s)

    def load_again(self, repair: Repair, progress: Progress) -> bool:
        """Have tables loaded again for the pipeline, and wait for the load's end; False: it did not come in time."""
        log_dir, now = self._config.log_dir, self._clock.now_ms()
        load = str(now)
        request = LoadRequest(
            load=load,
            pipeline=self._pipeline,
            tables=repair.tables,
            references=repair.references,
            replace=True,
            asked_at=now,
        )
        ask(log_dir, request)
        deadline = self._clock.monotonic() + self._timeout_s
        while any(request.load == load for request in read_requests(log_dir)):
            if self._clock.monotonic() >= deadline:
                return False
            progress.update("verify: loading again", 0)
            self._clock.sleep(_LOOK_EVERY_S)
        return True

    def _once(
        self, tables: Sequence[str], buckets: Mapping[str, tuple[int, ...]], progress: Progress
    ) -> list[LiveVerdict]:
        """Ask for a verification and wait for its verdicts."""
        log_dir, clock = self._config.log_dir, self._clock
        request = VerifyRequest(
            verify=str(clock.now_ms()),
            pipeline=self._pipeline,
            tables=tuple(tables),
            filters=filters_text(self._filters),
            filters_hash=filters_hash(self._filters),
            buckets=dict(buckets),
        )
        deadline = clock.monotonic() + self._timeout_s
        write_verify_request(log_dir, request)
        try:
            while True:
                told = read_verify_progress(log_dir, request.verify)
                verdicts = self._read(lambda target: target.positions.read_verdicts(self._pipeline), deadline)
                stored = {one.table: one for one in verdicts}
                rows = {name: one for name, one in stored.items() if one.verify == request.verify}
                judged = {name for name, one in rows.items() if one.verdict != OPEN}
                missing = dict(told.missing) if told is not None else {}
                text = _stage(told, rows)
                if judged | missing.keys() >= set(tables) or clock.monotonic() >= deadline:
                    break
                progress.update(f"verify: {text}", told.rows if told is not None else 0, unit="rows")
                clock.sleep(_LOOK_EVERY_S)
        finally:
            remove_verify_request(log_dir, request.verify)
        late = f"no verdict within {self._timeout_s:g} s: {text}"
        return [_verdict(name, rows.get(name), stored.get(name), missing.get(name, late)) for name in tables]


def _stage(told: VerifyProgress | None, rows: Mapping[str, VerdictRow]) -> str:
    """Say what is waited for."""
    if told is None:
        return "waits for capture, which may not run"
    if told.waits_for:
        return f"the source waits for {told.waits_for}"
    if told.seqno == NO_SEQNO:
        return "waits for the stream to reach the snapshot"
    if not rows:
        return f"waits for the pipeline to reach seqno {told.seqno}"
    return f"reads {told.table} at the source" if told.table else "waits for the target's sums"


def _verdict(name: str, row: VerdictRow | None, before: VerdictRow | None, why: str) -> LiveVerdict:
    through = before.verified_through if before is not None else NO_SEQNO
    if row is None or row.verdict == OPEN:
        detail = VerdictDetail(why=why)
        return LiveVerdict(table=name, verdict=NOT_JUDGED, verified_through=through, detail=detail)
    detail = msgspec.json.decode(row.detail, type=VerdictDetail)
    return LiveVerdict(table=name, verdict=row.verdict, seqno=row.seqno, verified_through=through, detail=detail)


def verify_live(
    config: Config,
    wanted: Sequence[str],
    *,
    pipeline: str | None,
    rows: int,
    timeout_s: float,
    repair: bool,
    clock: Clock,
) -> LiveResult:
    """Verify tables while both sides are written; with `repair` those that differ are loaded and verified again.

    Raises ConfigError for what cannot be verified so, DiskFailedError, SourceError, TargetError.
    """
    with closing(open_target(config.wanted_target())) as target, Progress() as progress:
        name = pipeline or config.pipeline.name
        live = LiveVerification(config, target, pipeline=name, rows=rows, timeout_s=timeout_s, clock=clock)
        tables = live.tables(wanted)
        found = live.run(tables, progress)
        differing = [one.table for one in found if one.verdict == DIFFERS] if repair else []
        plan = live.repair(differing) if differing else Repair()
        repaired = [one for one in found if one.table in differing and one.table not in plan.refused]
        if plan.tables and live.load_again(plan, progress):
            again = {one.table: one for one in live.run(plan.tables, progress)}
            found = [again.pop(one.table, one) for one in found] + list(again.values())
    for table, why in plan.refused.items():
        say(f"verify: {table} is not loaded again: {why}. Mend its rows, or drop these foreign keys at the target")
    return LiveResult(
        repaired=tuple(repaired),
        loaded=plan.tables,
        equal=bool(found) and all(one.verdict == EQUAL for one in found),
        verified_through=min([one.verified_through for one in found], default=NO_SEQNO),
        tables=tuple(found),
    )


def show_live(found: Sequence[LiveVerdict]) -> None:
    """Print the verdict on each table."""
    for one in found:
        detail = one.detail
        for note in detail.notes:
            say(f"verify: {one.table}: {note}")
        match one.verdict:
            case "equal":
                rows = f"{detail.source_rows} rows, checksum {detail.source_checksum}"
                print(f"equal      {one.table}: at seqno {one.seqno}, {rows}")
            case "differs":
                counts = f"{detail.source_rows} rows at the source, {detail.target_rows} at the target"
                print(f"DIFFERS    {one.table}: at seqno {one.seqno}, {counts}")
            case _:
                print(f"NOT JUDGED {one.table}: {detail.why}")
        for key, what in detail.differences:
            print(f"           {key}: {what}")


def print_result(result: LiveResult) -> None:
    """Print what a live verification found."""
    if result.repaired:
        show_live(result.repaired)
        print(f"loaded again: {', '.join(result.loaded)}")
    show_live(result.tables)
    differing = sum(one.verdict == DIFFERS for one in result.tables)
    if not result.tables:
        print("nothing is judged: the source has no captured table that the pipeline's filters leave")
    elif result.equal:
        print(f"source and target are equal; verified through seqno {result.verified_through}")
    elif differing:
        print(f"{differing} of {len(result.tables)} tables differ")
    else:
        print("no table differs, and not all are judged")

"""Our tables in the target: who runs a pipeline, where its channels stand, which shard is whose, what is left out.

Owns every statement on them, written once for all dialects. Leaves deciding to `pipeline`. The hard idea is the
guarded update: a position moves only from the seqno and under the token that this task believes in; a task that was
replaced hits no row, and what it began is rolled back. Tokens only rise, over every take-over and change of plan: a
driver's token is the high part of its channels' tokens, so a channel that comes back after a plan without it never
meets an old token again.

Locks are always taken in one order, channels by number and then the pipeline's row, so that driver and tasks cannot
wait for each other in a circle.

Where a row or a table that must be there is not, nobody has taken the pipeline over: somebody has changed our tables.
That is TargetPositionError, never a fault that passes. Which of the two it is, one statement tells.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeVar

from tranlog.change import Options
from tranlog.errors import (
    ReplacedError,
    TargetPositionError,
    TargetTableError,
    TargetUnavailableError,
    TranlogError,
    TransientTargetError,
)
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.servers.identity import IDENTITY
from tranlog.target.dialect import Dialect
from tranlog.target.once import CREATE_STATEMENT_TABLE, STATEMENT_TABLE
from tranlog.target.session import LockTimeoutError, MisfitError, MissingTableError, Session, unavailable
from tranlog.target.target import EQUAL, OPEN, Advance, Applied, ChannelRow, Meeting, PipelineRow, VerdictRow

logger = logging.getLogger(__name__)

TOKEN_STEP: Final = 1 << 32
"""A channel's token is the driver's token times this, plus how often tasks claimed the channel since."""
FREEING_ROUNDS: Final = 3
"""How often a locked row is freed and tried again before it is somebody else's matter."""
FREEING_AFTER_S: Final = 2.0
"""How long a locked row is waited for before the sessions of replaced tasks that may keep it are looked for: much
longer than a group takes. What they were doing is rolled back, and whoever asks does it again."""

_TABLES: Final = {
    "tranlog_pipeline": """CREATE TABLE IF NOT EXISTS tranlog_pipeline (
    pipeline {key_text} NOT NULL PRIMARY KEY,
    token {integer} NOT NULL,
    holder {text} NOT NULL,
    channels {integer} NOT NULL,
    shard_rule {text} NOT NULL,
    stop_at_seqno {integer},
    alive_at {integer} NOT NULL,
    shards {integer} NOT NULL
){suffix}""",
    "tranlog_channel": """CREATE TABLE IF NOT EXISTS tranlog_channel (
    pipeline {key_text} NOT NULL,
    channel {integer} NOT NULL,
    epoch {integer} NOT NULL,
    applied_seqno {integer} NOT NULL,
    source_id {text} NOT NULL,
    event_id {text} NOT NULL,
    token {integer} NOT NULL,
    session {text} NOT NULL,
    stats {text} NOT NULL,
    tstamp {integer} NOT NULL,
    updated_at {integer} NOT NULL,
    PRIMARY KEY (pipeline, channel)
){suffix}""",
    "tranlog_shard": """CREATE TABLE IF NOT EXISTS tranlog_shard (
    pipeline {key_text} NOT NULL,
    shard {key_text} NOT NULL,
    channel {integer} NOT NULL,
    PRIMARY KEY (pipeline, shard)
){suffix}""",
    "tranlog_left_out": """CREATE TABLE IF NOT EXISTS tranlog_left_out (
    pipeline {key_text} NOT NULL,
    first_seqno {integer} NOT NULL,
    last_seqno {integer} NOT NULL,
    asked_at {integer} NOT NULL,
    PRIMARY KEY (pipeline, first_seqno, last_seqno)
){suffix}""",
    "tranlog_load": """CREATE TABLE IF NOT EXISTS tranlog_load (
    pipeline {key_text} NOT NULL,
    table_name {key_text} NOT NULL,
    state {text} NOT NULL,
    PRIMARY KEY (pipeline, table_name)
){suffix}""",
    "tranlog_verify": """CREATE TABLE IF NOT EXISTS tranlog_verify (
    pipeline {key_text} NOT NULL,
    table_name {key_text} NOT NULL,
    verify_id {text} NOT NULL,
    seqno {integer} NOT NULL,
    token {integer} NOT NULL,
    verdict {text} NOT NULL,
    detail {text} NOT NULL,
    verified_through {integer} NOT NULL,
    PRIMARY KEY (pipeline, table_name)
){suffix}""",
    "tranlog_plan": """CREATE TABLE IF NOT EXISTS tranlog_plan (
    pipeline {key_text} NOT NULL,
    from_seqno {integer} NOT NULL,
    plan {text} NOT NULL,
    PRIMARY KEY (pipeline, from_seqno)
){suffix}""",
}
OUR_TABLES: Final = frozenset({*_TABLES, STATEMENT_TABLE})
_PIPELINE_COLUMNS: Final = "pipeline, token, holder, channels, shard_rule, stop_at_seqno, alive_at, shards"
_CHANNEL_COLUMNS: Final = (
    "channel, epoch, applied_seqno, source_id, event_id, token, session, stats, tstamp, updated_at"
)
_TEXTS: Final = frozenset({"pipeline", "holder", "shard_rule", "source_id", "event_id", "session", "stats"})
"""The columns of these two tables that are no numbers."""

_READ_PIPELINE: Final = f"SELECT {_PIPELINE_COLUMNS} FROM tranlog_pipeline WHERE pipeline = $1"
_READ_CHANNELS: Final = f"SELECT {_CHANNEL_COLUMNS} FROM tranlog_channel WHERE pipeline = $1 ORDER BY channel"
_READ_SHARDS: Final = "SELECT shard, channel FROM tranlog_shard WHERE pipeline = $1"
_LOCK_CHANNELS: Final = "SELECT channel, token FROM tranlog_channel WHERE pipeline = $1 ORDER BY channel{lock}"
_READ_TOKEN: Final = "SELECT token, holder FROM tranlog_pipeline WHERE pipeline = $1"
_LOCK_TOKEN: Final = _READ_TOKEN + "{lock}"
_SHARE_TOKEN: Final = _READ_TOKEN + "{share}"
_NEW_PIPELINE: Final = (
    f"tranlog_pipeline ({_PIPELINE_COLUMNS}) VALUES ($1, $5, $2, $3, $4, NULL, {{now}}, "
    "(SELECT count(*) FROM tranlog_shard WHERE pipeline = $1))"
)
_RAISE_PIPELINE: Final = (
    "UPDATE tranlog_pipeline SET token = token + 1, holder = $2, channels = $3, shard_rule = $4, "
    "stop_at_seqno = NULL, alive_at = {now} WHERE pipeline = $1 AND token = $5"
)
_NEW_CHANNEL: Final = (
    f"tranlog_channel (pipeline, {_CHANNEL_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, '', $8, $9, {{now}})"
)
_SET_CHANNEL: Final = (
    "epoch = $3, applied_seqno = $4, source_id = $5, event_id = $6, token = $7, session = '', stats = $8, tstamp = $9, "
    "updated_at = {now}"
)
_CHANNEL_VALUES: Final = attrgetter(
    "channel", "epoch", "applied_seqno", "source_id", "event_id", "token", "stats", "tstamp"
)
_RAISE_CHANNELS: Final = "UPDATE tranlog_channel SET token = $2, session = '' WHERE pipeline = $1"
_DROP_CHANNEL: Final = "DELETE FROM tranlog_channel WHERE pipeline = $1 AND channel = $2"
_DROP_SHARDS: Final = "DELETE FROM tranlog_shard WHERE pipeline = $1"
_COUNT_NO_SHARDS: Final = "UPDATE tranlog_pipeline SET shards = 0 WHERE pipeline = $1"
_COUNT_SHARD: Final = "UPDATE tranlog_pipeline SET shards = shards + 1 WHERE pipeline = $1"
_READ_COUNTED: Final = "SELECT shards FROM tranlog_pipeline WHERE pipeline = $1"
_READ_WHOSE: Final = (
    "SELECT p.holder, p.channels, c.channel FROM tranlog_pipeline p "
    "LEFT JOIN tranlog_channel c ON c.pipeline = p.pipeline AND c.channel = $2 WHERE p.pipeline = $1"
)
_MOVE_ALIVE: Final = (
    # It moves also while the clock stands, or has jumped back.
    "UPDATE tranlog_pipeline SET alive_at = CASE WHEN {now} > alive_at THEN {now} ELSE alive_at + 1 END "
    "WHERE pipeline = $1 AND token = $2"
)
_SET_STOP: Final = "UPDATE tranlog_pipeline SET stop_at_seqno = $3 WHERE pipeline = $1 AND token = $2"
_CLAIM: Final = (
    "UPDATE tranlog_channel SET token = token + 1, session = $3, updated_at = {now} "
    "WHERE pipeline = $1 AND channel = $2"
)
_READ_CHANNEL: Final = f"SELECT {_CHANNEL_COLUMNS} FROM tranlog_channel WHERE pipeline = $1 AND channel = $2"
_ADVANCE: Final = (
    "UPDATE tranlog_channel SET epoch = $1, applied_seqno = $2, source_id = $3, event_id = $4, tstamp = $5, "
    "stats = $6, updated_at = {now} WHERE pipeline = $7 AND channel = $8 AND applied_seqno = $9 AND token = $10"
)
_ADVANCE_VALUES: Final = attrgetter(
    *("epoch", "new_seqno", "source_id", "event_id", "tstamp", "stats", "pipeline", "channel", "old_seqno", "token")
)
_MEET: Final = (
    "SELECT p.token, p.stop_at_seqno, c.channel, c.applied_seqno, c.tstamp FROM tranlog_pipeline p "
    "LEFT JOIN tranlog_channel c ON c.pipeline = p.pipeline WHERE p.pipeline = $1"
)
_READ_ASSIGNED: Final = (
    "SELECT p.token, p.holder, s.channel FROM tranlog_pipeline p "
    "LEFT JOIN tranlog_shard s ON s.pipeline = p.pipeline AND s.shard = $2 WHERE p.pipeline = $1"
)
_COUNT_SHARDS: Final = "SELECT channel, count(*) FROM tranlog_shard WHERE pipeline = $1 GROUP BY channel"
_ASSIGN: Final = "INSERT INTO tranlog_shard (pipeline, shard, channel) VALUES ($1, $2, $3)"
_LEAVE_OUT: Final = (
    "INSERT INTO tranlog_left_out (pipeline, first_seqno, last_seqno, asked_at) VALUES ($1, $2, $3, {now})"
)
_READ_LEFT_OUT: Final = (
    "SELECT first_seqno, last_seqno FROM tranlog_left_out WHERE pipeline = $1 ORDER BY first_seqno, last_seqno"
)
_READ_LOADS: Final = "SELECT table_name, state FROM tranlog_load WHERE pipeline = $1"
_NEW_LOAD: Final = "tranlog_load (pipeline, table_name, state) VALUES ($1, $2, $3)"
_VERDICT_COLUMNS: Final = "table_name, verify_id, seqno, token, verdict, detail, verified_through"
_READ_VERDICTS: Final = f"SELECT {_VERDICT_COLUMNS} FROM tranlog_verify WHERE pipeline = $1 ORDER BY table_name"
_NEW_VERDICT: Final = f"tranlog_verify (pipeline, {_VERDICT_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, {NO_SEQNO})"
_SET_VERDICT: Final = "verify_id = $3, seqno = $4, token = $5, verdict = $6, detail = $7"
_JUDGE: Final = (
    "UPDATE tranlog_verify SET verdict = $6, detail = $7{through} WHERE pipeline = $1 AND table_name = $2 "
    f"AND verify_id = $3 AND seqno = $4 AND token = $5 AND verdict = '{OPEN}'"
)
_VERDICT_VALUES: Final = attrgetter("table", "verify", "seqno", "token", "verdict", "detail")
_READ_PLANS: Final = "SELECT from_seqno, plan FROM tranlog_plan WHERE pipeline = $1"
_FIRST_PLAN: Final = "SELECT min(from_seqno) FROM tranlog_plan WHERE pipeline = $1 HAVING count(*) > 0"
_NEW_PLAN: Final = "tranlog_plan (pipeline, from_seqno, plan) VALUES ($1, $2, $3)"
_PLAN_KEY: Final = "pipeline, from_seqno"
_PLAN: Final = "plan = $3"
_PLAN_NEEDED: Final = (
    "SELECT max(from_seqno) FROM tranlog_plan WHERE pipeline = $1 AND from_seqno <= "
    "(SELECT min(applied_seqno) FROM tranlog_channel WHERE pipeline = $1)"
)
_DROP_PLANS: Final = "DELETE FROM tranlog_plan WHERE pipeline = $1 AND from_seqno < $2"
_NO_PIPELINE: Final = "tranlog_pipeline has no row of it"
_Result = TypeVar("_Result")
_Row = TypeVar("_Row", PipelineRow, ChannelRow)


class SqlTables:
    """Our own tables in a database, over one session: making them, looking at them. Threads: one at a time."""

    def __init__(self, session: Session, dialect: Dialect, *, where: str, lock_timeout_s: float) -> None:
        self._session = session
        self._dialect = dialect
        self._where = where
        self._lock_timeout_s = lock_timeout_s
        self._sql = cache(dialect.sql)

    def _run(self, statement: str, *values: Any) -> int:
        return self._session.run(self._sql(statement), values)

    def _fetch(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._session.fetch(self._sql(query), values)
        except LockTimeoutError as exc:
            if "{lock}" in query or "{share}" in query:
                raise  # of a row, which a replaced task of ours may hold
            raise TransientTargetError(why=f"tranlog's own tables stayed locked: {exc}") from exc

    def ensure_tables(self, *, again: bool = False) -> None:
        """Create our tables where they are missing; two who do it at once do not disturb each other."""
        for name, statement in self._tables().items():
            # Asked first: somebody else may have made them, for a user who may not.
            if self._is_there(name) or (name == STATEMENT_TABLE and not again and self._has_positions()):
                continue
            try:
                self._run(statement)
            except MisfitError:
                self._run(statement)  # the other one was faster: now the table is there
            except LockTimeoutError as exc:
                raise TransientTargetError(why=f"creating {name}: {exc}") from exc

    def _tables(self) -> Mapping[str, str]:
        """Return what makes each of our tables, by its name."""
        return _TABLES | ({STATEMENT_TABLE: CREATE_STATEMENT_TABLE} if self._dialect.statements_commit else {})

    def check_rights(self) -> None:
        there = {name: self._is_there(name) for name in self._tables()}
        missing = [name for name, is_there in there.items() if not is_there]
        if missing and (grant := self._session.lacks_create()):
            why = "it is missing, and this user may not make it"
            raise TargetTableError(table=", ".join(missing), why=why, remedy=f"Run at the target: {grant}")
        try:
            self._session.begin()
            for name in there.keys() - set(missing):
                self._run(f"UPDATE {name} SET pipeline = pipeline WHERE 1 = 0")
        except LockTimeoutError as exc:
            raise TransientTargetError(why=str(exc)) from exc
        finally:
            self._session.rollback()

    def now_ms(self) -> int:
        return int(self._fetch("SELECT {now}")[0][0])

    def _is_there(self, table: str) -> bool:
        try:
            self._fetch(f"SELECT 1 FROM {table} LIMIT 0")
        except MissingTableError:
            return False
        return True

    def _has_positions(self) -> bool:
        return bool(self._fetch("SELECT 1 FROM tranlog_channel LIMIT 1"))

    def identity(self) -> str:
        return str(self._session.fetch(IDENTITY[self._dialect.kind])[0][0])

    def pipelines(self) -> list[str]:
        queries = [f"SELECT pipeline FROM {name}" for name in _TABLES if self._is_there(name)]
        return sorted({name for query in queries for (name,) in self._fetch(query)})


class SqlPositions(SqlTables):
    """Positions in tables of a database, over one session; see Positions for its methods. Threads: one at a time."""

    def forget(self, *, pipeline: str, token: int) -> None:
        def work() -> None:
            self._fetch(_LOCK_CHANNELS, pipeline)
            self._check_driver(_LOCK_TOKEN, pipeline, token)
            for name in _TABLES:
                self._run(f"DELETE FROM {name} WHERE pipeline = $1", pipeline)

        self._in_transaction(work, _nobody, pipeline)
        if not self.pipelines():
            for name in self._tables():
                self._run(f"DROP TABLE IF EXISTS {name}")

    # --- reading ---

    def read_pipeline(self, pipeline: str) -> PipelineRow | None:
        rows = self._read("tranlog_pipeline", _READ_PIPELINE, pipeline)
        return self._pipeline_row(rows[0], pipeline) if rows else None

    def read_channels(self, pipeline: str) -> list[ChannelRow]:
        rows = self._read("tranlog_channel", _READ_CHANNELS, pipeline)
        return [self._channel_row(row, pipeline) for row in rows]

    def read_assignment(self, pipeline: str) -> dict[str, int]:
        return {shard: channel for shard, channel in self._read("tranlog_shard", _READ_SHARDS, pipeline)}

    def read_left_out(self, pipeline: str) -> list[tuple[int, int]]:
        return [(first, last) for first, last in self._read("tranlog_left_out", _READ_LEFT_OUT, pipeline)]

    def read_loads(self, pipeline: str) -> dict[str, str]:
        return {table: state for table, state in self._read("tranlog_load", _READ_LOADS, pipeline)}

    def read_verdicts(self, pipeline: str) -> list[VerdictRow]:
        rows = self._read("tranlog_verify", _READ_VERDICTS, pipeline)
        return [
            VerdictRow(table=t, verify=v, seqno=Seqno(s), token=k, verdict=w, detail=d, verified_through=Seqno(u))
            for t, v, s, k, w, d, u in rows
        ]

    def read_plans(self, pipeline: str) -> dict[Seqno, str]:
        return {Seqno(begin): plan for begin, plan in self._read("tranlog_plan", _READ_PLANS, pipeline)}

    def plans_begin(self, pipeline: str) -> Seqno | None:
        return next((Seqno(begin) for (begin,) in self._read("tranlog_plan", _FIRST_PLAN, pipeline)), None)

    def _read(self, table: str, query: str, pipeline: str) -> list[tuple[Any, ...]]:
        """Return rows of one of our tables, none where it is not there. Raises TargetPositionError where it changed."""
        try:
            return self._fetch(query, pipeline)
        except MisfitError as exc:
            raise self._damaged(pipeline, str(exc)) from exc
        except MissingTableError as exc:
            try:
                there = self._is_there(table)
            except MisfitError:  # inside a transaction, which knows nothing but its own failure
                there = True
            if there:
                raise self._damaged(pipeline, f"{table} was changed: {exc}") from exc
            return []

    # --- the driver ---

    def take(
        self,
        *,
        pipeline: str,
        expected_token: int,
        holder: str,
        channels: int,
        shard_rule: str,
        rows: Sequence[ChannelRow] | None,
        keep_assignment: bool,
    ) -> int:
        run, dialect = self._run, self._dialect

        def work() -> int:
            held = dict(self._fetch(_LOCK_CHANNELS, pipeline))
            token = expected_token + 1
            if expected_token == 0:
                # Above those of a row that was removed, whose tasks may still be there.
                token = max(held.values(), default=0) // TOKEN_STEP + 1
                new = dialect.insert_or_keep.format(into=_NEW_PIPELINE, key="pipeline")
                raised = run(new, pipeline, holder, channels, shard_rule, token)
            else:
                raised = run(_RAISE_PIPELINE, pipeline, holder, channels, shard_rule, expected_token)
            if raised != 1:
                raise self._replaced(pipeline)
            channel_token = max([token * TOKEN_STEP, *[old + 1 for old in held.values()]])
            if rows is None:
                run(_RAISE_CHANNELS, pipeline, channel_token)
            else:
                for channel in held.keys() - {row.channel for row in rows}:
                    run(_DROP_CHANNEL, pipeline, channel)
            put = dialect.insert_or_set.format(into=_NEW_CHANNEL, key="pipeline, channel", set=_SET_CHANNEL)
            for row in rows or ():
                run(put, pipeline, *_CHANNEL_VALUES(replace(row, token=channel_token)))
            if not keep_assignment:
                run(_DROP_SHARDS, pipeline)
                run(_DROP_PLANS, pipeline, 1 << 62)
                run(_COUNT_NO_SHARDS, pipeline)
            return token

        def holders() -> list[str]:
            # Only who may become the driver may end its predecessor's sessions.
            if expected_token:
                self._check_driver(_READ_TOKEN, pipeline, expected_token)
            return self._left_behind(pipeline)

        return self._in_transaction(work, holders, pipeline)

    def keep_alive(self, *, pipeline: str, token: int) -> PipelineRow:
        def work() -> PipelineRow:
            if self._run(_MOVE_ALIVE, pipeline, token) != 1:
                raise self._replaced(pipeline)
            return self._pipeline_row(self._fetch(_READ_PIPELINE, pipeline)[0], pipeline)

        return self._in_transaction(work, _nobody, pipeline)

    def request_stop(self, *, pipeline: str, token: int, stop_at_seqno: Seqno | None) -> None:
        def work() -> None:
            if self._run(_SET_STOP, pipeline, token, stop_at_seqno) != 1:
                raise self._replaced(pipeline)

        self._in_transaction(work, _nobody, pipeline)

    def leave_out(self, *, pipeline: str, token: int, ranges: Sequence[tuple[int, int]]) -> None:
        def work() -> None:
            self._check_driver(_LOCK_TOKEN, pipeline, token)
            known = set(self.read_left_out(pipeline))
            for first, last in ranges:
                if (first, last) not in known:
                    self._run(_LEAVE_OUT, pipeline, first, last)

        self._in_transaction(work, _nobody, pipeline)

    # --- the tasks ---

    def claim(self, *, pipeline: str, channel: int, driver_token: int) -> ChannelRow:
        def work() -> ChannelRow:
            claimed = self._run(_CLAIM, pipeline, channel, self._session.identity)
            # Only now the driver's token: while the channel's row was waited for, it may have changed.
            self._check_driver(_SHARE_TOKEN, pipeline, driver_token)
            if claimed != 1:  # no such channel in this plan, or its row was removed
                raise self._replaced(pipeline, channel)
            return self._channel_row(self._fetch(_READ_CHANNEL, pipeline, channel)[0], pipeline)

        def holders() -> list[str]:
            # Only a task whose driver is still the driver may end another's session.
            self._check_driver(_READ_TOKEN, pipeline, driver_token)
            return self._left_behind(pipeline, channel)

        return self._in_transaction(work, holders, pipeline, channel)

    def guard(self, advance: Advance) -> None:
        """Move a position inside the open target transaction, as its first statement.

        Raises ReplacedError, TargetPositionError.
        """
        try:
            moved = self._run(_ADVANCE, *_ADVANCE_VALUES(advance))
        except (MissingTableError, MisfitError) as exc:
            raise self._damaged(advance.pipeline, f"tranlog_channel was changed: {exc}") from exc
        if moved != 1:
            raise self._replaced(advance.pipeline, advance.channel)

    def guarded(self, advance: Advance, write: Callable[[], Applied]) -> Applied:
        session = self._session
        try:
            session.begin()
            self.guard(advance)
            applied = write()
            self._store_plan(advance)
            committing = time.perf_counter()
            session.commit()
        except LockTimeoutError as exc:
            session.rollback()
            who, _ = session.lock_holders(ours=False)
            raise TransientTargetError(why=f"{exc}; it is held by {who}") from exc
        except BaseException:
            session.rollback()
            raise
        return replace(applied, commit_us=round((time.perf_counter() - committing) * 1e6))

    def store_loads(self, pipeline: str, states: Options) -> None:
        put = self._dialect.insert_or_set.format(into=_NEW_LOAD, key="pipeline, table_name", set="state = $3")
        try:
            for table, state in states:
                self._run(put, pipeline, table, state)
        except (MissingTableError, MisfitError) as exc:
            raise self._damaged(pipeline, f"tranlog_load was changed: {exc}") from exc

    def begin_verdicts(self, pipeline: str, rows: Sequence[VerdictRow]) -> None:
        put = self._dialect.insert_or_set.format(into=_NEW_VERDICT, key="pipeline, table_name", set=_SET_VERDICT)
        try:
            for row in rows:
                self._run(put, pipeline, *_VERDICT_VALUES(row))
        except (MissingTableError, MisfitError) as exc:
            raise self._damaged(pipeline, f"tranlog_verify was changed: {exc}") from exc

    def judge(self, pipeline: str, row: VerdictRow) -> None:
        through = ", verified_through = seqno" if row.verdict == EQUAL else ""
        judge = _JUDGE.replace("{through}", through)
        self._in_transaction(lambda: self._run(judge, pipeline, *_VERDICT_VALUES(row)), _nobody, pipeline)

    def _store_plan(self, advance: Advance) -> None:
        """Store the plan that begins with a position, in the open target transaction; drop those needed no more."""
        if advance.plan is None:
            return
        pipeline, put = advance.pipeline, self._dialect.insert_or_set.format(into=_NEW_PLAN, key=_PLAN_KEY, set=_PLAN)
        plan = advance.plan()
        try:
            self._run(put, pipeline, advance.new_seqno, plan)
            ((needed,),) = self._fetch(_PLAN_NEEDED, pipeline)
            if needed is not None:
                self._run(_DROP_PLANS, pipeline, needed)
        except (MissingTableError, MisfitError) as exc:
            raise self._damaged(pipeline, f"tranlog_plan was changed: {exc}") from exc

    def publish(self, advance: Advance) -> None:
        def work() -> None:
            self.guard(advance)
            self._store_plan(advance)

        self._in_transaction(work, _nobody, advance.pipeline, advance.channel)

    def meet(self, pipeline: str) -> Meeting:
        """Return all channels' positions and what the driver asks for; token 0 where the pipeline's row is gone."""
        try:
            rows = self._fetch(_MEET, pipeline)
        except (MissingTableError, MisfitError) as exc:
            raise self._damaged(pipeline, f"tranlog's own tables were changed: {exc}") from exc
        if not rows:
            return Meeting(applied={}, times={}, stop_at_seqno=None, token=0)
        token, stop = rows[0][:2]
        return Meeting(
            applied={channel: Seqno(applied) for _, _, channel, applied, _ in rows if channel is not None},
            times={channel: tstamp for _, _, channel, _, tstamp in rows if channel is not None},
            stop_at_seqno=None if stop is None else Seqno(stop),
            token=token,
        )

    def assign(self, *, pipeline: str, shard: str, channels: int, driver_token: int) -> int:
        try:
            known = self._assigned(pipeline, shard, driver_token)
        except (MissingTableError, MisfitError) as exc:
            raise self._damaged(pipeline, f"tranlog_shard was changed: {exc}") from exc
        if known is not None:
            return known

        def work() -> int:
            # The pipeline's row is the lock: who assigns counts what others have assigned, and no shard twice.
            self._check_driver(_LOCK_TOKEN, pipeline, driver_token)
            stored = self._assigned(pipeline, shard, driver_token)
            if stored is not None:
                return stored
            load = dict.fromkeys(range(channels), 0)
            known = 0
            for channel, shards in self._fetch(_COUNT_SHARDS, pipeline):
                known += shards
                if channel in load:
                    load[channel] = shards
            ((counted,),) = self._fetch(_READ_COUNTED, pipeline)
            if known < counted:  # this one may be among those that are missing
                why = f"tranlog_shard has the channels of {known} shards, of {counted}"
                raise self._damaged(pipeline, why)
            chosen = min(load, key=lambda channel: (load[channel], channel))
            self._run(_ASSIGN, pipeline, shard, chosen)
            self._run(_COUNT_SHARD, pipeline)
            return chosen

        return self._in_transaction(work, _nobody, pipeline)

    # --- inside ---

    def _assigned(self, pipeline: str, shard: str, driver_token: int) -> int | None:
        rows = self._fetch(_READ_ASSIGNED, pipeline, shard)
        self._check_token(rows, pipeline, driver_token)
        channel: int | None = rows[0][2]
        return channel

    def _check_driver(self, query: str, pipeline: str, driver_token: int) -> None:
        self._check_token(self._fetch(query, pipeline), pipeline, driver_token)

    def _check_token(self, rows: Sequence[tuple[Any, ...]], pipeline: str, driver_token: int) -> None:
        """Raise where the pipeline's row, as (token, holder), is not there or not this driver's."""
        if not rows:
            raise self._damaged(pipeline, _NO_PIPELINE)
        if rows[0][0] != driver_token:
            raise ReplacedError(pipeline=pipeline, holder=rows[0][1])

    def _replaced(self, pipeline: str, channel: int = -1) -> TranlogError:
        """Return why a guarded statement hit nothing: whoever sent it was replaced, or the row is gone."""
        rows = self._fetch(_READ_WHOSE, pipeline, channel)
        if not rows:
            return self._damaged(pipeline, _NO_PIPELINE)
        holder, channels, found = rows[0]
        if 0 <= channel < channels and found is None:
            return self._damaged(pipeline, f"tranlog_channel has no row of its channel {channel}, of {channels}")
        return ReplacedError(pipeline=pipeline, holder=holder)

    def _damaged(self, pipeline: str, why: str) -> TargetPositionError:
        return TargetPositionError(where=self._where, pipeline=pipeline, why=" ".join(why.split()).rstrip("."))

    def _left_behind(self, pipeline: str, channel: int | None = None) -> list[str]:
        rows = [self._channel_row(row, pipeline) for row in self._fetch(_READ_CHANNELS, pipeline)]
        stored = [row.session for row in rows if row.session and channel in (None, row.channel)]
        # A driver, and a task that stopped while it claimed, are not stored.
        return [*stored, *self._session.stopped_inside()]

    def _in_transaction(
        self, work: Callable[[], _Result], holders: Callable[[], list[str]], pipeline: str, channel: int | None = None
    ) -> _Result:
        """Run `work` in a transaction of its own; where a lock does not come soon, end the `holders` that keep it.

        Where nobody is to be ended, the lock is waited for as long as the options say.
        """
        freed, waited = 0, 0.0
        while True:
            wait = min(FREEING_AFTER_S, self._lock_timeout_s) if not waited else self._lock_timeout_s - waited
            try:
                self._session.begin(lock_timeout_s=wait)
                result = work()
                self._session.commit()
                return result
            except LockTimeoutError as exc:
                self._session.rollback()
                waited += wait
                if freed < FREEING_ROUNDS and self._free(holders()):
                    freed, waited = freed + 1, 0.0
                elif waited >= self._lock_timeout_s:
                    what = f"pipeline {pipeline!r}"
                    raise self._locked(what if channel is None else f"channel {channel} of {what}") from exc
            except (MissingTableError, MisfitError) as exc:
                self._session.rollback()
                raise self._damaged(pipeline, f"tranlog's own tables were changed: {exc}") from exc
            except BaseException:
                self._session.rollback()
                raise

    def _free(self, holders: Sequence[str]) -> bool:
        freed = False
        for identity in holders:
            if self._session.end(identity):
                logger.warning("ended a session that kept a lock session=%s", identity)
                freed = True
        return freed

    def _locked(self, what: str) -> TargetUnavailableError | TransientTargetError:
        who, at_work = self._session.lock_holders(ours=True)
        waited = f"the row of {what} stayed locked for {self._lock_timeout_s:g} s by {who}"
        if at_work:
            return TransientTargetError(why=waited)
        return unavailable(self._where, f"{waited}; end that session")

    def _pipeline_row(self, row: tuple[Any, ...], pipeline: str) -> PipelineRow:
        return self._checked(PipelineRow, "tranlog_pipeline", _PIPELINE_COLUMNS, row, pipeline)

    def _channel_row(self, row: tuple[Any, ...], pipeline: str) -> ChannelRow:
        return self._checked(ChannelRow, "tranlog_channel", _CHANNEL_COLUMNS, row, pipeline)

    def _checked(self, kind: type[_Row], table: str, columns: str, row: tuple[Any, ...], pipeline: str) -> _Row:
        values = dict(zip(columns.split(", "), row, strict=True))
        for name, value in values.items():
            if name not in _TEXTS and not isinstance(value, int) and (name, value) != ("stop_at_seqno", None):
                raise self._damaged(pipeline, f"a row of {table} has {value!r} where a number was written")
        return kind(**values)


def _nobody() -> list[str]:
    return []

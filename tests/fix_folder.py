"""A target without SQL: rows in JSON files of a folder, and everything else in `snapshot.json`, which names them.

What a target transaction has done is there when the new snapshot takes the place of the old one, by one rename: the
position, and the files of the tables that it changed. Nobody writes while another does; what is locked is a file.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import logging
import os
import pickle
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from tranlog.change import Op, Options, RowChange, Statement, TableMap, TableName
from tranlog.errors import (
    ConflictError,
    DdlStopError,
    ReplacedError,
    TargetPositionError,
    TargetTableError,
    TargetUnavailableError,
    TransientTargetError,
)
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.row_blocks import RowBlock, encoded
from tranlog.target.binding import key_text
from tranlog.target.options import TargetOptions
from tranlog.target.options import open_target as open_product
from tranlog.target.recorded import rows_are_here, rule, shortened, text_of
from tranlog.target.target import (
    EQUAL,
    OPEN,
    Advance,
    Applied,
    ApplyUnit,
    ChannelRow,
    Meeting,
    PipelineRow,
    RefusedError,
    Target,
    TargetKeys,
    VerdictRow,
)
from tranlog.types import UNCHANGED, Value, canonical

logger = logging.getLogger("tranlog.folder")

State = dict[str, Any]
TOKEN_STEP = 1 << 32


def folder_options(path: Path) -> TargetOptions:
    return TargetOptions(kind="folder", path=str(path), lock_timeout_s=5)  # type: ignore[arg-type]


def open_target(options: TargetOptions) -> Target:
    """Open a target of any kind, this one too."""
    if options.kind != "folder":  # type: ignore[comparison-overlap]
        return open_product(options)
    warned: set[str] = set()  # type: ignore[unreachable]

    def parts() -> tuple[Folder, FolderPositions, FolderRows]:
        folder = Folder(options)
        return folder, FolderPositions(folder), FolderRows(folder, options, warned)

    return Target("folder", options.path, parts)


class Folder:
    """One connection to the folder: its lock, and the transaction that holds it."""

    def __init__(self, options: TargetOptions) -> None:
        self.path = Path(options.path)
        self.path.mkdir(exist_ok=True)
        self.identity = uuid.uuid4().hex
        self.tables: dict[str, Table] = {}
        """Those that the open transaction has read."""
        self.state: State = {}
        self._timeout_s = options.lock_timeout_s
        self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    @contextmanager
    def locked(self) -> Iterator[State]:
        """Hold the lock, and read what is valid."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TransientTargetError(why="the folder stayed locked") from None
                time.sleep(0.001)
            except (OSError, ValueError) as exc:
                raise TransientTargetError(why=f"the folder is closed: {exc}") from exc
        try:
            valid = self.path / "snapshot.json"
            self.state = json.loads(valid.read_text()) if valid.exists() else {"pipelines": {}, "tables": {}}
            yield self.state
        finally:
            self.tables = {}
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    @contextmanager
    def transaction(self) -> Iterator[State]:
        """Whatever is done to the state and to tables in the block is valid after it, or nothing is."""
        with self.locked() as state:
            yield state
            replaced = []
            for name, table in self.tables.items():
                if table.changed:
                    described = state["tables"][name]
                    replaced.append(described["file"])
                    described["file"] = f"{uuid.uuid4().hex}.json"
                    self._write(described["file"], list(table.rows.values()))
            self._write("snapshot.new", state)
            os.rename(self.path / "snapshot.new", self.path / "snapshot.json")
            for file in replaced:
                (self.path / file).unlink(missing_ok=True)

    def _write(self, name: str, content: object) -> None:
        with (self.path / name).open("w") as file:
            json.dump(content, file, default=pack)
            file.flush()
            os.fsync(file.fileno())

    def table(self, table: TableMap) -> Table | None:
        """Return a table as the open transaction has it; None where there is none."""
        described = self.state["tables"].get(table.name)
        if described is None:
            return None
        if table.name not in self.tables:
            file = self.path / described["file"]
            rows = json.loads(file.read_text(), object_hook=unpack) if file.exists() else []
            self.tables[table.name] = Table(described, rows)
        return self.tables[table.name]


class FolderPositions:
    """See Positions."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def ensure_tables(self, *, again: bool = False) -> None:
        with self._folder.transaction():
            pass

    def read_pipeline(self, pipeline: str) -> PipelineRow | None:
        with self._folder.locked() as state:
            found = state["pipelines"].get(pipeline)
            return PipelineRow(**found["row"]) if found else None

    def read_channels(self, pipeline: str) -> list[ChannelRow]:
        channels = self._read(pipeline, "channels", {})
        return sorted([ChannelRow(**row) for row in channels.values()], key=lambda row: row.channel)

    def read_assignment(self, pipeline: str) -> dict[str, int]:
        return dict(self._read(pipeline, "shards", {}))

    def read_left_out(self, pipeline: str) -> list[tuple[int, int]]:
        return sorted([(first, last) for first, last in self._read(pipeline, "left_out", [])])

    def _read(self, pipeline: str, what: str, nothing: Any) -> Any:
        with self._folder.locked() as state:
            return state["pipelines"].get(pipeline, {what: nothing})[what]

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
        with self._folder.transaction() as state:
            if expected_token or pipeline in state["pipelines"]:
                self._driven(state, pipeline, expected_token)
            found = state["pipelines"].setdefault(pipeline, {"channels": {}, "shards": {}, "left_out": []})
            token = expected_token + 1
            channel_token = max([token * TOKEN_STEP, *[one["token"] + 1 for one in found["channels"].values()]])
            if rows is not None:
                found["channels"] = {str(row.channel): asdict(row) for row in rows}
            for row in found["channels"].values():
                row |= {"token": channel_token, "session": ""}
            if not keep_assignment:
                found["shards"], found["plans"] = {}, {}
            found["row"] = asdict(
                PipelineRow(
                    pipeline=pipeline,
                    token=token,
                    holder=holder,
                    channels=channels,
                    shard_rule=shard_rule,
                    stop_at_seqno=None,
                    alive_at=now(),
                    shards=len(found["shards"]),
                )
            )
            return token

    def keep_alive(self, *, pipeline: str, token: int) -> PipelineRow:
        with self._folder.transaction() as state:
            row = self._driven(state, pipeline, token)["row"]
            row["alive_at"] = max(now(), row["alive_at"] + 1)
            return PipelineRow(**row)

    def request_stop(self, *, pipeline: str, token: int, stop_at_seqno: Seqno | None) -> None:
        with self._folder.transaction() as state:
            self._driven(state, pipeline, token)["row"]["stop_at_seqno"] = stop_at_seqno

    def claim(self, *, pipeline: str, channel: int, driver_token: int) -> ChannelRow:
        with self._folder.transaction() as state:
            found = self._driven(state, pipeline, driver_token)
            row = found["channels"].get(str(channel))
            if row is None:
                raise ReplacedError(pipeline=pipeline, holder=found["row"]["holder"])
            row |= {"token": row["token"] + 1, "session": self._folder.identity, "updated_at": now()}
            return ChannelRow(**row)

    def leave_out(self, *, pipeline: str, token: int, ranges: Sequence[tuple[int, int]]) -> None:
        with self._folder.transaction() as state:
            known = self._driven(state, pipeline, token)["left_out"]
            known += [list(one) for one in ranges if list(one) not in known]

    def read_loads(self, pipeline: str) -> dict[str, str]:
        with self._folder.locked() as state:
            found: dict[str, str] = state["pipelines"].get(pipeline, {}).get("loads", {})
            return found

    def store_loads(self, pipeline: str, states: Options) -> None:
        self._folder.state["pipelines"][pipeline].setdefault("loads", {}).update(states)

    def read_verdicts(self, pipeline: str) -> list[VerdictRow]:
        with self._folder.locked() as state:
            found = state["pipelines"].get(pipeline, {}).get("verdicts", {})
            return [VerdictRow(**row) for _, row in sorted(found.items())]

    def begin_verdicts(self, pipeline: str, rows: Sequence[VerdictRow]) -> None:
        kept = self._folder.state["pipelines"][pipeline].setdefault("verdicts", {})
        for row in rows:
            through = kept.get(row.table, {}).get("verified_through", NO_SEQNO)
            kept[row.table] = msgspec.structs.asdict(row) | {"verified_through": through}

    def judge(self, pipeline: str, row: VerdictRow) -> None:
        with self._folder.transaction() as state:
            kept = state["pipelines"].get(pipeline, {}).get("verdicts", {}).get(row.table, {})
            same = ("verify", "seqno", "token")
            if kept.get("verdict") == OPEN and all(kept[name] == getattr(row, name) for name in same):
                kept |= {"verdict": row.verdict, "detail": row.detail}
                if row.verdict == EQUAL:
                    kept["verified_through"] = row.seqno

    def read_plans(self, pipeline: str) -> dict[Seqno, str]:
        with self._folder.locked() as state:
            found = state["pipelines"].get(pipeline, {}).get("plans", {})
            return {Seqno(int(begin)): plan for begin, plan in found.items()}

    def plans_begin(self, pipeline: str) -> Seqno | None:
        return min(self.read_plans(pipeline), default=None)

    def publish(self, advance: Advance) -> None:
        with self._folder.transaction() as state:
            self._advance(state, advance)
            self._store_plan(state, advance)

    def _store_plan(self, state: State, advance: Advance) -> None:
        if advance.plan is None:
            return
        found = state["pipelines"][advance.pipeline]
        plans = found.setdefault("plans", {})
        plans[str(advance.new_seqno)] = advance.plan()
        lowest = min(row["applied_seqno"] for row in found["channels"].values())
        needed = max((int(begin) for begin in plans if int(begin) <= lowest), default=0)
        found["plans"] = {begin: plan for begin, plan in plans.items() if int(begin) >= needed}

    def meet(self, pipeline: str) -> Meeting:
        with self._folder.locked() as state:
            found = state["pipelines"].get(pipeline)
            if found is None:
                return Meeting(applied={}, times={}, stop_at_seqno=None, token=0)
            rows = found["channels"].values()
            return Meeting(
                applied={row["channel"]: row["applied_seqno"] for row in rows},
                times={row["channel"]: row["tstamp"] for row in rows},
                stop_at_seqno=found["row"]["stop_at_seqno"],
                token=found["row"]["token"],
            )

    def assign(self, *, pipeline: str, shard: str, channels: int, driver_token: int) -> int:
        with self._folder.transaction() as state:
            found = self._driven(state, pipeline, driver_token)
            shards = found["shards"]
            if shard not in shards:
                held = list(shards.values())
                shards[shard] = min(range(channels), key=lambda channel: (held.count(channel), channel))
                found["row"]["shards"] += 1
            return int(shards[shard])

    def guarded(self, advance: Advance, write: Callable[[], Applied]) -> Applied:
        with self._folder.transaction() as state:
            self._advance(state, advance)
            applied = write()
            self._store_plan(state, advance)
            return applied

    def _driven(self, state: State, pipeline: str, token: int) -> State:
        found: State | None = state["pipelines"].get(pipeline)
        if found is None:
            raise TargetPositionError(
                where=str(self._folder.path), pipeline=pipeline, why="the snapshot has no row of it"
            )
        if found["row"]["token"] != token:
            raise ReplacedError(pipeline=pipeline, holder=found["row"]["holder"])
        return found

    def _advance(self, state: State, advance: Advance) -> None:
        token = state["pipelines"].get(advance.pipeline, {"row": {"token": 0}})["row"]["token"]
        found = self._driven(state, advance.pipeline, token)
        row = found["channels"].get(str(advance.channel))
        if row is None or (row["token"], row["applied_seqno"]) != (advance.token, advance.old_seqno):
            raise ReplacedError(pipeline=advance.pipeline, holder=found["row"]["holder"])
        row |= {"epoch": advance.epoch, "applied_seqno": advance.new_seqno, "updated_at": now()}
        row |= {name: getattr(advance, name) for name in ("source_id", "event_id", "tstamp", "stats")}


class WrongRowError(Exception):
    """A change does not fit."""


class Table:
    """A table in memory, found by its keys and by whole rows."""

    def __init__(self, described: State, rows: Iterable[list[Value]]) -> None:
        self.names: list[str] = described["columns"]
        self.nullable: list[bool] = described["nullable"]
        self.has_key: bool = described["has_key"]
        self.keys = [tuple(key) for key in described["keys"]]
        self.rows: dict[int, list[Value]] = {}
        self.changed = False
        self._whole = tuple(range(len(self.names)))
        self._numbers = itertools.count()
        self._found: dict[tuple[int, ...], dict[object, set[int]]] = {
            key: defaultdict(set) for key in (*self.keys, self._whole)
        }
        for row in rows:
            self._add(row)

    def places(self, table: TableMap, seqno: int | None = None) -> list[int]:
        """Return where a source's columns are here."""
        for column in table.columns:
            if column.name not in self.names:
                raise TargetTableError(table=table.name, why=f"column {column.name} is missing", seqno=seqno)
        return [self.names.index(column.name) for column in table.columns]

    def change(self, change: RowChange, places: Sequence[int]) -> None:
        """Carry a change out. Raises WrongRowError."""
        self.changed = True
        row: list[Value] = [None] * len(self.names)
        if change.before is not None:
            number = self._find(dict(zip(places, change.before, strict=True)))
            row = list(self.rows[number])
        if change.after is not None:
            for place, value in zip(places, change.after, strict=True):
                if value is not UNCHANGED:
                    row[place] = value
                elif change.op is Op.INSERT:
                    raise WrongRowError("the source did not send the whole row")
            for name, nullable, value in zip(self.names, self.nullable, row, strict=True):
                if value is None and not nullable:
                    raise WrongRowError(f"column {name} takes no NULL")
        if change.before is not None:
            for key, found in self._found.items():
                found[of(self.rows[number], key)].discard(number)
            del self.rows[number]
        if change.after is not None:
            self._add(row)

    def check(self, change: RowChange, places: Sequence[int]) -> None:
        """Check, at the end of a transaction, that keys which a change gave are its row's alone. Raises WrongRowError.

        Before that, keys may pass each other.
        """
        before, after = (dict(zip(places, row or (), strict=False)) for row in (change.before, change.after))
        for key in self.keys if after else ():
            given = all(after[place] is not None for place in key) and (not before or of(before, key) != of(after, key))
            if given and len(self._found[key][of(after, key)]) > 1:
                raise WrongRowError(f"another row has this {', '.join([self.names[place] for place in key])}")

    def _add(self, row: list[Value]) -> None:
        number = next(self._numbers)
        self.rows[number] = row
        for key, found in self._found.items():
            found[of(row, key)].add(number)

    def _find(self, before: dict[int, Value]) -> int:
        if not self.has_key and any(value is UNCHANGED for value in before.values()):
            raise WrongRowError("a row without a key, of which a column has no before value")
        found = self._found[self.keys[0] if self.has_key else self._whole]
        numbers = found[of(before, self.keys[0] if self.has_key else self._whole)]
        if len(numbers) > 1:  # while keys pass each other
            sent = tuple(place for place, value in before.items() if value is not UNCHANGED)
            numbers = {number for number in numbers if of(self.rows[number], sent) == of(before, sent)}
        if not numbers:
            raise WrongRowError("there is no such row")
        return min(numbers)


def of(row: Sequence[Value] | dict[int, Value], places: Sequence[int]) -> object:
    return tuple([canonical(row[place]) for place in places])


class FolderRows:
    """See Rows."""

    def __init__(self, folder: Folder, options: TargetOptions, warned: set[str]) -> None:
        self._folder = folder
        self._options = options
        self._warned = warned

    def write(self, units: Sequence[ApplyUnit], advance: Advance, refused: RefusedError | None) -> Applied:
        assert refused is None
        changes = ignored = 0
        for unit in units:
            done: list[tuple[Table, RowChange, list[int]]] = []
            for change in unit.changes():
                if isinstance(change, Statement):
                    self._pass_over(unit, change)
                    ignored += 1
                elif change.table.sequence:
                    name = change.table.name
                    self._warn(name, "a sequence is no table, and is passed over here sequence=%s", name)
                else:
                    table = self._folder.table(change.table)
                    if table is None:
                        why = "there is no such table"
                        raise TargetTableError(table=change.table.name, why=why, seqno=unit.seqno)
                    done.append((table, change, table.places(change.table, unit.seqno)))
                    with named(unit, change):
                        table.change(change, done[-1][2])
            for table, change, places in done:
                with named(unit, change):
                    table.check(change, places)
            changes += len(done)
        files = sum([table.changed for table in self._folder.tables.values()])
        return Applied(transactions=len(units), changes=changes, statements=files, ddl_ignored=ignored)

    def discard(self) -> None:
        pass

    def _pass_over(self, unit: ApplyUnit, statement: Statement) -> None:
        ruling = rule(
            unit,
            statement,
            ddl=self._options.ddl,
            kind="folder",
            runs_ddl_of=(),
            has_sequences=False,
        )
        why = ruling.passed_over
        if ruling.edits:
            raise DdlStopError(seqno=unit.seqno, text=shortened(text_of(statement)), why="a folder does not follow")
        for schema, name in ruling.emptied:
            there = self._folder.table(TableMap(schema=schema, table=name, columns=()))
            if not name or (there is not None and there.rows):
                raise rows_are_here(unit, statement, (schema, name), self._options.ddl)
        message = "a statement is passed over, further ones silently why=%s seqno=%d statement=%r"
        self._warn(why, message, why, unit.seqno, shortened(text_of(statement)))

    def _warn(self, about: str, message: str, *values: object) -> None:
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(message, *values)

    def check_tables(self, named: Callable[[], Iterable[TableName]]) -> None:
        pass

    def check_table(self, table: TableMap) -> None:
        pass

    def keys(self, table: TableName) -> TargetKeys | None:
        found = self._folder.table(TableMap(schema=table[0], table=table[1], columns=()))
        return None if found is None else TargetKeys(name=table)

    def losing(self, table: TableName) -> list[TableName]:
        return []

    def begin_load(self, table: TableMap, seqno: Seqno, *, replace: bool, beside: Sequence[TableName] = ()) -> None:
        found = self._folder.table(table)
        if found is None or not found.rows:
            return
        if not replace:
            raise TargetTableError(table=table.name, why="its load begins, and it has rows already", seqno=seqno)
        self._folder.state["tables"][table.name]["file"] = "none"
        del self._folder.tables[table.name]

    def create_table(self, table: TableMap) -> str:
        with self._folder.transaction() as state:
            if table.name in state["tables"]:
                return ""
            keys = [key for key in (table.primary_key, *table.unique_keys) if key]
            state["tables"][table.name] = {
                "file": "none",
                "columns": [column.name for column in table.columns],
                "nullable": [column.nullable for column in table.columns],
                "has_key": bool(table.primary_key),
                "keys": keys,
            }
        return f"table {table.name}"

    def hold_snapshot(self) -> None:
        raise TargetUnavailableError(where="a folder", why="it has no snapshots")

    def read(self, table: TableMap) -> Iterator[tuple[Value, ...]]:
        with self._folder.locked():
            found = self._folder.table(table)
            if found is None:
                raise TargetTableError(table=table.name, why="there is no such table")
            places = found.places(table)
            return iter([tuple([row[place] for place in places]) for row in found.rows.values()])

    def blocks(self, table: TableMap) -> Iterator[RowBlock]:
        return encoded(self.read(table))


@contextmanager
def named(unit: ApplyUnit, change: RowChange) -> Iterator[None]:
    """Name the transaction, the table and the key of a change that does not fit."""
    try:
        yield
    except WrongRowError as exc:
        key = key_text(change)
        raise ConflictError(seqno=unit.seqno, table=change.table.name, key=key, why=str(exc)) from exc


def pack(value: object) -> dict[str, str]:
    """Return a value that JSON has not, so that it has."""
    return {"value": base64.b64encode(pickle.dumps(value)).decode()}


def unpack(packed: dict[str, str]) -> Any:
    return pickle.loads(base64.b64decode(packed["value"]))


def now() -> int:
    return time.time_ns() // 1_000_000

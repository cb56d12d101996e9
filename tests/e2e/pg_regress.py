"""PostgreSQL's own regression files as a workload: the source and a target of ours, compared table by table.

`make pg-regress DIR=src/test/regress FILES=n SEED=s` runs it; DIR is that folder of PostgreSQL's sources. psql runs
each file at a source one statement at a time (`--single-step`), in a database of its own; what the file expects is not
looked at. After each statement our target is brought to where the source stands. Before some of the statements that
drop something, and at the end, the two are compared, by values as `tranlog verify` does it. The source itself is what
a copy is held against: it stands still meanwhile, so a native subscription could have nothing else, and has less.

PostgreSQL sends no DDL. A new table is made by its first row (`ddl = "follow"`); one that was altered, moved or dropped
is made and loaded anew, as an operator has to do it. Tables are given REPLICA IDENTITY FULL by an event trigger.

It prints one JSON object and ends with 1 where anything differs, or where capture or apply ends by an error that is not
in the list of docs/refusals.md. Each file's result is a line of `--results`; a run that is started again with the same
file of results goes on after what is there, and the object adds up.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import psycopg

from direct_target import DirectTarget
from replica_diff import Result, add_up, read_results, refusals
from tranlog.change import Fragment, Op, RowChange, TableMap, TableName
from tranlog.errors import SourceError, TranlogError
from tranlog.gaps import gap_of
from tranlog.ids import NO_SEQNO
from tranlog.payload import decode
from tranlog.pipeline.upkeep.verify import verify_tables
from tranlog.source.postgres import PostgresSource, PostgresSourceOptions, PostgresTables
from tranlog.target.options import TargetOptions
from tranlog.target.postgres_dialect import POSTGRES
from tranlog.testing.servers import OptionValue, PostgresServer, ServerFailedError, ServerMissingError

FILE_S: Final = 900.0
"""How long a file may take; one that takes longer was not run whole, which is an end like others."""
MEET_S: Final = 60.0
PREPARED: Final = "prepared"
"""The database that each file's own is a copy of: what `test_setup` makes."""
WORK: Final = "regression"
_ANOTHER: Final = "was another one's before"
"""Of a gap's reason: a table or a column has the name of another one. It is loaded anew, as after other DDL."""
_PROMPT: Final = re.compile(r"^[/*]\*\*\(Single step mode: verify command\)\**/?\n", re.MULTILINE)
_ASKS: Final = ("***(press return to proceed", "/**(press return to proceed")  # the second from psql 17 on
_DROPS: Final = re.compile(r"\s*(?:--[^\n]*\n\s*)*(?:DROP|TRUNCATE|ALTER\s+TABLE)\b", re.IGNORECASE)
_OWN_SERVER: Final = re.compile(
    r"\b(?:ALTER\s+SYSTEM|DROP\s+EVENT\s+TRIGGER|ON\s+ddl_command|REPLICATION\s+SLOT)\b|pg_(?:create|drop)_.*slot|pg_reload_conf",
    re.IGNORECASE,
)
"""Files that change the server, or event triggers."""
_OWN_WAY: Final = frozenset({"test_setup", "tablespace", "publication", "subscription", "event_trigger", "stats"})
_SERVER: Final[dict[str, OptionValue]] = {
    "wal_level": "logical",
    "fsync": False,
    "synchronous_commit": False,
    "full_page_writes": False,
    "wal_writer_delay": "1ms",  # a message outside of transactions is sent only after it has written it
    "max_prepared_transactions": 4,
}
_IDENTITY: Final = """
CREATE SCHEMA tranlog_regress;
CREATE FUNCTION tranlog_regress.identity() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE made record;
BEGIN
    FOR made IN SELECT c.oid::regclass AS name FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid
        WHERE d.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
        AND c.relreplident <> 'f'
    LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', made.name);
    END LOOP;
END $$;
CREATE EVENT TRIGGER tranlog_identity ON ddl_command_end EXECUTE FUNCTION tranlog_regress.identity();
"""
_LAYOUT: Final = """
SELECT concat_ws(' ',
    md5(string_agg(concat_ws(',', c.oid, c.relname, c.relnamespace, a.attname, a.atttypid, a.atttypmod, a.attnotnull,
    a.attgenerated, a.attisdropped), ';' ORDER BY c.oid, a.attnum)),
    (SELECT md5(string_agg(indexrelid::text, ';' ORDER BY indexrelid)) FROM pg_index WHERE indisunique),
    (SELECT md5(string_agg(oid::text, ';' ORDER BY oid)) FROM pg_constraint WHERE contype = 'f')),
    (SELECT count(*) || coalesce(md5(string_agg(enumlabel, ';' ORDER BY oid)), '') FROM pg_enum)
    || (SELECT count(*) FROM pg_attribute u JOIN pg_type t ON t.oid = u.atttypid AND t.typtype = 'c'
        JOIN pg_attribute i ON i.attrelid = t.typrelid WHERE u.attrelid >= 16384 AND NOT i.attisdropped)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relkind IN ('r', 'p') AND c.oid >= 16384 AND a.attnum > 0
"""
"""The first changes with each table, column and key, the second with each label, and attribute of a column's type."""
_OIDS: Final = (
    "SELECT nspname, relname, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
    "WHERE relkind IN ('r', 'p')"
)
"""A table that was moved keeps its number."""
_KEYS: Final = (
    "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE contype IN ('u', 'p') AND conrelid = to_regclass(%s)"
)
_BUSY: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend' "
    "AND pid <> pg_backend_pid() AND state <> 'idle' AND application_name = 'regress'"
)


def files(folder: Path, *, count: int | None, seed: int) -> list[Path]:
    """Return the files to run in an order drawn by the seed: all that can be a workload, or the first so many."""
    found = [
        path
        for path in sorted((folder / "sql").glob("*.sql"))
        if path.stem not in _OWN_WAY and not _OWN_SERVER.search(path.read_text(errors="replace"))
    ]
    return random.Random(seed).sample(found, len(found))[:count]


class Stepping:
    """psql in single-step mode: one statement after the other, each shown before it is sent. Threads: one."""

    def __init__(self, server: PostgresServer, folder: Path, file: Path, scratch: Path) -> None:
        environment = {
            **os.environ,
            "PGAPPNAME": "regress",
            "PGTZ": "PST8PDT",
            "PGDATESTYLE": "Postgres, MDY",
            "PG_ABS_SRCDIR": str(folder.resolve()),
            "PG_ABS_BUILDDIR": str(scratch),
            "PG_LIBDIR": str(scratch),
            "PG_DLSUFFIX": ".so",
            "LC_ALL": "C",
        }
        command = ["psql", "-X", "-q", "-s", "-o", os.devnull, "-f", str(file.resolve()), server.dsn(WORK)]
        self._process = subprocess.Popen(
            command,
            cwd=scratch,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        self._late = threading.Timer(FILE_S, self._process.kill)
        self._late.start()

    def statements(self) -> Iterator[str]:
        """Yield each statement before it is sent; it is sent when the next one is asked for."""
        out, into = self._process.stdout, self._process.stdin
        assert out is not None and into is not None
        shown: list[str] = []
        for line in out:
            if not line.startswith(_ASKS):
                shown.append(line)
                continue
            yield _PROMPT.split("".join(shown))[-1]
            shown.clear()
            try:
                into.write("\n")
                into.flush()
            except BrokenPipeError:
                break
        if self._process.wait() < 0:
            raise SourceError(f"psql was not at the file's end within {FILE_S} s")

    def close(self) -> None:
        """End psql."""
        self._late.cancel()
        self._process.kill()
        self._process.communicate()


class Trial:
    """Two servers, and one file after the other. Threads: one."""

    def __init__(
        self, source: PostgresServer, target: PostgresServer, folder: Path, scratch: Path, *, seed: int, points: int
    ) -> None:
        self._source = source
        self._target = target
        self._folder = folder
        self._scratch = scratch
        self._seed = seed
        self._points = points
        self._known = refusals()
        self._options = PostgresSourceOptions(dsn=source.dsn(WORK), source_id="regress", identity="full")
        source.execute(f"CREATE DATABASE {PREPARED}")
        with source.connect(PREPARED) as connection:
            connection.execute(_IDENTITY)
        source.execute(f"CREATE DATABASE {WORK} TEMPLATE {PREPARED}")
        with closing(Stepping(source, folder, folder / "sql" / "test_setup.sql", scratch)) as setup:
            for _ in setup.statements():
                pass
        source.execute(f"DROP DATABASE {PREPARED}")
        source.execute(f"ALTER DATABASE {WORK} RENAME TO {PREPARED}")
        self._first: tuple[dict[TableName, TableMap], dict[TableName, int]] = {}, {}
        self._applied = NO_SEQNO
        target.execute(f"CREATE DATABASE {PREPARED}")
        self._begin()
        self._first, self._applied = (self._tables, self._oids), self._applier.applied
        self._applier.close()
        target.execute(f"DROP DATABASE {PREPARED}")
        target.execute(f"ALTER DATABASE {WORK} RENAME TO {PREPARED}")
        self._end()

    def run(self, file: Path) -> Result:
        """Run one file at the source a statement at a time, follow it, and compare."""
        began = time.monotonic()
        result = Result(file=file.name)
        self._begin()
        try:
            self._play(file, result, random.Random(f"{self._seed}/{file.name}"))
        except SourceError as exc:
            result.capture_end = f"{type(exc).__name__}: {exc}"
        except TranlogError as exc:
            result.apply_end = f"{type(exc).__name__}: {exc}"
        finally:
            self._end()
        ended = result.capture_end or result.apply_end
        if ended is not None:
            result.refusal = next((one for one in self._known if re.search(one, ended)), None)
        result.seconds = round(time.monotonic() - began, 1)
        return result

    def _begin(self) -> None:
        """Give source and target a new database, and have the target hold what the source does."""
        for server in (self._source, self._target):
            server.execute(f"CREATE DATABASE {WORK} TEMPLATE {PREPARED}")
        self._control = self._source.connect(WORK, application_name="control")
        self._follower = PostgresSource(self._options)
        self._follower.start(None)
        options = TargetOptions(kind="postgres", dsn=self._target.dsn(WORK), ddl="follow")
        self._applier = DirectTarget(options, applied=self._applied)
        self._tables, self._oids = self._first
        self._touched: set[TableName] = set()
        self._gaps: set[TableName] = set()
        self._layout = ("", "")
        self._written = ""
        self._number = 0
        self._settle()

    def _end(self) -> None:
        self._control.close()
        self._follower.close()
        self._applier.close()
        until = time.monotonic() + MEET_S
        while slots := self._source.execute("SELECT slot_name, active FROM pg_replication_slots"):
            for slot, active in slots:
                if not active:
                    self._source.execute("SELECT pg_drop_replication_slot(%s)", [slot])
            if time.monotonic() > until:
                raise SourceError(f"slots are read {MEET_S} s after their readers have closed: {slots}")
            time.sleep(0.05)  # the server may not know yet that its reader has gone
        for (gid,) in self._source.execute("SELECT gid FROM pg_prepared_xacts"):
            self._source.execute(f"ROLLBACK PREPARED '{gid}'", database=WORK)
        for server in (self._source, self._target):
            server.execute(f"DROP DATABASE IF EXISTS {WORK} WITH (FORCE)")

    def _play(self, file: Path, result: Result, rng: random.Random) -> None:
        with closing(Stepping(self._source, self._folder, file, self._scratch)) as psql:
            for statement in psql.statements():
                ((busy,),) = self._control.execute(_BUSY, [WORK]).fetchall()
                if busy:
                    continue
                result.transactions += self._meet()
                if result.points < self._points and _DROPS.match(statement) and rng.random() < 0.4:
                    self._compare(result)
        result.transactions += self._meet()
        self._compare(result, every=True)

    def _meet(self) -> int:
        """Bring the target to where the source stands; return how many transactions that took."""
        ((written,),) = self._control.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
        if written == self._written:
            return 0
        self._number += 1
        word = f"regress {self._number}"
        self._control.execute("SELECT pg_logical_emit_message(false, 'regress', %s)", [word])
        found, met, until = 0, False, time.monotonic() + MEET_S
        fragments: list[Fragment] = []
        while not met:
            if time.monotonic() > until:
                raise SourceError(f"the message {word} did not come within {MEET_S} s")
            for fragment in self._follower.read(1.0):
                fragments.append(fragment)
                if fragment.last:
                    payloads = [decode(one.payload) for one in fragments]
                    changes = [change for payload in payloads for change in payload.changes]
                    met = met or any(word in value for _, value in payloads[-1].metadata)
                    if gap := gap_of(payloads[-1].metadata):
                        if _ANOTHER not in gap.reason:
                            raise SourceError(gap.reason)
                        self._gaps |= set(gap.tables)
                        self._touched |= set(gap.tables)
                    rows = [one.table for one in changes if isinstance(one, RowChange)]
                    self._touched |= {(table.schema, table.table) for table in rows}
                    if changes:
                        self._applier.write(changes, fragment.event_id, fragment.tstamp, payloads[-1].metadata)
                        found += 1
                    self._follower.release(fragment.event_id)
                    fragments = []
        ((self._written,),) = self._control.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
        self._settle()
        return found

    def _settle(self) -> None:
        """Do at the target what DDL did at the source: the target stands where the source does."""
        ((layout, labels),) = self._control.execute(_LAYOUT).fetchall()
        if (layout, labels) == self._layout and not self._gaps:
            return
        renamed = set(self._gaps)
        if labels != self._layout[1]:
            renamed |= self._touched  # their rows have other values, without a change
        self._gaps.clear()
        self._layout = (layout, labels)
        with closing(PostgresTables(self._options)) as reader:
            found = {(one.schema, one.table): one for one in reader.tables()}
            oids = {(schema, table): oid for schema, table, oid in self._control.execute(_OIDS).fetchall()}
            before = set(self._oids.values())
            gone = {
                name
                for name, table in self._tables.items()
                if found.get(name) != table or oids.get(name) != self._oids[name] or name in renamed
            }
            anew = gone | {
                name for name in found.keys() - self._tables.keys() if oids[name] in before or name in renamed
            }
            for name in anew:
                quoted = ".".join(map(POSTGRES.quote, name))
                self._target.execute(f"DROP TABLE IF EXISTS {quoted} CASCADE", database=WORK)
            for name, table in found.items():
                if name in anew or not self._tables:
                    self._applier.rows.create_table(table)
                    self._load(reader, table)
                elif name not in self._tables:
                    self._applier.rows.create_table(table)  # nothing where its first row has made it
                else:
                    continue
                self._defer_keys(name)
        self._tables, self._oids = found, oids

    def _defer_keys(self, name: TableName) -> None:
        """Make keys deferrable at the target that are so at the source, as docs/sources-postgresql.md advises."""
        quoted = ".".join(map(POSTGRES.quote, name))
        for _, wanted in self._source.execute(f"{_KEYS} AND condeferrable", [quoted], database=WORK):
            plain = wanted.partition(" DEFERRABLE")[0]
            for key, made in self._target.execute(_KEYS, [quoted], database=WORK):
                if made == plain:
                    swap = f"DROP CONSTRAINT {POSTGRES.quote(key)}, ADD {plain} DEFERRABLE INITIALLY DEFERRED"
                    self._target.execute(f"ALTER TABLE {quoted} {swap}", database=WORK)

    def _load(self, reader: PostgresTables, table: TableMap) -> None:
        rows = [RowChange(table, Op.INSERT, None, row) for row in reader.rows(table)]
        if rows:
            self._applier.write(rows, "load", 0, ())

    def _compare(self, result: Result, *, every: bool = False) -> None:
        """Compare the tables that were written to since the file began; `every`: and all that were not there then."""
        result.points += 1
        with closing(PostgresTables(self._options)) as reader:
            tables = [
                one
                for one in reader.tables()
                if (one.schema, one.table) in self._touched
                or (every and self._first[0].get((one.schema, one.table)) != one)
            ]
            verdicts = verify_tables(reader, self._applier.rows, tables=tables, differences=3, report=lambda *_: None)
            for one in verdicts:
                result.rows += one.source_rows
                if not one.equal and len(result.differences) < 20:
                    rows = "; ".join([f"{row.key}: {row.what}" for row in one.differences])
                    counts = f"{one.source_rows} rows at the source, {one.target_rows} at the target"
                    result.differences.append(f"{one.table}: {one.problem or counts} {rows}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return 0 where nothing differs and each end is one of the list, 1 otherwise, 4 where it cannot run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="src/test/regress of PostgreSQL's sources")
    parser.add_argument("--files", type=int, help="so many, drawn by the seed; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--points", type=int, default=6, help="drops of a file before which all is compared, at most")
    parser.add_argument("--results", type=Path, help="a line of JSON for each file; goes on after what is there")
    parser.add_argument("names", nargs="*", help="files by name, such as numeric")
    options = parser.parse_intermixed_args(arguments)
    folder: Path = options.directory
    wanted = [folder / "sql" / f"{name.removesuffix('.sql')}.sql" for name in options.names]
    wanted = wanted or files(folder, count=options.files, seed=options.seed)
    if not wanted or not all(path.exists() for path in wanted):
        print(f"pg_regress: no such files in {folder}/sql: name src/test/regress of the sources", file=sys.stderr)
        return 4
    results = read_results(options.results) if options.results else []
    done = {one.file for one in results}
    left = [path for path in wanted if path.name not in done]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tranlog-regress-") as scratch,
            PostgresServer(options=_SERVER) as source,
            PostgresServer(options={**_SERVER, "wal_level": "minimal", "max_wal_senders": 0}) as target,
        ):
            trial = Trial(source, target, folder, Path(scratch), seed=options.seed, points=options.points)
            for number, path in enumerate(left, start=1):
                one = trial.run(path)
                results.append(one)
                if options.results:
                    with options.results.open("a") as file:
                        file.write(json.dumps(dataclasses.asdict(one)) + "\n")
                verdict = "ok" if one.good else "NOT GOOD"
                said = f"{one.transactions} transactions, {one.points} points"
                print(f"{number} of {len(left)}: {one.file}: {said}: {verdict}", file=sys.stderr, flush=True)
    except (ServerMissingError, ServerFailedError, psycopg.OperationalError) as exc:
        print(f"pg_regress: {exc}", file=sys.stderr)
        return 4
    print(json.dumps(add_up(results)))
    return 0 if all(one.good for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())

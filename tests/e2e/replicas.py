"""A source, a native replica of it, and a target of ours, on the same statements: what a replica does is the measure.

Owns the three servers, bringing both copies to where the source stands, and telling in what they differ: definitions
and rows, byte for byte. Leaves what is run to the caller. Our side is a source and a target of tranlog's without log
and Spark between them, since what is compared is what a transaction becomes.

Source: MariaDB's manual, "CHANGE MASTER TO", "MASTER_GTID_WAIT".
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import pymysql

from direct_target import DirectTarget
from tranlog.change import Change, Fragment, Options
from tranlog.ids import NO_SEQNO
from tranlog.payload import decode
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.filters.filters import Filter
from tranlog.source.mariadb import MariadbSource, MariadbSourceOptions
from tranlog.source.mariadb.position import BinlogPosition, gtid_text, parse_gtids
from tranlog.target.options import TargetOptions
from tranlog.testing.servers import MariaDbAddress, MariaDbServer, OptionValue

WAIT_S: Final = 60.0
OWN_DATABASE: Final = "tranlog_own"
"""Where our target keeps its tables; a replica has no such database."""
_ENGINE: Final = re.compile(
    r" (?:/\* )?(?:ENGINE|TRANSACTIONAL|PAGE_CHECKSUM|ROW_FORMAT|MAX_ROWS|MIN_ROWS) ?= ?\w+(?: \*/)?"
    r"| USING HASH"  # of a unique key; InnoDB takes it and shows it not
)
_SYSTEM: Final = ("mysql", "information_schema", "performance_schema", "sys", OWN_DATABASE)
_QUICK: Final[Mapping[str, OptionValue]] = {
    "innodb_flush_log_at_trx_commit": 0,
    "innodb_flush_method": "nosync",
    "sync_frm": 0,
    "sync_binlog": 0,
}
"""What a server's own durability costs is not what is tried here."""
_ROUTINES: Final = (
    "SELECT routine_name, routine_type, dtd_identifier, routine_definition, sql_mode, definer, character_set_client, "
    "collation_connection, database_collation FROM information_schema.routines WHERE routine_schema = %s "
    "ORDER BY routine_type, routine_name"
)
_COLUMNS: Final = (
    "SELECT column_name, IF(data_type IN ('enum', 'set'), 'UNSIGNED', 'BINARY') FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)


class Replicas:
    """The three servers, each with a server id of its own. Use in a `with` block. Threads: one.

    `source_options` and `target_options` are tranlog's for both ends; `server_options` goes to all three servers,
    `copy_options` to the native replica and to our target.
    """

    def __init__(
        self,
        *,
        server_options: Mapping[str, OptionValue] | None = None,
        copy_options: Mapping[str, OptionValue] | None = None,
        source_options: Mapping[str, Any] | None = None,
        target_options: Mapping[str, Any] | None = None,
    ) -> None:
        common = {**_QUICK, **(server_options or {})}
        copies = {**common, "log_bin": None, **(copy_options or {})}
        self.source = MariaDbServer(options=common)
        self.replica = MariaDbServer(options={**copies, "server_id": 2})
        self.target = MariaDbServer(options={**copies, "server_id": 3})
        self._source_options = dict(source_options or {})
        self._target_options = dict(target_options or {})
        self._stack = contextlib.ExitStack()
        self._follower: MariadbSource | None = None
        self._applier: DirectTarget | None = None
        self._applied = NO_SEQNO
        self._position: str | None = None
        """The event id of what was applied or skipped last."""
        self.transactions = 0
        self.rows = 0
        """Rows that have been compared."""
        self.attempted = ""
        """The GTIDs with the transaction that our target was given last, applied or not."""

    def _start_target(self, stack: contextlib.ExitStack) -> None:
        stack.enter_context(self.target)
        self.target.execute(f"CREATE DATABASE {OWN_DATABASE}")

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for server in (self.source, self.replica):
                stack.enter_context(server)
            self._start_target(stack)
            self._stack = stack.pop_all()
        try:
            self.replica.execute(
                f"CHANGE MASTER TO MASTER_HOST='{self.source.host}', MASTER_PORT={self.source.port}, "
                "MASTER_USER='root', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1"
            )
            self.replica.execute("START SLAVE")
            self.open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._stack.close()

    def open(
        self,
        *,
        skip: bool = False,
        source: Mapping[str, Any] | None = None,
        filters: Sequence[Filter] = (),
        **target_options: Any,
    ) -> None:
        """Begin our copy anew after what it had applied; `skip`: where the source now stands. Options serve till next.

        `source` and the others are options beside those that all copies have; `filters` stand before the target.
        """
        self.close()
        self._chain = Chain(filters)
        self._applier = DirectTarget(self._options({**self._target_options, **target_options}), applied=self._applied)
        self._follower = MariadbSource(
            MariadbSourceOptions(
                **{
                    "host": self.source.host,
                    "port": self.source.port,
                    "user": self.source.user,
                    "source_id": "source",
                    "cascades": "allow",
                    "on_gap": "stop",
                    **self._source_options,
                    **(source or {}),
                }
            )
        )
        self._follower.start(None if skip else self._position)
        if skip:  # also where the next one begins, if nothing is applied until then
            self._position = self._follower.status().position

    def _options(self, options: Mapping[str, Any]) -> TargetOptions:
        return TargetOptions(kind="mariadb", dsn=self.target.dsn(OWN_DATABASE), **options)

    def close(self) -> None:
        """End our copy; the servers run on."""
        for end in (self._follower, self._applier):
            if end is not None:
                end.close()
        if self._applier is not None:
            self._applied = self._applier.applied
        self._follower = self._applier = None

    # --- running ---

    def run(self, *statements: str | bytes, database: str = "", **connect: Any) -> list[tuple[int, str]]:
        """Run statements at the source in one session; return the errors, by code and text, and go on after them."""
        errors: list[tuple[int, str]] = []
        with contextlib.closing(self.source.connect(database, **connect)) as session, session.cursor() as cursor:
            for statement in statements:
                try:
                    cursor.execute(statement)
                    cursor.fetchall()
                except pymysql.err.MySQLError as exc:
                    errors.append((exc.args[0], str(exc.args[1])))
        return errors

    def meet(self) -> None:
        """Bring both copies to where the source stands now. Raises AssertionError where the native one has stopped."""
        self.meet_replica()
        self.meet_target()

    def meet_replica(self) -> None:
        """Wait until the native replica stands where the source does."""
        ((position,),) = self.source.execute("SELECT @@global.gtid_binlog_pos")
        ((code,),) = self.replica.execute(f"SELECT MASTER_GTID_WAIT('{position}', {WAIT_S})")
        if code != 0:
            raise AssertionError(f"the native replica did not reach {position}: {self.replica_error()}")

    def replica_to(self, position: str) -> bool:
        """Run the native replica, which stands, up to a list of GTIDs, and stop it there; whether it came so far."""
        if self.replica.execute("SELECT @@global.gtid_slave_pos") == [(position,)]:
            return True
        self.replica.execute(f"START SLAVE UNTIL master_gtid_pos = '{position}'")
        deadline = time.monotonic() + WAIT_S
        while self._replica_status()["Slave_SQL_Running"] != "No":
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return not self.replica_error()

    def replica_skip(self) -> None:
        """Stop the native replica, and have it go on, at the next `replica_to`, where the source now stands."""
        ((position,),) = self.source.execute("SELECT @@global.gtid_binlog_pos")
        self.replica.execute("STOP SLAVE")
        self.replica.execute(f"SET GLOBAL gtid_slave_pos = '{position}'")

    def replica_error(self) -> str:
        """Return why the native replica has stopped, empty where it runs."""
        status = self._replica_status()
        return f"{status.get('Last_IO_Error', '')}{status.get('Last_SQL_Error', '')}"

    def _replica_status(self) -> dict[str, Any]:
        with contextlib.closing(self.replica.connect()) as session, session.cursor() as cursor:
            cursor.execute("SHOW SLAVE STATUS")
            return dict(zip([column[0] for column in cursor.description], cursor.fetchone() or (), strict=False))

    def meet_target(self, *, before: Callable[[Sequence[Change], str], None] | None = None) -> None:
        """Apply to our target all that the source has written by now.

        `before` is called with each transaction, and the GTIDs up to which everything has been applied.
        """
        assert self._follower is not None
        ((position,),) = self.source.execute("SELECT @@global.gtid_binlog_pos")
        wanted = BinlogPosition(gtids=parse_gtids(position)).by_domain()
        while True:
            here = BinlogPosition.parse(self._follower.status().position).by_domain()
            if all(domain in here and here[domain].sequence >= gtid.sequence for domain, gtid in wanted.items()):
                return
            fragments: list[Fragment] = []
            for fragment in self._follower.read(1.0):
                fragments.append(fragment)
                if fragment.last:
                    if before is not None and self._position is not None:
                        changes = [change for one in fragments for change in decode(one.payload).changes]
                        before(changes, gtid_text(BinlogPosition.parse(self._position).gtids))
                    self.attempted = gtid_text(BinlogPosition.parse(fragment.event_id).gtids)
                    self._apply(fragments)
                    fragments = []

    def _apply(self, fragments: Sequence[Fragment]) -> None:
        payloads = [decode(fragment.payload) for fragment in fragments]
        last = fragments[-1]
        if not payloads[-1].is_noop():
            changes = list(self._chain.stream(change for payload in payloads for change in payload.changes))
            self._write(changes, last.event_id, last.tstamp, payloads[-1].metadata)
            self.transactions += 1
        self._position = last.event_id

    def _write(self, changes: Sequence[Change], event_id: str, tstamp: int, metadata: Options) -> None:
        assert self._applier is not None
        self._applier.write(changes, event_id, tstamp, metadata)

    # --- comparing ---

    def differences(self, *databases: str, any_engine: bool = False) -> list[str]:
        """Say in what our target differs from the native replica: databases, tables, views, routines, rows.

        `any_engine`: but for the engine of a table, where ours makes all of them InnoDB.
        """
        theirs, ours = described(self.replica, *databases), described(self.target, *databases)
        if any_engine:
            theirs, ours = ({name: _without_engine(value) for name, value in side.items()} for side in (theirs, ours))
        found = []
        for name in sorted(theirs.keys() | ours.keys()):
            there, here = theirs.get(name), ours.get(name)
            self.rows += len(there) if name.endswith("[]") and isinstance(there, list) else 0
            if there != here:
                found.append(f"{name}: replica {_shown(there)}, target {_shown(here)}")
        return found


def _without_engine(value: object) -> object:
    return tuple([_ENGINE.sub("", str(part)) for part in value]) if isinstance(value, tuple) else value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 600 else text[:599] + "…"


def described(server: MariaDbAddress, *databases: str) -> dict[str, object]:
    """Return what a server holds by name: definitions as it spells them, rows as bytes, in no order.

    Without names, all databases but the system's. Triggers and events are left out: a copy by rows needs none.
    """
    found: dict[str, object] = {}
    # As bytes, since a definition may hold bytes that are no text.
    with contextlib.closing(server.connect(use_unicode=False)) as session, session.cursor() as cursor:

        def rows(sql: str, *parameters: object) -> list[tuple[Any, ...]]:
            cursor.execute(sql, parameters or None)
            return [
                tuple([v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v for v in row])
                for row in cursor.fetchall()
            ]

        rows("SET time_zone = '+00:00', sql_quote_show_create = 1")
        for schema in databases or [name for (name,) in rows("SHOW DATABASES") if name not in _SYSTEM]:
            if not rows("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", schema):
                continue
            home = _quoted(schema)
            found[schema] = rows(f"SHOW CREATE DATABASE {home}")[0][1]
            found[f"{schema}()"] = rows(_ROUTINES, schema)
            tables = rows(
                "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = %s", schema
            )
            for table, kind in tables:
                name, where = f"{schema}.{table}", f"{home}.{_quoted(table)}"
                found[name] = rows(f"SHOW CREATE TABLE {where}")[0][1:]
                if kind == "VIEW":
                    continue
                period = " FOR SYSTEM_TIME ALL" if kind == "SYSTEM VERSIONED" else ""
                named = rows(_COLUMNS, schema, table)
                columns = ", ".join([f"CAST({_quoted(column)} AS {as_type})" for column, as_type in named])
                try:
                    found[f"{name}[]"] = sorted(map(repr, rows(f"SELECT {columns} FROM {where}{period}")))
                except pymysql.err.MySQLError as exc:  # of a table that was left unreadable on purpose
                    found[f"{name}[]"] = f"error {exc.args[0]}"
    return found


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"

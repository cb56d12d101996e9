"""The server that `make kill` applies into: a private PostgreSQL or MariaDB, what counts there, and what it is asked.

Owns what differs between the two. Audit triggers write a row for each change, with the key of the row before it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from mariadb_demo import AUDIT
from tranlog.testing.servers import MariaDbServer, PostgresServer

Counts = Counter[tuple[str, str, str]]
"""Changes by table, operation and key."""
Tables = Iterable[tuple[str, str, str]]
"""Schema, table and the column that is its key, or all of it."""


class KillTarget(Protocol):
    """One target server."""

    server: PostgresServer | MariaDbServer

    def config(self) -> str:
        """Return what [target] says of it."""

    def put_triggers(self, tables: Tables) -> None:
        """Let the target count each change."""

    def trigger_names(self, schema: str, table: str) -> Sequence[str]:
        """Return the names of a table's triggers."""

    def counted(self, relations: Sequence[str]) -> Counts:
        """Return what the triggers counted."""

    def run(self, sql: str) -> None:
        """Run a statement that makes something."""

    def ask(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement where tranlog's own tables are."""

    def locked(self, table: str) -> AbstractContextManager[None]:
        """Let nobody write a table while the block runs, as a backup does."""

    def refusing(self, session: str) -> AbstractContextManager[None]:
        """End the session that tranlog's own tables name so, and let nobody connect while the block runs."""


class PostgresKillTarget:
    """A PostgreSQL."""

    def __init__(self, folder: Path) -> None:
        self.server = PostgresServer(directory=folder)

    def config(self) -> str:
        """Return what [target] says of it."""
        return f'kind = "postgres"\ndsn = "{self.server.dsn("postgres")}"\n'

    def put_triggers(self, tables: Tables) -> None:
        """Let the target count each change."""
        with self.server.connect("postgres") as session:
            session.execute(AUDIT)
            for schema, table, key in tables:
                session.execute(
                    f"CREATE TRIGGER tranlog_audit AFTER INSERT OR UPDATE OR DELETE ON {schema}.{table} "
                    f"FOR EACH ROW EXECUTE FUNCTION tranlog_count('{key}')"
                )
            session.commit()

    def trigger_names(self, schema: str, table: str) -> Sequence[str]:
        """Return the names of a table's triggers."""
        return ("tranlog_audit",)

    def run(self, sql: str) -> None:
        """Run a statement that makes something."""
        self.server.execute(sql, database="postgres")

    def counted(self, relations: Sequence[str]) -> Counts:
        """Return what the triggers counted."""
        rows = self.ask(
            "SELECT relation, op, key, count(*) FROM tranlog_audit WHERE relation = ANY(%s) GROUP BY 1, 2, 3",
            (list(relations),),
        )
        return Counter({(relation, op, key): count for relation, op, key, count in rows})

    def ask(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement where tranlog's own tables are."""
        return self.server.execute(sql, parameters, database="postgres")

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Let nobody write a table while the block runs."""
        with self.server.connect("postgres") as session:
            session.execute("BEGIN")
            session.execute(f"LOCK TABLE {table} IN SHARE MODE".encode())
            yield
            session.execute("ROLLBACK")

    @contextmanager
    def refusing(self, session: str) -> Iterator[None]:
        """End a session, and let nobody connect to tranlog's database while the block runs."""
        number = re.match(r"\d*", session)[0]  # type: ignore[index]
        self.server.execute("ALTER DATABASE postgres ALLOW_CONNECTIONS false", database="template1")
        try:
            self.server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid::text = %s",
                (number,),
                database="template1",
            )
            yield
        finally:
            self.server.execute("ALTER DATABASE postgres ALLOW_CONNECTIONS true", database="template1")


OWN: Final = "tranlog"


class MariadbKillTarget:
    """A MariaDB, whose database `tranlog` holds tranlog's own tables and the counts."""

    def __init__(self, folder: Path) -> None:
        self.server = MariaDbServer(directory=folder, options={"log_bin": None})

    def config(self) -> str:
        """Return what [target] says of it."""
        self.server.execute(f"CREATE DATABASE IF NOT EXISTS {OWN}")
        return f'kind = "mariadb"\ndsn = "{self.server.dsn(OWN)}"\n'

    def put_triggers(self, tables: Tables) -> None:
        """Let the target count each change."""
        self.ask("CREATE TABLE tranlog_audit (relation varchar(200), op varchar(9), `key` varchar(200))")
        for schema, table, key in tables:
            for op, row in (("INSERT", "NEW"), ("UPDATE", "OLD"), ("DELETE", "OLD")):
                self.ask(
                    f"CREATE TRIGGER {schema}.{table}_{op} AFTER {op} ON {schema}.{table} FOR EACH ROW INSERT INTO "
                    f"{OWN}.tranlog_audit VALUES ('{schema}.{table}', '{op}', CONCAT('|', {row}.{key}))"
                )

    def trigger_names(self, schema: str, table: str) -> Sequence[str]:
        """Return the names of a table's triggers."""
        return [f"{table}_{op}" for op in ("INSERT", "UPDATE", "DELETE")]

    def run(self, sql: str) -> None:
        """Run a statement that makes something."""
        self.server.execute(sql)

    def counted(self, relations: Sequence[str]) -> Counts:
        """Return what the triggers counted."""
        rows = self.ask(
            "SELECT relation, op, `key`, count(*) FROM tranlog_audit WHERE relation IN %s GROUP BY 1, 2, 3",
            (tuple(relations),),
        )
        return Counter({(relation, op, key): count for relation, op, key, count in rows})

    def ask(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement where tranlog's own tables are."""
        return self.server.execute(sql, parameters, database=OWN)

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Let nobody write a table while the block runs."""
        with closing(self.server.connect(OWN)) as session, session.cursor() as cursor:
            cursor.execute(f"LOCK TABLES {table} READ")
            yield

    @contextmanager
    def refusing(self, session: str) -> Iterator[None]:
        """End a session, and let nobody of the user that we are connect while the block runs."""
        number = re.match(r"\d*", session)[0]  # type: ignore[index]
        with closing(self.server.connect(OWN)) as own, own.cursor() as cursor:
            cursor.execute("ALTER USER CURRENT_USER() ACCOUNT LOCK")
            try:
                if cursor.execute("SELECT 1 FROM information_schema.processlist WHERE id = %s", (number or 0,)):
                    cursor.execute(f"KILL {number}")
                yield
            finally:
                cursor.execute("ALTER USER CURRENT_USER() ACCOUNT UNLOCK")


KILL_TARGETS: Final[dict[str, Callable[[Path], Any]]] = {
    "postgres": PostgresKillTarget,
    "mariadb": MariadbKillTarget,
}

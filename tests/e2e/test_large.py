"""Large transactions and large rows, through real processes: memory stays bounded, and nothing arrives by half.

Proves: "stream as fragments … no process holds one whole". Memory is the
peak of each process's resident set, as the kernel keeps it (VmHWM), so it does not matter when it is looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw
import pytest

from tranlog.capture.capture import Capture
from tranlog.change import RowChange
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect
from tranlog.source.sqlite.lost_changes import RowTooLargeError
from tranlog.target.postgres_dialect import BYTES_MOST
from tranlog.testing.servers import MariaDbAddress, MariaDbServer, PostgresAddress

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(3600)]
PROGRAM = str(Path(sys.executable).with_name("tranlog"))
LOOK_EVERY_S = 0.1
JVM_MIB = 1200
"""Above this the JVM must not grow; its heap is the same whatever a transaction's size."""

WRITER = """
import sys
from tranlog.source.sqlite import connect
path, rows, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
db = connect(path)
db.execute("CREATE TABLE big (id INTEGER PRIMARY KEY, n INTEGER, note TEXT)")
with db:
    db.executemany("INSERT INTO big VALUES (?, ?, ?)", ((i, i * 7, f"{i:0{width}d}") for i in range(rows)))
db.execute("UPDATE big SET n = n + 1")
db.close()
"""


def peak_mib(pid: int) -> int:
    """The peak of a process's resident set so far, 0 when it has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) >> 10
    except OSError:
        pass
    return 0


def family(pid: int) -> list[int]:
    """A process and all its descendants that live now."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


class Watched:
    """A command and the peak of each process under it, by what it is: `python` or `jvm`."""

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        self.peaks: dict[tuple[int, str], int] = {}
        self.process = subprocess.Popen(
            arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            for pid in family(self.process.pid):
                try:
                    program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
                except OSError:
                    continue
                kind = "jvm" if program.startswith("java") else "python"
                self.peaks[pid, kind] = max(self.peaks.get((pid, kind), 0), peak_mib(pid))

    def ended(self, *, code: int = 0, timeout_s: float = 1800) -> tuple[str, str]:
        """Wait for it; return what it said on both outputs."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        finally:
            self.process.kill()
            self._over.set()
            self._watcher.join()
        assert self.process.returncode == code, err
        assert "Traceback" not in err, err
        return out, err

    def most(self, kind: str) -> int:
        return max((peak for (_, what), peak in self.peaks.items() if what == kind), default=0)


class Pipeline:
    """A folder with a configuration, its commands, and the peaks of all processes of ours so far."""

    def __init__(self, folder: Path, source: str, target: str) -> None:
        self.folder = folder
        self.peaks: dict[str, int] = {}
        self.configure(source, target)

    def configure(self, source: str, target: str) -> None:
        self.folder.joinpath("tranlog.toml").write_text(
            f'[service]\nname = "large"\n[source]\n{source}\nload = "none"\n'
            f'[log]\ndir = "log"\n[target]\n{target}\nddl = "ignore"\n'
            "[pipeline]\nchannels = 4\n"
        )

    def __call__(self, *arguments: str, name: str = "", code: int = 0) -> tuple[str, str]:
        """Run a command of tranlog's to its end; a failure's error is the last line of the second output, as JSON."""
        return self.run([PROGRAM, *arguments], name=name or arguments[0], code=code)

    def run(self, arguments: Sequence[str], *, name: str, code: int = 0) -> tuple[str, str]:
        watched = Watched(arguments, self.folder)
        said = watched.ended(code=code)
        for kind in ("python", "jvm"):
            if peak := watched.most(kind):
                key = f"{name} ({kind})"
                self.peaks[key] = max(peak, self.peaks.get(key, 0))
        return said

    def error(self, *arguments: str, code: int) -> dict[str, str]:
        """Run a command that must fail; return its error."""
        _, err = self(*arguments, "--json", code=code)
        found: dict[str, str] = json.loads(err.splitlines()[-1])["error"]
        return found

    def check_peaks(self, python_mib: int) -> None:
        print("peaks of resident memory, MiB:", json.dumps(self.peaks))
        for name, peak in self.peaks.items():
            limit = JVM_MIB if "jvm" in name else python_mib
            assert peak < limit, f"{name} had {peak} MiB resident, the limit is {limit}: {self.peaks}"
        assert any("jvm" in name for name in self.peaks)


def sqlite_source() -> str:
    return 'kind = "sqlite"\npath = "source.db"'


def mariadb_source(server: MariaDbAddress, database: str) -> str:
    return (
        f'kind = "mariadb"\nhost = "{server.host}"\nport = {server.port}\nuser = "{server.user}"\n'
        f'password = "{server.password}"\ndatabases = ["{database}"]'
    )


def postgres_target(server: PostgresAddress, database: str) -> str:
    return f'kind = "postgres"\ndsn = "{server.dsn(database)}"'


def carry_over(pipeline: Pipeline, rows: int, python_mib: int) -> None:
    """Capture, apply and compare two transactions of so many changes each."""
    captured = json.loads(pipeline("capture", "--once", "--json")[0])
    pipeline("tables", "create")
    applied = json.loads(pipeline("apply", "--until", "now", "--json")[0])["status"]
    assert applied["total"]["changes"] == 2 * rows + 1  # CREATE TABLE, passed over
    assert captured["fragments"] > captured["transactions"] + 5, "the transactions were not cut into fragments"
    verdict = json.loads(pipeline("verify", "--json")[0])
    (table,) = verdict["tables"]
    assert table["equal"] and table["source_rows"] == table["target_rows"] == rows
    pipeline.check_peaks(python_mib)


def sqlite_transaction(pipeline: Pipeline, rows: int, width: int) -> None:
    pipeline.run([sys.executable, "-c", WRITER, "source.db", str(rows), str(width)], name="writer")


def mariadb_transaction(pipeline: Pipeline, server: MariaDbAddress, database: str, rows: int, width: int) -> None:
    pipeline("capture", "--once")
    for statement in (
        "CREATE TABLE big (id INT PRIMARY KEY, n BIGINT, note VARCHAR(1000))",
        f"INSERT INTO big SELECT seq, seq * 7, LPAD(seq, {width}, '0') FROM seq_0_to_{rows - 1}",
        "UPDATE big SET n = n + 1",
    ):
        server.execute(statement, database=database)


SMALL, LARGE = (100_000, 600, 260), (1_000_000, 200, 500)
"""Rows, bytes of the text in each, and the MiB that a Python process of ours may have resident."""


@pytest.mark.parametrize(
    "size", [pytest.param(SMALL, id="100000"), pytest.param(LARGE, id="1000000", marks=pytest.mark.slow)]
)
def test_a_large_transaction_from_sqlite(
    tmp_path: Path, postgres: PostgresAddress, postgres_database: str, size: tuple[int, int, int]
) -> None:
    rows, width, python_mib = size
    pipeline = Pipeline(tmp_path, sqlite_source(), postgres_target(postgres, postgres_database))
    sqlite_transaction(pipeline, rows, width)
    carry_over(pipeline, rows, python_mib)


@pytest.mark.parametrize(
    "size", [pytest.param(SMALL, id="100000"), pytest.param(LARGE, id="1000000", marks=pytest.mark.slow)]
)
def test_a_large_transaction_from_mariadb(
    tmp_path: Path,
    mariadb: MariaDbAddress,
    mariadb_database: str,
    postgres: PostgresAddress,
    postgres_database: str,
    size: tuple[int, int, int],
) -> None:
    rows, width, python_mib = size
    pipeline = Pipeline(
        tmp_path, mariadb_source(mariadb, mariadb_database), postgres_target(postgres, postgres_database)
    )
    mariadb_transaction(pipeline, mariadb, mariadb_database, rows, width)
    carry_over(pipeline, rows, python_mib)


# --- a large row -----------------------------------------------------------------------------------------

BLOB_WRITER = """
import sys
from tranlog.source.sqlite import connect
db = connect(sys.argv[1])
db.execute("CREATE TABLE IF NOT EXISTS photo (id INTEGER PRIMARY KEY, body BLOB)")
with db:
    db.execute("INSERT INTO photo VALUES (1, X'01')")
    db.execute("INSERT INTO photo VALUES (2, zeroblob(?))", (int(sys.argv[2]),))
db.execute("INSERT INTO photo VALUES (3, X'03')")
db.close()
"""
SMALL_ROW, LARGE_ROW = 100_000_000, 1_000_000_000 - 4096
"""Bytes. A row of SQLite's ends at 10^9 bytes, and the fragment beside it is a little longer."""
SIZES = [pytest.param(SMALL_ROW, id="100MB"), pytest.param(LARGE_ROW, id="1GB", marks=pytest.mark.slow)]


def insert_blob(server: MariaDbAddress, database: str, size: int) -> None:
    with contextlib.closing(server.connect(database, autocommit=False, read_timeout=1800)) as session:
        with session.cursor() as cursor:
            cursor.execute("CREATE TABLE photo (id INT PRIMARY KEY, body LONGBLOB)")
            cursor.execute("INSERT INTO photo VALUES (1, X'01')")
            cursor.execute("INSERT INTO photo VALUES (2, REPEAT(X'00', %s))", (size,))
            session.commit()
            cursor.execute("INSERT INTO photo VALUES (3, X'03')")
            session.commit()


def carried_whole(pipeline: Pipeline) -> None:
    pipeline("apply", "--until", "now")
    (table,) = json.loads(pipeline("verify", "--json")[0])["tables"]
    assert table["equal"] and table["source_rows"] == 3


def refused_whole(pipeline: Pipeline, table: str, size: int) -> None:
    """The error names table, key and size; of the row's transaction nothing is at the target, nor of any later."""
    error = pipeline.error("apply", "--until", "now", code=3)
    assert (error["type"], error["table"], error["key"]) == ("ConflictError", table, "(id=2)"), error
    assert str(size) in str(error["message"]), error
    (verdict,) = json.loads(pipeline("verify", "--json", code=1)[0])["tables"]
    assert (verdict["source_rows"], verdict["target_rows"]) == (3, 0)


@pytest.mark.parametrize("size", [*SIZES, pytest.param(BYTES_MOST, id="511MiB", marks=pytest.mark.slow)])
def test_a_large_row_from_sqlite_into_postgres(
    tmp_path: Path, postgres: PostgresAddress, postgres_database: str, size: int
) -> None:
    """What PostgreSQL takes is carried; a row that no message of its holds is refused by name, whole."""
    pipeline = Pipeline(tmp_path, sqlite_source(), postgres_target(postgres, postgres_database))
    pipeline.run([sys.executable, "-c", BLOB_WRITER, "source.db", str(size)], name="writer")
    pipeline("capture", "--once")
    pipeline("tables", "create")
    if size <= BYTES_MOST:
        carried_whole(pipeline)
    else:
        refused_whole(pipeline, "main.photo", size)
    print("peaks of resident memory, MiB:", json.dumps(pipeline.peaks))


@pytest.mark.slow
def test_a_row_of_1_gb_from_sqlite_into_sqlite(tmp_path: Path) -> None:
    """The largest row that SQLite holds is carried, though `verify` cannot read it back."""
    pipeline = Pipeline(tmp_path, sqlite_source(), 'kind = "sqlite"\npath = "target.db"')
    pipeline.run([sys.executable, "-c", BLOB_WRITER, "source.db", str(LARGE_ROW)], name="writer")
    pipeline("capture", "--once")
    pipeline("tables", "create")
    pipeline("apply", "--until", "now")
    with contextlib.closing(apsw.Connection(str(tmp_path / "target.db"))) as db:
        found = db.execute("SELECT id, length(body), body = zeroblob(length(body)) FROM photo ORDER BY id").fetchall()
    assert found == [(1, 1, 0), (2, LARGE_ROW, 1), (3, 1, 0)]
    # What tells text from bytes doubles a value on its way back: refused by SQLite, and said so.
    (verdict,) = json.loads(pipeline("verify", "--json", code=1)[0])["tables"]
    assert "its rows cannot be read back" in verdict["problem"]
    print("peaks of resident memory, MiB:", json.dumps(pipeline.peaks))


@pytest.mark.parametrize("size", SIZES)
def test_a_large_row_from_mariadb(
    tmp_path: Path,
    start_mariadb: Callable[..., MariaDbServer],
    postgres: PostgresAddress,
    postgres_database: str,
    size: int,
) -> None:
    """As from SQLite: 100 MB into PostgreSQL; 1 GB refused by PostgreSQL, and carried into SQLite."""
    server = start_mariadb(options={"max_allowed_packet": "1G"})
    server.execute("CREATE DATABASE shop")
    source = mariadb_source(server, "shop")
    pipeline = Pipeline(tmp_path, source, postgres_target(postgres, postgres_database))
    pipeline("capture", "--once")
    insert_blob(server, "shop", size)
    pipeline("capture", "--once")
    pipeline("tables", "create")
    if size == SMALL_ROW:
        carried_whole(pipeline)
    else:
        refused_whole(pipeline, "shop.photo", size)
        pipeline.configure(source, 'kind = "sqlite"\npath = "target.db"')
        pipeline("tables", "create")
        carried_whole(pipeline)
    print("peaks of resident memory, MiB:", json.dumps(pipeline.peaks))


def test_a_row_that_capture_refuses(tmp_path: Path, mariadb: MariaDbAddress, mariadb_database: str) -> None:
    """Beyond `transaction_bytes_max`: the table, the size and the option are named, nothing of it is in the log."""
    pipeline = Pipeline(
        tmp_path,
        mariadb_source(mariadb, mariadb_database) + "\ntransaction_bytes_max = 1000000\non_gap = 'stop'",
        'kind = "sqlite"\npath = "target.db"',
    )
    pipeline("capture", "--once")
    insert_blob(mariadb, mariadb_database, 2_000_000)
    error = pipeline.error("capture", "--once", code=3)
    assert re.search(
        rf"{mariadb_database}\.photo, has 200\d{{4}} bytes so far.*transaction_bytes_max", error["message"]
    )
    with LogReader.open(tmp_path / "log").cursor() as cursor:
        rows = [c for t in iter(cursor.next, None) for c in t.changes() if isinstance(c, RowChange)]
    assert not rows, "half of the transaction is in the log"


@pytest.mark.parametrize("explicit", [True, False])
def test_a_row_that_the_outbox_cannot_hold(tmp_path: Path, explicit: bool) -> None:
    """The table, the size and SQLite's limit are named; neither the row nor a fragment of it stays."""
    path = tmp_path / "source.db"
    db = connect(path)
    db.execute("CREATE TABLE photo (id INTEGER PRIMARY KEY, body BLOB)")
    db._db.limit(apsw.SQLITE_LIMIT_LENGTH, 1_000_000)

    def store(size: int) -> None:
        with db if explicit else contextlib.nullcontext():
            if explicit:
                db.execute("INSERT INTO photo VALUES (1, X'01')")
            db.execute("INSERT INTO photo VALUES (2, zeroblob(?))", (size,))

    with pytest.raises(RowTooLargeError, match=r"main\.photo takes 1\d{6} bytes .* SQLite stores 1000000 in one row"):
        store(999_950)
    assert not db.in_transaction
    assert db.execute("SELECT count(*) FROM photo").fetchall() == [(0,)]
    db.execute("INSERT INTO photo VALUES (3, zeroblob(999000))")
    db.close()
    source = SqliteSource(SqliteSourceOptions(path=str(path), source_id="large"))
    with Log.open(tmp_path / "log", source_id="large") as log:
        Capture(source, log).catch_up()
        source.close()
        with log.cursor() as cursor:
            rows = [c for t in iter(cursor.next, None) for c in t.changes() if isinstance(c, RowChange)]
    assert [row.after and row.after[0] for row in rows] == [3]

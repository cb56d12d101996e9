"""Random transactions with failing statements and savepoints, and a replica that stays equal after every one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from fix_effort import few_of
from fix_sqlite import Replica, content
from tranlog.source.sqlite import connect

SCHEMA = """
CREATE TABLE plain(id INTEGER PRIMARY KEY, a, b TEXT UNIQUE, c REAL);
CREATE TABLE keyless(a, b);
CREATE TABLE lone(k TEXT, n INTEGER, v, PRIMARY KEY(n, k)) WITHOUT ROWID;
CREATE TABLE loose(k TEXT PRIMARY KEY, v CHECK(v IS NULL OR v <> 13));
CREATE TABLE failing(id INTEGER PRIMARY KEY ON CONFLICT FAIL, u UNIQUE ON CONFLICT FAIL, v NOT NULL ON CONFLICT FAIL);
CREATE TABLE replacing(id INTEGER PRIMARY KEY, u UNIQUE ON CONFLICT REPLACE, v);
CREATE TABLE aborting(id INTEGER PRIMARY KEY, u UNIQUE ON CONFLICT ROLLBACK, v UNIQUE ON CONFLICT IGNORE);
CREATE TABLE made(id INTEGER PRIMARY KEY, a, twice AS (a * 2) VIRTUAL, thrice AS (a * 3) STORED, b);
CREATE TABLE parent(id INTEGER PRIMARY KEY, u INTEGER UNIQUE);
CREATE TABLE child(id INTEGER PRIMARY KEY, p REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE,
                   q REFERENCES parent(u) ON DELETE SET NULL ON UPDATE CASCADE,
                   r REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE counted(id INTEGER PRIMARY KEY AUTOINCREMENT, v);
CREATE TABLE audit(what, id, v);
CREATE VIEW seen AS SELECT a AS x FROM keyless;
CREATE TRIGGER seen_in INSTEAD OF INSERT ON seen BEGIN INSERT INTO keyless VALUES(new.x, 'view'); END;
CREATE TRIGGER counted_in AFTER INSERT ON counted BEGIN INSERT INTO audit VALUES('in', new.id, new.v); END;
CREATE TRIGGER counted_up BEFORE UPDATE ON counted BEGIN
    INSERT INTO audit VALUES('up', old.id, new.v);
    UPDATE keyless SET b = new.v WHERE a IS old.v;
    SELECT RAISE(FAIL, 'v 3') WHERE new.v = 3;
    SELECT RAISE(ABORT, 'v 4') WHERE new.v = 4;
    SELECT RAISE(IGNORE) WHERE new.v = 5;
    SELECT RAISE(ROLLBACK, 'v 6') WHERE new.v = 6;
END;
CREATE TRIGGER counted_out AFTER DELETE ON counted BEGIN
    DELETE FROM audit WHERE id = old.id;
    INSERT OR REPLACE INTO replacing VALUES(old.id % 4, old.v, 'out');
END;
"""
CLAUSES = ["", "", "", " OR FAIL", " OR ABORT", " OR IGNORE", " OR REPLACE", " OR ROLLBACK"]


class Fuzz:
    """One random writer's life, statement by statement."""

    def __init__(self, seed: int, path: Path) -> None:
        self.random = random.Random(seed)
        self.path = str(path)
        bytes_of = self.random.choice([150, 600, 1 << 20])
        self.connections = [connect(self.path, fragment_bytes=bytes_of), connect(self.path, fragment_bytes=bytes_of)]
        self.db = self.connections[0]
        self.replica = Replica()
        self.source = apsw.Connection(self.path)
        for db in self.connections:
            db.create_scalar_function("boom", self._boom, 1)
            db.execute("PRAGMA foreign_keys = ON")
        self.db.executescript(SCHEMA)
        self.ddl_share = self.random.choice([0.0, 0.02, 0.1])
        self.extra = 0
        self.extras: list[str] = []
        self.failed: Counter[str] = Counter()
        self.statements = 0
        self.trail: list[str] = []

    @staticmethod
    def _boom(value: object) -> object:
        if value in (7, "7"):
            raise ValueError("boom")
        return value

    def value(self) -> str:
        pick = self.random.randrange(16)
        number = self.random.randrange(-3, 14)
        if pick < 8:
            return str(number)
        choices = ["NULL", f"'{number}'", f"{number}.5", f"{number}.0", f"x'{number % 10}0ff'", "9223372036854775807"]
        choices += [f"CAST(x'ff{number % 10}0' AS TEXT)", "1e300"]
        return choices[pick - 8]

    def clean(self) -> str:
        """Return a value that a table WITHOUT ROWID can hold."""
        return self.random.choice(["'a'", "'A'", "'b'", "1", "2.5", "x'00'", "'ü'"])

    def small(self) -> str:
        return str(self.random.randrange(12))

    def rows(self, *columns: Callable[[], str]) -> str:
        count = self.random.choice([1, 1, 1, 2, 3, 6])
        return ", ".join("(" + ", ".join(column() for column in columns) + ")" for _ in range(count))

    def dml(self) -> str:
        r, v, s = self.random, self.value, self.small
        or_ = r.choice(CLAUSES)
        table = r.choice(["plain", "plain", "keyless", "lone", "loose", "failing", "replacing", "aborting", "made"])
        table = r.choice([table, "parent", "child", "counted", "seen", "other", "extra"])
        where = f"WHERE rowid % 3 = {r.randrange(3)}" if r.random() < 0.7 else f"WHERE rowid > {s()}"
        match table:
            case "plain":
                return r.choice([
                    f"INSERT{or_} INTO plain VALUES{self.rows(s, v, v, v)}",
                    f"INSERT{or_} INTO plain(a, b) VALUES{self.rows(v, v)}",
                    f"INSERT INTO plain VALUES{self.rows(s, v, v, v)} ON CONFLICT(id) DO UPDATE SET a = excluded.a",
                    f"INSERT INTO plain(a, b) VALUES{self.rows(v, s)} ON CONFLICT(b) DO NOTHING RETURNING id, a",
                    f"UPDATE{or_} plain SET id = id + {r.choice([1, 20])} {where}",
                    f"UPDATE{or_} plain SET a = boom(a), c = {s()}, b = b || '' {where} RETURNING 1",
                    f"UPDATE{or_} plain SET b = {s()} {where}",
                    f"DELETE FROM plain {where} RETURNING id",
                    f"INSERT{or_} INTO plain SELECT id + 1, boom(a), b, c FROM plain {where}",
                ])  # fmt: skip
            case "keyless":
                return r.choice([
                    f"INSERT INTO keyless VALUES{self.rows(v, v)}",
                    f"INSERT INTO keyless SELECT b, boom(a) FROM keyless {where} LIMIT 3",
                    f"UPDATE keyless SET b = boom({v()}) {where}",
                    f"UPDATE keyless SET rowid = rowid + {s()} {where}",
                    f"DELETE FROM keyless {where}",
                ])  # fmt: skip
            case "lone":
                c = self.clean
                return r.choice([
                    f"INSERT{or_} INTO lone VALUES{self.rows(c, s, c)}",
                    f"UPDATE{or_} lone SET n = n + 1 WHERE n > {s()}",
                    f"UPDATE{or_} lone SET k = {c()}, v = boom(n) WHERE n % 3 = {r.randrange(3)}",
                    f"DELETE FROM lone WHERE n = {s()}",
                ])  # fmt: skip
            case "loose":
                return r.choice([
                    f"INSERT{or_} INTO loose VALUES{self.rows(v, v)}",
                    f"UPDATE{or_} loose SET k = {v()} {where}",
                    f"UPDATE{or_} loose SET v = {v()} {where}",
                    f"DELETE FROM loose {where}",
                ])  # fmt: skip
            case "failing" | "replacing" | "aborting":
                return r.choice([
                    f"INSERT{or_} INTO {table} VALUES{self.rows(s, s, v)}",
                    f"INSERT INTO {table}(u, v) VALUES{self.rows(s, v)}",
                    f"UPDATE{or_} {table} SET u = {s()} {where}",
                    f"UPDATE {table} SET v = boom({v()}), u = u + 1 {where}",
                    f"DELETE FROM {table} {where}",
                ])  # fmt: skip
            case "made":
                return r.choice([
                    f"INSERT{or_} INTO made(id, a, b) VALUES{self.rows(s, s, v)}",
                    f"UPDATE{or_} made SET a = boom(a + 1), b = {v()} {where}",
                    f"UPDATE{or_} made SET id = id + 1 {where}",
                    f"DELETE FROM made {where}",
                ])  # fmt: skip
            case "parent":
                return r.choice([
                    f"INSERT{or_} INTO parent VALUES{self.rows(s, s)}",
                    f"UPDATE{or_} parent SET id = id + {s()} {where}",
                    f"UPDATE{or_} parent SET u = u + {s()} {where}",
                    f"DELETE FROM parent {where}",
                ])  # fmt: skip
            case "child":
                some = "(SELECT id FROM parent LIMIT 1)"
                return r.choice([
                    f"INSERT{or_} INTO child(id, p) VALUES{self.rows(s, s)}",
                    f"INSERT{or_} INTO child(p) VALUES({some})",
                    f"INSERT{or_} INTO child(q) SELECT u FROM parent",
                    f"INSERT{or_} INTO child(r) VALUES({r.choice([some, '99'])})",
                    f"DELETE FROM child {where}",
                ])  # fmt: skip
            case "counted":
                return r.choice([
                    f"INSERT INTO counted(v) VALUES{self.rows(v)}",
                    f"UPDATE{or_} counted SET v = {s()} {where}",
                    f"UPDATE counted SET v = id % 7 {where}",
                    f"DELETE FROM counted {where}",
                ])  # fmt: skip
            case "seen":
                return f"INSERT INTO seen VALUES{self.rows(v)}"
            case "extra":
                some = r.choice(self.extras or ["extra"])
                return r.choice([
                    f"INSERT INTO {some}(v) VALUES{self.rows(v)}",
                    f"INSERT INTO {some}(v, w) VALUES{self.rows(v, v)}",
                    f"INSERT INTO {some} DEFAULT VALUES",
                    f"DELETE FROM {some} {where}",
                ])  # fmt: skip
            case _:
                return r.choice([
                    "INSERT INTO nowhere VALUES(1)",
                    "INSERT INTO plain VALUES(1",
                    "DELETE FROM audit WHERE rowid % 2 = 0",
                    "SELECT count(*) FROM plain",
                    f"INSERT INTO audit SELECT 'big', value, hex(zeroblob(40)) FROM generate_series(1, {s()})",
                    f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40) "
                    f"INSERT INTO keyless SELECT i, boom(i) FROM n WHERE i < {s()} * 4",
                    "DELETE FROM keyless WHERE rowid > 30",
                ])  # fmt: skip

    def ddl(self) -> str:
        r = self.random
        self.extra += 1
        names = self.extras
        some = r.choice(names) if names else "plain"
        if names and len(names) > 4:
            return f"DROP TABLE {some}"
        return r.choice([
            f"CREATE TABLE IF NOT EXISTS extra{self.extra}(id INTEGER PRIMARY KEY, v, w REAL)",
            f"CREATE TABLE extra{self.extra} AS SELECT a, b FROM plain LIMIT 4",
            "CREATE TABLE plain(a)",
            "CREATE TABLE IF NOT EXISTS plain(a)",
            f"CREATE INDEX index{self.extra} ON {some}(v)",
            f"ALTER TABLE {some} ADD COLUMN more{self.extra} TEXT DEFAULT 'x'" if names else "DROP TABLE nowhere",
            f"ALTER TABLE {some} ADD COLUMN w{self.extra} REAL DEFAULT 3 NOT NULL" if names else "DROP TABLE nowhere",
            f"ALTER TABLE {some} RENAME TO extra{self.extra}" if names else "DROP TABLE IF EXISTS nowhere",
            f"INSERT INTO {some}(v) VALUES(1), (2)",
            f"DROP TABLE {some}" if names else "SELECT 1",
            f"CREATE TEMP TABLE temp{self.extra}(a)",
        ])  # fmt: skip

    def statement(self) -> str:
        r = self.random
        if r.random() < self.ddl_share:
            return self.ddl()
        names = ["a", "A", "b", "B", '"a"', "[b]"]
        control = [
            f"{r.choice(['SAVEPOINT', 'savepoint'])} {r.choice(names)}",
            f"ROLLBACK {r.choice(['', 'TRANSACTION '])}TO {r.choice(['', 'SAVEPOINT '])}{r.choice(names)}",
            f"RELEASE {r.choice(['', 'SAVEPOINT '])}{r.choice(names)}",
            r.choice(["COMMIT", "END TRANSACTION", "COMMIT"]),
            "ROLLBACK",
            r.choice(["BEGIN", "BEGIN IMMEDIATE", "/* so */ BEGIN DEFERRED"]),
        ]
        weights = [10, 7, 5, 12, 2, 1, 63] if self.db.in_transaction else [3, 1, 1, 1, 1, 20, 73]
        picked = r.choices([*control, ""], weights)[0]
        return picked or self.dml()

    def many(self) -> tuple[str, list[tuple[object, ...]]]:
        """Return an INSERT and the rows for its `executemany`, most of which are free of conflicts."""
        r = self.random
        some = r.choice(self.extras or ["plain"])
        sql, width = r.choice([
            ("INSERT INTO plain VALUES(?, ?, ?, ?)", 4),
            ("INSERT INTO plain(c, a) VALUES(?, ?)", 2),
            ("INSERT INTO keyless VALUES(?, ?)", 2),
            ("INSERT INTO lone(v, n, k) VALUES(?, ?, ?)", 3),
            ("INSERT INTO loose VALUES(?, ?)", 2),
            ("INSERT INTO replacing(u, v) VALUES(?, ?)", 2),
            ("INSERT INTO failing VALUES(?, ?, ?)", 3),
            ("INSERT INTO made(id, a, b) VALUES(?, ?, ?)", 3),
            ("INSERT INTO made(b) VALUES(?)", 1),
            ("INSERT INTO parent(u) VALUES(?)", 1),
            ("INSERT INTO child(q, r) VALUES(?, ?)", 2),
            ("INSERT INTO counted(v) VALUES(?)", 1),
            ("INSERT INTO audit VALUES(?, ?, ?)", 3),
            (f"INSERT INTO {some}(v) VALUES(?)", 1),
            (f"INSERT INTO {some}(w, v) VALUES(?, ?)", 2),
        ])  # fmt: skip
        first, kind = r.randrange(10, 200), r.choice([int, int, str, float, None])
        rows: list[tuple[object, ...]] = []
        for number in range(first, first + r.randrange(16, 40)):
            values: list[object] = [number if kind is None else kind(number) for _ in range(width)]
            if r.random() < 0.02:
                values[r.randrange(width)] = r.choice([None, 1, "5", 2.0, b"b", "x", object()])
            rows.append(tuple(values))
        return sql, rows

    def step(self) -> None:
        if not self.db.in_transaction and self.random.random() < 0.1:
            self.db = self.random.choice(self.connections)
        rows = None
        if self.db.in_transaction and self.random.random() < 0.04:
            sql, rows = self.many()
        else:
            sql = self.statement()
        self.trail.append(sql if rows is None else f"{sql} -- by executemany: {rows}")
        self.statements += 1
        try:
            if rows is None:
                self.db.execute(sql).fetchall()
            else:
                self.db.executemany(sql, rows)
        except apsw.SQLError:  # it never ran
            self.failed["SQLError"] += 1
            return
        except (apsw.Error, ValueError, TypeError) as exc:
            self.failed[type(exc).__name__] += 1
        if not self.db.in_transaction:
            self.replica.follow(self.source)
            theirs, ours = content(self.replica.db), content(self.source)
            if theirs != ours:
                differing = {n: (ours.get(n), theirs.get(n)) for n in ours | theirs if ours.get(n) != theirs.get(n)}
                raise AssertionError(f"the replica differs: {differing}")
            self.extras = [name for name in ours if name.startswith("extra")]

    def run(self, statements: int) -> None:
        for _ in range(statements):
            self.step()
        self.db.rollback()
        self.replica.follow(self.source)

    def close(self) -> None:
        for db in self.connections:
            db.close()
        self.source.close()
        self.replica.db.close()


def run_fuzz(seed: int, path: Path, statements: int) -> Fuzz:
    fuzz = Fuzz(seed, path)
    try:
        fuzz.run(statements)
    except BaseException:
        print(f"replay: run_fuzz({seed}, path, {statements}); the last statements were:")
        print("\n".join(fuzz.trail[-25:]))
        raise
    finally:
        fuzz.close()
    return fuzz


@pytest.mark.long
@pytest.mark.parametrize("seed", few_of(range(8)))
def test_a_replica_stays_equal_after_every_transaction(seed: int, tmp_path: Path) -> None:
    fuzz = run_fuzz(seed, tmp_path / "source.db", 1500)
    assert fuzz.replica.transactions > 150
    assert fuzz.failed["ConstraintError"] > 50 and fuzz.failed["ValueError"] > 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_replica_stays_equal_for_long(tmp_path: Path) -> None:
    total = Counter[str]()
    for seed in range(1000, 1060):
        fuzz = run_fuzz(seed, tmp_path / f"{seed}.db", 6000)
        total["transactions"] += fuzz.replica.transactions
        total["failed"] += sum(fuzz.failed.values())
    print(dict(total))
    assert total["transactions"] > 50_000

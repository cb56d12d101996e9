"""The DB-API module, and SQLAlchemy, pandas and Django over it, written as their users write them.

Each program's database is followed by a replica that has its outbox alone.
"""

from __future__ import annotations

import datetime
import decimal
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pandas
import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from fix_sqlite import Replica, content
from tranlog.source.sqlite import dbapi

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


@pytest.fixture
def followed(path: Path) -> Callable[[], int]:
    """Return how many transactions were captured, after a check that they make the same database."""

    def followed() -> int:
        replica = Replica()
        with apsw.Connection(str(path)) as db:
            count = replica.follow(db)
            assert content(replica.db) == content(db) != {}
        db.close(True)
        replica.db.close(True)
        return count

    return followed


@pytest.fixture(scope="module", autouse=True)
def _dialect() -> None:
    """As the entry point of pyproject.toml names it, which an older installation does not have."""
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    ((name, place),) = entry_points["sqlalchemy.dialects"].items()
    sa.dialects.registry.register(name, *place.split(":"))


def test_transactions_begin_and_end_as_in_sqlite3(path: Path, followed: Callable[[], int]) -> None:
    db = dbapi.connect(path)
    cursor = db.cursor()
    assert cursor.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a UNIQUE)") is cursor and not db.in_transaction
    cursor.execute("INSERT INTO t(a) VALUES(?)", ("x",))
    assert (db.in_transaction, cursor.lastrowid, cursor.rowcount) == (True, 1, 1)
    db.rollback()
    cursor.executemany("INSERT INTO t(a) VALUES(:a)", ({"a": number} for number in range(30)))
    db.commit()
    with pytest.raises(dbapi.OperationalError), db:
        db.execute("DELETE FROM t").execute("no SQL")
    with db:
        db.execute("/* one */ update t SET a = -1 WHERE id = 1")
    db.isolation_level = None
    db.execute("DELETE FROM t WHERE id = 2")
    assert not db.in_transaction
    assert cursor.execute("SELECT id, a AS b FROM t ORDER BY 1").fetchone() == (1, -1)
    assert cursor.description == (("id", *[None] * 6), ("b", *[None] * 6))
    assert len(cursor.fetchmany(3)) == 3 and len(cursor.fetchmany()) == 1 and len(cursor.fetchall()) == 24
    assert cursor.fetchone() is None and list(db.execute("SELECT 1")) == [(1,)]
    cursor.executescript("CREATE TABLE u(a); INSERT INTO u VALUES(1);")
    cursor.close()
    db.close()
    assert followed() == 6


def test_a_connection_runs_many_and_scripts_as_in_sqlite3(path: Path, followed: Callable[[], int]) -> None:
    with closing(dbapi.connect(path)) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE)")
        cursor = db.executemany("INSERT INTO t VALUES (?, ?)", ((number, number) for number in range(100)))
        assert (cursor.rowcount, cursor.fetchall(), db.in_transaction) == (100, [], True)
        db.commit()
        with pytest.raises(dbapi.IntegrityError), db:
            db.executemany("UPDATE t SET a = :a WHERE id = :id", [{"id": 1, "a": -1}, {"id": 2, "a": -1}])
        db.execute("DELETE FROM t WHERE id = 7")
        assert isinstance(db.executescript("CREATE TABLE u (a); INSERT INTO u VALUES (1);"), dbapi.DbApiCursor)
        assert db.execute("SELECT count(*), min(a) FROM t").fetchall() == [(99, 0)]
    with pytest.raises(dbapi.ProgrammingError, match="closed database"):
        db.executemany("INSERT INTO t VALUES (?, ?)", [(1, 2)])
    assert followed() == 5


def test_errors_have_their_classes(path: Path) -> None:
    db = dbapi.connect(path)
    db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    for sql, kind, said in (
        ("INSERT INTO t VALUES(1), (1)", dbapi.IntegrityError, "^UNIQUE constraint failed: t.id"),
        ("SELECT * FROM nowhere", dbapi.OperationalError, "no such table"),
        ("SELECT ?", dbapi.ProgrammingError, "bindings"),
        ("SELECT 1; SELECT 2", dbapi.ProgrammingError, "^one statement at a time"),
    ):
        with pytest.raises(kind, match=said):
            db.execute(sql)
    db.close()
    with pytest.raises(dbapi.ProgrammingError, match="closed database"):
        db.execute("SELECT 1")


def test_a_commit_that_is_refused_at_the_end_of_a_block_is_rolled_back(path: Path) -> None:
    """As in sqlite3: nobody else would get the lock."""
    db = dbapi.connect(path)
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, up REFERENCES t (id) DEFERRABLE INITIALLY DEFERRED)")
    db.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(dbapi.IntegrityError), db:
        db.execute("INSERT INTO t VALUES (1, 7)")
    assert not db.in_transaction
    db.close()


@pytest.mark.parametrize(
    "misuse",
    [
        lambda db: db.execute("SELECT :a", {"b": 1}),
        lambda db: db.execute("SELECT ?", None),
        lambda db: db.execute("SELECT ?", 7),
        lambda db: db.execute("SELECT ?", (object(),)),
        lambda db: db.cursor().executemany("SELECT ?", [7]),
        lambda db: closed(db.execute("SELECT 1")).fetchall(),
        lambda db: closed(db.execute("SELECT 1")).fetchmany(),
        lambda db: closed(db.execute("SELECT 1")).fetchone(),
        lambda db: closed(db.cursor()).execute("SELECT 1"),
        lambda db: closed(db.cursor()).executescript("SELECT 1"),
        lambda db: closed(db).in_transaction,
    ],
)
def test_a_misuse_is_the_error_that_it_is_in_sqlite3(path: Path, misuse: Callable[[Any], object]) -> None:
    for module in (sqlite3, dbapi):
        with closing(module.connect(path.with_name(module.__name__))) as db, pytest.raises(module.ProgrammingError):
            misuse(db)


def closed(one: Any) -> Any:
    one.close()
    return one


def test_values_and_functions(path: Path) -> None:
    class Product:
        def __init__(self) -> None:
            self.value = 1

        def step(self, value: int) -> None:
            self.value *= value

        def finalize(self) -> int:
            return self.value

    db = dbapi.connect(path)
    moment = datetime.datetime(2026, 11, 23, 12, 30, 1)
    given = (moment, moment.date(), moment.time(), decimal.Decimal("1.50"), dbapi.Binary(b"b"))
    found = db.execute("SELECT ?, ?, ?, ?, ?", given).fetchone()
    assert found == ("2026-11-23 12:30:01", "2026-11-23", "12:30:01", "1.50", b"b")
    db.create_function("twice", 1, lambda value: 2 * value, deterministic=True)
    db.create_aggregate("product", 1, Product)
    db.create_collation("backwards", lambda a, b: (a < b) - (a > b))
    assert db.execute("SELECT twice(2), (SELECT product(a) FROM (SELECT 3 AS a UNION SELECT 5))").fetchone() == (4, 15)
    assert db.execute("SELECT 'a' < 'b' COLLATE backwards").fetchone() == (0,)
    db.close()


def test_a_row_factory_makes_the_rows_as_in_sqlite3(tmp_path: Path) -> None:
    def by_name(cursor: Any, row: tuple[Any, ...]) -> dict[str, Any]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    found = []
    for module, kind in ((sqlite3, sqlite3.Row), (dbapi, dbapi.Row)):
        with closing(module.connect(tmp_path / module.__name__)) as db:
            before = db.cursor()
            db.row_factory = by_name
            cursor = db.execute("SELECT 1 AS a, 'x' AS b UNION SELECT 2, 'y' UNION SELECT 3, 'z'")
            made: list[Any] = [cursor.fetchone(), cursor.fetchmany(1), *cursor, before.execute("SELECT 1").fetchall()]
            db.row_factory = kind
            (row,) = db.execute("SELECT 1 AS a, 2 AS B").fetchall()
            made += [row["a"], row["b"], row[1], row[-1], row[:1], tuple(row), row.keys(), dict(row), len(row)]
            with pytest.raises(IndexError):
                row["c"]
            cursor.row_factory = None
            found.append([*made, cursor.execute("SELECT 7").fetchall()])
    assert found[0] == found[1]


def test_what_the_module_does_not_have_is_no_attribute_to_set(path: Path) -> None:
    """Of a `text_factory` that is set and not asked nobody would hear."""
    with closing(dbapi.connect(path)) as db, pytest.raises(AttributeError, match="text_factory"):
        db.text_factory = bytes  # type: ignore[attr-defined]


class Base(orm.DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customer"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(unique=True)
    born: orm.Mapped[datetime.date | None]
    orders: orm.Mapped[list[Order]] = orm.relationship(back_populates="customer", cascade="all, delete-orphan")


class Order(Base):
    __tablename__ = "orders"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    customer_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("customer.id"))
    placed: orm.Mapped[datetime.datetime]
    paid: orm.Mapped[bool] = orm.mapped_column(default=False)
    customer: orm.Mapped[Customer] = orm.relationship(back_populates="orders")


def test_sqlalchemys_orm(path: Path, followed: Callable[[], int]) -> None:
    engine = sa.create_engine(f"sqlite+tranlog:///{path}")
    Base.metadata.create_all(engine)
    moment = datetime.datetime(2026, 11, 23, 12, 30)
    with orm.Session(engine) as session:
        ada = Customer(name="Ada", born=datetime.date(1815, 12, 10))
        ada.orders = [Order(placed=moment) for _ in range(40)]
        session.add_all([ada, Customer(name="Bob")])
        session.commit()
        ada.orders[0].paid = True
        with session.begin_nested() as savepoint:
            session.add(Customer(name="Eve"))
            session.flush()
            savepoint.rollback()
        del ada.orders[1:3]
        session.commit()
        session.add(Customer(name="Bob"))
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()
        session.rollback()
        session.delete(ada)
        session.flush()
        session.rollback()
        joined = session.scalars(sa.select(Order).join(Customer).where(Customer.name == "Ada", Order.paid)).one()
        assert (joined.placed, joined.customer.born) == (moment, datetime.date(1815, 12, 10))
        assert session.scalar(sa.select(sa.func.count()).select_from(Order)) == 38
    assert sa.inspect(engine).get_table_names() == ["_tranlog_outbox", "_tranlog_source", "customer", "orders"]
    engine.dispose()
    assert followed() == 4  # two tables, two commits with changes


def test_pandas(path: Path, followed: Callable[[], int]) -> None:
    engine = sa.create_engine(f"sqlite+tranlog:///{path}")
    frame = pandas.DataFrame(
        {"n": range(100), "x": [0.5] * 99 + [None], "at": pandas.Timestamp("2026-11-23 12:30"), "s": "é"}
    )
    assert frame.to_sql("frame", engine, index=False) == 100
    frame.to_sql("frame", engine, index=False, if_exists="append", method="multi", chunksize=30)
    found = pandas.read_sql("SELECT * FROM frame ORDER BY n", engine, parse_dates=["at"])
    assert len(found) == 200 and found["at"].nunique() == 1 and found["x"].isna().sum() == 2
    frame.head(3).to_sql("frame", engine, index=False, if_exists="replace")
    assert len(pandas.read_sql_table("frame", engine)) == 3
    engine.dispose()
    assert followed() >= 4


DJANGO = """
import sys, datetime, decimal
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "tranlog.source.sqlite.django", "NAME": sys.argv[1]}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions"],
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    USE_TZ=True, DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()
from django.core.management import call_command
from django.db import IntegrityError, connection, models, transaction

call_command("migrate", verbosity=0)
from django.contrib.auth.models import Group, Permission, User

ada = User.objects.create_user("ada", "ada@shop.example", "secret")
Group.objects.bulk_create([Group(name=f"group {n}") for n in range(50)])
ada.groups.add(*Group.objects.filter(name__contains="1"))
with transaction.atomic():
    User.objects.create(username="bob")
    try:
        with transaction.atomic():
            User.objects.create(username="ada")
    except IntegrityError:
        pass
    User.objects.filter(username="bob").update(last_name=models.functions.Upper("username"))
try:
    with transaction.atomic():
        Group.objects.all().delete()
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
Group.objects.filter(name__regex="group 4.").delete()
assert User.objects.get(username="bob").last_name == "BOB"
assert ada.groups.count() == 13, ada.groups.count()
assert Group.objects.aggregate(d=models.StdDev("id"))["d"] > 1
assert User.objects.filter(date_joined__year__gte=2020).count() == 2

class Item(models.Model):
    price = models.DecimalField(max_digits=8, decimal_places=2)
    made = models.DateField(null=True)
    class Meta:
        app_label = "shop"

with connection.schema_editor() as editor:
    editor.create_model(Item)
Item.objects.create(price=decimal.Decimal("2.50"), made=datetime.date(2026, 11, 23))
field = models.CharField(max_length=20, default="new")
field.set_attributes_from_name("state")
with connection.schema_editor() as editor:
    editor.add_field(Item, field)
    made = models.DateTimeField(null=True)
    made.set_attributes_from_name("made")
    editor.alter_field(Item, Item._meta.get_field("made"), made)
assert Item.objects.get().price == decimal.Decimal("2.50")
assert list(Item.objects.raw("SELECT * FROM shop_item WHERE price > %s", [1]))
connection.close()
"""


@pytest.mark.long
def test_djangos_migrations_and_orm(path: Path, followed: Callable[[], int]) -> None:
    done: Any = subprocess.run(
        [sys.executable, "-c", DJANGO, path], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert followed() > 30


@pytest.mark.parametrize("timeout", [-1.0, 0, 0.5])
def test_a_timeout_is_as_in_sqlite3(path: Path, timeout: float) -> None:
    with closing(dbapi.connect(path, timeout=timeout)) as connection:
        connection.execute("CREATE TABLE t (a)")


def test_a_timeout_that_is_no_number_is_refused(path: Path) -> None:
    """It would be over at no moment: who finds the database busy would wait for ever."""
    with pytest.raises(ValueError, match="busy_timeout_s is 0 seconds or more, not nan"):
        dbapi.connect(path, timeout=float("nan"))
    assert not path.exists()


@pytest.mark.parametrize("sql", ["INSERT INTO nowhere VALUES (1)", "UPDATE t SET nothing = 1", "DELETE FROM"])
def test_a_statement_that_is_no_sql_begins_nothing_as_in_sqlite3(tmp_path: Path, sql: str) -> None:
    """With an isolation level that takes the lock at once, nobody else would get it before the next commit."""
    for module in (sqlite3, dbapi):
        with closing(module.connect(tmp_path / module.__name__, isolation_level="IMMEDIATE")) as db:
            db.execute("CREATE TABLE t (a PRIMARY KEY)")
            for call in (lambda db=db: db.execute(sql), lambda db=db: db.cursor().executemany(sql, [(), ()])):
                with pytest.raises(module.OperationalError):
                    call()
                assert not db.in_transaction
            db.execute("INSERT INTO t VALUES (1)")
            with pytest.raises(module.OperationalError):
                db.execute(sql)
            assert db.in_transaction
            db.commit()
            cursor = db.cursor()
            with pytest.raises(module.IntegrityError):
                cursor.execute("INSERT INTO t VALUES (1) RETURNING a")
            assert db.in_transaction and cursor.description is None
            db.rollback()
            assert db.execute("SELECT a FROM t").fetchall() == [(1,)]

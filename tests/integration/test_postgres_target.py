"""PostgreSQL as a target: its locks and sessions, its settings, its errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import psycopg
import pytest

from fix_target import (
    ID,
    INTEGER,
    ITEMS,
    MOVES,
    PIPELINE,
    TEXT,
    Bench,
    StoppedTask,
    column,
    content,
    delete,
    insert,
    table,
    update,
)
from fix_target import claim_again as claim
from tranlog.errors import (
    ConfigError,
    ConflictError,
    TargetTableError,
    TargetUnavailableError,
)
from tranlog.ids import NO_SEQNO
from tranlog.target.once import STATEMENT_TABLE
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.position import OUR_TABLES
from tranlog.target.postgres import FEW_ROWS
from tranlog.target.postgres_dialect import NAME_BYTES, fit_name
from tranlog.testing.servers import PostgresAddress
from tranlog.types import Datetime, EnumLabel, Instant, Json, LogicalType, Other, Time, Value

pytestmark = pytest.mark.integration

OURS = sorted(OUR_TABLES - {STATEMENT_TABLE})


@pytest.fixture
def options(postgres: PostgresAddress, postgres_database: str) -> TargetOptions:
    return TargetOptions(kind="postgres", dsn=postgres.dsn(postgres_database), lock_timeout_s=0.3)


def sql(bench: Bench, text: str) -> None:
    bench.session.run_script(text)


# --- locks and sessions ---------------------------------------------------------------------------------------------


def test_a_session_of_a_reused_number_is_not_ended(bench: Bench, stop_task: Callable[..., StoppedTask]) -> None:
    """The server's process ids come again: only together with its start does one name a session."""
    bench.target.rows.create_table(ITEMS)
    other = open_target(bench.options)
    other.positions.claim(pipeline=PIPELINE, channel=0, driver_token=bench.driver_token)
    (stored,) = [row.session for row in bench.target.positions.read_channels(PIPELINE)]
    pid, _, started = stored.partition(" ")
    sql(bench, f"UPDATE tranlog_channel SET session = '{pid} 2001-01-01 00:00:00+00'")
    holder = psycopg.connect(bench.options.dsn, application_name="somebody's psql")
    holder.execute("UPDATE tranlog_channel SET stats = '{}'")
    with pytest.raises(
        TargetUnavailableError, match=r"stayed locked for 0\.3 s by session .*somebody's psql.*end that"
    ):
        claim(bench)
    assert not bench.session.end(f"{pid} 2001-01-01 00:00:00+00")
    assert not bench.session.end(f"{holder.info.backend_pid} {started}")
    assert not bench.session.end(stored)  # it is that session, but keeps nobody waiting
    holder.rollback()
    claim(bench)
    other.close()
    holder.close()


@pytest.mark.parametrize("sees", [False, True], ids=["sees little", "sees all"])
def test_a_session_that_may_not_be_ended_is_named(
    postgres: PostgresAddress, postgres_database: str, bench: Bench, stop_task: Callable[..., StoppedTask], sees: bool
) -> None:
    role = f"r_{postgres_database}"
    bench.target.rows.create_table(ITEMS)
    postgres.execute(f"CREATE ROLE {role} LOGIN")
    sql(
        bench,
        f"GRANT ALL ON {', '.join(OURS)} TO {role}",
    )
    if sees:
        sql(bench, f"GRANT pg_read_all_stats TO {role}")
    dsn = bench.options.dsn.replace("//postgres@", f"//{role}@")
    task = stop_task(bench)
    limited = open_target(replace(bench.options, dsn=dsn))
    named = r"session \d+ of user postgres, tranlog"
    why = f"{named}.*, idle in transaction.* may not be ended by this user" if sees else f"stayed locked.* by {named}"
    with pytest.raises(TargetUnavailableError, match=why):
        limited.positions.claim(pipeline=PIPELINE, channel=0, driver_token=bench.driver_token)
    assert bench.session.fetch("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'") == [(1,)]
    limited.close()
    task.close()
    sql(bench, f"DROP OWNED BY {role}; DROP ROLE {role}")


# --- settings -------------------------------------------------------------------------------------------------------

HOSTILE = {
    "DateStyle": "'German'",
    "IntervalStyle": "'iso_8601'",
    "TimeZone": "'Asia/Kathmandu'",
    "extra_float_digits": "-15",
    "bytea_output": "'escape'",
    "standard_conforming_strings": "off",
    "statement_timeout": "200",
    "lock_timeout": "1",
    "default_transaction_isolation": "'serializable'",
    "default_transaction_read_only": "on",
    "client_encoding": "'LATIN1'",
    "transform_null_equals": "on",
    "array_nulls": "off",
}


def test_nothing_depends_on_how_the_database_is_set(
    postgres: PostgresAddress,
    postgres_database: str,
    options: TargetOptions,
    open_bench: Callable[[TargetOptions], Bench],
) -> None:
    for name, value in HOSTILE.items():
        postgres.execute(f"ALTER DATABASE {postgres_database} SET {name} = {value}")
    assert postgres.execute("SHOW DateStyle", database=postgres_database) == [("German, DMY",)]
    bench = open_bench(options)
    tab = table(
        "t",
        ID,
        column("f", LogicalType.F64, "double"),
        column("b", LogicalType.BYTES, "blob"),
        column("d", LogicalType.DATETIME, "datetime(6)"),
        column("i", LogicalType.INSTANT, "timestamp(6)"),
        column("t", LogicalType.TIME, "time(6)"),
        column("s", TEXT, "text"),
    )
    bench.target.rows.create_table(tab)
    rows = [(i, 0.1 + i, b"\\\xff'", Datetime(-1), Instant(86_399_999_999), Time(-1 - i), "\\'é🦆") for i in range(3)]
    bench.apply([insert(tab, row) for row in rows])
    assert bench.rows(tab) == content(rows)
    texts = table("texts", ID, column("s", TEXT, "text"))
    bench.target.rows.create_table(texts)
    nulls = [(i, None) for i in range(FEW_ROWS + 1)]  # a batch, which comes as arrays
    bench.apply([insert(texts, row) for row in nulls])
    assert bench.rows(texts) == content(nulls)


def test_an_isolation_that_the_caller_relies_on(bench: Bench) -> None:
    shown = [bench.session.fetch(f"SHOW {name}")[0][0] for name in ("transaction_isolation", "timezone")]
    assert shown == ["read committed", "UTC"]
    ((idle,),) = bench.session.fetch("SHOW idle_in_transaction_session_timeout")
    assert idle == "1min"


def test_a_wrong_address(postgres: PostgresAddress, options: TargetOptions) -> None:
    with pytest.raises(ConfigError, match="not a connection string") as config:
        open_target(replace(options, dsn="postgresql://user:se cret@[bad"))
    assert "cret" not in str(config.value)
    for dsn, why in (
        (postgres.dsn("nowhere"), 'database "nowhere" does not exist'),
        ("postgresql://u:secret@127.0.0.1:1/x", "127.0.0.1"),
    ):
        with pytest.raises(TargetUnavailableError, match=why) as caught:
            open_target(replace(options, dsn=dsn))
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_user_who_may_not(postgres: PostgresAddress, postgres_database: str, bench: Bench) -> None:
    role = f"w_{postgres_database}"
    bench.target.rows.create_table(ITEMS)
    postgres.execute(f"CREATE ROLE {role} LOGIN")
    sql(
        bench,
        f"GRANT ALL ON {', '.join(OURS)} TO {role}",
    )
    limited = Bench.__new__(Bench)
    limited.options = replace(bench.options, dsn=bench.options.dsn.replace("//postgres@", f"//{role}@"))
    limited.driver_token, limited.target = bench.driver_token, open_target(limited.options)
    limited.target.positions.ensure_tables()  # they are there: nothing is to be made
    claim(limited)
    with pytest.raises(TargetUnavailableError, match="permission denied for schema shop"):
        limited.apply([insert(ITEMS, (1, "a", 1))])
    with pytest.raises(TargetUnavailableError, match="session_replication_role"):
        open_target(replace(limited.options, triggers="off"))
    limited.close()
    sql(bench, f"DROP OWNED BY {role}; DROP ROLE {role}")


# --- many rows at once ----------------------------------------------------------------------------------------------

MANY = 1_234
HOW = """
CREATE TABLE how (sql text);
CREATE FUNCTION how() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO how VALUES (split_part(current_query(), ' ', 1));
    RETURN NULL;
END $$;
CREATE TRIGGER how AFTER INSERT ON shop.items FOR EACH STATEMENT EXECUTE FUNCTION how()"""
"""Notes by which statement rows came."""
TEXTS = ("a", "", None, "\\N", "\\.", "tab\tline\nreturn\r", '"{,}', "back\\slash \\t", "é🦆", "\x01\x7f")


def how(bench: Bench) -> list[str]:
    """Return by which statements rows came, and forget it."""
    found = [one for (one,) in bench.session.fetch("SELECT sql FROM how")]
    sql(bench, "DELETE FROM how")
    return found


def test_many_rows_come_by_copy(bench: Bench) -> None:
    """As one by one, whatever is in them; so do the few that follow, which are of the same form."""
    bench.target.rows.create_table(ITEMS)
    sql(bench, HOW)
    rows = [(n, TEXTS[n % len(TEXTS)], None if n % 3 else -n) for n in range(MANY)]
    assert bench.apply([insert(ITEMS, row) for row in rows]).changes == MANY
    assert how(bench) == ["COPY"]
    assert bench.rows(ITEMS) == content(rows)
    more = [(MANY + n, "b", n) for n in range(3)]
    bench.apply([insert(ITEMS, row) for row in more])
    assert how(bench) == ["INSERT"] * 3
    bench.apply([delete(ITEMS, row) for row in [*rows, *more]])
    for text in TEXTS:  # a column of one text alone goes another way
        rows = [(n, text, n) for n in range(MANY)]
        bench.apply([insert(ITEMS, row) for row in rows])
        assert bench.rows(ITEMS) == content(rows)
        bench.apply([delete(ITEMS, row) for row in rows])


def test_values_of_every_kind_come_by_copy(bench: Bench) -> None:
    tab = table(
        "t",
        ID,
        column("f", LogicalType.F64, "double"),
        column("n", LogicalType.DECIMAL, "numeric"),
        column("b", LogicalType.BYTES, "blob"),
        column("d", LogicalType.DATETIME, "datetime(6)"),
        column("i", LogicalType.INSTANT, "timestamp(6)"),
        column("t", LogicalType.TIME, "time(6)"),
        column("o", LogicalType.BOOL, "boolean"),
    )
    bench.target.rows.create_table(tab)
    floats = [0.1, -0.0, 1e300, float("inf"), float("-inf"), float("nan")]
    rows = [
        (n, floats[n % 6], Decimal(n) / 8, b"\\\xff'\t", Datetime(n - 1), Instant(n - 1), Time(-n), bool(n % 2))
        for n in range(MANY)
    ]
    bench.apply([insert(tab, row) for row in rows])
    assert bench.rows(tab) == content(rows)


@pytest.mark.parametrize(
    "between",
    [
        "CREATE RULE other AS ON INSERT TO shop.items DO ALSO NOTIFY other",
        "ALTER TABLE shop.items ENABLE ROW LEVEL SECURITY",
    ],
    ids=["a rule", "row security"],
)
def test_what_copy_would_pass_over_has_inserts(bench: Bench, between: str) -> None:
    bench.target.rows.create_table(ITEMS)
    sql(bench, HOW)
    sql(bench, between)
    bench.apply([insert(ITEMS, (n, "a", n)) for n in range(MANY)])
    assert set(how(bench)) == {"INSERT"}


def test_a_conflict_in_a_copy_is_named(bench: Bench) -> None:
    """The rows are sent again, one by one; nothing of them is here, and the session goes on."""
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, (777, "here", 1))])
    with pytest.raises(ConflictError) as conflict:
        bench.apply([insert(ITEMS, (n, "a", n)) for n in range(MANY)])
    assert (conflict.value.key, conflict.value.table) == ("(id=777)", "shop.items")
    with pytest.raises(ConflictError, match="NUL"):
        bench.apply([insert(ITEMS, (n, "\0" if n == 1_200 else "a", n)) for n in range(1_000, 1_000 + MANY)])
    assert bench.rows(ITEMS) == content([(777, "here", 1)])
    bench.apply([insert(ITEMS, (n, "a", n)) for n in range(1_000, 1_000 + MANY)])
    assert len(list(bench.rows(ITEMS).elements())) == MANY + 1


def test_a_row_that_a_trigger_takes_away_of_a_copy_is_missed(bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    takes = "CREATE FUNCTION takes() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$;"
    when = "CREATE TRIGGER takes BEFORE INSERT ON shop.items FOR EACH ROW WHEN (NEW.id = 1000) EXECUTE FUNCTION takes()"
    sql(bench, takes + when)
    with pytest.raises(ConflictError, match="a trigger at the target took it away") as conflict:
        bench.apply([insert(ITEMS, (n, "a", n)) for n in range(MANY)])
    assert conflict.value.key == "(id=1000)"


# --- the target's own triggers and constraints ----------------------------------------------------------------------

AUDIT = """
CREATE TABLE audit (what text);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit VALUES (TG_OP || ' ' || coalesce(NEW.id, OLD.id));
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON shop.items FOR EACH ROW EXECUTE FUNCTION audit()"""


def test_triggers_can_be_off(options: TargetOptions, open_bench: Callable[[TargetOptions], Bench]) -> None:
    bench = open_bench(replace(options, triggers="off"))
    bench.target.rows.create_table(ITEMS)
    sql(bench, AUDIT)
    bench.apply([insert(ITEMS, (1, "a", 1))])
    assert bench.session.fetch("SELECT what FROM audit") == []


def test_a_trigger_sees_the_order_of_the_log(bench: Bench) -> None:
    """Changes of different keys pass each other only where nothing sees it: decision 0015."""
    bench.target.rows.create_table(ITEMS)
    sql(bench, AUDIT)
    bench.apply(
        [insert(ITEMS, (1, "a", 1)), update(ITEMS, (1, "a", 1), (1, "b", 1)), insert(ITEMS, (2, "a", 1))],
        [delete(ITEMS, (1, "b", 1)), insert(ITEMS, (3, "a", 1))],
    )
    seen = bench.session.fetch("SELECT what FROM audit ORDER BY ctid")
    assert [what for (what,) in seen] == ["INSERT 1", "UPDATE 1", "INSERT 2", "DELETE 1", "INSERT 3"]


@pytest.mark.parametrize(
    ("makes", "unseen"),
    [
        ("", True),
        ("CREATE INDEX ON shop.items (n)", True),
        (AUDIT, False),
        ("CREATE UNIQUE INDEX ON shop.items (n)", False),
        ("ALTER TABLE shop.items DROP CONSTRAINT items_pkey", False),
        ("CREATE TABLE children (item bigint REFERENCES shop.items)", True),
        ("ALTER TABLE shop.items ADD UNIQUE (id, n) DEFERRABLE", False),
        ("CREATE RULE seen AS ON DELETE TO shop.items DO ALSO NOTIFY seen", False),
        ("CREATE TABLE more () INHERITS (shop.items)", False),
    ],
)
def test_what_sees_an_order_is_read_from_the_catalogue(makes: str, unseen: bool, bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    if makes:
        sql(bench, makes)
    assert bench.session.table(ITEMS).order_unseen is unseen


def test_the_plan_of_a_batch_goes_by_the_key(bench: Bench) -> None:
    """It is kept by the session: made while the table is empty, it must be right when that has grown."""
    bench.target.rows.create_table(ITEMS)
    joined = "shop.items AS t USING unnest($1::bigint[]) AS v(c1) WHERE t.id = v.c1"
    plan = bench.session.fetch(f"EXPLAIN DELETE FROM {joined}".replace("$1", "'{1,2,3}'"))
    text = "\n".join(line for (line,) in plan)
    assert "using items_pkey on items" in text or "Bitmap Index Scan on items_pkey" in text, text


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_gathered_leaves_the_same_rows(seed: int, bench: Bench) -> None:
    """Many keys, some of them hot, in few statements; what does not fit is still named by its own transaction."""
    bench.target.rows.create_table(ITEMS)
    chance = random.Random(seed)
    alive: dict[int, tuple[int, str, int]] = {}
    sent = applied = 0
    for _ in range(4):
        group = []
        for n in range(200):
            key = chance.randrange(150)
            before = alive.pop(key, None)
            if before is not None and chance.random() < 0.3:
                group.append([delete(ITEMS, before)])
                continue
            alive[key] = (key, f"name {n}", n)
            group.append([insert(ITEMS, alive[key]) if before is None else update(ITEMS, before, alive[key])])
        done = bench.apply(*group)
        sent, applied = sent + done.statements, applied + done.changes
        assert bench.rows(ITEMS) == content(list(alive.values())), f"seed {seed}"
    assert applied == 800 and sent < 400
    new = [insert(ITEMS, (1000 + n, "a", n)) for n in range(9)]
    with pytest.raises(ConflictError, match=rf"seqno {bench.applied + 6}, table shop\.items, key \(id=1004\)"):
        bench.apply(*[[change] for change in (*new[:5], new[4], *new[5:])])
    assert bench.rows(ITEMS) == content(list(alive.values()))


PARENTS = table("parents", ID)
CHILDREN = table("children", ID, column("parent", INTEGER, "int"))


def test_a_deferred_constraint_that_objects_at_commit(bench: Bench) -> None:
    for each in (PARENTS, CHILDREN):
        bench.target.rows.create_table(each)
    sql(
        bench,
        "ALTER TABLE shop.children ADD FOREIGN KEY (parent) REFERENCES shop.parents DEFERRABLE INITIALLY DEFERRED",
    )
    bench.apply([insert(CHILDREN, (1, 1)), insert(PARENTS, (1,))])
    with pytest.raises(ConflictError, match=r"seqno 2, table children.*Key \(parent\)=\(9\) is not present"):
        bench.apply([insert(PARENTS, (2,))], [insert(CHILDREN, (2, 9))], [insert(PARENTS, (4,))])
    assert bench.rows(CHILDREN) == content([(1, 1)])


# --- tables ---------------------------------------------------------------------------------------------------------


def test_what_the_server_says_of_a_way_on_is_passed_on(bench: Bench) -> None:
    """As at a target that publishes a table without a key: no row is at fault, and the hint has the statement."""
    bench.target.rows.create_table(MOVES)
    sql(bench, "CREATE PUBLICATION onwards FOR TABLE shop.moves")
    bench.apply([insert(MOVES, (1, "a", 1))])
    with pytest.raises(ConflictError, match=r"no.* replica identity .*set REPLICA IDENTITY using ALTER TABLE"):
        bench.apply([update(MOVES, (1, "a", 1), (1, "b", 1))])


def test_a_commit_that_is_refused_alone_is_a_conflict(bench: Bench) -> None:
    """Where asking the constraints before has brought nothing: named by its transaction, and nothing of it is there."""
    bench.target.rows.create_table(ITEMS)
    sql(
        bench,
        "CREATE SEQUENCE asked; CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF nextval('asked') % 2 = 1 THEN RAISE 'not at an odd time'; END IF; RETURN NULL; END $$; "
        "CREATE CONSTRAINT TRIGGER odd AFTER INSERT ON shop.items INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    with pytest.raises(ConflictError, match=r"seqno 0, .*the COMMIT is refused: not at an odd time"):
        bench.apply([insert(ITEMS, (1, "a", 1))])
    claim(bench)
    assert (bench.stored_seqno(), bench.rows(ITEMS)) == (NO_SEQNO, content([]))


def test_what_tables_are_made_of(bench: Bench) -> None:
    orders = table(
        "orders",
        column("id", INTEGER, "bigint(20) unsigned", unsigned=True, nullable=False),
        column("note", TEXT, "char(10)", length=10),
        column("price", LogicalType.DECIMAL, "decimal(10,2)"),
        column("flags", LogicalType.BIT, "bit(3)", length=3),
        column("took", LogicalType.TIME, "time"),
        unique_keys=((1, 2),),
    )
    made = bench.target.rows.create_table(orders)
    assert made.splitlines()[0] == 'CREATE SCHEMA IF NOT EXISTS "shop";'
    types = bench.session.fetch(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
        "WHERE attrelid = 'shop.orders'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert types == [
        ("id", "numeric(20,0)", True),
        ("note", "text", False),
        ("price", "numeric(10,2)", False),
        ("flags", "bit(3)", False),
        ("took", "interval", False),
    ]
    keys = bench.session.fetch("SELECT contype::text FROM pg_constraint WHERE conrelid = 'shop.orders'::regclass")
    assert sorted(keys) == [("p",), ("u",)]


def test_json_in_a_key_is_text(bench: Bench) -> None:
    """A jsonb may be a key at the source, and a json may not."""
    said = column("said", LogicalType.JSON, "jsonb", nullable=False)
    tab = table("t", said, column("more", LogicalType.JSON, "jsonb"), column("c", TEXT, "text"), unique_keys=((1,),))
    bench.target.rows.create_table(tab)
    rows = [(Json('{"a": 1}'), Json("[]"), "x"), (Json('{"a": 2}'), None, "y")]
    bench.apply([insert(tab, row) for row in rows], [update(tab, rows[0], (*rows[0][:2], "z")), delete(tab, rows[1])])
    assert bench.rows(tab) == content([(*rows[0][:2], "z")])


def test_columns_that_users_made_otherwise(bench: Bench) -> None:
    """A boolean for a digit, an enum, a domain, a wider numeric, an array, char(n): each read back as it was sent."""
    tab = table(
        "t",
        ID,
        column("yes", INTEGER, "tinyint(1)"),
        column("mood", LogicalType.ENUM, "enum('good','so so')"),
        column("price", LogicalType.DECIMAL, "decimal(10,2)"),
        column("code", TEXT, "char(5)", length=5),
        column("tags", LogicalType.OTHER, "text[]"),
        column("at", LogicalType.DATETIME, "datetime"),
    )
    sql(
        bench,
        """CREATE SCHEMA shop; CREATE TYPE shop.mood AS ENUM ('good', 'so so');
        CREATE DOMAIN shop.price AS numeric(12, 4) CHECK (VALUE >= 0);
        CREATE TABLE shop.t (id int PRIMARY KEY, yes boolean, mood shop.mood, price shop.price, code char(5),
                             tags text[], at timestamp(0))""",
    )
    tags = Other("text[]", '{a,"b c",NULL}')
    one = (1, 1, EnumLabel("so so"), Decimal("1.50"), "ab", tags, Datetime(5_000_000))
    two = (2, 0, None, Decimal("0.00"), "", Other("text[]", "{}"), None)
    bench.apply([insert(tab, one), insert(tab, two)])
    assert bench.rows(tab) == content([one, two])
    bench.apply([update(tab, one, (1, 0, EnumLabel("good"), Decimal("2.00"), "x", tags, None)), delete(tab, two)])
    assert bench.rows(tab) == content([(1, 0, EnumLabel("good"), Decimal("2.00"), "x", tags, None)])
    keyless = table("t", *tab.columns, key=())
    bench.apply([delete(keyless, (1, 0, EnumLabel("good"), Decimal("2.00"), "x", tags, None))])
    for wrong, why in (
        ((3, 2, None, None, None, None, None), "column yes|boolean"),
        ((3, 1, EnumLabel("bad"), None, None, None, None), "enum"),
        ((3, 1, None, Decimal("-1.00"), None, None, None), "domain"),
        ((3, 1, None, None, "toolong", None, None), "too long"),
        (
            (3, 1, None, None, None, None, Datetime(1)),
            "column at is timestamp.* would round 1970-01-01 00:00:00.000001",
        ),
    ):
        with pytest.raises(ConflictError, match=why) as caught:
            bench.apply([insert(tab, wrong)])
        assert caught.value.key == "(id=3)"


def test_numbers_that_would_be_rounded_are_refused(bench: Bench) -> None:
    tab = table("t", ID, column("v", LogicalType.DECIMAL, "decimal(10,4)"))
    sql(bench, "CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY, v numeric(10, 2))")
    bench.apply([insert(tab, (1, Decimal("1.5000")))])
    assert bench.rows(tab) == content([(1, Decimal("1.5000"))])
    with pytest.raises(ConflictError, match=r"column v is numeric\(10,2\) here and would round 1\.5010"):
        bench.apply([insert(tab, (2, Decimal("1.5010")))])


@pytest.mark.parametrize(
    ("declared", "fits", "cut", "why"),
    [
        ("varchar(3)", "abc", "abc ", "would cut spaces off"),
        ("varchar(3)", "ab ", "    ", "would cut spaces off"),
        ("char(3)", " a", "a ", "loses spaces at the end"),
        ("name", "é" * 31, "é" * 32, "would cut the text"),
        ('"char"', "a", "ab", "would cut the text"),
    ],
)
@pytest.mark.parametrize("several", [False, True], ids=["one row", "a batch"])
def test_text_that_would_be_cut_is_refused(
    bench: Bench, declared: str, fits: str, cut: str, why: str, several: bool
) -> None:
    """What PostgreSQL does without an error is looked for: spaces beyond a length, a name's bytes, char's padding."""
    tab = table("t", ID, column("v", TEXT, "text"))
    sql(bench, f"CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY, v {declared})")
    bench.apply([insert(tab, (n, fits)) for n in range(9 if several else 1)])
    assert set(bench.session.fetch("SELECT v::text FROM shop.t")) == {(fits,)}
    with pytest.raises(ConflictError, match=why) as caught:
        bench.apply([insert(tab, (100 + n, cut if n == 0 else fits)) for n in range(9 if several else 1)])
    assert caught.value.key == "(id=100)"


def test_a_value_beyond_an_index_is_a_conflict(bench: Bench) -> None:
    """It is the row's matter, not the server's: seqno, table and key are named, and no service manager repeats it."""
    tab = table("t", ID, column("v", TEXT, "text"))
    sql(bench, "CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY, v text UNIQUE)")
    text = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=8000))
    with pytest.raises(ConflictError, match="index row size") as caught:
        bench.apply([insert(tab, (1, "short")), insert(tab, (2, text))])
    assert (caught.value.key, caught.value.table) == ("(id=2)", "shop.t")


def test_a_table_without_a_column_has_rows(bench: Bench) -> None:
    nothing = table("nothing", key=())
    bench.target.rows.create_table(nothing)
    bench.apply([insert(nothing, ()), insert(nothing, ())], [insert(nothing, ())])
    assert sum(bench.rows(nothing).values()) == 3
    bench.apply([delete(nothing, ())])
    assert sum(bench.rows(nothing).values()) == 2


def test_an_override_of_read_only_is_said(
    postgres: PostgresAddress,
    postgres_database: str,
    options: TargetOptions,
    open_bench: Callable[[TargetOptions], Bench],
    caplog: pytest.LogCaptureFixture,
) -> None:
    postgres.execute(f"ALTER DATABASE {postgres_database} SET default_transaction_read_only = on")
    open_bench(options)
    assert "default_transaction_read_only is on; it is off in tranlog's own sessions" in caplog.text


def test_a_table_that_a_crash_empties_is_refused(bench: Bench) -> None:
    """README.md: rows and position move in one transaction, whatever is killed."""
    bench.target.rows.create_table(ITEMS)
    sql(bench, "ALTER TABLE shop.items SET UNLOGGED")
    with pytest.raises(TargetTableError, match=r"unlogged here: a crash .* ALTER TABLE \"shop\"\.\"items\" SET LOGGED"):
        bench.target.rows.check_table(ITEMS)
    with pytest.raises(TargetTableError, match=r"seqno 0.* unlogged here"):
        bench.apply([insert(ITEMS, (1, "a", 1))])
    sql(bench, 'ALTER TABLE "shop"."items" SET LOGGED')
    bench.apply([insert(ITEMS, (1, "a", 1))])
    parts = table("parts", ID)
    sql(
        bench,
        "CREATE TABLE shop.parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE UNLOGGED TABLE part PARTITION OF shop.parts DEFAULT",
    )
    with pytest.raises(TargetTableError, match=r"shop\.parts .*or a partition of it, is unlogged here"):
        bench.apply([insert(parts, (1,))])


def test_identity_columns_and_partitions(bench: Bench) -> None:
    """What the source numbered stays; a ctid names a row of each partition, and only the right one is hit."""
    sql(
        bench,
        """CREATE SCHEMA shop;
        CREATE TABLE shop.items (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, n int);
        CREATE TABLE shop.moves (id int, name text, n int) PARTITION BY LIST (id);
        CREATE TABLE shop.moves_1 PARTITION OF shop.moves FOR VALUES IN (1);
        CREATE TABLE shop.moves_2 PARTITION OF shop.moves FOR VALUES IN (2)""",
    )
    bench.apply([insert(ITEMS, (7, "a", 1)), insert(ITEMS, (8, "a", 1))], [update(ITEMS, (7, "a", 1), (7, "b", 1))])
    assert bench.rows(ITEMS) == content([(7, "b", 1), (8, "a", 1)])
    bench.apply([insert(MOVES, (i, "a", 1)) for i in (1, 2, 2)])
    bench.apply([delete(MOVES, (2, "a", 1)), update(MOVES, (1, "a", 1), (2, "a", 1))])
    assert bench.rows(MOVES) == content([(2, "a", 1), (2, "a", 1)])


def test_an_update_that_changes_nothing_leaves_an_identity_column_alone(bench: Bench) -> None:
    """PostgreSQL refuses GENERATED ALWAYS in an UPDATE, also with the value that is there; a filter that drops the
    column which changed leaves such an update."""
    sql(
        bench,
        "CREATE SCHEMA shop; CREATE TABLE shop.items (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        "name text, n int)",
    )
    rows = [(number, "a", number) for number in range(9)]
    bench.apply([insert(ITEMS, row) for row in rows], [update(ITEMS, row, row) for row in rows])
    assert bench.rows(ITEMS) == content(rows)


@pytest.mark.parametrize(
    ("declared", "logical", "here", "there"),
    [
        ("jsonb", LogicalType.JSON, Json('{"a": 1.0}'), Json('{"a": 1.00}')),
        ("text COLLATE shop.folds", TEXT, "A", "a"),
        ("char(1) COLLATE shop.folds", TEXT, "A", "a"),
    ],
)
def test_a_row_without_a_key_is_found_by_the_very_value(
    declared: str, logical: LogicalType, here: Value, there: Value, bench: Bench
) -> None:
    """Two values may be equal to PostgreSQL and not be the same."""
    sql(
        bench,
        f"""CREATE SCHEMA shop; CREATE COLLATION shop.folds
        (provider = icu, locale = 'und-u-ks-level2', deterministic = false); CREATE TABLE shop.t (c {declared})""",
    )
    tab = table("t", column("c", logical, declared), key=())
    bench.apply([insert(tab, (here,)), insert(tab, (there,))], [delete(tab, (there,))])
    assert bench.rows(tab) == content([(here,)])


def test_a_name_that_is_no_table_s(bench: Bench) -> None:
    sql(bench, "CREATE SCHEMA shop; CREATE VIEW shop.items AS SELECT 1 AS id, 'a' AS name, 1 AS n")
    with pytest.raises(TargetTableError, match=r"this name is not a table's.*Drop what has it here"):
        bench.apply([insert(ITEMS, (1, "a", 1))])
    with pytest.raises(TargetTableError, match="Drop what has it here"):
        bench.target.rows.create_table(ITEMS)


@pytest.mark.parametrize("name", ["short", "x" * 63, "x" * 64, "é" * 40, "🦆" * 16, "a" + "🦆" * 16])
def test_names_are_made_to_fit(bench: Bench, name: str) -> None:
    """PostgreSQL cuts names off at 63 bytes; ours are cut so that it does not."""
    fitted = fit_name(name)
    assert len(fitted.encode()) <= NAME_BYTES
    assert (fitted == name) == (len(name.encode()) <= NAME_BYTES)
    assert fit_name(name + "x" * 70) != fit_name(name + "x" * 71)
    ((seen,),) = bench.session.fetch(
        f'SELECT attname FROM (SELECT 1 AS "{fitted}") t, LATERAL (SELECT $1::text AS attname) u', (fitted,)
    )
    assert seen == fitted


def test_columns_that_are_called_as_postgresql_s_own(bench: Bench) -> None:
    """A box has xmin and xmax in more than one table of the world."""
    names = ("id", "xmin", "ymin", "xmax", "ctid", "Xmin")
    tab = table("boxes", *[column(name, INTEGER, "int(11)", nullable=name != "id") for name in names])
    bench.target.rows.create_table(tab)
    bench.apply([insert(tab, (1, 2, 3, 4, 5, 6))], [update(tab, (1, 2, 3, 4, 5, 6), (1, 7, 3, 4, 5, 6))])
    assert bench.rows(tab) == content([(1, 7, 3, 4, 5, 6)])

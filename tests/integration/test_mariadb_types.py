"""Every type of MariaDB, from the binlog and by SELECT, on a real server."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from fix_mariadb_source import (
    Follower,
    Replica,
    comparable,
    followers,
    options_for,
    run,
    selected,
)
from tranlog.change import TableMap
from tranlog.charsets import CHARSET_NAMES, text_decoder
from tranlog.errors import (
    SourceSetupError,
    UnsupportedEventError,
    UnsupportedTypeError,
)
from tranlog.source.mariadb.connection import Control
from tranlog.source.mariadb.events import sql_mode_text
from tranlog.source.mariadb.tables import MariadbTables
from tranlog.testing.servers import MariaDbAddress
from tranlog.types import Bit, CharsetBytes, EnumLabel, Instant, SetLabels

pytestmark = pytest.mark.integration


@pytest.fixture
def follow() -> Iterator[Callable[..., Follower]]:
    """Start following a server: `follow(options)`, from now or after an event id."""
    yield from followers()


NUMBERS = """CREATE TABLE numbers (
    id INT PRIMARY KEY, a TINYINT, b TINYINT UNSIGNED, c SMALLINT, d SMALLINT UNSIGNED, e MEDIUMINT,
    f MEDIUMINT UNSIGNED, g INT, h INT UNSIGNED ZEROFILL, i BIGINT, j BIGINT UNSIGNED, k FLOAT, l DOUBLE,
    m DECIMAL(10,2) UNSIGNED, n DECIMAL(65,30), o DECIMAL(18,0), p BIT(1), q BIT(13), r BIT(64), s BOOL,
    t FLOAT(7,2), u DOUBLE(12,3), v DECIMAL(9,9), w DECIMAL(38,38), x YEAR, y DECIMAL(5,3) ZEROFILL)"""
TIMES = """CREATE TABLE times (
    id INT PRIMARY KEY, a DATE, b TIME, b1 TIME(1), b2 TIME(2), b3 TIME(3), b4 TIME(4), b5 TIME(5), b6 TIME(6),
    c DATETIME, c1 DATETIME(1), c2 DATETIME(2), c3 DATETIME(3), c4 DATETIME(4), c5 DATETIME(5), c6 DATETIME(6),
    d TIMESTAMP NULL, d1 TIMESTAMP(1) NULL, d2 TIMESTAMP(2) NULL, d3 TIMESTAMP(3) NULL, d4 TIMESTAMP(4) NULL,
    d5 TIMESTAMP(5) NULL, d6 TIMESTAMP(6) NULL)"""
TEXTS = """CREATE TABLE texts (
    id INT PRIMARY KEY, a CHAR(10), b CHAR(255) CHARACTER SET utf8mb4, c VARCHAR(20), d VARCHAR(300),
    e TINYTEXT, f TEXT, g MEDIUMTEXT, h LONGTEXT, i JSON, j VARCHAR(60) COMPRESSED, k TEXT COMPRESSED,
    l CHAR(5) CHARACTER SET latin1, m VARCHAR(9) CHARACTER SET ucs2, n VARCHAR(9) CHARACTER SET utf16,
    o VARCHAR(9) CHARACTER SET utf16le, p CHAR(9) CHARACTER SET utf32, q VARCHAR(9) CHARACTER SET utf8mb3,
    r TEXT CHARACTER SET cp1251, s VARCHAR(9) CHARACTER SET sjis, t VARCHAR(9) COLLATE uca1400_ai_ci,
    u CHAR(9) CHARACTER SET ascii, v CHAR(0), w VARCHAR(9) CHARACTER SET swe7)"""
BYTES = """CREATE TABLE bytes (
    id INT PRIMARY KEY, a BINARY(8), b VARBINARY(20), c TINYBLOB, d BLOB, e MEDIUMBLOB, f LONGBLOB,
    g VARBINARY(500), h BLOB COMPRESSED, i BINARY(16), j BINARY(4))"""
SPECIAL = """CREATE TABLE special (
    id INT PRIMARY KEY, a ENUM('x','y''z','é','q\\\\r','') CHARACTER SET latin1,
    b SET('p','q','ü') CHARACTER SET utf8mb3, c ENUM('日','本'), d UUID, e INET6, f INET4, g GEOMETRY,
    h POINT, i POLYGON, j GEOMETRYCOLLECTION,
    k INT AS (id * 2) VIRTUAL, l INT AS (id * 3) STORED, m INT INVISIBLE DEFAULT 7,
    n SET('01','02','03','04','05','06','07','08','09','10','11','12','13','14','15','16','17','18','19','20',
          '21','22','23','24','25','26','27','28','29','30','31','32','33','34','35','36','37','38','39','40',
          '41','42','43','44','45','46','47','48','49','50','51','52','53','54','55','56','57','58','59','60',
          '61','62','63','64'),
    o SET('a','b','c','d','e','f','g','h','i','j','k','l','m','n','o','p','q'))"""


def integers(rng: random.Random, bits: int, *, unsigned: bool) -> int:
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return rng.choice([low, high, 0, 1, low + 1, high - 1, rng.randint(low, high)])


def random_decimal(rng: random.Random, precision: int, scale: int, *, unsigned: bool = False) -> str:
    digits = rng.choice([0, 1, 10**precision - 1, rng.randrange(10**precision), rng.randrange(10 ** (precision // 2))])
    sign = "-" if digits and not unsigned and rng.random() < 0.5 else ""
    text = f"{digits:0{precision + 1}d}"
    return f"{sign}{text[:-scale]}.{text[-scale:]}" if scale else sign + text


def random_numbers(rng: random.Random, key: int) -> list[str | None]:
    return [
        str(key),
        *(str(integers(rng, bits, unsigned=unsigned)) for bits in (8, 16, 24, 32, 64) for unsigned in (False, True)),
        repr(rng.choice([0.0, -0.0, 1.1, -3.4028234e38, 1.17549435e-38, 1e-45, rng.uniform(-1e9, 1e9)])),
        repr(rng.choice([0.0, -0.0, 0.1, 1.7976931348623157e308, 5e-324, rng.uniform(-1, 1), rng.random() * 1e300])),
        random_decimal(rng, 10, 2, unsigned=True),
        random_decimal(rng, 65, 30),
        random_decimal(rng, 18, 0),
        *(f"b'{integers(rng, bits, unsigned=True):b}'" for bits in (1, 13, 64)),
        str(rng.randint(0, 1)),
        str(rng.randint(-9_999_999, 9_999_999) / 100),
        str(rng.randint(-999_999_999, 999_999_999) / 1000),
        random_decimal(rng, 9, 9),
        random_decimal(rng, 38, 38),
        rng.choice(["0", "1901", "2155", "2024"]),
        random_decimal(rng, 5, 3, unsigned=True),
    ]


def random_times(rng: random.Random, key: int) -> list[str | None]:
    def clock(decimals: int, hours: int) -> str:
        text = f"{rng.choice([0, hours, rng.randint(0, hours)]):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}"
        digits = rng.choice([0, 1, 10**decimals - 1, rng.randrange(10**decimals)])
        return f"{text}.{digits:0{decimals}d}" if decimals else text

    def date() -> str:
        return rng.choice(
            [
                "0000-00-00",
                "9999-12-31",
                "0000-01-01",
                "0001-01-01",
                "2024-00-00",
                "2024-05-00",
                "0000-05-06",
                "2023-02-31",
                "1969-12-31",
                f"{rng.randint(0, 9999):04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
            ]
        )

    def stamp(decimals: int) -> str:
        day = rng.choice(
            ["0000-00-00", "1970-01-02", "2038-01-18", f"20{rng.randint(10, 37)}-03-{rng.randint(1, 31):02d}"]
        )
        if day == "0000-00-00":
            return "0000-00-00 00:00:00"
        return f"{day} {clock(decimals, 23)}"

    values: list[str | None] = [str(key), f"'{date()}'"]
    values += [f"'{rng.choice(['', '-'])}{clock(decimals, 837)}'" for decimals in range(7)]
    values += [f"'{date()} {clock(decimals, 23)}'" for decimals in range(7)]
    values += [f"'{stamp(decimals)}'" for decimals in range(7)]
    return values


def literal(raw: bytes, charset: str = "utf8mb4") -> str:
    return f"CONVERT(X'{raw.hex()}' USING {charset})" if raw else "''"


def random_texts(rng: random.Random, key: int) -> list[str | None]:
    def text(limit: int, letters: str = "aZ09 '\\\n\té日😀") -> str:
        size = rng.choice([0, 1, limit, rng.randint(0, limit)])
        return literal("".join(rng.choice(letters) for _ in range(size)).encode())

    small = "aZ 09é日"
    return [
        str(key),
        text(10),
        text(255),
        text(20),
        text(300),
        text(50),
        text(1000),
        text(1000),
        text(3000),
        literal(rng.choice(['{"a": [1, 2.5, "é"]}', "null", '"x"', "[]"]).encode()),
        text(60),
        text(2000),
        literal("".join(rng.choice("aé ÿ€") for _ in range(rng.randint(0, 5))).encode()),
        text(9, small),
        text(9),
        text(9),
        text(9),
        text(9, small),
        literal("".join(rng.choice("aЖя ") for _ in range(rng.randint(0, 40))).encode()),
        literal("".join(rng.choice("a日本 ") for _ in range(rng.randint(0, 9))).encode()),
        text(9),
        text(9, "aZ 09"),
        "''",
        text(9, "aZ 09"),
    ]


def random_bytes(rng: random.Random, key: int) -> list[str | None]:
    def raw(limit: int) -> str:
        size = rng.choice([0, 1, limit, rng.randint(0, limit)])
        return f"X'{bytes(rng.choice([0, 0, 32, 255, rng.randrange(256)]) for _ in range(size)).hex()}'"

    return [str(key), *(raw(limit) for limit in (8, 20, 255, 2000, 2000, 70_000, 500, 5000, 16, 4))]


def random_special(rng: random.Random, key: int) -> list[str | None]:
    def point() -> str:
        return f"{rng.uniform(-180, 180)!r} {rng.uniform(-90, 90)!r}"

    def inet6() -> str:
        groups = [rng.choice([0, 0, 0, 1, 0xFFFF, rng.randrange(1 << 16)]) for _ in range(8)]
        return ":".join(f"{group:x}" for group in groups)

    corner = f"{rng.randint(0, 9)} {rng.randint(0, 9)}"
    uuid = f"{rng.getrandbits(128):032x}"
    version = rng.choice("1234567f0")
    return [
        str(key),
        rng.choice(["'x'", "'y''z'", "'é'", "''", "1", "4", "5", "0"]),
        rng.choice(["''", "'p'", "'p,q'", "'ü,p'", "7"]),
        rng.choice(["'日'", "'本'"]),
        f"'{uuid[:12]}{version}{uuid[13:]}'",
        f"'{rng.choice([inet6(), '::', '::1', '::ffff:1.2.3.4', '::1.2.3.4', '1::', 'fe80::1:0:0:1'])}'",
        f"'{rng.randrange(256)}.{rng.randrange(256)}.0.{rng.choice([0, 255])}'",
        f"ST_GeomFromText('LINESTRING({point()}, {point()})', {rng.choice([0, 4326])})",
        f"ST_GeomFromText('POINT({point()})')",
        f"ST_GeomFromText('POLYGON(({corner}, 20 20, 20 30, {corner}))')",
        f"ST_GeomFromText('GEOMETRYCOLLECTION(POINT({point()}))')",
        rng.choice(["0", "1", str(1 << 63), str((1 << 64) - 1), str(rng.getrandbits(64))]),
        str(rng.getrandbits(17)),
    ]


ALL_TYPES: list[tuple[str, str, str, Callable[[random.Random, int], list[str | None]]]] = [
    ("numbers", NUMBERS, "", random_numbers),
    ("times", TIMES, "", random_times),
    ("texts", TEXTS, "", random_texts),
    ("bytes", BYTES, "", random_bytes),
    ("special", SPECIAL, "(id, a, b, c, d, e, f, g, h, i, j, n, o)", random_special),
]


def fill(
    server: MariaDbAddress,
    database: str,
    name: str,
    columns: str,
    make: Callable[[random.Random, int], list[str | None]],
    seed: int,
    count: int = 60,
) -> None:
    """Insert random rows, update and delete some; NULLs among them."""
    rng = random.Random(seed)
    statements = ["SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'"]
    for key in range(count):
        values = make(rng, key)
        for at in range(1, len(values)):
            if rng.random() < (0.5 if key % 5 == 0 else 0.05) or key == 0:
                values[at] = None
        listed = ", ".join("NULL" if value is None else value for value in values)
        statements.append(f"INSERT IGNORE INTO {name} {columns} VALUES ({listed})")
    statements += [f"UPDATE {name} SET id = id + 1000 WHERE id % 7 = 3", f"DELETE FROM {name} WHERE id % 11 = 5"]
    run(server, database, *statements)


@pytest.mark.parametrize(("name", "create", "columns", "make"), ALL_TYPES, ids=[entry[0] for entry in ALL_TYPES])
def test_every_type_comes_as_select_shows_it(
    mariadb: MariaDbAddress,
    mariadb_database: str,
    follow: Callable[..., Follower],
    name: str,
    create: str,
    columns: str,
    make: Callable[[random.Random, int], list[str | None]],
) -> None:
    """data-model.md, "Values": all types, at their extremes and at random, inserted, updated and deleted."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"replay: seed = {seed}")
    run(mariadb, mariadb_database, create)
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    fill(mariadb, mariadb_database, name, columns, make, seed)
    replica = Replica()
    maps = set()
    for transaction in follower.catch_up():
        replica.apply(transaction)
        maps |= {change.table for change in transaction.rows}
    tables = selected(mariadb, mariadb_database)
    assert sum(tables[name][1].values()) > 40
    assert maps == {tables[name][0]}, "the catalog describes the table in another way than the binlog"
    replica.assert_equals(tables)


def test_times_in_the_format_of_mariadb_5_3(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """Tables made with mysql56_temporal_format=OFF, or before MariaDB 10.1: the binlog does not tell their decimals."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"replay: seed = {seed}")
    mariadb.execute("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        run(mariadb, mariadb_database, TIMES)
    finally:
        mariadb.execute("SET GLOBAL mysql56_temporal_format = ON")
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    fill(mariadb, mariadb_database, "times", "", random_times, seed)
    replica = Replica()
    for transaction in follower.catch_up():
        replica.apply(transaction)
    tables = selected(mariadb, mariadb_database)
    assert "mariadb-5.3" in mariadb.execute("SHOW CREATE TABLE times", database=mariadb_database)[0][1]
    assert sum(tables["times"][1].values()) > 40
    replica.assert_equals(tables)

    # Without the catalog's word the decimals are unknown: refused, not guessed.
    position = follower.transactions[-1].event_id
    run(mariadb, mariadb_database, "INSERT INTO times (id, b3) VALUES (9999, '01:02:03.004')", "DROP TABLE times")
    with pytest.raises(UnsupportedTypeError, match=r"column b of table .*times has type time in MariaDB 5\.3"):
        follow(options_for(mariadb, databases=(mariadb_database,)), position)


def test_unsigned_float_and_invisible_columns_are_described(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """data-model.md: "columns with source type, logical type, unsigned, charset, nullable"; keys beside them."""
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE parent (a INT, b VARCHAR(20), PRIMARY KEY (b, a))",
        "CREATE TABLE child (id BIGINT UNSIGNED NOT NULL PRIMARY KEY, f FLOAT UNSIGNED, "
        "d DECIMAL(5,1) UNSIGNED NOT NULL, x INT, y VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin, "
        "z VARCHAR(20), UNIQUE KEY one (x, d), "
        "UNIQUE KEY part (y(3)), CONSTRAINT up FOREIGN KEY (z, x) REFERENCES parent (b, a))",
        "CREATE TABLE prefixed (t TEXT, n INT, PRIMARY KEY (t(5), n))",
    )
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    run(
        mariadb,
        mariadb_database,
        "INSERT INTO child VALUES (1, 1.5, 2.5, NULL, 'é', NULL)",
        "INSERT INTO prefixed VALUES ('abcdefgh', 1)",
    )
    child, prefixed = (transaction.rows[0].table for transaction in follower.catch_up())
    assert [column.source_type for column in child.columns] == [
        "bigint unsigned",
        "float unsigned",
        "decimal(5,1) unsigned",
        "int",
        "varchar(20)",
        "varchar(20)",
    ]
    assert [column.charset for column in child.columns][3:] == [None, "latin1", "utf8mb4"]
    assert [column.nullable for column in child.columns] == [False, True, False, True, True, True]
    assert child.primary_key == (0,)
    assert child.unique_keys == ((3, 2),), "a key over a part of a column is none over the column"
    assert child.foreign_keys[0].columns == (5, 3)
    assert (child.foreign_keys[0].ref_table, child.foreign_keys[0].ref_columns) == ("parent", ("b", "a"))
    assert prefixed.primary_key == (0, 1)
    tables = selected(mariadb, mariadb_database)
    assert (tables["child"][0], tables["prefixed"][0]) == (child, prefixed)


def test_a_uuid_without_its_table_is_what_the_option_says(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """Of a table that was gone before capture began the binlog tells the bytes alone: never BINARY(16) unsaid."""
    run(mariadb, mariadb_database, "CREATE TABLE u (id INT PRIMARY KEY, v UUID)")
    place = mariadb.execute("SELECT @@gtid_binlog_pos")[0][0]
    text = "123e4567-e89b-12d3-a456-426614174000"
    run(mariadb, mariadb_database, f"INSERT INTO u VALUES (1, '{text}')", "DROP TABLE u")
    options = options_for(mariadb, databases=(mariadb_database,), start=place)
    with pytest.raises(UnsupportedEventError, match=r"u\.v, which may be a UUID"):
        follow(options)
    for kind, value in (("uuid", UUID(text)), ("binary(16)", UUID(text).bytes)):
        follower = follow(replace(options, column_types=(f"{mariadb_database}.u.v={kind}",)))
        (transaction,) = (t for t in follower.transactions if t.rows)
        assert transaction.rows[0].after == (1, value)
        assert transaction.rows[0].table.columns[1].source_type == kind


def test_text_that_does_not_decode_keeps_its_bytes(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """data-model.md: "Bytes that do not decode travel as bytes with the charset's name"."""
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9) CHARACTER SET swe7, b VARCHAR(9) CHARACTER SET cp1257)",
    )
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    run(mariadb, mariadb_database, "INSERT INTO t VALUES (1, _swe7 X'5B41', _cp1257 X'41A541'), (2, 'AB', 'AB')")
    (transaction,) = follower.catch_up()
    assert [change.after for change in transaction.rows] == [
        (1, CharsetBytes("swe7", b"[A"), CharsetBytes("cp1257", b"A\xa5A")),
        (2, CharsetBytes("swe7", b"AB"), "AB"),
    ]


@pytest.mark.parametrize("charset", sorted(CHARSET_NAMES - {"utf8mb3", "utf8mb4", "utf16", "utf16le", "utf32"}))
def test_charsets_are_read_as_the_server_converts_them(mariadb: MariaDbAddress, charset: str) -> None:
    """charsets: decoded only as far as Python and the server agree, and the same bytes come back; every code."""
    decode_text = text_decoder(charset)
    many = charset in ("big5", "cp932", "eucjpms", "euckr", "gb2312", "gbk", "sjis", "ujis", "ucs2")
    ranges = ["seq_0_to_255"] if charset != "ucs2" else []
    if many:
        ranges.append("seq_256_to_65535" if charset == "ucs2" else "seq_32768_to_65535")
    decoded = 0
    for sequence in ranges:
        width = 2 if sequence != "seq_0_to_255" else 1
        rows = mariadb.execute(
            f"SELECT seq, HEX(CONVERT(CONVERT(UNHEX(LPAD(HEX(seq), {2 * width}, '0')) USING {charset}) USING utf32)), "
            f"HEX(CONVERT(CONVERT(CONVERT(UNHEX(LPAD(HEX(seq), {2 * width}, '0')) USING {charset}) USING utf32) "
            f"USING {charset})) "
            f"FROM {sequence}",
            database="mysql",
        )
        for number, converted, back in rows:
            text = decode_text(int(number).to_bytes(width, "big"))
            if isinstance(text, CharsetBytes):
                continue
            decoded += 1
            shown = None if converted is None else bytes.fromhex(converted).decode("utf-32-be", "replace")
            assert text == shown, f"{charset} 0x{number:x}"
            assert int(back, 16) == number, f"{charset} 0x{number:x} comes back as {back}"
    assert decoded >= (0 if charset == "swe7" else 128)


def test_sql_modes_have_the_servers_names(mariadb: MariaDbAddress) -> None:
    """Statements carry the sql_mode that they ran under, by its names."""
    with contextlib.closing(mariadb.connect()) as connection, connection.cursor() as cursor:
        for bit in range(35):
            cursor.execute(f"SET sql_mode = {1 << bit}")
            cursor.execute("SELECT @@sql_mode")
            row = cursor.fetchone()
            assert row is not None
            if row[0]:
                assert sql_mode_text(1 << bit) in row[0].split(","), bit


# --- the catalog and the reader of tables ----------------------------------------------------------------


def test_labels_are_read_from_the_catalog(mariadb: MariaDbAddress, mariadb_database: str) -> None:
    """The spelling of ENUM in information_schema, with its quotes and escapes."""
    run(
        mariadb,
        mariadb_database,
        r"CREATE TABLE t (id INT PRIMARY KEY, a ENUM('it''s','a,b','back\\slash','line\nfeed','(x)','') , "
        "b SET('é','ü') CHARACTER SET latin1)",
        r"INSERT INTO t VALUES (1, 'it''s', 'é'), (2, 'a,b', ''), (3, 'back\\slash', 'é,ü'), (4, 'line\nfeed', NULL)",
    )
    table, rows = selected(mariadb, mariadb_database)["t"]
    assert "it''s" in table.columns[1].source_type
    assert rows == Counter(
        comparable(row)
        for row in [
            (1, EnumLabel("it's"), SetLabels(("é",))),
            (2, EnumLabel("a,b"), SetLabels(())),
            (3, EnumLabel("back\\slash"), SetLabels(("é", "ü"))),
            (4, EnumLabel("line\nfeed"), None),
        ]
    )


def test_views_and_other_databases_are_no_tables(mariadb: MariaDbAddress, mariadb_database: str) -> None:
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE `odd ``name``` (`a b` INT PRIMARY KEY, `%s` BIT(3), at TIMESTAMP(3) NULL)",
        "CREATE VIEW v AS SELECT * FROM `odd ``name```",
        "INSERT INTO `odd ``name``` VALUES (1, b'101', '2020-01-01 00:00:00.5')",
    )
    reader = MariadbTables(options_for(mariadb))
    try:
        everything = reader.tables()
        assert not {"mysql", "sys", "performance_schema"} & {table.schema for table in everything}
        (table,) = (table for table in everything if table.schema == mariadb_database)
        assert table.table == "odd `name`"
        assert list(reader.rows(table)) == [(1, Bit(3, 5), Instant(1577836800500000))]
        with pytest.raises(UnsupportedTypeError):
            list(reader.rows(TableMap(schema="x", table="y", columns=())))
        mariadb.execute("DROP TABLE `odd ``name```", database=mariadb_database)
        with pytest.raises(SourceSetupError):
            list(reader.rows(table))
    finally:
        reader.close()


def test_a_lost_control_session_is_opened_again(mariadb: MariaDbAddress) -> None:
    """The session beside the stream may be idle for hours, and be ended by the server."""
    control = Control(options_for(mariadb))
    try:
        first = control.rows("SELECT CONNECTION_ID()")[0][0]
        mariadb.execute(f"KILL {first}")
        assert control.rows("SELECT @@global.server_id") == [(1,)]
        assert control.rows("SELECT CONNECTION_ID()")[0][0] != first
        assert control.rows("SELECT @@time_zone")[0][0] == "+00:00"
    finally:
        control.close()

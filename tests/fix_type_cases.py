"""Every column type of the sources with its extremes, in the source's own words: what `docs/types.md` is made of."""

from __future__ import annotations

from dataclasses import dataclass

NULL = ("NULL", "NULL")


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeCase:
    """A declared type and its extremes: what it is called, and the expression that makes it.

    `suffix` stands behind the CREATE TABLE's bracket. `binding` are values for `?` in the expression of that name.
    """

    declared: str
    extremes: tuple[tuple[str, str], ...]
    suffix: str = ""
    bindings: tuple[tuple[str, object], ...] = ()

    def bound(self, label: str) -> tuple[object, ...]:
        """The values to bind in the expression called `label`."""
        return tuple(value for name, value in self.bindings if name == label)


def _case(declared: str, *extremes: tuple[str, str]) -> TypeCase:
    return TypeCase(declared=declared, extremes=(NULL, *extremes))


# --- MariaDB ---------------------------------------------------------------------------------------------


def _integers() -> list[TypeCase]:
    cases = []
    for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64)):
        cases.append(_case(name, ("min", str(-(1 << bits - 1))), ("0", "0"), ("max", str((1 << bits - 1) - 1))))
        extremes = [("0", "0"), ("max", str((1 << bits) - 1))]
        if bits == 64:
            extremes[1:1] = [("2^63-1", str((1 << 63) - 1)), ("2^63", str(1 << 63))]
        cases.append(_case(f"{name} UNSIGNED", *extremes))
    cases.append(_case("INT(10) UNSIGNED ZEROFILL", ("7", "7"), ("max", str((1 << 32) - 1))))
    cases.append(_case("BOOL", ("false", "FALSE"), ("true", "TRUE"), ("127", "127")))
    return cases


def _decimals() -> list[TypeCase]:
    cases = []
    for precision, scale in ((1, 0), (10, 2), (18, 0), (38, 38), (65, 0), (65, 30)):
        digits = "9" * (precision - scale) or "0"
        most = f"{digits}.{'9' * scale}" if scale else digits
        least = "0." + "0" * (scale - 1) + "1" if scale else "1"
        cases.append(
            _case(f"DECIMAL({precision},{scale})", ("min", "-" + most), ("least", least), ("0", "0"), ("max", most))
        )
    cases.append(_case("DECIMAL(10,2) UNSIGNED", ("0", "0"), ("max", "99999999.99"), ("below 0", "-1")))
    return cases


_FLOATS = [
    _case(
        "FLOAT",
        *(("min", "-3.4028234663852886e38"), ("max", "3.4028234663852886e38"), ("least", "1.1754943508222875e-38")),
        *(("subnormal", "1.401298464324817e-45"), ("0.1", "0.1"), ("-0.0", "-0e0")),
        *(("infinity", "1e39"), ("NaN", "'NaN'")),
    ),
    _case(
        "DOUBLE",
        *(("min", "-1.7976931348623157e308"), ("max", "1.7976931348623157e308"), ("least", "2.2250738585072014e-308")),
        *(("subnormal", "5e-324"), ("0.1", "0.1"), ("-0.0", "-0e0"), ("infinity", "1e309"), ("NaN", "'NaN'")),
    ),
    _case("FLOAT(7,2)", ("min", "-99999.99"), ("max", "99999.99")),
    _case("DOUBLE(15,3) UNSIGNED", ("0", "0"), ("max", "999999999999.999")),
]


def _bits() -> list[TypeCase]:
    return [
        _case(f"BIT({n})", ("all 0", "0"), ("all 1", f"b'{'1' * n}'"), ("first 1", f"b'1{'0' * (n - 1)}'"))
        for n in (1, 2, 8, 9, 63, 64)
    ]


def _texts() -> list[TypeCase]:
    common = (
        *(("empty", "''"), ("spaces at the end", "'a  '"), ("like a number", "'007'")),
        *(("emoji", "'a😀'"), ("NUL", "CONCAT('a', CHAR(0), 'b')"), ("quotes", "'\\'\"\\\\{}'")),
    )
    cases = []
    for name, longest in (
        ("CHAR(255)", "REPEAT('é', 255)"),
        ("VARCHAR(16000)", "REPEAT('😀', 16000)"),
        ("TINYTEXT", "REPEAT('x', 255)"),
        ("TEXT", "REPEAT('x', 65535)"),
        ("MEDIUMTEXT", "REPEAT('x', 1048576)"),
        ("LONGTEXT", "REPEAT('é', 524288)"),
        ("VARCHAR(500) COMPRESSED", "REPEAT('x', 500)"),
        ("TEXT COMPRESSED", "REPEAT('x', 65534)"),
    ):
        label = "1 MiB" if name in ("MEDIUMTEXT", "LONGTEXT") else "longest"
        cases.append(_case(name, *common, (label, longest)))
    cases.append(_case("CHAR(0)", ("empty", "''")))
    for charset, letters in (
        *(("utf8mb3", "é日"), ("ucs2", "é日"), ("utf16", "é日😀"), ("utf16le", "é日😀"), ("utf32", "é日😀")),
        *(("ascii", "az"), ("latin1", "é€"), ("latin2", "ő"), ("latin5", "ş"), ("latin7", "ķ"), ("cp1250", "ő")),
        *(("cp1251", "Жя"), ("cp1256", "ش"), ("cp1257", "ķ"), ("cp850", "é"), ("cp852", "ő"), ("cp866", "Жя")),
        *(("greek", "Ω"), ("hebrew", "ש"), ("koi8r", "Жя"), ("koi8u", "ї"), ("macroman", "é"), ("macce", "ő")),
        *(("tis620", "ก"), ("big5", "日本"), ("gbk", "日本"), ("gb2312", "日本"), ("euckr", "日本")),
        *(("sjis", "日本"), ("cp932", "日本"), ("ujis", "日本"), ("eucjpms", "日本"), ("swe7", "az"), ("dec8", "é")),
        *(("hp8", "é"), ("armscii8", "ա"), ("geostd8", "ა"), ("keybcs2", "č")),
    ):
        cases.append(_case(f"VARCHAR(20) CHARACTER SET {charset}", ("letters", f"'{letters}'"), ("empty", "''")))
    cases.append(_case("VARCHAR(21) CHARACTER SET cp1257", ("an undefined byte", "_cp1257 X'41A541'")))
    cases.append(_case("VARCHAR(21) CHARACTER SET swe7", ("not ASCII", "_swe7 X'5B41'")))
    cases.append(_case("VARCHAR(21) CHARACTER SET ucs2", ("half a surrogate pair", "_ucs2 X'D83D'")))
    cases.append(
        _case(
            "JSON",
            *(("object", '\'{"b": 1,  "a": [1.0, null], "b": 2}\''), ("null", "'null'"), ("emoji", "'\"😀\"'")),
            *(("\\u0000", "'\"\\\\u0000\"'"), ("2^64", "'18446744073709551616'"), ("not JSON", "'{'")),
        )
    )
    return cases


def _bytes() -> list[TypeCase]:
    common = (("empty", "''"), ("zeros at the end", "X'410000'"), ("not UTF-8", "X'00FF5C27'"))
    return [
        _case(name, *common, (label, longest))
        for name, label, longest in (
            ("BINARY(255)", "longest", "REPEAT(X'FF', 255)"),
            ("BINARY(16)", "longest", "REPEAT(X'00', 16)"),
            ("VARBINARY(64000)", "longest", "REPEAT(X'00', 64000)"),
            ("TINYBLOB", "longest", "REPEAT(X'FF', 255)"),
            ("BLOB", "longest", "REPEAT(X'FF', 65535)"),
            ("MEDIUMBLOB", "longest", "REPEAT(X'FF', 16777215)"),
            ("LONGBLOB", "16 MiB", "REPEAT(X'FF', 16777216)"),
            ("BLOB COMPRESSED", "longest", "REPEAT(X'FF', 65534)"),
        )
    ]


def _times() -> list[TypeCase]:
    cases = [
        _case(
            "DATE",
            *(("0000-00-00", "'0000-00-00'"), ("0000-01-01", "'0000-01-01'"), ("0001-01-01", "'0001-01-01'")),
            *(("min", "'1000-01-01'"), ("2024-00-15", "'2024-00-15'"), ("2023-02-31", "'2023-02-31'")),
            *(("2024-02-29", "'2024-02-29'"), ("max", "'9999-12-31'")),
        )
    ]
    for digits in range(7):
        most = "." + "9" * digits if digits else ""
        least = "." + "0" * (digits - 1) + "1" if digits else ""
        behind = f"({digits})" if digits else ""
        cases.append(
            _case(
                f"TIME{behind}",
                *(("min", f"'-838:59:59{most}'"), ("least below 0", f"'-00:00:0{'0' + least if least else '1'}'")),
                *(("0", "'00:00:00'"), ("24 h", "'24:00:00'"), ("max", f"'838:59:59{most}'")),
            )
        )
        cases.append(
            _case(
                f"DATETIME{behind}",
                *(("zero", "'0000-00-00 00:00:00'"), ("0000-01-01", "'0000-01-01 00:00:00'")),
                *(("min", "'1000-01-01 00:00:00'"), ("2023-02-31", f"'2023-02-31 12:00:00{least}'")),
                ("max", f"'9999-12-31 23:59:59{most}'"),
            )
        )
        cases.append(
            _case(
                f"TIMESTAMP{behind} NULL",
                *(("zero", "'0000-00-00 00:00:00'"), ("min", "'1970-01-01 00:00:01'")),
                ("max", f"'2038-01-19 03:14:07{most}'"),
            )
        )
    cases.append(_case("YEAR", ("zero", "0"), ("min", "1901"), ("max", "2155")))
    cases.append(_case("YEAR(2)", ("min", "1970"), ("max", "2069")))
    return cases


def _others() -> list[TypeCase]:
    # What ENUM's error value, 0, becomes is test_mariadb_types.py's: no strict server takes it.
    many = [f"m{n:02d}" for n in range(64)]
    listed = ",".join(f"'{label}'" for label in many)
    shapes = {
        "GEOMETRY": "'POINT(1 2)', 4326",
        "POINT": "'POINT(-180 90)'",
        "LINESTRING": "'LINESTRING(0 0, 1 1)'",
        "POLYGON": "'POLYGON((0 0, 1 0, 1 1, 0 0))'",
        "MULTIPOINT": "'MULTIPOINT(0 0, 1 1)'",
        "MULTILINESTRING": "'MULTILINESTRING((0 0, 1 1))'",
        "MULTIPOLYGON": "'MULTIPOLYGON(((0 0, 1 0, 1 1, 0 0)))'",
        "GEOMETRYCOLLECTION": "'GEOMETRYCOLLECTION(POINT(1 2))'",
    }
    return [
        _case(
            "ENUM('a','b,c','é','')",
            *(("first", "1"), ("with a comma", "2"), ("letters", "'é'"), ("the empty label", "4")),
        ),
        _case("SET('a','b','é')", ("empty", "''"), ("one", "'a'"), ("all", "'a,b,é'")),
        _case(f"SET({listed})", ("empty", "''"), ("last", "'m63'"), ("all", f"'{','.join(many)}'")),
        _case(
            "UUID",
            ("min", "'00000000-0000-0000-0000-000000000000'"),
            ("max", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
        ),
        _case("INET4", ("min", "'0.0.0.0'"), ("max", "'255.255.255.255'")),
        _case(
            "INET6",
            ("min", "'::'"),
            ("an IPv4 address", "'::ffff:1.2.3.4'"),
            ("max", "'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'"),
        ),
        *(_case(name, ("a shape", f"ST_GeomFromText({shape})")) for name, shape in shapes.items()),
    ]


MARIADB: tuple[TypeCase, ...] = (
    *_integers(),
    *_decimals(),
    *_FLOATS,
    *_bits(),
    *_texts(),
    *_bytes(),
    *_times(),
    *_others(),
)
ANY_DATE_MODE = "SET sql_mode = 'STRICT_ALL_TABLES,ALLOW_INVALID_DATES'"
"""Lets every date in that MariaDB can store; what does not fit a type is an error of the server's."""


# --- SQLite ----------------------------------------------------------------------------------------------

_STORED: tuple[tuple[str, str, tuple[object, ...]], ...] = (
    ("NULL", "NULL", ()),
    ("integer min", str(-(1 << 63)), ()),
    ("integer 0", "0", ()),
    ("integer max", str((1 << 63) - 1), ()),
    ("real min", "?", (-1.7976931348623157e308,)),
    ("real max", "?", (1.7976931348623157e308,)),
    ("real subnormal", "?", (5e-324,)),
    ("real 0.1", "?", (0.1,)),
    ("real 1.0", "?", (1.0,)),
    ("real -0.0", "?", (-0.0,)),
    ("real infinity", "?", (float("inf"),)),
    ("real -infinity", "?", (float("-inf"),)),
    ("real NaN", "?", (float("nan"),)),
    ("text empty", "''", ()),
    ("text with spaces at the end", "'a  '", ()),
    ("text like a number", "'007'", ()),
    ("text emoji", "'a😀'", ()),
    ("text with NUL", "?", ("a\0b",)),
    ("text of 1 MiB", "?", ("é" * (1 << 19),)),
    ("text that is not UTF-8", "CAST(X'41FF' AS TEXT)", ()),
    ("blob empty", "X''", ()),
    ("blob of any bytes", "X'00FF5C2741'", ()),
    ("blob of 1 MiB", "zeroblob(1048576)", ()),
)


def _sqlite_case(declared: str, suffix: str = "") -> TypeCase:
    return TypeCase(
        declared=declared,
        extremes=tuple((label, expression) for label, expression, _ in _STORED),
        suffix=suffix,
        bindings=tuple((label, value) for label, _, values in _STORED for value in values),
    )


SQLITE: tuple[TypeCase, ...] = (
    *map(
        _sqlite_case,
        (
            *("INTEGER", "INT", "TINYINT", "BIGINT", "UNSIGNED BIG INT", "BOOLEAN"),
            *("TEXT", "CHAR(20)", "VARCHAR(20)", "NVARCHAR(20)", "CLOB", "JSON"),
            *("REAL", "DOUBLE PRECISION", "FLOAT", "NUMERIC", "DECIMAL(10,5)", "DATE", "DATETIME", "TIMESTAMP"),
            *("BLOB", "", "STRING"),
        ),
    ),
    *(_sqlite_case(declared, " STRICT") for declared in ("INT", "INTEGER", "REAL", "TEXT", "BLOB", "ANY")),
)


# --- PostgreSQL ------------------------------------------------------------------------------------------

POSTGRES_SETUP = (
    "CREATE EXTENSION citext",
    "CREATE EXTENSION hstore",
    "CREATE TYPE mood AS ENUM ('sad', 'so, so', 'é', '')",
    "CREATE DOMAIN positive AS numeric(10,2) CHECK (VALUE > 0)",
    "CREATE TYPE pair AS (a int, b text)",
)
"""What makes the types of `POSTGRES` that are not built in."""


def _postgres_numbers() -> list[TypeCase]:
    cases = []
    for name, bits in (("smallint", 16), ("integer", 32), ("bigint", 64)):
        cases.append(_case(name, ("min", str(-(1 << bits - 1))), ("0", "0"), ("max", str((1 << bits - 1) - 1))))
    cases.append(_case("boolean", ("false", "false"), ("true", "true")))
    no_numbers = (("NaN", "'NaN'"), ("infinity", "'Infinity'"), ("-infinity", "'-Infinity'"))
    for precision, scale in ((1, 0), (10, 2), (65, 30), (100, 50)):
        most = "9" * (precision - scale) + ("." + "9" * scale if scale else "")
        least = "0." + "0" * (scale - 1) + "1" if scale else "1"
        extremes = (("min", "-" + most), ("least", least), ("0", "0"), ("max", most), no_numbers[0])
        cases.append(_case(f"numeric({precision},{scale})", *extremes))
    cases.append(
        _case(
            "numeric",
            *(
                ("40 digits", "1234567890123456789012345678901234567890"),
                ("2000 digits", f"'{'9' * 1000}.{'9' * 1000}'"),
            ),
            *(("1e-20", "0.00000000000000000001"), ("1.50", "1.50"), ("0.00", "0.00"), *no_numbers),
        )
    )
    cases.append(
        _case(
            "real",
            *(("min", "'-3.4028235e38'"), ("max", "'3.4028235e38'"), ("subnormal", "'1e-45'"), ("0.1", "0.1")),
            *(("minus zero", "'-0'"), *no_numbers),
        )
    )
    cases.append(
        _case(
            "double precision",
            *(("min", "'-1.7976931348623157e308'"), ("max", "'1.7976931348623157e308'"), ("subnormal", "'5e-324'")),
            *(("0.1", "0.1"), ("minus zero", "'-0'"), *no_numbers),
        )
    )
    return cases


def _postgres_times() -> list[TypeCase]:
    infinite = (("infinity", "'infinity'"), ("-infinity", "'-infinity'"))
    cases = [
        _case(
            "date",
            *(("4713 BC", "'4713-01-01 BC'"), ("0001-01-01", "'0001-01-01'"), ("2024-02-29", "'2024-02-29'")),
            *(("9999-12-31", "'9999-12-31'"), ("max", "'5874897-12-31'"), *infinite),
        ),
        _case(
            "interval", ("zero", "'0'"), ("mixed", "'1 year -2 mons 3 days -04:05:06.789'"), ("long", "'178000000 y'")
        ),
        _case("time with time zone", ("min", "'00:00:00+1559'"), ("max", "'24:00:00-1559'")),
    ]
    for digits in ("", "(0)", "(3)"):
        most = {"": ".999999", "(0)": "", "(3)": ".999"}[digits]
        cases.append(
            _case(f"time{digits}", ("min", "'00:00:00'"), ("max", f"'23:59:59{most}'"), ("24:00", "'24:00:00'"))
        )
        for name in ("timestamp", "timestamptz"):
            zone = "+00" if name == "timestamptz" else ""
            cases.append(
                _case(
                    f"{name}{digits}",
                    *(("4713 BC", f"'4713-01-01 00:00:00{zone} BC'"), ("1970", f"'1970-01-01 00:00:00{zone}'")),
                    *(("9999", f"'9999-12-31 23:59:59{most}{zone}'"), ("294247", f"'294247-01-01 00:00:00{zone}'")),
                    *(("294276", f"'294276-12-31 23:59:59{most}{zone}'"), *infinite),
                )
            )
    return cases


_POSTGRES_TEXTS = (
    *(("empty", "''"), ("spaces at the end", "'a  '"), ("like a number", "'007'"), ("emoji", "'a😀'")),
    ("quotes", "E'\\'\"\\\\{},'"),
)


def _postgres_others() -> list[TypeCase]:
    uuids = (
        ("min", "'00000000-0000-0000-0000-000000000000'"),
        ("max", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    )
    return [
        *(_case(name, *_POSTGRES_TEXTS) for name in ("text", "varchar(20)", "varchar", "citext", "name")),
        _case("char(5)", *_POSTGRES_TEXTS[1:4]),
        _case('"char"', ("one", "'x'"), ("empty", "''")),
        _case("bytea", ("empty", "''"), ("any bytes", "'\\x00ff5c27'"), ("1 MiB", "repeat('x', 1048576)::bytea")),
        _case("bit(1)", ("0", "B'0'"), ("1", "B'1'")),
        _case("bit(70)", ("all 1", f"B'{'1' * 70}'"), ("first 1", f"B'1{'0' * 69}'")),
        _case("bit varying", ("empty", "B''"), ("leading 0", "B'0101'"), ("100 bits", f"B'{'10' * 50}'")),
        _case(
            "json",
            ("object", '\'{"b": 1,  "a": [1.0, null], "b": 2}\''),
            ("null", "'null'"),
            ("2^64", "'18446744073709551616'"),
        ),
        _case("jsonb", ("object", '\'{"b": 1,  "a": [1.0, null]}\''), ("null", "'null'"), ("text", "'\"é\"'")),
        _case("uuid", *uuids),
        _case("mood", ("first", "'sad'"), ("with a comma", "'so, so'"), ("letters", "'é'"), ("the empty label", "''")),
        _case("positive", ("least", "0.01"), ("max", "99999999.99")),
        _case("pair", ("row", "ROW(1, 'a, \"b\"')"), ("of NULLs", "ROW(NULL, NULL)")),
        _case(
            "integer[]",
            ("empty", "'{}'"),
            ("with NULL", "'{1,NULL,-3}'"),
            ("nested", "'{{1,2},{3,4}}'"),
            ("from 0", "'[0:1]={5,6}'"),
        ),
        _case("text[]", ("quotes", "ARRAY['a,b', 'c\"d', 'NULL', '', NULL]")),
        _case("mood[]", ("labels", "ARRAY['so, so', '']::mood[]")),
        _case("int4range", ("empty", "'empty'"), ("half", "'[1,5)'"), ("open", "'(,)'")),
        _case("tstzrange", ("with zone", "'[2024-01-01 00:00+02, infinity)'")),
        _case("int8multirange", ("two", "'{[1,3),[5,7)}'")),
        _case("inet", ("host", "'127.0.0.1'"), ("net", "'::1/64'")),
        _case("cidr", ("net", "'127.0.0.0/8'")),
        _case("macaddr", ("address", "'08:00:2b:01:02:03'")),
        _case("money", ("min", "'-92233720368547758.08'"), ("max", "'92233720368547758.07'")),
        _case("xml", ("element", "'<a b=\"1\">é</a>'")),
        _case("hstore", ("pairs", "'a=>1, \"b c\"=>NULL'")),
        _case("point", ("point", "'(1.5,-2)'")),
        _case("polygon", ("triangle", "'((0,0),(1,0),(0,1))'")),
        _case("tsvector", ("words", "'fat:2 cat:3'")),
        _case("tsquery", ("words", "'fat & rat'")),
        _case("oid", ("max", "4294967295")),
        _case("regclass", ("a table", "'pg_class'")),
        _case("pg_lsn", ("LSN", "'16/B374D848'")),
        _case("jsonpath", ("path", "'$.a[*]'")),
    ]


POSTGRES: tuple[TypeCase, ...] = (*_postgres_numbers(), *_postgres_times(), *_postgres_others())

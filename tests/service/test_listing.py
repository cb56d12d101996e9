"""The text forms of `thl`: thl-internals, "'thl' Utility", and the forms that the ancestor's own output has."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from tranlog.change import Change, Column, Op, Options, RowChange, Statement, TableMap
from tranlog.header import TransactionHeader
from tranlog.ids import Epoch, Seqno
from tranlog.listing import header_json, header_line, time_text
from tranlog.log.reading.text import fragment_json, fragment_lines
from tranlog.payload import Payload
from tranlog.service.thl import listing
from tranlog.service.thl.listing import SegmentShown
from tranlog.types import UNCHANGED, LogicalType

AT = 1309533317000  # 2011-07-01 15:15:17 UTC


def header_of(
    seqno: int = 5,
    *,
    fragno: int = 0,
    last: bool = True,
    epoch: int = 0,
    event_id: str = "000868:0000000000001025;193351",
    source_id: str = "logos2",
    shard: str = "test",
    tstamp: int = AT,
    tables: tuple[tuple[str, str], ...] | None = (),
) -> TransactionHeader:
    return TransactionHeader(
        seqno=Seqno(seqno),
        fragno=fragno,
        last_frag=last,
        epoch=Epoch(epoch),
        source_id=source_id,
        event_id=event_id,
        shard_id=shard,
        tstamp=tstamp,
        tables=tables,
        record_length=0,
        data_length=0,
        spilled=False,
        write_set=b"",
    )


def lines(*changes: Change, metadata: Options = (), options: Options = ()) -> list[str]:
    """Return what is printed behind TYPE."""
    shown = list(fragment_lines(header_of(), Payload(metadata=metadata, options=options, changes=changes)))
    assert shown[6].startswith("- TYPE = ")
    return shown[7:]


def test_the_documents_example() -> None:
    """thl-internals: `thl -service percona list -seqno 5`, line by line."""
    statement = Statement(
        schema="test",
        sql="insert into foo values(4) /* ___SERVICE___ = [percona] */",
        ddl=False,
        options=(
            ("##charset", "ISO8859_1"),
            ("autocommit", "1"),
            ("sql_auto_is_null", "1"),
            ("foreign_key_checks", "1"),
            ("unique_checks", "1"),
            ("sql_mode", "''"),
            ("character_set_client", "8"),
            ("collation_connection", "8"),
            ("collation_server", "8"),
        ),
    )
    metadata = (("mysql_server_id", "1"), ("service", "percona"), ("shard", "test"))
    shown = "\n".join(fragment_lines(header_of(), Payload(metadata=metadata, changes=(statement,))))
    assert shown == (
        "SEQ# = 5 / FRAG# = 0 (last frag)\n"
        "- TIME = 2011-07-01 15:15:17.0\n"
        "- EPOCH# = 0\n"
        "- EVENTID = 000868:0000000000001025;193351\n"
        "- SOURCEID = logos2\n"
        "- METADATA = [mysql_server_id=1;service=percona;shard=test]\n"
        "- TYPE = com.continuent.tungsten.replicator.event.ReplDBMSEvent\n"
        "- OPTIONS = [##charset = ISO8859_1, autocommit = 1, sql_auto_is_null = 1, foreign_key_checks = 1, "
        "unique_checks = 1, sql_mode = '', character_set_client = 8, collation_connection = 8, collation_server = 8]\n"
        "- SCHEMA = test\n"
        "- SQL(0) = insert into foo values(4) /* ___SERVICE___ = [percona] */"
    )


@pytest.mark.parametrize(
    ("tstamp", "text"),
    [
        (AT, "2011-07-01 15:15:17.0"),
        (AT + 37, "2011-07-01 15:15:17.037"),
        (AT + 370, "2011-07-01 15:15:17.37"),
        (0, "1970-01-01 00:00:00.0"),
        (-1, "1969-12-31 23:59:59.999"),
        (253402300800000, "10000-01-01 00:00:00.0"),
    ],
)
def test_times_are_utc_and_end_as_the_ancestors(tstamp: int, text: str) -> None:
    assert time_text(tstamp) == text


def test_a_fragment_that_is_not_the_last_says_nothing_more() -> None:
    first, *_ = fragment_lines(header_of(8, last=False), Payload())
    assert first == "SEQ# = 8 / FRAG# = 0"


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ((), "[shard=test]"),
        ((("k", ""),), "[k;shard=test]"),
        ((("shard", "first"), ("shard", "second")), "[shard=first;shard=second]"),
        ((("noop", "true"),), "[noop=true;shard=test]"),
    ],
)
def test_the_shard_stands_where_the_ancestors_user_looks(metadata: Options, text: str) -> None:
    shown = list(fragment_lines(header_of(), Payload(metadata=metadata)))
    assert shown[5] == f"- METADATA = {text}"


def test_statements_name_a_schema_once() -> None:
    """As the ancestor prints several statements of one event; DDL is marked by its option."""
    shown = lines(
        Statement(schema="a", sql="insert into a.t values(1)", ddl=False),
        Statement(schema="b", sql="insert into b.t values(2)", ddl=False),
        Statement(schema="b", sql=b"insert into b.t values('\xff')", ddl=False),
        Statement(schema="", sql="create database x", ddl=True),
    )
    assert shown == [
        "- SCHEMA = a",
        "- SQL(0) = insert into a.t values(1)",
        "- SCHEMA = b",
        "- SQL(1) = insert into b.t values(2)",
        "- SQL(2) = insert into b.t values('\\xff')",
        "- OPTIONS = [schema_change = true]",
        "- SCHEMA = ",
        "- SQL(3) = create database x",
    ]


ACCOUNT = TableMap(
    schema="db1",
    table="acct",
    columns=(
        Column(name="id", source_type="int", logical=LogicalType.INTEGER),
        Column(name="name", source_type="text", logical=LogicalType.TEXT),
        Column(name="sum", source_type="decimal(10,2)", logical=LogicalType.DECIMAL),
    ),
    primary_key=(0,),
)
ROWS = (
    RowChange(ACCOUNT, Op.INSERT, None, (1, "one", Decimal("1.50"))),
    RowChange(ACCOUNT, Op.INSERT, None, (2, None, None)),
    RowChange(ACCOUNT, Op.UPDATE, (1, "one", UNCHANGED), (1, "uno", UNCHANGED)),
    RowChange(ACCOUNT, Op.DELETE, (2, None, None), None),
)


def test_row_images() -> None:
    """Consecutive changes of one table and operation share a block; COL is the image after, KEY the one before."""
    assert lines(*ROWS, options=(("foreign_key_checks", "1"),)) == [
        "- OPTIONS = [foreign_key_checks = 1]",
        "- SQL(0) =",
        " - ACTION = INSERT",
        " - SCHEMA = db1",
        " - TABLE = acct",
        " - ROW# = 0",
        "  - COL(1: id) = 1",
        "  - COL(2: name) = one",
        "  - COL(3: sum) = 1.50",
        " - ROW# = 1",
        "  - COL(1: id) = 2",
        "  - COL(2: name) = NULL",
        "  - COL(3: sum) = NULL",
        " - ACTION = UPDATE",
        " - SCHEMA = db1",
        " - TABLE = acct",
        " - ROW# = 0",
        "  - COL(1: id) = 1",
        "  - COL(2: name) = uno",
        "  - COL(3: sum) = UNCHANGED",
        "  - KEY(1: id) = 1",
        "  - KEY(2: name) = one",
        "  - KEY(3: sum) = UNCHANGED",
        " - ACTION = DELETE",
        " - SCHEMA = db1",
        " - TABLE = acct",
        " - ROW# = 0",
        "  - KEY(1: id) = 2",
        "  - KEY(2: name) = NULL",
        "  - KEY(3: sum) = NULL",
    ]


def test_rows_and_statements_are_numbered_together() -> None:
    shown = lines(ROWS[0], ROWS[1], Statement(schema="db1", sql="set @a := 1", ddl=False), ROWS[3])
    assert [line for line in shown if line.startswith("- SQL(")] == [
        "- SQL(0) =",
        "- SQL(1) = set @a := 1",
        "- SQL(2) =",
    ]


def test_a_header_is_one_line_of_eight_columns_whatever_the_names() -> None:
    """A table's name may hold a line of its own: it is shown, and is none."""
    shown = header_line(header_of(8), comments="writes ROWS changes=1 shop.a\tb\n9\t1\t0\ttrue\x1b[2Jé:INSERT:1")
    assert shown.count("\t") == 8 and "\n" not in shown and "\x1b" not in shown
    assert shown.endswith("\twrites ROWS changes=1 shop.a\\tb\\n9\\t1\\t0\\ttrue\\x1b[2Jé:INSERT:1\t")


def test_headers() -> None:
    """The ancestor's columns: seqno, epoch, fragno, last fragment, time, event id, source id, comments."""
    shown = header_of(8, fragno=1, epoch=3, tstamp=AT + 37)
    assert header_line(shown) == ("8\t3\t1\ttrue\t2011-07-01 15:15:17.037\t000868:0000000000001025;193351\tlogos2\t\t")
    assert header_json(shown) == (
        '{\n"seqno": 8,\n"epoch": 3,\n"frag": 1,\n"lastFrag": true,\n"time": "2011-07-01 15:15:17.037",\n'
        '"eventId": "000868:0000000000001025;193351",\n"sourceId": "logos2",\n"comments": ""\n}'
    )
    assert json.loads(header_json(header_of(source_id='a"b\n c')))["sourceId"] == 'a"b\n c'


def test_a_fragment_as_json() -> None:
    shown = json.loads(
        fragment_json(
            header_of(7, epoch=2, tables=(("db1", "acct"),)),
            Payload(metadata=(("a", "1"),), changes=(*ROWS, Statement(schema="s", sql="x", ddl=True))),
        )
    )
    assert (shown["seqno"], shown["gtid"], shown["shardId"], shown["tables"]) == (7, "GTID(2, 7)", "test", ["db1.acct"])
    insert, _, update, delete, statement = shown["changes"]
    assert insert == {
        "op": "INSERT",
        "schema": "db1",
        "table": "acct",
        "key": {"id": 1},
        "after": {"id": 1, "name": "one", "sum": "1.50"},
    }
    assert update["before"] == {"id": 1, "name": "one", "sum": {"unchanged": True}}, "not sent is not null"
    assert delete["before"] == {"id": 2, "name": None, "sum": None}
    assert statement == {"op": "STATEMENT", "schema": "s", "statement": "x", "ddl": True}


def test_the_index_and_the_overview() -> None:
    """The forms of the ancestor's `index` and `info`; events are counted right (B7-6: it counts one too few)."""
    assert listing.index_line("thl.data.0000000001", 0, 11) == "LogIndexEntry thl.data.0000000001(0:11)"
    segments = [
        SegmentShown(file="thl.data.0000000001", bytes=3749, modified_ms=AT + 1),
        SegmentShown(file="thl.data.0000000002", bytes=2_100_000, modified_ms=AT + 61_000),
    ]
    shown = listing.overview("logs/percona", segments, first=0, last=11, events=12, history=bytes(range(16)))
    assert list(listing.overview_lines(shown)) == [
        "log directory = logs/percona/",
        "log files = 2",
        "logs size = 2.01 MB",
        "min seq# = 0",
        "max seq# = 11",
        "events = 12",
        "oldest file = thl.data.0000000001 (0.00 MB, 2011-07-01 15:15:17)",
        "newest file = thl.data.0000000002 (2.00 MB, 2011-07-01 15:16:18)",
        "history = 000102030405060708090a0b0c0d0e0f",
    ]
    damaged = listing.overview("d", [], first=0, last=3, events=None, history=None)
    assert not [line for line in listing.overview_lines(damaged) if line.startswith("events")]
    assert listing.index_line("thl.data.0000000002", -1, -1) == "LogIndexEntry thl.data.0000000002(-1:-1)"


def test_what_a_purge_will_delete() -> None:
    assert [listing.purge_line(*ends) for ends in ((1, 2), (3, None), (None, 4), (5, 5))] == [
        "Deleting events where SEQ# >= 1 and SEQ# <=2",
        "Deleting events where SEQ# >= 3",
        "Deleting events where SEQ# <=4",
        "Deleting events where SEQ# = 5",
    ]

"""Arrow batches hold what a cursor decodes."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

from fix_columns import VALUES, change_rows, random_changes, table_of, transaction_rows
from fix_effort import few_of
from fix_log import flip, make_fragment, open_log, open_reader, record_starts, segment_path
from fix_pipeline import Workload
from fix_type_cases import SQLITE
from tranlog.capture.capture import Capture
from tranlog.change import Change, Op, RowChange, Statement
from tranlog.errors import ConfigError, CorruptRecordError, PayloadError
from tranlog.ids import Gtid, Seqno
from tranlog.log.reading.arrow import CHANGE_COLUMNS, TRANSACTION_COLUMNS, Unit, batch_schema
from tranlog.log.records.columns import Selection
from tranlog.log.writing.log import Log, LogReader
from tranlog.row_bytes import encode_value
from tranlog.source.packer import pack
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect
from tranlog.testing.disk import SimDisk
from tranlog.types import STRUCT_TAGS, Tag, canonical
from tranlog.value_ends import pass_value


def read(log: Log | LogReader, start: int = 0, **given: Any) -> list[pa.RecordBatch]:
    with log.cursor() as cursor:
        cursor.seek(Seqno(start))
        return list(cursor.batches(wait=False, **given))


def rows(batches: Sequence[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        batch.validate(full=True)
        at = batch.schema.get_field_index("commit_time")
        if at >= 0:
            batch = batch.set_column(at, "commit_time", batch.column(at).cast(pa.int64()))
        yield from batch.to_pylist()


def write(log: Log, changes: Sequence[Change], event_id: str = "e", **given: Any) -> None:
    for fragment in pack(changes, source_id="db1", event_id=event_id, tstamp=1_700_000_000_123, **given):
        log.append(fragment)


def test_every_tag_is_among_the_values() -> None:
    assert {canonical(value)[0] for value in VALUES} | {Tag.U64} == set(Tag)
    assert set(STRUCT_TAGS.values()) <= set(Tag)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_a_value_ends_where_it_ends(value: Any) -> None:
    raw = encode_value(value)
    assert pass_value(b"x" + raw + b"\x04\x00", 1) == 1 + len(raw)


def test_each_value_alone_and_all_in_one_column() -> None:
    """Every type: as the only kind in its column, and mixed."""
    with open_log(SimDisk(), segment_bytes=50_000) as log:
        for number, value in enumerate(VALUES):
            write(log, [RowChange(table_of(2, table=f"t{number}"), Op.INSERT, None, (number, value))] * 2)
        table = table_of(2, key=(1,))
        write(log, [RowChange(table, Op.INSERT, None, (number, value)) for number, value in enumerate(VALUES)])
        log.commit()
        assert list(rows(read(log))) == list(change_rows(log))
        assert list(rows(read(log, unit=Unit.TRANSACTION))) == list(transaction_rows(log))


@pytest.mark.long
@pytest.mark.parametrize("seed", few_of(range(6), 2))
def test_random_changes(seed: int) -> None:
    """Several tables in a transaction, several fragments, statements among the rows, small and large batches."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=30_000, checksum=seed != 5) as log:
        changes = random_changes(seed, 300)
        for number in range(0, 200, 5):
            metadata = (("number", str(number % 10)), ("number", "later")) if number % 3 else ()
            write(log, changes[number : number + 1 + number % 7], f"e{number}", metadata=metadata)
        write(log, [])
        write(log, changes[200:])
        workload = Workload(seed=seed, large=0.05)
        workload.write(log, 40)
        log.commit()
        wanted, whole = list(change_rows(log)), list(transaction_rows(log))
        assert max(row["fragno"] for row in wanted) > 0
        assert list(rows(read(log))) == wanted
        assert list(rows(read(log, unit=Unit.TRANSACTION))) == whole
        with open_reader(disk) as reader:
            assert list(rows(read(reader, 17))) == [row for row in wanted if row["seqno"] >= 17]
            until = Seqno(21)
            assert list(rows(read(reader, 3, until=until))) == [row for row in wanted if 3 <= row["seqno"] <= 21]


@pytest.mark.long
def test_what_sqlite_can_store(tmp_path: Path) -> None:
    """tests/fix_type_cases.py: every type that SQLite declares, with its extremes, through the source itself."""
    database = connect(str(tmp_path / "types.db"))
    for number, case in enumerate(SQLITE):
        database.execute(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, v {case.declared}){case.suffix}")
        for label, expression in case.extremes:
            if "MiB" in label and number:
                continue
            with contextlib.suppress(apsw.ConstraintError):  # a STRICT table takes its own type only
                database.execute(f"INSERT INTO t{number} (v) VALUES ({expression})", case.bound(label))
    source = SqliteSource(SqliteSourceOptions(path=str(tmp_path / "types.db"), source_id="types"))
    with Log.open(tmp_path / "log", source_id="types") as log:
        Capture(source, log).catch_up()
        found = list(rows(read(log)))
        assert found == list(change_rows(log))
        assert len(found) > 400
    database.close()


@pytest.mark.parametrize(
    "selection",
    [
        Selection(shards=frozenset(("north", "east"))),
        Selection(shards=frozenset(("#UNKNOWN",))),
        Selection(schemas=frozenset(("south",))),
        Selection(tables=frozenset((("west", "items"), ("types", "wide")))),
        Selection(shards=frozenset(("north", "#UNKNOWN")), schemas=frozenset(("north",))),
        Selection(schemas=frozenset(("types",))),
        Selection(schemas=frozenset(("nowhere",))),
    ],
    ids=["two shards", "unknown", "a schema", "tables", "shards of a schema", "types", "nothing"],
)
def test_a_selection(selection: Selection) -> None:
    with open_log(SimDisk(), segment_bytes=20_000) as log:
        Workload(seed=3, large=0.02, serial=0.2).write(log, 150)
        write(log, random_changes(9, 60))
        log.commit()
        wanted = list(change_rows(log, selection))
        assert list(rows(read(log, selection=selection))) == wanted
        some = ["seqno", "kind", "schema", "table"]
        narrow = [{name: row[name] for name in some} for row in wanted]
        assert list(rows(read(log, selection=selection, columns=some))) == narrow


def test_what_is_not_wanted_is_not_decoded() -> None:
    """Shards, schemas and tables are told by the header, before a payload is decoded."""
    with open_log(SimDisk()) as log:
        log.append(make_fragment("rubbish", b"\xff\xff", shard_id="north", tables=(("north", "items"),)))
        Workload(seed=4, shards=("south",), serial=0).write(log, 5)
        log.commit()
        for selection in (
            Selection(shards=frozenset(("south",))),
            Selection(schemas=frozenset(("south",))),
            Selection(tables=frozenset((("south", "items"),))),
        ):
            assert {row["shard_id"] for row in rows(read(log, selection=selection))} == {"south"}
        with pytest.raises(PayloadError, match="seqno 1 "):
            read(log)


def test_chosen_columns_in_the_order_given() -> None:
    with open_log(SimDisk()) as log:
        Workload(seed=2).write(log, 30)
        wanted = list(change_rows(log))
        for columns in (["table"], ["after", "seqno"], ["key"], ["op", "commit_time", "gtid"], list(CHANGE_COLUMNS)):
            batches = read(log, columns=columns)
            assert batches[0].schema == batch_schema(columns)
            assert list(rows(batches)) == [{name: row[name] for name in columns} for row in wanted]
        (batch,) = read(log, unit=Unit.TRANSACTION, columns=["seqno"])
        assert batch.column(0).to_pylist() == list(range(31))
        assert batch_schema(unit=Unit.TRANSACTION).names == list(TRANSACTION_COLUMNS)
        with pytest.raises(ConfigError, match="one row per change has the columns gtid"):
            read(log, columns=["payload"])


def test_units_by_their_names_and_what_is_none() -> None:
    """A table by its full name would select nothing without a word."""
    with open_log(SimDisk()) as log:
        Workload(seed=2).write(log, 30)
        for unit in Unit:
            assert read(log, unit=str(unit)) == read(log, unit=unit)
        with pytest.raises(ValueError, match="'row' is not a valid Unit"):
            read(log, unit="row")
        with pytest.raises(TypeError, match=r"a pair of schema and table, not 'shop\.orders'"):
            read(log, selection=Selection(tables=frozenset({"shop.orders"})))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["shards", "schemas", "tables"])
def test_a_selection_by_one_name_is_refused(name: str) -> None:
    """It would be looked for in the text, by parts of it. Compiled, Selection itself refuses it."""
    with open_log(SimDisk()) as log:
        Workload(seed=2).write(log, 30)
        with pytest.raises(TypeError, match=f"{name} of a Selection are a set, not the str 'shop'|frozenset"):
            read(log, selection=Selection(**{name: "shop"}))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a selection is a Selection, not"):
            read(log, selection={"shop"})


def test_what_repeats_is_a_dictionary() -> None:
    """Dictionary columns for source, shard, table."""
    schema = batch_schema()
    for name in ("source_id", "shard_id", "schema", "table"):
        assert pa.types.is_dictionary(schema.field(name).type)
    with open_log(SimDisk()) as log:
        Workload(seed=2).write(log, 100)
        (batch,) = read(log)
        assert sorted(batch["schema"].dictionary.to_pylist()) == ["east", "north", "south", "west"]
        assert len(batch["shard_id"].dictionary) == 5


def test_a_batch_is_bounded() -> None:
    """Bounded memory: by rows within a transaction of several fragments, and by bytes."""
    with open_log(SimDisk()) as log:
        table = table_of(2)
        write(log, [RowChange(table, Op.INSERT, None, (number, "x" * 40)) for number in range(90_000)])
        for number in range(6):
            write(log, [RowChange(table, Op.INSERT, None, (number, "y" * 2_000_000))])
        log.commit()
        batches = read(log, columns=["seqno", "after"])
        assert sum(batch.num_rows for batch in batches) == 90_007
        assert len(batches) > 5 and max(batch.num_rows for batch in batches) < 50_000
        assert max(batch.nbytes for batch in batches) < 20_000_000


def test_what_is_there_goes_out_before_waiting(tmp_path: Path) -> None:
    """By default batches wait, as a cursor does; nobody waits for what is there already."""
    with Log.open(tmp_path / "log", source_id="db1") as log, log.cursor() as cursor:
        batches = cursor.batches(columns=["seqno"])
        assert next(batches)["seqno"].to_pylist() == [0]
        write(log, [RowChange(table_of(1), Op.INSERT, None, (1,))])
        log.commit(sync=False)
        assert next(batches)["seqno"].to_pylist() == [1]


def test_several_epochs_in_one_batch() -> None:
    disk = SimDisk()
    for _ in range(3):
        with open_log(disk) as log:
            write(log, [RowChange(table_of(1), Op.INSERT, None, (1,))])
    with open_reader(disk) as reader:
        assert list(rows(read(reader))) == list(change_rows(reader))
        assert [row["gtid"] for row in rows(read(reader, columns=["gtid"]))][-1] == "GTID(3, 5)"


@pytest.mark.parametrize("unit", Unit)
def test_a_gtid_in_its_three_forms(unit: Unit) -> None:
    """tokumx-replication, "GTID": 16 bytes, their base64, and as people write it."""
    disk = SimDisk()
    for _ in range(3):
        with open_log(disk) as log:
            write(log, [RowChange(table_of(1), Op.INSERT, None, (1,))])
    with open_reader(disk) as reader, reader.cursor() as cursor:
        (batch,) = cursor.batches(unit=unit, columns=["gtid", "gtid_bytes", "gtid_base64"], wait=False)
    shown = batch.to_pydict()
    gtids = [Gtid.parse(text) for text in shown["gtid"]]
    assert [one.epoch for one in gtids] == [1, 1, 2, 2, 3, 3]
    assert shown["gtid_bytes"] == [one.to_bytes() for one in gtids]
    assert [Gtid.parse(text) for text in shown["gtid_base64"]] == gtids
    assert "gtid_bytes" not in batch_schema(unit=unit).names, "by name only"


def test_columns_that_need_no_look_at_the_values() -> None:
    """What stands in the header is repeated for each change, whose number alone is read."""
    with open_log(SimDisk()) as log:
        write(log, random_changes(3, 40))
        write(log, [Statement(schema="a", sql="ONE", ddl=True)] * 3)
        write(log, [])
        log.commit()
        wanted = [{"seqno": row["seqno"], "event_id": row["event_id"]} for row in change_rows(log)]
        assert list(rows(read(log, columns=["seqno", "event_id"]))) == wanted


def test_statements_alone_and_a_noop() -> None:
    with open_log(SimDisk()) as log:
        write(log, [Statement(schema="a", sql="ONE", ddl=True), Statement(schema="b", sql=b"\xff", ddl=False)])
        log.commit()
        assert list(rows(read(log))) == list(change_rows(log))
        assert [row["statement"] for row in rows(read(log))] == [None, "ONE", "�"]
        assert [row["changes"] for row in rows(read(log, unit=Unit.TRANSACTION))] == [0, 2]


@pytest.mark.parametrize("spill", [False, True])
def test_all_metadata_of_a_last_fragment_without_changes(spill: bool) -> None:
    """It begins where the payload does; what speaks for the whole, such as a gap, is not to be lost."""
    change = RowChange(table_of(2), Op.INSERT, None, (1, "x" * 1_100_000))  # a fragment of its own
    metadata = (("gap", "{}"), ("server_id", "1"), ("xid", "7"))
    fragments = pack([change], source_id="db1", event_id="e", tstamp=1_700_000_000_123, metadata=metadata)
    assert len(fragments) == 2
    with open_log(SimDisk(), spill_above=1_000 if spill else 1 << 30) as log:
        log.append_many(fragments)
        log.commit()
        assert dict(list(rows(read(log, unit=Unit.TRANSACTION)))[1]["metadata"]) == dict(metadata)
        assert list(rows(read(log, unit=Unit.TRANSACTION))) == list(transaction_rows(log))


@pytest.mark.parametrize("seed", few_of(range(20), 2))
def test_rubbish_behind_a_good_checksum(seed: int) -> None:
    """A payload that no writer of ours wrote ends in rows that are the cursor's, or in one of our errors."""
    choose = random.Random(seed)
    good = pack(random_changes(seed, 12), source_id="db1", event_id="e", tstamp=0)[-1].payload
    agreed = refused = 0
    for _ in range(25):
        bad = bytearray(good)
        for _ in range(choose.randint(1, 3)):
            at = choose.randrange(len(bad))
            match choose.randrange(3):
                case 0:
                    bad[at] ^= 1 << choose.randrange(8)
                case 1:
                    bad[at : at + choose.randint(1, 9)] = b""
                case _:
                    bad[at:at] = choose.randbytes(choose.randint(1, 9))
        with open_log(SimDisk()) as log:
            log.append(make_fragment("bad", bytes(bad)))
            log.append(make_fragment("good", good))
            log.commit()
            try:
                wanted = list(change_rows(log))
            except PayloadError:
                wanted = None
            for columns in (None, ["seqno", "table"], ["event_id"]):
                try:
                    found = list(rows(read(log, columns=columns)))
                except PayloadError:
                    refused += 1
                    assert wanted is None
                    continue
                agreed += 1
                if wanted is not None:
                    names = CHANGE_COLUMNS if columns is None else columns
                    assert found == [{name: row[name] for name in names} for row in wanted], bytes(bad).hex()
    assert agreed and refused


@pytest.mark.parametrize("unit", Unit)
def test_damage_is_what_a_cursor_says_it_is(unit: Unit) -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        Workload(seed=2).write(log, 20)
    start = record_starts(disk, 1)[9]
    flip(disk, segment_path(1), start + 100)
    with open_reader(disk) as reader:
        with pytest.raises(CorruptRecordError) as told:
            read(reader, unit=unit)
        with pytest.raises(CorruptRecordError) as wanted:
            list(change_rows(reader))
    assert str(told.value) == str(wanted.value)


def test_without_pyarrow_all_else_works(tmp_path: Path) -> None:
    """pyarrow is an extra: the module imports without it, and says what to install when it is needed."""
    code = f"""
import sys
sys.modules["pyarrow"] = None
import tranlog, tranlog.log.reading.arrow
from tranlog.errors import LibraryMissingError
with tranlog.Log.open({str(tmp_path / "log")!r}, source_id="x") as log, log.cursor() as cursor:
    assert next(cursor).is_noop()
    try:
        next(cursor.batches())
    except LibraryMissingError as exc:
        print(exc)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Arrow batches need pyarrow, which is not installed. Install it: `pip install pyarrow`\n"


def test_reading_a_cursor_does_not_load_pyarrow() -> None:
    code = "import sys, tranlog.log.writing.log; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

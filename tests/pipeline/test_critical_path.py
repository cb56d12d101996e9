"""docs/parallel-apply.md, "How parallel a log is": the longest chain of transactions that wait for each other."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from mutants.keyed_rows import CHILD, PARENT, Drawing
from mutants.order_workload import BY_SCHEMA
from mutants.writes_model import by_use
from tranlog.change import Change, Op, RowChange, Statement
from tranlog.ids import Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.pipeline.rules.by_writes import Writes
from tranlog.pipeline.rules.critical_path import CriticalPath, PathFinder
from tranlog.pipeline.upkeep.critical_path import critical_path, name_of
from tranlog.row_touches import RowTouches
from tranlog.service.commands.cli import main
from tranlog.source.packer import TransactionPacker
from tranlog.write_set import Operations, Use, WriteKind, WriteSet, WrittenTable

ORDERS = ("shop", "orders")
STEP = WriteSet(changes=5, kind=WriteKind.STEP)


def writes(*touches: tuple[Use, int], changes: int = 1) -> WriteSet:
    tables = (WrittenTable(table=ORDERS, keys=frozenset({1}), operations=Operations.UPDATE),)
    return WriteSet(changes=changes, tables=tables, touches=by_use(*touches))


def found(*log: Writes) -> CriticalPath:
    finder = PathFinder([ORDERS], (1, 2))
    for seqno, one in enumerate(log, 1):
        finder.add(Seqno(seqno), one)
    return finder.found()


def test_what_touches_nothing_in_common_has_the_longest_one_as_its_path() -> None:
    path = found(*[writes((Use.KEY, key), changes=changes) for key, changes in enumerate((2, 7, 3, 2))])
    assert (path.transactions, path.changes, path.length, path.on_path, path.best) == (4, 14, 7, 1, 2.0)
    assert path.at_once == {1: 1.0, 2: 2.0} and path.hot == () and path.serial == {}


def test_a_chain_is_as_long_as_its_transactions_and_names_what_was_waited_for() -> None:
    hot = [writes((Use.ROW, 7), (Use.KEY, 100 + at), changes=2) for at in range(4)]
    path = found(writes((Use.KEY, 1)), *hot, writes((Use.KEY, 2), changes=3))
    assert (path.length, path.on_path) == (8, 4)
    assert [(one.value, one.waited, one.seqno) for one in path.hot] == [(7, 3, 5)]


def test_references_wait_for_the_row_alone_and_the_row_for_all_of_them() -> None:
    references = [writes((Use.REFERENCE, 7), changes=changes) for changes in (1, 5, 2)]
    path = found(writes((Use.KEY, 7)), *references, writes((Use.KEY, 7)))
    assert path.length == 1 + 5 + 1
    assert found(writes((Use.ROW, 7)), *references).length == 5, "an update that keeps the key is not waited for"


def test_what_runs_alone_is_a_wall_with_its_reason() -> None:
    path = found(writes((Use.KEY, 1), changes=4), STEP, None, writes((Use.KEY, 2)), writes((Use.KEY, 3), changes=2))
    assert path.length == 4 + 5 + 1 + 2
    assert path.serial == {"a step of a load": 1, "its header has no write set": 1}
    assert found(WriteSet(changes=0)).transactions == 0, "without changes there is nothing to do"
    assert found().best == 1.0


def test_no_number_of_channels_is_faster_than_the_path() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        log = [
            writes((chance.choice(list(Use)), chance.randrange(6)), (Use.KEY, 100 + at), changes=chance.randint(1, 9))
            for at in range(60)
        ]
        path = found(*log)
        assert 1.0 == path.at_once[1] <= path.at_once[2] <= min(2.0, path.best) + 0.01, seed


# --- from a log ---


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """One row that many update, rows that refer to another, and a statement between."""
    hot: list[list[Change]] = [[RowChange(PARENT, Op.UPDATE, (1, "a", n), (1, "a", n + 1))] for n in range(6)]
    moved: list[list[Change]] = [[RowChange(PARENT, Op.INSERT, None, (key, "b", 0))] for key in (3, 4, 5)]
    transactions: list[list[Change]] = [*hot, [Statement(schema="shop", sql="CREATE TABLE t (a)", ddl=True)], *moved]
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, touches=RowTouches())
    with Log.open(str(tmp_path / "log"), source_id="test") as written:
        for at, changes in enumerate(transactions):
            packer.begin(BY_SCHEMA)
            for change in changes:
                assert packer.add(change, event_id="", tstamp=1) is None
            written.append(packer.finish(event_id=f"event {at}", tstamp=1))
        written.commit()
    return tmp_path / "log"


def test_hot_values_are_named_by_table_and_key(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts by what counts of them in a hash."""
    assert main(["log", "critical-path", "--dir", str(log), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["transactions"], told["path_changes"], told["best"]) == (11, 11, 1.0)
    assert told["serial"] == {"its header has no write set": 1, "a statement": 1}
    assert [(one["key"], one["waited"]) for one in told["hot"]] == [
        ("shop.parent (id=1)", 5),
        ("shop.parent (code=b)", 2),
    ]
    assert main(["log", "critical-path", "--dir", str(log), "--from", "2", "--to", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "seqno 2 to 5: 4 transactions with 4 row changes",
        "critical path: 4 transactions with 4 row changes",
        "at best 1.00 times as fast as one channel",
    ]
    assert any("shop.parent (id=1)" in line for line in lines)
    assert main(["log", "critical-path", "--dir", str(log), "--from", "2", "--to", "500"]) == 2
    assert "the log holds seqno 0 to 10" in capsys.readouterr().err
    assert main(["log", "critical-path", "--dir", str(log), "--from", "-1"]) == 2
    assert "purged" not in capsys.readouterr().err


def test_a_row_that_is_referred_to_is_named(tmp_path: Path) -> None:
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, touches=RowTouches())
    with Log.open(str(tmp_path / "log"), source_id="test") as written:
        for at, change in enumerate(
            (
                RowChange(PARENT, Op.INSERT, None, (7, None, 0)),
                RowChange(CHILD, Op.INSERT, None, (1, 2, 7, None, 0)),
            )
        ):
            packer.begin(BY_SCHEMA)
            assert packer.add(change, event_id="", tstamp=1) is None
            written.append(packer.finish(event_id=f"event {at}", tstamp=1))
        written.commit()
    with LogReader.open(str(tmp_path / "log")) as reader:
        path = critical_path(reader, Seqno(1), Seqno(2), str)
        (hot,) = path.hot
        assert name_of(reader, hot.value, hot.seqno) == "shop.parent (id=7)"
        assert name_of(reader, hot.value + 1, hot.seqno) == ""


def test_drawn_transactions_are_no_faster_than_their_path(tmp_path: Path) -> None:
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, touches=RowTouches())
    with Log.open(str(tmp_path / "log"), source_id="test") as written:
        for at, changes in enumerate(itertools.islice(Drawing(random.Random(3), range(40)).transactions(), 150)):
            packer.begin(BY_SCHEMA)
            for change in changes:
                assert packer.add(change, event_id="", tstamp=1) is None
            written.append(packer.finish(event_id=f"event {at}", tstamp=1))
        written.commit()
    with LogReader.open(str(tmp_path / "log")) as reader:
        path = critical_path(reader, Seqno(1), Seqno(150), str)
    assert path.serial == {} and 1 < path.at_once[4] <= path.at_once[64] <= path.best + 0.01

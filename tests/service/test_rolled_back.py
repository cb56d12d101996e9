"""service/commands/rolled_back.py: the data of rollbacks as an operator meets it. docs/replication.md."""

from __future__ import annotations

import json
import sqlite3
from base64 import b64decode
from contextlib import closing
from pathlib import Path

import pytest

from tranlog.change import Change, Column, Op, RowChange, TableMap
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.payload import decode
from tranlog.replication.acting.following import NodeLog
from tranlog.replication.rules.effects import BeginReign, EndReign, RollBack
from tranlog.replication.rules.syncup import ROLLBACK_STEPS
from tranlog.service.commands.cli import main
from tranlog.source.packer import pack
from tranlog.testing.clock import ManualClock
from tranlog.types import LogicalType

FOO = TableMap(
    schema="test",
    table="foo",
    columns=(Column(name="_id", source_type="int", logical=LogicalType.INTEGER),),
    primary_key=(0,),
)
FIRST = """\
{
    "_id" : {
        "rid" : 0,
        "seq" : 0
    },
    "gtid" : BinData(0,"AAAAAAAAAAEAAAAAAAAAAg=="),
    "gtidString" : "GTID(1, 2)",
    "time" : ISODate("2014-09-10T15:16:36.619Z"),
    "op" : {
        "op" : "UPDATE",
        "schema" : "test",
        "table" : "foo",
        "key" : {
            "_id" : 5
        },
        "before" : {
            "_id" : 5
        },
        "after" : {
            "_id" : 6
        }
    }
}
"""


def rolled_back(folder: Path, *more: tuple[str, list[Change]], back: int = 0) -> tuple[RowChange, list[RowChange]]:
    """Make the log of the document's example: an update, and a transaction of three inserts, which are rolled back.

    `more` comes before these, and goes, too. So many of all these come `back`, as another node sends them.
    """
    log = NodeLog.follow(
        str(folder),
        source_id="a",
        history=bytes(16),
        clock=ManualClock(1_410_362_196_619),
    )
    update = RowChange(table=FOO, op=Op.UPDATE, before=(5,), after=(6,))
    inserts = [RowChange(table=FOO, op=Op.INSERT, before=None, after=(at,)) for at in (11, 12, 13)]
    log.carry_out(BeginReign(1))
    going: list[tuple[str, list[Change]]] = [*more, ("three", [*inserts]), ("one", [update])]
    for event, changes in going:
        log.log.transact(pack(changes, source_id="a", event_id=event, tstamp=0))
    log.carry_out(EndReign())
    records = list(log.log.cursor().raw())
    log.carry_out(RollBack(Gtid(Epoch(1), Seqno(0)), log.last, ROLLBACK_STEPS))
    if back:
        log.log.append_raw(b"".join(raw for seqno, raw in records if 0 < seqno <= back))
        log.log.commit()
    log.close()
    return update, inserts


def told(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str, str]:
    code = main(["rollback", *words, "--dir", str(folder)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_data_is_shown_exported_and_discarded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    update, inserts = rolled_back(tmp_path)
    code, out, _ = told(capsys, tmp_path, "list", "--json")
    (one,) = json.loads(out)["rollbacks"]
    assert code == 0
    assert (one["rid"], one["matchpoint"], one["last"]) == (0, "GTID(1, 0)", "GTID(1, 2)")
    assert (one["transactions"], one["operations"]) == (2, 4)
    assert "GTID(1, 0)" in told(capsys, tmp_path, "list")[1]
    out = told(capsys, tmp_path, "show", "0")[1]
    assert out.startswith(FIRST) and out.count("\n}\n") == 4
    lines = [json.loads(line) for line in told(capsys, tmp_path, "show", "0", "--json")[1].splitlines()]
    assert [(line["_id"]["seq"], line["op"]["after"]["_id"]) for line in lines] == [(0, 6), (1, 13), (2, 12), (3, 11)]
    exported = [json.loads(line) for line in told(capsys, tmp_path, "export", "0")[1].splitlines()]
    assert [one["eventId"] for one in exported] == ["three", "one"]
    again = [[decode(b64decode(part)).changes for part in one["payloads"]] for one in exported]
    assert again == [[(one,) for one in inserts], [(update,)]]
    code, out, err = told(capsys, tmp_path, "export", "0", "--sql", "sqlite")
    assert (code, err) == (0, "")
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute('CREATE TABLE "test.foo" (_id INTEGER PRIMARY KEY)')
        database.execute('INSERT INTO "test.foo" VALUES (5)')
        database.executescript(out)
        assert database.execute('SELECT _id FROM "test.foo" ORDER BY _id').fetchall() == [(6,), (11,), (12,), (13,)]
    code, out, err = told(capsys, tmp_path, "show", "7")
    assert (code, out) == (2, "") and "no data of this rollback; it has: 0" in err
    assert told(capsys, tmp_path, "discard")[0] == 2
    assert told(capsys, tmp_path, "discard", "0", "-y")[:2] == (0, "discarded the data of 1 rollback(s)\n")
    assert told(capsys, tmp_path, "list") == (0, "", "")
    assert json.loads(told(capsys, tmp_path, "discard", "--all", "--json")[1]) == {"discarded": []}


def test_what_came_back_is_said_and_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another node had the first one, too, which so came again under its GTID."""
    rolled_back(tmp_path, back=1)
    (one,) = json.loads(told(capsys, tmp_path, "list", "--json")[1])["rollbacks"]
    assert (one["transactions"], one["back"]) == (2, 1)
    for words in ((), ("--sql", "sqlite")):
        code, out, err = told(capsys, tmp_path, "export", "0", *words)
        assert (code, err) == (0, "GTID(1, 1) is in the log again, and left out\n")
        assert "GTID(1, 2)" in out and "GTID(1, 1)" not in out


def test_the_data_of_a_log_that_cannot_be_read_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rolled_back(tmp_path)
    for segment in tmp_path.glob("thl.data.*"):
        segment.write_bytes(b"rubbish" * 100)
    code, out, err = told(capsys, tmp_path, "export", "0")
    assert code == 0 and len(out.splitlines()) == 2 and "the log cannot be read" in err
    assert told(capsys, tmp_path, "list")[0] == 0


def test_what_has_no_form_in_sql_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    free = TableMap(schema="test", table="free", columns=FOO.columns, primary_key=())
    rolled_back(tmp_path, ("none", [RowChange(free, Op.DELETE, (1,), None)]))
    code, out, err = told(capsys, tmp_path, "export", "0", "--sql", "postgres")
    assert code == 1 and "1 transactions have no such form" in err
    assert '-- GTID(1, 1) "none"\n-- left out: "test.free has no primary key' in out
    assert out.count("BEGIN;") == out.count("COMMIT;") == 2

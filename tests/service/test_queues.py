"""`tranlog queue`: a message store on the disk, by commands alone."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pytest

from fix_mail import Mail
from tranlog.ids import Lsn
from tranlog.lsn import lsn_text
from tranlog.queues.rules.records import container_name


@pytest.fixture
def mail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Mail:
    made = Mail(tmp_path / "mail", capsys)
    with made.open() as store:
        store.declare("a")
        store.declare("b")
        for number in range(30):
            store.publish(b"%d" % number * 400, queues=["a"])
        session = store.session()
        session.tpc_begin(b"transfer 7")
        session.publish(b"x", queues=["b"])
        session.tpc_prepare()
        session.tpc_begin(b"\xff")
        session.tpc_prepare()
    return made


def test_containers_and_records_are_shown_and_nothing_is_changed(mail: Mail) -> None:
    """Also beside the owner: it needs no lock."""
    path = str(mail.path)
    with mail.open() as store:
        store.sync()
        before = {name: (mail.path / name).read_bytes() for name in os.listdir(mail.path)}
        found = mail.json("containers", path)["containers"]
        assert [one["number"] for one in found if not one["free"]] == store._files.in_use
        assert sum(one["needed"] for one in found) == 31 + 2
        assert sum(one["needed_bytes"] for one in found) == sum(
            one.total_length for one in store._core.state.messages.values()
        )
        head, *rows = mail("containers", path)[1].splitlines()
        assert head.split() == [
            "number",
            "state",
            "epoch",
            "first",
            "last",
            "bytes",
            "written",
            "needed",
            "bytes",
            "needed",
        ]
        assert rows[0].split()[:5] == ["1", "in", "use", "0", found[0]["first_lsn"]] and len(rows) == len(found)
        lines = mail("dump", path)[1].splitlines()
        assert sum(" Start " in line for line in lines) == 31
        transactions = mail("dump", path, "--stream", "transaction")[1].splitlines()
        assert [line.split()[-1] for line in transactions if "Dtx-Start" in line] == ["xid_bytes=10", "xid_bytes=1"]
        message = store._core.state.messages.values()[0].id
        (start, enqueue) = mail("dump", path, "--object", lsn_text(message))[1].splitlines()
        assert " first Start " in start and f"Enqueue of {lsn_text(message)}" in enqueue
        found = json.loads(mail("dump", path, "--object", lsn_text(message), "--json")[1].splitlines()[0])
        assert (found["lsn"], found["record"], found["total_length"]) == (lsn_text(message), "Start", 400)
        assert mail("dump", path, "--object", lsn_text(Lsn(message + 1)))[:2] == (1, "")
        assert mail.json("verify", path)["messages"] == 30 + 1
        assert {name: (mail.path / name).read_bytes() for name in os.listdir(mail.path)} == before
        assert mail.json("list", path)["queues"] == [
            {"name": "a", "waiting": 30, "transient": False},
            {"name": "b", "waiting": 0, "transient": False},
        ]
        assert mail("status", path)[0] == 0
        assert {name: (mail.path / name).read_bytes() for name in os.listdir(mail.path)} == before
        code, _, err = mail("purge", path, "a", "-y")
        assert code == 4 and "held by another writer" in err


def test_a_free_container_is_listed_by_its_number(mail: Mail, tmp_path: Path) -> None:
    path = str(tmp_path / "new")
    assert mail("declare", path, "a")[0] == 0
    code, out, _ = mail("containers", path)
    assert code == 0 and [row.split()[:2] for row in out.splitlines()[1:]] == [["1", "in"], ["2", "free"]]


def test_what_is_in_doubt_is_listed_and_decided(mail: Mail) -> None:
    path = str(mail.path)
    assert mail.json("in-doubt", "list", path) == {"in_doubt": ["transfer 7", "0xff"]}
    assert mail("in-doubt", "list", path)[1] == "xid\ntransfer 7\n0xff\n"
    assert mail("list", path)[1].split() == ["queue", "waiting", "kind", "a", "30", "durable", "b", "0", "durable"]
    assert mail("in-doubt", "commit", path, "transfer 7") == (0, "committed transfer 7\n", "")
    assert mail("in-doubt", "rollback", path, os.fsdecode(b"\xff")) == (0, "rolled back 0xff\n", "")
    assert mail("in-doubt", "list", path)[1] == ""
    assert mail.json("list", path) == {
        "queues": [{"name": "a", "waiting": 30, "transient": False}, {"name": "b", "waiting": 1, "transient": False}]
    }
    code, _, err = mail("in-doubt", "commit", path, "nobody's")
    assert code == 3 and "not known" in err
    assert mail("in-doubt", "commit", path, "0xzz")[0] == 2
    code, _, err = mail("in-doubt", "commit", path, os.fsdecode(b"\xfe"))
    assert code == 3 and "not known" in err


def test_how_a_store_stands_is_told(mail: Mail) -> None:
    path = str(mail.path)
    found = mail.json("status", path)
    (first, second) = found["queues"]
    assert (first["name"], first["waiting"], first["held"], first["counts"]) == ("a", 30, None, None)
    assert first["oldest_ms"] >= 0
    assert (second["name"], second["waiting"], second["oldest_ms"], second["transient"]) == ("b", 0, None, False)
    assert (found["in_doubt"], found["pinned_bytes"], found["container_bytes"]) == (["transfer 7", "0xff"], 0, 16_384)
    listed = mail.json("containers", path)["containers"]
    used = [one for one in listed if not one["free"]]
    assert (found["containers_in_use"], found["containers_free"]) == (len(used), len(listed) - len(used))
    assert (found["recovered"]["clean"], found["recovered"]["messages"]) == (True, 31)
    with mail.open() as store:
        for _ in range(60):
            store.publish(b"x" * 500, queues=["a"], wait=False)
        store.purge("a")
    held = mail.json("pinned", path)["pinned"][0]["held_bytes"]
    assert held > 0
    out = mail("status", path)[1]
    assert f"pinned: {held} bytes\nin doubt: 2\nrecovery: the store was closed cleanly; 1 messages" in out


def test_what_a_crash_left_is_told_by_the_next_opening(mail: Mail, tmp_path: Path) -> None:
    """A copy of an open store is what a crash of its process leaves."""
    with mail.open() as store:
        store.publish(b"x", queues=["a"])
        newest, end = container_name(store._journal.buffer.number), store._journal.buffer.end
        shutil.copytree(mail.path, tmp_path / "copy")
    path = str(tmp_path / "copy")
    with (tmp_path / "copy" / newest).open("r+b") as file:
        file.seek(end)
        file.write(b"half a record")
    code, out, err = mail("status", path)
    assert code == 0 and "recovery: the store was not closed cleanly; 32 messages" in out, err
    assert mail.json("status", path)["recovered"]["clean"] is False, "what only looks mends nothing"
    code, out, err = mail("declare", path, "a")
    assert code == 0, err
    assert list((tmp_path / "copy" / "cut").glob(f"{newest}-*")), "what was cut off is kept"
    assert mail.json("status", path)["recovered"]["clean"] is True


def test_what_is_pinned_is_told(mail: Mail) -> None:
    path = str(mail.path)
    assert mail.json("pinned", path)["pinned"] == []
    with mail.open() as store:
        store.purge("a")
    (message, one, two) = sorted(
        mail.json("pinned", path)["pinned"], key=lambda row: (row["what"] == "branch", row["xid"])
    )
    assert (message["what"], message["queues"]) == ("message", ["b"])
    assert (one["xid"], two["xid"]) == ("0xff", "transfer 7")
    head, *rows = mail("pinned", path)[1].splitlines()
    assert head.split() == ["what", "id", "xid", "queues", "age", "bytes", "held", "back"]
    assert sum("  transfer 7  " in row for row in rows) == 1


def test_producers_are_listed_and_removed(mail: Mail, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(mail.path)
    assert mail("producer", "list", path) == (0, "", "")
    with mail.open() as store:
        store.publish_once("till-3", 7, b"x", queues=["a"])
    assert mail.json("producer", "list", path) == {"producers": [{"name": "till-3", "number": 7}]}
    assert mail("producer", "list", path)[1].split() == ["producer", "number", "till-3", "7"]
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert mail("producer", "remove", path, "till-3")[0] == 1
    with mail.open() as store:
        assert store.publish_once("till-3", 7, b"x", queues=["a"]) is None
    assert mail("producer", "remove", path, "till-3", "-y")[1] == "removed the producer till-3, which was at 7\n"
    assert mail.json("producer", "list", path) == {"producers": []}
    code, _, err = mail("producer", "remove", path, "till-3", "-y")
    assert code == 1 and "there is no producer 'till-3'" in err
    code, _, err = mail("producer", "remove", path, os.fsdecode(b"\xff"), "-y")
    assert code == 1 and "there is no producer" in err
    with mail.open() as store:
        assert store.publish_once("till-3", 7, b"x", queues=["a"]) is not None


def test_a_damaged_store_is_told_with_container_and_offset(mail: Mail) -> None:
    path = str(mail.path)
    assert mail("verify", path)[1].endswith("2 transactions in doubt: all right\n")
    first = min(name for name in os.listdir(path) if name.startswith("queue."))
    raw = bytearray((mail.path / first).read_bytes())
    raw[6_000] ^= 1
    (mail.path / first).write_bytes(raw)
    for command in (["verify"], ["containers"], ["list"]):
        code, out, err = mail(*command, path)
        assert (code, out) == (3, "")
        assert f"{first}, offset" in err and "checksum" in err
    code, out, err = mail("dump", path)
    assert code == 3 and out.startswith("1:4096 epoch 1 Checkpoint")
    assert f"{first}, offset" in err and "checksum" in err


def test_what_is_no_store_is_told(mail: Mail, tmp_path: Path) -> None:
    for command in (["verify"], ["containers"], ["dump"], ["list"], ["pinned"], ["in-doubt", "list"]):
        code, _, err = mail(*command, str(tmp_path / "nowhere"))
        assert code == 4 and "no such directory" in err and "`tranlog queue declare`" in err
        assert not (tmp_path / "nowhere").exists()
    code, _, err = mail("verify", str(tmp_path))
    assert code == 4 and "holds no container" in err
    assert mail("dump", str(mail.path), "--stream", "odd")[0] == 2
    for place in ("7", "0:0", f"1:{1 << 32}"):
        assert mail("dump", str(mail.path), "--object", place)[0] == 2


def test_a_store_is_copied_and_restored(mail: Mail, tmp_path: Path) -> None:
    path, copy, again = str(mail.path), str(tmp_path / "copy"), str(tmp_path / "again")
    out = mail("backup", path, copy)[1]
    assert out.startswith(f"copied into {copy}: ") and "31 messages, 2 queues, 2 transactions in doubt" in out
    assert mail("purge", path, "a", "-y")[0] == 0
    assert mail.json("restore", copy, again)["messages"] == 31
    assert mail.json("list", again) == {
        "queues": [{"name": "a", "waiting": 30, "transient": False}, {"name": "b", "waiting": 0, "transient": False}]
    }
    assert mail("restore", copy, again)[0] == mail("backup", path, copy)[0] == 2
    assert mail("restore", str(tmp_path / "nowhere"), str(tmp_path / "x"))[0] == 4

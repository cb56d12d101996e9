"""`tranlog log segments`, `add`, `trim`, `info`; conformance/tokumx.md A8."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from fix_tungsten import golden_segments
from tranlog.capture.capture import Capture
from tranlog.change import Fragment
from tranlog.errors import ConfigError
from tranlog.ids import Epoch, Gtid, Seqno, segment_name
from tranlog.log.reading.reader import LogReader
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log, LogOptions, hold
from tranlog.payload import Payload, encode
from tranlog.service.commands import cli
from tranlog.service.process.api import Trim
from tranlog.service.process.operating import Capturing, capture_endpoint
from tranlog.service.process.upkeep import LogUpkeep
from tranlog.service.thl import thl
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions
from tranlog.testing.clock import ManualClock

pytestmark = pytest.mark.long

AT = 1_391_461_440_983
"""2014-02-03 21:04:00.983 UTC, as in the document's example."""


def write(path: Path, count: int, *, clock: ManualClock | None = None, segment_bytes: int = 1_000) -> None:
    """Open the log (a no-op), and append so many transactions, ten seconds of the writer's clock apart."""
    clock = ManualClock(AT) if clock is None else clock
    with Log.open(path, source_id="till", options=LogOptions(segment_bytes=segment_bytes), clock=clock) as log:
        for _ in range(count):
            number = log.last_seqno + 1
            payload = encode(Payload(metadata=(("filler", "x" * 150),)))
            log.append(
                Fragment(
                    source_id="till", event_id=f"e:{number}", shard_id="s", tstamp=AT - 3_600_000 + number * 1_000,
                    tables=(("s", "t"),), payload=payload,
                )
            )  # fmt: skip
            log.commit()
            clock.advance(10)


class Told:
    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = cli.main(["log", words[0], "--dir", str(self.path), *words[1:]])
        told = self._capsys.readouterr()
        assert "Traceback" not in told.err, told.err
        return int(code), told.out, told.err

    def json(self, *words: str, code: int = 0) -> dict:
        found, out, err = self(*words, "--json")
        assert found == code, err
        return json.loads(out)

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.path) if name.startswith("thl.data."))

    def seqnos(self) -> list[int]:
        with LogReader.open(self.path) as reader, reader.cursor() as cursor:
            found = []
            while (header := cursor.next_header()) is not None:
                found.append(header.seqno)
            return [int(seqno) for seqno in found]


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Told:
    """A log of two epochs and several segments."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    path = tmp_path / "log"
    clock = ManualClock(AT)
    write(path, 9, clock=clock)
    write(path, 9, clock=clock)
    return Told(path, capsys)


# --- looking ---


def test_each_segment_with_its_gtids_time_and_size(told: Told) -> None:
    rows = told.json("segments")["segments"]
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1)) and len(rows) >= 4
    assert rows[0]["first_gtid"] == "GTID(1, 0)" and rows[-1]["last_gtid"] == "GTID(2, 19)"
    epochs = [1] * 10 + [2] * 10
    expected = 0
    for row in rows:
        first, last = Gtid.parse(row["first_gtid"]), Gtid.parse(row["last_gtid"])
        assert first == Gtid(Epoch(epochs[expected]), Seqno(expected))
        assert last.epoch == epochs[last.seqno], "the last GTID of a segment in which an epoch begins is right too"
        expected = last.seqno + 1
        assert row["bytes"] == (told.path / row["name"]).stat().st_size
        assert row["on_disk"] == (told.path / row["name"]).stat().st_blocks * 512
    assert expected == 20
    assert rows[0]["created_at"] == AT and rows[0]["created"] == "2014-02-03 21:04:00.983"
    assert [row["created_at"] for row in rows] == sorted(row["created_at"] for row in rows)
    code, out, _ = told("segments")
    cells = [re.split(r"  +", line) for line in out.splitlines()]
    assert code == 0 and len(cells) == len(rows) + 1
    assert cells[0] == ["segment", "first", "last", "created", "bytes", "on disk"]
    begins = [str(rows[0][key]) for key in ("name", "first_gtid", "last_gtid", "created", "bytes", "on_disk")]
    assert cells[1] == begins


def test_the_create_time_survives_a_copy(told: Told, tmp_path: Path) -> None:
    """File times do not survive a copy; the first sync record's stamp does."""
    before = told.json("segments")["segments"]
    copy = tmp_path / "copy"
    shutil.copytree(told.path, copy)
    for name in os.listdir(copy):
        os.utime(copy / name, (0, 0))
    told.path = copy
    after = told.json("segments")["segments"]
    assert [row["created_at"] for row in after] == [row["created_at"] for row in before]
    assert [row["last_gtid"] for row in after] == [row["last_gtid"] for row in before]


def test_sizes_and_the_span_of_events(told: Told) -> None:
    """tokumx-replication, getReplicationInfo and printReplicationInfo."""
    found = told.json("info")
    rows = told.json("segments")["segments"]
    assert found["segments"] == len(rows)
    assert found["log_bytes"] == {
        "uncompressed": sum(row["bytes"] for row in rows),
        "on_disk": sum(row["on_disk"] for row in rows),
    }
    # seqno 0 and 10 are no-ops: they have the writer's time, not a source's
    assert (found["first_event"], found["last_event"]) == (AT - 3_599_000, AT - 3_581_000)
    assert found["time_diff_s"] == 18.0 and found["time_diff_hours"] == 0.01 and found["now"] > AT
    code, out, _ = told("info")
    lines = out.splitlines()
    assert code == 0 and lines[1] == f"log user data size: {found['log_bytes']['uncompressed'] / 1e6:.2f}MB"
    assert lines[3:5] == ["spill user data size: 0.00MB", "spill on-disk size: 0.00MB"]
    assert lines[5:8] == [
        "log length start to end: 18.000secs (0.01hrs)",
        "log first event time: 2014-02-03 20:04:01.983 UTC",
        "log last event time: 2014-02-03 20:04:19.983 UTC",
    ]


def test_the_identity_of_the_history_is_shown(
    told: Told, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """format.md, "The identity of the history"."""
    with LogReader.open(told.path) as reader:
        history = reader.history.hex()
    assert told.json("info")["history"] == history
    assert told("info")[1].splitlines()[-1] == f"log history: {history}"
    assert thl.main(["-dir", str(told.path), "info"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"history = {history}"
    assert thl.main(["-dir", str(told.path), "info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["history"] == history
    monkeypatch.chdir(told.path.parent)
    (told.path.parent / "shop.toml").write_text(f'[service]\nname = "shop"\n[log]\ndir = "{told.path}"\n')
    cli.main(["status", "--json", "--conf", "shop.toml"])
    assert json.loads(capsys.readouterr().out)["log"]["history"] == history


def test_spill_segments_tell_who_refers_into_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ "for spill the highest GTID that refers into it"."""
    told = Told(tmp_path / "log", capsys)
    with Log.open(told.path, source_id="till", options=LogOptions(spill_buffer_bytes=1_000)) as log:
        with log.begin() as transaction:
            for number in range(5):
                transaction.add(
                    Fragment(
                        source_id="till", event_id="e:1", shard_id="s", tstamp=AT, tables=(("s", "t"),),
                        payload=encode(Payload(metadata=(("filler", "x" * 600),))), last=number == 4,
                    )
                )  # fmt: skip
    found = told.json("segments")
    (spill,) = found["spill"]
    assert spill["referred_by"] == found["segments"][-1]["last_gtid"] == "GTID(1, 1)"
    assert spill["raw_bytes"] > 3_000 and spill["chunks"] >= 1
    cells = [re.split(r"  +", line)[:2] for line in told("segments")[1].splitlines()]
    assert cells[-2:] == [["spill segment", "referred to up to"], [spill["name"], "GTID(1, 1)"]]
    extent = told.json("info")
    assert extent["spill_bytes"] == {"uncompressed": spill["raw_bytes"], "on_disk": spill["on_disk"]}
    assert extent["total_bytes"] == {
        kind: extent["log_bytes"][kind] + extent["spill_bytes"][kind] for kind in ("uncompressed", "on_disk")
    }
    written = [str(spill[key]) for key in ("chunks", "raw_bytes", "bytes", "on_disk")]
    assert re.split(r"  +", told("segments")[1].splitlines()[-1])[3:] == written
    assert [line.split(":")[0] for line in told("info")[1].splitlines()[-3:-1]] == [
        "total user data size",
        "total on-disk size",
    ]


def test_the_landmarks_of_the_index_are_shown(told: Told) -> None:
    """vlsn-index: "key landmarks such as the lastSync-able log entry and the last commit log entry"."""
    last = told.seqnos()[-1]
    found = told.json("info")
    stored = found["index"]["stored"]
    assert {name: stored[name] for name in ("first_seqno", "last_seqno", "last_sync", "last_txn_end")} == {
        "first_seqno": 0,
        "last_seqno": last,
        "last_sync": last,
        "last_txn_end": last,
    }
    assert stored["buckets"] == found["segments"] <= stored["places"]
    assert found["index"]["writer"] is None is found["reads"]
    line = f"log index stored: seqno 0 to {last}, last sync {last}, last transaction end {last}; "
    assert told("info")[1].splitlines()[9] == f"{line}{stored['places']} places in {stored['buckets']} buckets"
    (told.path / "index.table").unlink()
    assert told.json("info")["index"]["stored"] is None
    assert "log index stored: none\n" in told("info")[1]


def test_a_running_capture_tells_of_its_own_index(told: Told) -> None:
    """The stored one is as old as its flush; the caches in front of the log are the process's alone."""
    before = told.json("info")["index"]["stored"]
    with (
        Log.open(told.path, source_id="till", clock=ManualClock(AT)) as log,
        capture_endpoint(
            Capturing(log, Capture(SqliteSource(SqliteSourceOptions(path="not asked", source_id="till")), log)),
            runtime_dir=None,
        ),
    ):
        log.append(Fragment(source_id="till", event_id="e:30", shard_id="s", tstamp=AT, tables=(), payload=b""))
        log.commit(sync=False)
        with log.cursor() as cursor:
            for seqno in (log.visible_seqno, Seqno(0), log.visible_seqno):
                cursor.seek(seqno)
                assert cursor.next() is not None
        found = told.json("info")
        counts = log.status().reads
        assert counts.just_written and counts.file
        assert found["reads"] == {"just_written": counts.just_written, "recent": counts.recent, "file": counts.file}
        writer = found["index"]["writer"]
        assert (writer["last_sync"], writer["last_txn_end"]) == (log.durable_seqno, log.visible_seqno)
        assert writer["last_sync"] < writer["last_txn_end"] > before["last_txn_end"]
        assert found["index"]["stored"] == before
        out = told("info")[1]
        assert f"log index of the writer: seqno 0 to {log.visible_seqno}, last sync {log.durable_seqno}, " in out
        assert f"log reads of the writer's process: {counts.just_written} of what was just written, " in out


def test_noops_at_the_end_are_no_events(told: Told) -> None:
    for _ in range(3):
        write(told.path, 0)
    assert told.json("info")["last_event"] == AT - 3_581_000


def test_a_log_without_an_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(tmp_path / "log", capsys)
    write(told.path, 0)
    found = told.json("info")
    assert (found["first_event"], found["time_diff_s"]) == (None, None)
    assert "log length start to end: no event" in told("info")[1]


# --- adding ---


def test_a_segment_is_added_behind_one_that_holds_something(told: Told) -> None:
    """A8.4, "Running rs.addPartition() when the last partition is empty will fail"."""
    before, seqnos = told.names(), told.seqnos()
    assert told.json("add") == {"added": segment_name(len(before) + 1), "closed": before[-1]}
    assert told.names() == [*before, segment_name(len(before) + 1)]
    assert told.seqnos() == seqnos, "no transaction is begun by it"
    code, out, err = told("add")
    assert (code, out) == (4, "") and "holds no transaction yet" in err and told.names()[-1] in err
    newest = told.json("segments")["segments"][-1]
    assert (newest["first_gtid"], newest["last_gtid"]) == (None, None)
    assert re.split(r"  +", told("segments")[1].splitlines()[-1])[1:3] == ["-", "-"]
    assert verify(str(told.path)).sound
    write(told.path, 2)
    assert told.seqnos() == list(range(len(seqnos) + 3))
    with LogReader.open(told.path) as reader:
        assert reader.range().epoch == 3, "the writer that comes next is the third"


# --- trimming ---


def test_the_documents_example(told: Told) -> None:
    """A8.6: "using the example above, either of these commands will trim the oldest partition away"."""
    rows = told.json("segments")["segments"]
    by_time = shutil.copytree(told.path, told.path.parent / "by time")
    assert told.json("trim", "--to-gtid", Gtid.parse(rows[0]["last_gtid"]).to_base64(), "-y") == {
        "removed": [rows[0]["name"]],
        "segments": [rows[0]["name"]],
        "bytes": rows[0]["bytes"],
        "up_to_seqno": Gtid.parse(rows[0]["last_gtid"]).seqno,
        "first_seqno": Gtid.parse(rows[1]["first_gtid"]).seqno,
        "passed": [],
        "kept_for": [],
        "dry_run": False,
    }
    assert told.names()[0] == rows[1]["name"]
    told.path = by_time
    assert told.json("trim", "--to-time", str(rows[1]["created_at"] - 1), "-y")["removed"] == []
    assert told.json("trim", "--to-time", rows[1]["created"], "-y")["removed"] == [rows[0]["name"]]
    assert verify(str(by_time)).sound


def test_bounds_are_inclusive_and_the_last_segment_stays(told: Told) -> None:
    rows = told.json("segments")["segments"]
    last = Gtid.parse(rows[1]["last_gtid"])
    below = f"GTID({last.epoch}, {last.seqno - 1})"
    assert told.json("trim", "--to-gtid", below, "--dry-run")["segments"] == [rows[0]["name"]]
    assert told.json("trim", "--to-gtid", str(last), "--dry-run")["segments"] == [rows[0]["name"], rows[1]["name"]]
    everything = [row["name"] for row in rows[:-1]]
    assert told.json("trim", "--to-gtid", "GTID(9, 999999)", "--dry-run")["segments"] == everything
    assert told.names() == [row["name"] for row in rows], "a dry run changes nothing"
    told("add")
    assert told.json("trim", "--to-gtid", "GTID(9, 999999)", "-y")["removed"] == everything
    assert told.names() == [rows[-1]["name"], segment_name(len(rows) + 1)], "the last transaction stays"
    code, out, _ = told("trim", "--to-gtid", "GTID(9, 999999)", "-y")
    assert (code, out) == (0, "nothing to remove\n"), "and again there is nothing to do"


def test_a_hold_is_waited_for_and_passed_on_demand(told: Told) -> None:
    """ "the victim hears it in a clear error"."""
    rows = told.json("segments")["segments"]
    needed = Gtid.parse(rows[1]["first_gtid"]).seqno
    hold(str(told.path), "shop", Seqno(needed))
    upto = rows[2]["last_gtid"]
    code, out, err = told("trim", "--to-gtid", upto, "-y")
    assert code == 1 and "1 segments" in out
    assert "trim: more could be removed, but shop still needs it" in err
    assert told.json("trim", "--to-gtid", upto, "-y", code=1)["kept_for"] == ["shop"]
    assert told.names()[0] == rows[1]["name"]
    found = told.json("trim", "--to-gtid", upto, "--past-holds", "-y")
    assert found["passed"] == ["shop"] and found["removed"] == [rows[1]["name"], rows[2]["name"]]
    with LogReader.open(told.path) as reader, reader.cursor() as cursor:
        with pytest.raises(Exception, match="is purged") as raised:
            cursor.seek(Seqno(needed))
    message = str(raised.value)
    assert f"a trim to {upto} removed everything up to seqno {Gtid.parse(upto).seqno}" in message
    assert "although shop still needed it" in message


def test_it_asks_first(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    before = told.names()
    upto = told.json("segments")["segments"][0]["last_gtid"]
    code, out, err = told("trim", "--to-gtid", upto)
    assert (code, out) == (1, "") and "Remove 1 segments" in err and "nothing was changed" in err
    assert told.names() == before
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert told("trim", "--to-gtid", upto)[0] == 0
    assert told.names() == before[1:]


def test_a_gtid_of_another_history_trims_nothing(told: Told) -> None:
    before = told.names()
    code, _, err = told("trim", "--to-gtid", "GTID(2, 5)", "-y")
    assert code == 1 and "GTID(2, 5) is not of this log: seqno 5 is GTID(1, 5) here" in err
    assert told.names() == before


def test_a_log_that_was_trimmed_goes_on(told: Told) -> None:
    upto = told.json("segments")["segments"][1]["last_gtid"]
    told("trim", "--to-gtid", upto, "-y")
    with Log.open(told.path, source_id="till", clock=ManualClock(AT)) as log:
        assert not log.recovered.purged_by_hand and log.recovered.clean
        assert log.epoch == 3 and log.last_event_id() == "e:19"
    assert told.seqnos() == list(range(Gtid.parse(upto).seqno + 1, 21))


# --- bad usage, and a writer ---


def test_while_somebody_writes(told: Told) -> None:
    """The log may be looked at; add and trim say who holds it, and change nothing."""
    with Log.open(told.path, source_id="till"):
        before = told.names()
        assert len(told.json("segments")["segments"]) == len(before)
        assert told.json("info")["segments"] == len(before)
        for words in (("add",), ("trim", "--to-gtid", "GTID(1, 5)", "-y"), ("trim", "--to-time", "2020-01-01", "-y")):
            code, out, err = told(*words)
            assert (code, out) == (4, "") and f"held by another writer (pid {os.getpid()})" in err
        assert told.names() == before


def test_a_running_capture_adds_and_trims_itself(told: Told) -> None:
    """tokumx-replication, "Oplog Management": addPartition and trimTo... are commands of the running server."""
    source = SqliteSource(SqliteSourceOptions(path="not asked", source_id="till"))
    with (
        Log.open(told.path, source_id="till", clock=ManualClock(AT)) as log,
        capture_endpoint(Capturing(log, Capture(source, log)), runtime_dir=None),
    ):
        before = told.names()
        added = told.json("add")
        assert (added["closed"], added["added"]) == (before[-1], told.names()[-1])
        assert len(told.names()) == len(before) + 1
        told_again = told("add")
        assert told_again[0] == 4 and "holds no transaction" in told_again[2]
        upto = told.json("segments")["segments"][0]["last_gtid"]
        asked = told.json("trim", "--to-gtid", upto, "--dry-run")
        assert asked["segments"] == before[:1] and told.names()[0] == before[0]
        done = told.json("trim", "--to-gtid", upto, "-y")
        assert done["removed"] == before[:1] and done["bytes"] == asked["bytes"] > 0
        assert told.names()[0] == before[1] and log.first_seqno == done["first_seqno"] == Gtid.parse(upto).seqno + 1
        assert told("trim", "--to-time", "2030-01-01", "-y")[0] == 0
        log.append(Fragment(source_id="till", event_id="e:30", shard_id="s", tstamp=AT, tables=(), payload=b""))
        log.commit()
    with Log.open(told.path, source_id="till", clock=ManualClock(AT)) as log:
        assert log.recovered.clean


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trim",), "give one of --to-gtid and --to-time"),
        (("trim", "--to-gtid", "GTID(1, 5)", "--to-time", "2020-01-01"), "give one of --to-gtid and --to-time"),
        (("trim", "--to-gtid", "fifteen"), "--to-gtid: not a GTID"),
        (("trim", "--to-time", "soon"), "--to-time: not a time"),
        (("segments", "--all"), "no such option: --all"),
    ],
)
def test_bad_usage(words: tuple[str, ...], said: str, told: Told) -> None:
    code, out, err = told(*words)
    assert (code, out) == (2, "") and said in err


@pytest.mark.parametrize("words", [("segments",), ("info",), ("add",), ("trim", "--to-gtid", "GTID(1, 5)", "-y")])
def test_no_log(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(tmp_path / "log", capsys)
    code, out, err = told(*words)
    assert (code, out) == (4, "") and "no log at" in err
    assert not told.path.exists()
    told.path.mkdir()
    code, out, err = told(*words, "--json")
    assert (code, out) == (4, "") and json.loads(err)["error"]["type"] == "LogMissingError"
    assert os.listdir(told.path) == []


@pytest.mark.parametrize("words", [("segments",), ("add",), ("trim", "--to-gtid", "GTID(2, 19)", "-y")])
def test_a_damaged_log_is_left_alone(words: tuple[str, ...], told: Told) -> None:
    (told.path / told.names()[1]).unlink()
    before = told.names()
    code, out, err = told(*words)
    assert code == 3 and "the segment is missing" in err
    assert told.names() == before
    assert (out == "") is (words[0] != "segments"), "what there is is listed, each segment by its own end"
    assert "GTID(1, 0) to" not in out or "GTID(1, 0) to GTID(1, 4)" in out


def test_the_log_of_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.toml").write_text('[service]\nname = "shop"\n[log]\ndir = "log"\n')
    write(tmp_path / "log", 3)
    assert cli.main(["--service", "shop", "log", "segments", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["segments"][0]["first_gtid"] == "GTID(1, 0)"
    assert cli.main(["log", "info", "--conf", "shop.toml"]) == 0
    assert str(tmp_path / "log") in capsys.readouterr().out


def test_a_directory_of_the_java_replicators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ "file time only in a Tungsten directory"; adding and trimming there is not ours to do."""
    told = Told(tmp_path / "log", capsys)
    told.path.mkdir()
    for number, raw in golden_segments("rotated-60").items():
        (told.path / segment_name(number)).write_bytes(raw)
        os.utime(told.path / segment_name(number), (number, number))
    rows = told.json("segments")["segments"]
    assert [row["created_at"] for row in rows] == [row["number"] * 1000 for row in rows] and len(rows) > 1
    seqnos = [(Gtid.parse(row["first_gtid"]).seqno, Gtid.parse(row["last_gtid"]).seqno) for row in rows]
    assert all(first == last + 1 for (_, last), (first, _) in pairwise(seqnos)) and seqnos[0][0] == 0
    for words in (("info",), ("add",), ("trim", "--to-gtid", "GTID(0, 3)", "-y")):
        code, _, err = told(*words)
        assert code == 4 and "was written by the Tungsten replicator" in err


def test_a_trim_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    """Of a request by hand: the time alone counted, and one without a limit was answered as if it had one."""
    with Log.open(str(tmp_path / "log"), source_id="shop") as log:
        for asked in (Trim(), Trim(to_seqno=1, to_time_ms=1)):
            with pytest.raises(ConfigError, match="one of to_seqno and to_time_ms"):
                LogUpkeep(log).trim(asked)
    with pytest.raises(msgspec.ValidationError, match="to_seqno"):  # it was answered that nothing is to go
        msgspec.convert({"to_seqno": -5}, Trim)


@pytest.mark.parametrize("words", ["hold list", "rollback list --json", "rollback discard --all -y", "log segments"])
def test_a_log_directory_that_is_not_there_is_no_empty_one(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words.split(), "--dir", str(tmp_path / "none")]) == 4
    out = capsys.readouterr()
    assert out.out == "" and "the directory does not exist" in out.err

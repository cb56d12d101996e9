"""`thl` over directories that the Java replicator wrote; conformance/tungsten.md A9, B7."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from fix_effort import few_of
from fix_tungsten import make_event
from tranlog.codecs.converting import convert
from tranlog.codecs.segments import tungsten_rows
from tranlog.codecs.shown import ShownForm, open_log
from tranlog.errors import LogReplacedError
from tranlog.listing import Style
from tranlog.service.commands import cli
from tranlog.service.thl import listing, thl
from tranlog.tungsten.reading.reader import TungstenReader
from tranlog.tungsten.records.event import Event
from tranlog.tungsten.writing.directory import TungstenLog
from tungsten.golden import LOG_WORD, OUR_ERROR, shown

GOLDEN = Path(__file__).parents[1] / "golden" / "tungsten"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/log"))
SOUND = ("empty", "rows-crc", "rotated-60", "simple-100", "statements-crc", "statements-nocrc", "metadata-shards")


def run(log: Path, line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = thl.main(["-dir", str(log), *line.split()])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return code, told.out, told.err


@pytest.mark.parametrize("case", few_of(CASES, 8))
@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("list", "list.txt"),
        ("list -specs -hex", "list-specs-hex.txt"),
        ("list -sql", "list-sql.txt"),
        ("list -headers", "headers.txt"),
        ("list -headers -json", "headers.json"),
        ("index", "index.txt"),
    ],
)
def test_every_text_of_the_golden_directories(
    case: str, line: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `make golden` holds against the ancestor's texts is what the command prints; an error is exit code 3."""
    log = GOLDEN / case / "log"
    wanted = shown(str(log), form, checked=True)
    code, out, err = run(log, line, capsys)
    bad = [one for one in wanted if one.startswith(OUR_ERROR)]
    lines = out.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if bad:
        assert code == 3
        assert bad[0].removeprefix(OUR_ERROR).replace(LOG_WORD, str(log)) in err
        return
    assert code == 0
    if case == "empty" and form.startswith("list"):
        assert "No events found; log is empty" in err
        return
    got = [one for one in lines if one]
    assert got == [one for one in wanted if one]


def test_a_seqno_that_is_not_there_is_not_answered_with_its_neighbour(capsys: pytest.CaptureFixture[str]) -> None:
    """B7-23."""
    code, out, err = run(GOLDEN / "odd-order" / "log", "list -seqno 3", capsys)
    assert (code, out) == (1, "") and "Unable to find sequence number: 3" in err


GAPPED = (*range(6), *range(100, 106))


@pytest.fixture
def gapped(tmp_path: Path) -> Path:
    """A log with a gap, as `online -base-seqno 100` makes one, at the end of its first segment."""
    with TungstenLog.open(str(tmp_path / "thl"), segment_bytes=1000, gaps=True) as writer:
        for seqno in GAPPED:
            writer.append(make_event(seqno))
    return tmp_path / "thl"


@pytest.mark.parametrize(
    ("line", "seqnos", "told"),
    [
        ("list -headers -low 50", range(100, 106), "seqno 50 to 99 are not in this log"),
        ("list -headers -low 50 -high 101", (100, 101), "seqno 50 to 99 are not in this log"),
        ("list -headers -low 4 -high 50", (4, 5), ""),
        ("list -headers -last 10", range(100, 106), "seqno 96 to 99 are not in this log"),
        ("tail -headers -n 10", range(100, 106), ""),
    ],
)
def test_a_gap_hides_nothing(
    line: str, seqnos: Sequence[int], told: str, gapped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(gapped, line, capsys)
    assert (code, [int(one.split("\t")[0]) for one in out.splitlines()], err.strip()) == (0, list(seqnos), told)


def test_a_range_inside_a_gap_is_not_found(gapped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(gapped, "list -low 50 -high 60", capsys)
    assert (code, out, err) == (1, "", "Unable to find sequence number: 50\n")


def test_the_last_gtid_of_a_segment_before_a_gap(gapped: Path) -> None:
    rows = tungsten_rows(str(gapped), report=lambda text: None)
    assert [(str(row.first_gtid), str(row.last_gtid)) for row in rows[:2]] == [
        ("GTID(0, 0)", "GTID(0, 5)"),
        ("GTID(0, 100)", "GTID(0, 104)"),
    ]


def test_who_follows_a_directory_that_is_reset_is_told(gapped: Path) -> None:
    log = open_log(str(gapped))
    lines = log.follow(103, ShownForm.HEADERS, Style(), threading.Event(), None)
    assert [next(lines).split("\t")[0] for _ in range(3)] == ["103", "104", "105"]
    for path in gapped.glob("thl.data.*"):
        path.unlink()
    with TungstenLog.open(str(gapped)) as writer:
        writer.append(make_event(0))
    with pytest.raises(LogReplacedError, match="was removed or replaced"):
        next(lines)


def test_a_seqno_inside_a_filtered_range_shows_the_range(capsys: pytest.CaptureFixture[str]) -> None:
    log = GOLDEN / "filtered" / "log"
    with TungstenReader.open(str(log)).cursor() as cursor:
        while True:
            stored = cursor.next()
            assert stored is not None
            event = stored.event()
            if isinstance(event, Event) and event.header.filtered:
                break
    ranged = event.header
    assert ranged.seqno_end is not None and ranged.seqno_end > ranged.seqno
    code, out, _ = run(log, f"list -seqno {ranged.seqno_end}", capsys)
    assert code == 0 and f"SEQ# = {ranged.seqno} " in out and "## Filtered events ##" in out


@pytest.mark.parametrize(
    ("line", "seqnos"),
    [
        ("-low 57", [57, 58, 59]),
        ("-high 1", [0, 1]),
        ("-low 5 -high 6", [5, 6]),
        ("-seqno 30", [30]),
        ("-last 3", [57, 58, 59]),
        ("-last 1000", list(range(60))),
        ("-file thl.data.0000000002", list(range(9, 18))),
        ("-time 1309560059183", [59]),
        ("-event 000868:0000000000019374;193410", [59]),
        ("-by 5 -seqno 2", [2]),
    ],
)
def test_selectors(line: str, seqnos: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(GOLDEN / "rotated-60" / "log", f"list -headers {line}", capsys)
    assert code == 0
    assert [int(one.split("\t")[0]) for one in out.splitlines()] == seqnos


def test_by_gtid(capsys: pytest.CaptureFixture[str]) -> None:
    log = str(GOLDEN / "rotated-60" / "log")
    assert thl.main(["-dir", log, "list", "-headers", "-gtid", "GTID(0, 7)"]) == 0
    assert capsys.readouterr().out.startswith("7\t")
    assert thl.main(["-dir", log, "list", "-gtid", "GTID(3, 7)"]) == 1
    assert "seqno 7 is GTID(0, 7) in this log" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("list -seqno 1 -low 0", "-seqno: cannot be combined with -low"),
        ("list -last 2 -high 5", "-last: cannot be combined with -high"),
        ("list -file thl.data.0000000001 -seqno 4", "-file: cannot be combined with -seqno"),
        ("list -file ../thl.data.0000000001", "-file: a segment's plain name"),
        ("list -sql -headers", "-sql: cannot be combined with -headers"),
        ("list -charset klingon", "-charset: no charset is called 'klingon'"),
        ("list -charset base64", "-charset: no charset is called 'base64'"),
        ("list -timezone Mars/Base", "-timezone: no time zone is called 'Mars/Base'"),
        ("list -timezone ../../etc/passwd", "-timezone: no time zone is called"),
        ("list -abandoned", "-abandoned: the Java replicator's logs have no rollback marks"),
        ("list -low 9 -high 3", "-low: 9 is above -high 3"),
        ("tail -headers -json", "-json: cannot be combined with -"),
        ("dump", "-seqno: name one of -seqno and -file"),
        ("dump -file thl.data.0000000001 -offset 17", "-offset: no whole record begins at 17"),
        (f"dump -file thl.data.0000000001 -offset {2**63 - 1}", f"-offset: no whole record begins at {2**63 - 1}: 0"),
        (f"dump -file thl.data.0000000001 -offset {2**64}", f"-offset: no whole record begins at {2**64}: 0"),
        ("dump -seqno 1 -offset 16", "-offset: goes with -file only"),
        ("dump -file thl.data.0000000001 -fragno 1", "-fragno: goes with -seqno only"),
        ("purge -low 9 -high 3", "-low: 9 is above -high 3"),
        ("purge -seqno 9 -high 30", "-seqno: cannot be combined with -"),
        ("skip", "skip is no longer supported"),
    ],
)
def test_bad_usage(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(GOLDEN / "rotated-60" / "log", line, capsys)
    assert (code, out) == (2, "") and told in err


def test_a_file_that_the_log_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(GOLDEN / "rotated-60" / "log", "list -file thl.data.0000000099", capsys)
    assert (code, out) == (1, "")
    assert "the log has thl.data.0000000001 to thl.data.0000000007" in err


def test_a_time_zone_moves_instants(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(GOLDEN / "rotated-60" / "log", "list -headers -last 1 -timezone Asia/Tokyo", capsys)
    assert "\t2011-07-02 07:40:59.183\t" in out


def test_json_of_every_case_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    for case in SOUND + ("java-serializer", "filtered"):
        code, out, _ = run(GOLDEN / case / "log", "list -json", capsys)
        assert code == 0
        for line in out.splitlines():
            one = json.loads(line)
            assert ("event" in one) != ("raw" in one), case


def test_without_checksums_a_record_is_shown_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    log = GOLDEN / "fail-bad-crc" / "log"
    assert run(log, "list -headers", capsys)[0] == 3
    code, out, _ = run(log, "list -headers -no-checksum", capsys)
    wanted = (GOLDEN / "fail-bad-crc" / "nochk-headers.txt").read_text().splitlines()
    assert code == 0 and [one for one in out.splitlines() if one] == [one for one in wanted if one]


@pytest.mark.parametrize("case", CASES)
def test_verify_says_what_is_sound(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(GOLDEN / case / "log", "verify", capsys)
    damaged = case.startswith("fail-") or case in ("odd-order", "purge-low-30")
    if case == "recover-zero-length-tail":
        damaged = False
    assert (code == 3) is (case.startswith("fail-") or case == "odd-order"), (case, out, err)
    assert damaged or out.endswith("sound = yes\n")


def test_verify_goes_on_behind_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    shutil.copytree(GOLDEN / "rotated-60" / "log", log)
    for name, at in (("thl.data.0000000002", 200), ("thl.data.0000000004", 900)):
        raw = bytearray((log / name).read_bytes())
        raw[at] ^= 0x10
        (log / name).write_bytes(raw)
    code, out, _ = run(log, "verify", capsys)
    assert code == 3
    named = [line for line in out.splitlines() if line.startswith("PROBLEM")]
    assert any("thl.data.0000000002" in line for line in named)
    assert any("thl.data.0000000004" in line for line in named)
    os.unlink(log / "thl.data.0000000005")
    code, out, _ = run(log, "verify", capsys)
    assert code == 3 and "missing segment" in out


def test_a_missing_segment_hides_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B7-4: `verify` said that what lies before it can be read, and every other command refused the directory."""
    log = tmp_path / "log"
    shutil.copytree(GOLDEN / "rotated-60" / "log", log)
    (log / "thl.data.0000000004").unlink()

    def seqnos(line: str, code: int) -> list[int]:
        found, out, err = run(log, f"list -headers {line}", capsys)
        assert found == code and ("thl.data.0000000004" in err) is (code == 3), err
        return [int(one.split("\t")[0]) for one in out.splitlines()]

    assert seqnos("-low 0 -high 62", 3) == list(range(27))
    assert seqnos("-low 20 -high 25", 0) == list(range(20, 26))
    assert seqnos("-low 50", 0) == list(range(50, 60))
    assert seqnos("-seqno 30", 3) == []
    code, out, err = run(log, "index", capsys)
    assert code == 3 and "the segment is missing" in err
    assert "thl.data.0000000003(18:26)\n" in out and "thl.data.0000000005(36:44)\n" in out
    assert cli.main(["log", "segments", "--dir", str(log), "--json"]) == 3
    told = capsys.readouterr()
    assert "the segment is missing" in told.err
    last = [one["last_gtid"] for one in json.loads(told.out)["segments"]]
    assert last[2:4] == ["GTID(0, 26)", "GTID(0, 44)"]


@pytest.mark.parametrize("case", ["purge-all", "purge-high-30", "purge-seqno-last", "purge-middle"])
def test_purge_as_the_ancestor_did(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = json.loads((GOLDEN / case / "case.json").read_text())
    log = tmp_path / "log"
    shutil.copytree(GOLDEN / case / "log", log)
    code, out, err = run(log, " ".join(["purge", *made["args"]]), capsys)
    told = (GOLDEN / case / "purge.txt").read_text()
    refused = "Fatal error" in told
    assert (code != 0) is refused
    if refused:
        assert "Deletion range invalid; must include one or both log end points" in err
        return
    deleting = next(line for line in told.splitlines() if line.startswith("Deleting"))
    assert out.splitlines()[0].rstrip() == (deleting.rstrip() if made["args"] != ["-y"] else "Deleting all events")


def test_purge_asks_and_takes_no_for_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    shutil.copytree(GOLDEN / "rotated-60" / "log", log)
    before = sorted((one.name, one.read_bytes()) for one in log.iterdir())
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, out, err = run(log, "purge -high 30", capsys)
    assert code == 1 and listing.PURGE_WARNING in err and out == ""
    assert sorted((one.name, one.read_bytes()) for one in log.iterdir()) == before


def test_dump_names_every_byte(capsys: pytest.CaptureFixture[str]) -> None:
    log = GOLDEN / "simple-100" / "log"
    code, out, _ = run(log, "dump -seqno 0 -json", capsys)
    assert code == 0
    found = json.loads(out)
    raw = (log / found["file"]).read_bytes()[found["offset"] : found["offset"] + found["length"]]
    assert b"".join(bytes.fromhex(one["hex"]) for one in found["fields"]) == raw
    values = {one["name"]: one["value"] for one in found["fields"]}
    assert values["seqno"] == "0" and values["source_id"] == "'logos'" and values["checksum"] == "matches"


def test_dump_of_a_damaged_record_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    shutil.copytree(GOLDEN / "rotated-60" / "log", log)
    raw = bytearray((log / "thl.data.0000000001").read_bytes())
    raw[200] ^= 1
    (log / "thl.data.0000000001").write_bytes(raw)
    code, out, _ = run(log, "dump -file thl.data.0000000001 -offset 16 --hex", capsys)
    assert code == 0 and "DOES NOT MATCH" in out


@pytest.mark.parametrize(("case", "ends", "events"), [("filtered", (0, 14), 7), ("rotated-60", (0, 59), 60)])
def test_info_counts_events_and_no_seqnos(
    case: str, ends: tuple[int, int], events: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A filtered range has many seqnos and is one event; fragments are none."""
    code, out, _ = run(GOLDEN / case / "log", "info -json", capsys)
    found = json.loads(out)
    assert code == 0 and (found["min_seqno"], found["max_seqno"], found["events"]) == (*ends, events)
    code, out, _ = run(GOLDEN / case / "log", "verify -json", capsys)
    assert code == 0 and json.loads(out)["transactions"] == events


def test_info_counts_the_events_of_a_log_with_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(GOLDEN / "odd-order" / "log", "info", capsys)
    assert code == 0 and "\nmax seq# = 20\nevents = 10\n" in out


def test_info_says_that_damage_hides_how_many_events_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(GOLDEN / "fail-bad-body-first-file" / "log", "info", capsys)
    assert code == 0 and "max seq# = 59" in out and "events" not in out
    assert "note: its events are not counted: damaged log: thl.data.0000000001, offset 1400" in err


@pytest.mark.long
@pytest.mark.parametrize("kind", ["native", "tungsten"])
def test_a_long_listing_says_on_stderr_how_far_it_is(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long scans show progress; a pipe gets nothing but results."""
    monkeypatch.setattr("tranlog.service.frame.progress.SHOWN_AFTER_S", 0.0)
    theirs, log = tmp_path / "thl", tmp_path / "thl"
    with TungstenLog.open(str(theirs)) as writer:
        for seqno in range(5000):
            writer.append(make_event(seqno))
    if kind == "native":
        log = tmp_path / "log"
        convert(str(theirs), str(log))
    code, out, err = run(log, "list -headers", capsys)
    assert code == 0 and len(out.splitlines()) == 5000
    assert "listed up to seqno 4096 of 4999" in err.splitlines()


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "list",
        "list -headers -last 2",
        "tail -n 1",
        "index",
        "info",
        "verify",
        "dump -seqno 1",
        "purge -y -high 3",
        "repair -y",
        "diff LOG LOG",
        "convert LOG DST",
    ],
)
@pytest.mark.parametrize("native_is", ["oldest", "newest"])
def test_a_directory_with_both_codecs(
    line: str, native_is: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One clear error, whichever of the two stands first."""
    log = tmp_path / "log"
    native = log / ("thl.data.0000000001" if native_is == "oldest" else "thl.data.0000000009")
    convert(str(GOLDEN / "rotated-60" / "log"), str(tmp_path / "native"))
    log.mkdir()
    for path in (GOLDEN / "rotated-60" / "log").glob("thl.data.*"):
        shutil.copyfile(path, log / path.name)
    shutil.copyfile(tmp_path / "native" / "thl.data.0000000001", native)
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    code, out, err = run(log, line.replace("LOG", str(log)).replace("DST", str(tmp_path / "dst")), capsys)
    assert (code, out) == (4, "")
    assert f"holds two logs: {native.name} is in tranlog's own format" in err and len(err.splitlines()) == 1
    assert {path.name: path.read_bytes() for path in log.iterdir()} == before

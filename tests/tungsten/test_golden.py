"""The checker of golden directories: what the real replicator wrote, and that the checker can fail."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fix_tungsten import GOLDEN, golden_cases
from tranlog.tungsten.reading.dump import dump_event
from tranlog.tungsten.records.codec import TRAILER, encode_event, scan
from tranlog.tungsten.records.event import (
    Event,
    EventHeader,
    FileDelete,
    FileFragment,
    FileQuery,
    RowId,
    StatementChange,
)
from tranlog.tungsten.records.record import EventRecord
from tungsten.golden import dump_segment, main, shown
from tungsten.intended import KINDS, Difference, Facts, kind_of

BUILT = ("unknown checksum type", "NUL in JSON")
"""Kinds that no directory of the real replicator at hand shows; cases for them are built below."""


@pytest.mark.long
def test_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing differs but what is meant, and every kind on the list is met with."""
    code = main([str(GOLDEN)])
    told = capsys.readouterr().out
    assert code == 0, told
    assert f"golden: {len(golden_cases())} cases, " in told and " checks, 0 differences, " in told
    for kind in KINDS:
        if kind.name in BUILT:
            continue
        assert f" {kind.name}: {kind.reason}" in told, f"no golden case has this kind: {kind.name}"


def test_a_missing_middle_segment_is_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B7-4: the ancestor's listing ends there as if it were done, and its index gives the range to the one before."""
    case = tmp_path / "case"
    shutil.copytree(GOLDEN / "rotated-60", case)
    (case / "log" / "thl.data.0000000004").unlink()
    dump = (case / "dump.jsonl").read_text().splitlines(keepends=True)
    begins = [number for number, line in enumerate(dump) if line.startswith('{"file"')]
    (case / "dump.jsonl").write_text("".join(dump[: begins[3]] + dump[begins[4] :]))
    for name in ("list.txt", "headers.txt", "list-sql.txt", "headers.json", "list-specs-hex.txt", "info.txt"):
        (case / name).unlink()
    index = (case / "index.txt").read_text().replace("(18:26)", "(18:35)")
    (case / "index.txt").write_text(index.replace("LogIndexEntry thl.data.0000000004(27:35)\n", ""))
    headers = (GOLDEN / "rotated-60" / "headers.txt").read_text().splitlines(keepends=True)
    (case / "headers.txt").write_text("".join(line for line in headers if int(line.split()[0]) < 27))
    (case / "list.log").unlink()
    (case / "case.json").write_text("{}")
    code = main([str(tmp_path)])
    told = capsys.readouterr().out
    assert code == 0, told
    assert "hole named" in told


def test_a_checksum_of_an_unknown_type_is_not_called_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = tmp_path / "case"
    (case / "log").mkdir(parents=True)
    raw = bytearray((GOLDEN / "statements-nocrc" / "log" / "thl.data.0000000001").read_bytes())
    last = [record for record in scan(bytes(raw), checked=True) if isinstance(record, EventRecord)][-1]
    raw[last.offset + last.length - TRAILER.size] = 7
    (case / "log" / "thl.data.0000000001").write_bytes(raw)
    lines = [*dump_segment("thl.data.0000000001", bytes(raw), checked=False)]
    assert lines[-1]["crcType"] == 7 and lines[-1]["crcOk"] is False
    for ok, code in ((True, 0), (False, 0)):
        (case / "nochk-dump.jsonl").write_text(
            "\n".join(json.dumps(line) for line in [*lines[:-1], lines[-1] | {"crcOk": ok}])
        )
        assert main([str(tmp_path)]) == code, capsys.readouterr().out
        assert ("unknown checksum type" in capsys.readouterr().out) is ok


def test_a_nul_in_an_event_id_is_escaped_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = tmp_path / "case"
    shutil.copytree(GOLDEN / "empty", case)
    for name in (
        "list.log",
        "headers.txt",
        "list.txt",
        "list-sql.txt",
        "list-specs-hex.txt",
        "index.txt",
        "info.txt",
        "dump.jsonl",
    ):
        (case / name).unlink()
    raw = (case / "log" / "thl.data.0000000001").read_bytes()
    record = encode_event(
        seqno=0,
        fragno=0,
        last_frag=True,
        epoch=0,
        source_id="s",
        event_id="a\0b",
        shard_id="x",
        tstamp=0,
        payload=b"",
        checksum=True,
    )
    (case / "log" / "thl.data.0000000001").write_bytes(raw + record)
    ours = list(shown(str(case / "log"), "headers.json", checked=True))
    assert json.loads("\n".join(ours))[0]["eventId"] == "a\0b"
    (case / "headers.json").write_text("\n".join(ours).replace("\\u0000", "\0") + "\n")
    code = main([str(tmp_path)])
    told = capsys.readouterr().out
    assert "NUL in JSON" in told, (code, told)


def test_what_is_no_row_change_is_dumped_with_its_fields() -> None:
    """The ancestor's classes by their names: a row id, and the parts of a LOAD DATA."""
    statement = StatementChange(query="LOAD DATA INFILE 'x' INTO TABLE t", schema="s")
    event = Event(
        header=EventHeader(
            seqno=0, fragno=0, last_frag=True, epoch=0, source_id="s", event_id="e", tstamp=0, serialized=0
        ),
        changes=(
            RowId(number=7),
            RowId(number=8, kind=1),
            FileFragment(file_id=3, raw=b"\x01a", schema="s"),
            FileQuery(statement=statement, file_id=3, name_start=18, name_end=20),
            FileDelete(file_id=3),
        ),
    )
    row, last, part, query, end = dump_event(event)["data"]
    assert row == {"class": "RowIdData", "options": None, "rowId": 7, "type": 2}
    assert last["type"] == 1
    assert part == {"class": "LoadDataFileFragment", "options": None, "fileId": 3, "schema": "s", "data": "0161"}
    assert query["class"] == "LoadDataFileQuery" and query["query"].startswith("LOAD DATA") and query["fileId"] == 3
    assert end == {"class": "LoadDataFileDelete", "options": None, "fileId": 3}


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(bytes(raw))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "harm", "told"),
    [
        ("simple-100", lambda case: edit(case / "dump.jsonl", '"dbms_type"', '"dbms_kind"'), "dump.jsonl"),
        ("simple-100", lambda case: edit(case / "dump.jsonl", '"crc":118020477', '"crc":1'), "dump.jsonl"),
        ("simple-100", lambda case: edit(case / "list.txt", "db1", "db2"), "list.txt, line"),
        ("simple-100", lambda case: edit(case / "headers.json", "193351", "193352"), "headers.json"),
        ("simple-100", lambda case: edit(case / "info.txt", "events = 99", "events = 98"), "info.txt"),
        ("simple-100", lambda case: edit(case / "list.log", "exit=0", "exit=1"), "exit code"),
        ("simple-100", lambda case: flip(case / "log" / "thl.data.0000000001", 20000), "dump.jsonl"),
        ("rotated-60", lambda case: edit(case / "case.json", "3000", "2000"), "re-writing"),
        ("rotated-60", lambda case: edit(case / "index.txt", "(9:17)", "(9:18)"), "index.txt"),
        ("rows-crc", lambda case: edit(case / "list.txt", "[B@", "C@"), "list.txt"),
        ("recover-zero-tail", lambda case: flip(case / "recovered" / "thl.data.0000000001", 3000), "recovered"),
        ("recover-zero-tail", lambda case: edit(case / "recovered.txt", "max=9", "max=8"), "recovered.txt"),
        ("purge-high-30", lambda case: flip(case / "after" / "thl.data.0000000005", 900), "after"),
        ("purge-middle", lambda case: edit(case / "purge.txt", "low seqno=20", "low seqno=21"), "refusal"),
        ("fail-bad-crc", lambda case: edit(case / "list.txt", "offset=2716", "offset=2717"), "list.txt"),
        ("odd-order", lambda case: edit(case / "case.json", "seqno 3", "seqno 4"), ""),
    ],
)
def test_a_difference_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, harm: Callable[[Path], None], told: str
) -> None:
    """That the checker can fail; the last one changes what is for people only."""
    shutil.copytree(GOLDEN / case, tmp_path / case)
    harm(tmp_path / case)
    assert main([str(tmp_path)]) == (1 if told else 0)
    assert told in capsys.readouterr().out


def test_a_case_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(GOLDEN / "empty", tmp_path / "one")
    shutil.copytree(GOLDEN / "empty", tmp_path / "two")
    (tmp_path / "one" / "case.json").write_text("{")
    assert main([str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "one: cannot be checked: " in told and "two: 12 checks, ok" in told


def test_by_kind_and_never_by_name(tmp_path: Path) -> None:
    """A case under another name is judged the same."""
    for number, case in enumerate(("recover-torn-header", "purge-low-30", "fail-bad-body-first-file")):
        shutil.copytree(GOLDEN / case, tmp_path / f"x{number}")
    assert main([str(tmp_path)]) == 0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_covers_no_plain_difference(kind: object) -> None:
    plain = Difference(case="c", what="list.txt", place="line 1", theirs=("- EPOCH# = 0",), ours=("- EPOCH# = 1",))
    facts = Facts(unfinished_newest=True, java_objects=True, row_changes=True, hole=True)
    assert kind_of(plain, facts) is None


def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No directory, an empty one, a wrong number of arguments: one sentence each."""
    for arguments, code, told in (
        ([str(tmp_path / "none")], 4, "cannot read"),
        ([str(tmp_path)], 4, "no case in"),
        ([], 2, "usage:"),
    ):
        assert main(arguments) == code
        assert told in capsys.readouterr().err


def test_the_command_line(tmp_path: Path) -> None:
    """As `make golden` runs it."""
    shutil.copytree(GOLDEN / "recover-zero-tail", tmp_path / "case")
    command = [sys.executable, "-m", "tungsten.golden", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines()[-1].startswith("golden: 1 cases, ")

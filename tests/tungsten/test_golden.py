"""The checker of golden directories: what the real replicator wrote, and that the checker can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fix_tungsten import GOLDEN, golden_cases
from tranlog.tungsten.golden import main
from tranlog.tungsten.intended import KINDS, Difference, Facts, kind_of


def test_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 6, items 1 and 2: nothing differs but what is meant, and every kind on the list is met with."""
    code = main([str(GOLDEN)])
    told = capsys.readouterr().out
    assert code == 0, told
    assert f"golden: {len(golden_cases())} cases, " in told and " checks, 0 differences, " in told
    for kind in KINDS:
        assert f" {kind.name}: {kind.reason}" in told, f"no golden case has this kind: {kind.name}"


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(bytes(raw))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


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
    """Issue 6, item 2: a case under another name is judged the same."""
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
    command = [sys.executable, "-m", "tranlog.tungsten.golden", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines()[-1].startswith("golden: 1 cases, ")

"""`thl repair`, `thl diff`, and `thl list -gtid`, `-time`, `-event`."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import msgspec
import pytest

from fix_tungsten import GOLDEN, make_event
from tranlog.change import Fragment
from tranlog.log.writing.log import Log, LogOptions
from tranlog.payload import Payload, encode
from tranlog.service.thl import thl
from tranlog.tungsten.records.event import FileFragment
from tranlog.tungsten.writing.directory import TungstenLog

AT = 1309533317000  # 2011-07-01 15:15:17 UTC


class StandingClock:
    def now_ms(self) -> int:
        return AT - 3_600_000

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError


def write(path: Path, first: int, count: int) -> None:
    """Open the log once (a no-op) and append so many transactions, a second apart, named e:N."""
    with Log.open(path, source_id="till", options=LogOptions(segment_bytes=2000), clock=StandingClock()) as log:
        for number in range(first, first + count):
            log.append(
                Fragment(
                    source_id="till",
                    event_id=f"e:{number}",
                    shard_id="shop.item",
                    tstamp=AT + number * 1000,
                    tables=(("shop", "item"),),
                    payload=encode(Payload(metadata=(("n", str(number)),))),
                    last=True,
                )
            )
        log.commit()


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    write(path, 1, 60)  # seqno 0 is the no-op, e:N is seqno N
    return path


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = thl.main(arguments)
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return code, told.out, told.err


def listed(log: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[int], str]:
    code, out, err = run(["-dir", str(log), "list", "-headers", *arguments], capsys)
    return code, [int(line.split("\t")[0]) for line in out.splitlines()], err


def damage(log: Path, number: int = 3) -> None:
    segment = log / f"thl.data.{number:010d}"
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2] ^= 4
    segment.write_bytes(raw)


# --- lookup ---


@pytest.mark.parametrize("dash", ["-", "--"])
def test_one_transaction_by_gtid_and_event(log_dir: Path, dash: str, capsys: pytest.CaptureFixture[str]) -> None:
    from tranlog.ids import Epoch, Gtid, Seqno

    base64 = Gtid(Epoch(1), Seqno(15)).to_base64()
    for arguments in (["gtid", "GTID(1, 15)"], ["gtid", base64], ["event", "e:15"]):
        name, value = arguments
        assert listed(log_dir, [dash + name, value], capsys) == (0, [15], "")
    code, out, _ = run(["-dir", str(log_dir), "list", dash + "event", "e:15", "-json"], capsys)
    assert code == 0 and json.loads(out)["gtid"] == "GTID(1, 15)"


def test_from_a_time_on(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(log_dir, ["-time", "2011-07-01 15:16:00"], capsys) == (0, list(range(43, 61)), "")
    assert listed(log_dir, ["--time", str(AT + 58_500)], capsys) == (0, [59, 60], "")
    assert listed(log_dir, ["-time", "2011-07-01T17:16:00+02:00", "-high", "44"], capsys) == (0, [43, 44], "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-gtid", "GTID(2, 15)"], "Unable to find GTID(2, 15): seqno 15 is GTID(1, 15) in this log"),
        (["-gtid", "GTID(1, 99)"], "Unable to find GTID(1, 99)"),
        (["-event", "e:99"], "Unable to find event id e:99"),
        (["-time", "2011-07-02"], "Unable to find a transaction of 2011-07-02 00:00:00.0 or later"),
    ],
)
def test_what_is_not_there_is_said(
    log_dir: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(log_dir, arguments, capsys) == (1, [], f"{told}\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-gtid", "fifteen"], "-gtid: not a GTID"),
        (["-time", "yesterday"], "-time: not a time"),
        (["-gtid", "GTID(1, 1)", "-seqno", "1"], "-gtid: cannot be combined with -"),
        (["-event", "e:1", "-gtid", "GTID(1, 1)"], "-gtid: cannot be combined with -"),
        (["-time", "2011-07-01", "-low", "4"], "-time: goes with -high only"),
    ],
)
def test_lookups_that_make_no_sense(
    log_dir: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, seqnos, err = listed(log_dir, arguments, capsys)
    assert (code, seqnos) == (2, []) and told in err


# --- verify and repair ---


def test_from_verify_to_repair(
    log_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an operator does: see the damage, see what a repair would cost, decline, accept, go on."""
    damage(log_dir)
    code, out, err = run(["-dir", str(log_dir), "verify"], capsys)
    assert code == 3 and "thl repair --dry-run" in err
    assert "PROBLEM at thl.data.0000000003, offset" in out and "bad record" in out
    before = {path.name: path.read_bytes() for path in log_dir.glob("thl.*")}
    code, dry, _ = run(["-dir", str(log_dir), "repair", "--dry-run"], capsys)
    assert code == 1
    assert "cut off: " in dry and "lost = " in dry and "LOST GTID(1, " in dry
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, out, err = run(["-dir", str(log_dir), "repair"], capsys)
    assert (code, out) == (1, "") and "declined; nothing was changed" in err
    assert {path.name: path.read_bytes() for path in log_dir.glob("thl.*")} == before
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    code, out, err = run(["-dir", str(log_dir), "repair"], capsys)
    assert code == 0
    assert [line for line in dry.splitlines() if "ost" in line] == [line for line in out.splitlines() if "ost" in line]
    assert "sound = yes" in out and "kept in " in out
    kept = [Path(line.removeprefix("kept in ")) for line in out.splitlines() if line.startswith("kept in ")]
    assert kept and all(path.exists() for path in kept)
    assert run(["-dir", str(log_dir), "verify"], capsys)[0] == 0
    assert run(["-dir", str(log_dir), "repair"], capsys) == (0, "nothing to repair\n", "")
    write(log_dir, 100, 3)
    assert run(["-dir", str(log_dir), "verify"], capsys)[0] == 0


def test_repair_for_programs(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(log_dir, 2)
    code, out, err = run(["-dir", str(log_dir), "repair", "-keep", "back", "-y", "--json"], capsys)
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["sound"] is True and told["plan"]["keep"] == "back"
    assert told["plan"]["lost"]["gtids"][0]["first"] == 0
    assert len(told["kept_in"]) == 2 and Path(told["report"]).exists()


def test_repair_while_somebody_writes_and_one_that_is_refused(
    log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Log.open(log_dir, source_id="till", clock=StandingClock()):
        code, out, err = run(["-dir", str(log_dir), "repair", "-y"], capsys)
        assert (code, out) == (4, "") and "held by another writer" in err
    damage(log_dir, len(list(log_dir.glob("thl.data.*"))))
    code, out, err = run(["-dir", str(log_dir), "repair", "-y", "--keep", "back"], capsys)
    assert (code, out) == (3, "") and "--keep front" in err


# --- diff ---


def test_diff_of_two_histories(log_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    shutil.copytree(log_dir, other)
    assert run(["diff", str(log_dir), str(other)], capsys)[0] == 0
    write(log_dir, 200, 30)
    write(other, 300, 5)
    code, out, _ = run(["diff", str(log_dir), str(other), "--shown", "2"], capsys)
    assert code == 1
    lines = out.splitlines()
    assert "first difference = seqno 62, by checksum" in lines
    assert "only A has = 30 transactions" in lines and "only B has = 5 transactions" in lines
    assert "ONLY B GTID(2, 62), event id 'e:300', shard shop.item, 2011-07-01 15:20:17.0" in lines
    assert "ONLY A and 28 more" in lines and lines[-1] == "agree = no"
    code, out, _ = run(["diff", "-full", "-json", str(log_dir), str(other)], capsys)
    told = json.loads(out)
    assert code == 1
    assert (told["first"]["seqno"], told["differing"], told["full"], told["agree"]) == (62, 5, True, False)


@pytest.mark.parametrize("case", ["rows-crc", "filtered", "statements-crc", "metadata-shards", "rotated-60"])
def test_diff_of_a_replicators_directory_and_its_conversion(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What both codecs can express is the same in both, however it is asked."""
    theirs, ours = str(GOLDEN / case / "log"), str(tmp_path / "log")
    assert run(["convert", "--lossy", theirs, ours], capsys)[0] == 0
    for options in ([], ["--full"]):
        assert run(["diff", *options, theirs, ours], capsys)[1].splitlines()[-1] == "agree = yes"


def test_diff_of_two_replicators_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """thl-internals, "EPOCH Numbers": "the THL should be examined and compared between the master and slave"."""
    one, other = tmp_path / "one", tmp_path / "other"
    for path, text in ((one, "insert"), (other, "update")):
        with TungstenLog.open(str(path), segment_bytes=2_000) as log:
            for seqno in range(40 if text == "insert" else 35):
                log.append(make_event(seqno, text=text if seqno >= 30 else "both"))
    code, out, _ = run(["diff", str(one), str(other)], capsys)
    assert code == 1
    lines = out.splitlines()
    assert "first difference = seqno 30, by checksum" in lines and "common = seqno 0 to 34" in lines
    assert "only A has = 10 transactions" in lines and "only B has = 5 transactions" in lines


def test_diff_of_replicators_directories_with_load_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be read as changes is compared as it stands: equal logs are equal."""
    one, same, other = tmp_path / "one", tmp_path / "same", tmp_path / "other"
    for path, raw in ((one, b"1,2"), (same, b"1,2"), (other, b"1,3")):
        with TungstenLog.open(str(path)) as log:
            log.append(make_event(0))
            event = make_event(1)
            log.append(msgspec.structs.replace(event, changes=(FileFragment(file_id=1, raw=raw, schema="s"),)))
            log.append(make_event(2))
    for options in ([], ["--full"]):
        code, out, err = run(["diff", *options, str(one), str(same)], capsys)
        assert (code, out.splitlines()[-1]) == (0, "agree = yes"), err
    code, out, _ = run(["diff", "--full", str(one), str(other)], capsys)
    assert code == 1 and "first difference = seqno 1, by " in out


def test_diff_with_something_that_is_no_log(log_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["diff", str(log_dir), str(tmp_path / "nowhere")], capsys)
    assert (code, out) == (4, "") and "nowhere" in err
    damage(log_dir, 1)
    copy = tmp_path / "copy"
    shutil.copytree(log_dir, copy)
    assert run(["diff", "--full", str(log_dir), str(copy)], capsys)[0] == 3


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("list", "verify", "repair", "diff"):
        code, out, _ = run([command, "--help"], capsys)
        assert code == 0 and "Example:\n    thl " in out

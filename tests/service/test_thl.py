"""The `thl` command over real logs; thl-internals; conformance/tungsten.md A9, B7 (2-6, 15, 23)."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tranlog.change import Column, Fragment, Op, RowChange, Statement, TableMap
from tranlog.ids import Epoch, Gtid, Seqno, segment_name
from tranlog.log.writing.log import Log, LogOptions, LogReader
from tranlog.lsn import lsn_segment
from tranlog.payload import Payload, encode
from tranlog.service.frame.exits import ExitCode
from tranlog.service.thl import thl
from tranlog.service.thl.thl_list import NotFound, Wanted, WantedSeqnos, choose
from tranlog.types import LogicalType

AT = 1309533317000  # 2011-07-01 15:15:17 UTC
ITEM = TableMap(
    schema="shop",
    table="item",
    columns=(Column(name="id", source_type="int", logical=LogicalType.INTEGER),),
    primary_key=(0,),
)


class StandingClock:
    def now_ms(self) -> int:
        return AT

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        pass


def fragment(number: int, payload: Payload, *, shard: str = "shop.item", last: bool = True) -> Fragment:
    return Fragment(
        source_id="till",
        event_id=f"e:{number}",
        shard_id=shard,
        tstamp=AT + number * 1037,
        tables=(("shop", "item"),),
        payload=encode(payload),
        last=last,
    )


def insert(number: int) -> Payload:
    return Payload(changes=(RowChange(ITEM, Op.INSERT, None, (number,)),))


def write_log(path: Path, transactions: int, options: LogOptions | None = None) -> None:
    """Write a no-op (seqno 0) and so many transactions, the third of them a statement, the fourth in two fragments."""
    with Log.open(path, source_id="till", options=options, clock=StandingClock()) as log:
        for number in range(1, transactions + 1):
            if number == 3:
                statement = Statement(schema="shop", sql="create table t (id int)", ddl=True)
                log.append(fragment(number, Payload(changes=(statement,)), shard="#UNKNOWN"))
            elif number == 4:
                log.append(fragment(number, insert(40), shard="#UNKNOWN", last=False))
                log.append(fragment(number, insert(41)))
            else:
                log.append(fragment(number, insert(number)))
            log.commit()


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("thl") / "log"
    write_log(path, 5)
    return path


def run(log: Path, line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = thl.main(["-dir", str(log), *line.split()])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return code, told.out, told.err


# --- list ---


def test_one_transaction(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(log_dir, "list -seqno 2", capsys) == (
        0,
        "SEQ# = 2 / FRAG# = 0 (last frag)\n"
        "- TIME = 2011-07-01 15:15:19.074\n"
        "- EPOCH# = 1\n"
        "- EVENTID = e:2\n"
        "- SOURCEID = till\n"
        "- METADATA = [shard=shop.item]\n"
        "- TYPE = com.continuent.tungsten.replicator.event.ReplDBMSEvent\n"
        "- SQL(0) =\n"
        " - ACTION = INSERT\n"
        " - SCHEMA = shop\n"
        " - TABLE = item\n"
        " - ROW# = 0\n"
        "  - COL(1: id) = 2\n",
        "",
    )


def test_the_start_of_a_writer_shows_as_a_noop(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(log_dir, "list -seqno 0", capsys)
    assert code == 0
    assert out.splitlines()[5] == "- METADATA = [noop=true;shard=#UNKNOWN]"


def test_a_transaction_of_two_fragments(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(log_dir, "list -seqno 4", capsys)
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("SEQ#")] == [
        "SEQ# = 4 / FRAG# = 0",
        "SEQ# = 4 / FRAG# = 1 (last frag)",
    ]


@pytest.mark.parametrize(
    ("line", "seqnos"),
    [
        ("list -headers", [0, 1, 2, 3, 4, 4, 5]),
        ("list -headers -low 3", [3, 4, 4, 5]),
        ("list -headers -high 1", [0, 1]),
        ("list --headers --low 2 --high 3", [2, 3]),
        ("list --headers --seqno=4", [4, 4]),
        ("list -headers -low 4 -high 99", [4, 4, 5]),
    ],
)
def test_a_range(line: str, seqnos: list[int], log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(log_dir, line, capsys)
    assert code == 0
    assert [int(row.split("\t")[0]) for row in out.splitlines()] == seqnos
    assert ("the log ends at seqno 5" in err) == ("99" in line)


@pytest.mark.parametrize("line", ["list", "list -json", "list -headers", "list -headers -json", "list -seqno 1 -sql"])
def test_a_transaction_that_spilled_is_listed_like_one_in_fragments(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """tokumx.md, invariant 13; docs/decisions/0012: "`thl list` ... see no difference"."""
    told = []
    for name, most in (("plain", 1_000_000), ("spilled", 1)):
        options = LogOptions(spill_buffer_bytes=most, spill_chunk_bytes=100)
        with Log.open(tmp_path / name, source_id="till", options=options, clock=StandingClock()) as log:
            with log.begin() as transaction:
                for number in range(4):
                    transaction.add(fragment(7, insert(number), shard="shop.item" if number == 3 else "#UNKNOWN"))
            assert bool(log.spill_segments()) is (name == "spilled")
        told.append(run(tmp_path / name, line, capsys))
        assert run(tmp_path / name, "verify", capsys)[0] == 0
    (one_code, one, one_err), (code, other, err) = told
    # The hash is of the records, and says which.
    assert [text for text in one.splitlines() if not text.startswith('"h": ')] == [
        text for text in other.splitlines() if not text.startswith('"h": ')
    ]
    assert (one_code, one_err) == (code, err) == (0, "")


def test_headers_and_their_json(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The array has the ancestor's form, an object's member per line."""
    _, out, _ = run(log_dir, "list -headers -seqno 4", capsys)
    assert out == (
        "4\t1\t0\tfalse\t2011-07-01 15:15:21.148\te:4\ttill\t\t\n"
        "4\t1\t1\ttrue\t2011-07-01 15:15:21.148\te:4\ttill\t\t\n"
    )
    _, out, _ = run(log_dir, "list -headers -json -low 4", capsys)
    assert [one["seqno"] for one in json.loads(out)] == [4, 4, 5]
    _, out, _ = run(log_dir, "list -headers -json -low 4 -high 4", capsys)
    with LogReader.open(log_dir) as reader:
        h = f'"h": "{reader.h(Seqno(4)):016x}",'
    gtid = ('"gtid": "GTID(1, 4)",', f'"gtidBase64": "{Gtid(Epoch(1), Seqno(4)).to_base64()}"')
    assert out.splitlines() == [
        "[",
        *("{", '"seqno": 4,', '"epoch": 1,', '"frag": 0,', '"lastFrag": false,', '"time": "2011-07-01 15:15:21.148",'),
        *('"eventId": "e:4",', '"sourceId": "till",', '"comments": "",', h, *gtid, "},"),
        *("{", '"seqno": 4,', '"epoch": 1,', '"frag": 1,', '"lastFrag": true,', '"time": "2011-07-01 15:15:21.148",'),
        *('"eventId": "e:4",', '"sourceId": "till",', '"comments": "",', h, *gtid, "}"),
        "]",
    ]


def test_json_is_a_line_per_fragment(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(log_dir, "list -json", capsys)
    assert code == 0
    shown = [json.loads(line) for line in out.splitlines()]
    assert [(one["seqno"], one["frag"]) for one in shown] == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (4, 1), (5, 0)]
    assert shown[3]["changes"][0]["statement"] == "create table t (id int)"


def test_diagnostics_are_no_part_of_a_listing(log_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The document's example has INFO lines in front of the listing; here they go to stderr, on request."""
    assert thl.main(["-dir", str(log_dir), "--verbose", "list", "-seqno", "5"]) == 0
    told = capfd.readouterr()
    assert told.out.startswith("SEQ# = 5 / FRAG# = 0 (last frag)")
    assert "Opened for reading" in told.err and f"path={log_dir}" in told.err
    assert thl.main(["-dir", str(log_dir), "list", "-seqno", "5"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("line", "seqno"), [("-seqno 6", 6), ("-low 6", 6), ("-low 7 -high 9", 7)])
def test_a_seqno_that_is_not_there(line: str, seqno: int, log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B7-23: never answered with the neighbour."""
    assert run(log_dir, f"list {line}", capsys) == (1, "", f"Unable to find sequence number: {seqno}\n")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("list -low 5 -high 2", "-low: 5 is above -high 2"),
        ("list -seqno 1 -low 2", "-seqno: cannot be combined with -"),
        ("list -seqno -1", "-seqno: a seqno is 0 or more"),
        ("list -seqno one", "'-seqno' / '--seqno': Input should be a valid integer"),
        ("list -conf x.toml", "--dir = "),
        ("list -frobnicate", "no such option: -frobnicate"),
        ("frobnicate", "no such command 'frobnicate'"),
    ],
)
def test_bad_usage(line: str, told: str, log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(log_dir, line, capsys)
    assert (code, out) == (2, "")
    assert told in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("wanted", "first", "last", "chosen"),
    [
        (Wanted(low=None, high=None), -1, -1, NotFound(message="No events found; log is empty", code=ExitCode.DONE)),
        (
            Wanted(low=5, high=None),
            -1,
            -1,
            NotFound(message="Unable to find sequence number: 5", code=ExitCode.CHECK_FAILED),
        ),
        (Wanted(low=None, high=None), 10, 20, WantedSeqnos(low=Seqno(10), high=Seqno(20))),
        (
            Wanted(low=3, high=3),
            10,
            20,
            NotFound(message="Unable to find sequence number: 3", code=ExitCode.CHECK_FAILED),
        ),
        (
            Wanted(low=3, high=12),
            10,
            20,
            WantedSeqnos(low=Seqno(10), high=Seqno(12), note="seqno 3 to 9 are not in this log: it starts at 10"),
        ),
        (
            Wanted(low=None, high=9),
            10,
            20,
            NotFound(message="Unable to find sequence number: 9", code=ExitCode.CHECK_FAILED),
        ),
    ],
)
def test_what_of_a_range_is_there(wanted: Wanted, first: int, last: int, chosen: WantedSeqnos | NotFound) -> None:
    assert choose(wanted, first, last, lambda seqno: seqno) == chosen


# --- index, info ---


def test_index_and_info_of_several_segments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Segments in order without a gap between them; one event per seqno (B7-6)."""
    log = tmp_path / "log"
    write_log(log, 40, LogOptions(segment_bytes=2000))
    code, out, _ = run(log, "index", capsys)
    assert code == 0
    entries = [line.removeprefix("LogIndexEntry thl.data.").rstrip(")").split("(") for line in out.splitlines()]
    assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1)) and len(entries) > 2
    ranges = [[int(n) for n in seqnos.split(":")] for _, seqnos in entries]
    assert ranges[0][0] == 0 and ranges[-1][1] == 40
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(ranges))
    code, out, _ = run(log, "index --json", capsys)
    assert [[one["first_seqno"], one["last_seqno"]] for one in map(json.loads, out.splitlines())] == ranges
    newest = log / f"thl.data.{len(entries):010d}"
    os.utime(newest, (AT / 1000, AT / 1000))
    code, out, _ = run(log, "info", capsys)
    lines = dict(line.split(" = ", 1) for line in out.splitlines())
    assert list(lines) == [
        *(
            "log directory",
            "log files",
            "logs size",
            "min seq#",
            "max seq#",
            "events",
            "oldest file",
            "newest file",
            "history",
        )
    ]
    assert lines["log directory"] == f"{log}/"
    assert (lines["log files"], lines["min seq#"], lines["max seq#"], lines["events"]) == (
        str(len(entries)),
        "0",
        "40",
        "41",
    )
    assert lines["newest file"] == f"{newest.name} (0.00 MB, 2011-07-01 15:15:17)"
    code, out, _ = run(log, "info --json", capsys)
    assert json.loads(out)["bytes"] == sum(path.stat().st_size for path in log.glob("thl.data.*"))


def test_a_log_that_begins_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Segments that were removed at the front are purged: what is there is listed, what is not is said."""
    log = tmp_path / "log"
    write_log(log, 40, LogOptions(segment_bytes=2000))
    (log / "thl.data.0000000001").unlink()
    code, out, _ = run(log, "index", capsys)
    first = int(out.partition("(")[2].partition(":")[0])
    assert code == 0 and first > 0
    assert run(log, "list -seqno 0", capsys) == (1, "", "Unable to find sequence number: 0\n")
    code, out, err = run(log, f"list -headers -low 0 -high {first}", capsys)
    assert (code, out.count("\n")) == (0, 1)
    assert err == f"seqno 0 to {first - 1} are not in this log: it starts at {first}\n"


# --- bad logs ---


def test_a_missing_segment_in_the_middle_is_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B7-4: the ancestor lists up to the hole and calls it done; here the hole is an error behind what is good."""
    log = tmp_path / "log"
    write_log(log, 40, LogOptions(segment_bytes=2000))
    (log / "thl.data.0000000002").unlink()
    code, out, err = run(log, "list", capsys)
    assert code == 3 and out.startswith("SEQ# = 0 /")
    assert "thl.data.0000000002" in err and "missing" in err and "at the start of the log" not in err
    last = max(int(line.split()[2]) for line in out.splitlines() if line.startswith("SEQ# = "))
    assert run(log, f"list -headers -high {last}", capsys)[0] == 0, "of what lies before it nothing is hidden"
    code, out, err = run(log, "index", capsys)
    assert code == 3 and "thl.data.0000000002" in err and "the segment is missing" in err
    assert f"LogIndexEntry thl.data.0000000001(0:{last})\n" in out, "what is missing is not given to the one before"
    assert f"thl.data.0000000003({last + 1}:" not in out and "thl.data.0000000003(" in out


def test_verify_says_what_is_read_before_a_hole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A segment that began another epoch may have begun with a rollback mark: what that abandoned is not known."""
    log = tmp_path / "log"
    for _ in range(2):
        write_log(log, 40, LogOptions(segment_bytes=2000))
    with LogReader.open(log) as reader:
        begun = next(one.header for one in reader.cursor() if one.header.epoch == 2)
    for number, read in ((2, True), (lsn_segment(begun.lsn), False)):
        segment = log / segment_name(number)
        raw = segment.read_bytes()
        segment.unlink()
        code, _, err = run(log, "verify", capsys)
        assert code == 3 and ("can be read and applied" in err) is read
        assert (run(log, "list -low 0 -high 3", capsys)[0] == 0) is read
        segment.write_bytes(raw)


def test_a_flipped_bit_is_named_by_file_and_offset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    write_log(log, 40, LogOptions(segment_bytes=2000))
    segment = log / "thl.data.0000000002"
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2] ^= 4
    segment.write_bytes(raw)
    code, out, err = run(log, "list", capsys)
    assert code == 3
    assert "thl.data.0000000002, offset" in err and err.count("\n") == 1
    assert "SEQ# = 0 /" in out, "what is good before it is shown"
    code, _, err = run(log, "list --json", capsys)
    error = json.loads(err)["error"]
    assert (code, error["type"], error["segment"]) == (3, "CorruptRecordError", "thl.data.0000000002")


def test_a_missing_and_an_empty_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        for line in ("list", "index", "info", "verify"):
            code, out, err = run(path, line, capsys)
            assert (code, out) == (4, "")
            assert str(path) in err and err.count("\n") == 1


def test_help_of_every_command_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("", "list", "index", "info", "verify"):
        for flag in ("--help", "-help", "-h"):
            assert thl.main([*line.split(), flag]) == 0
            assert "Example:\n    thl " in capsys.readouterr().out


@pytest.mark.long
def test_the_installed_command(log_dir: Path) -> None:
    """`thl -dir PATH list | head -1`: one line, and no complaint about the reader that left."""
    program = Path(sys.executable).with_name("thl")
    assert program.exists()
    line = f"'{program}' -dir '{log_dir}' list -json; echo \"code $?\" >&2"
    command = ["bash", "-c", f"({line}) | head -1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith('{"seqno":0,')
    assert done.stderr in ("code 0\n", "code 141\n"), done.stderr


def test_a_service_is_found_by_its_name(
    log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`thl -service NAME list`, as the document has it; `-conf` and the place of the options likewise."""
    shutil.copytree(log_dir, tmp_path / "log")
    (tmp_path / "percona.toml").write_text('[service]\nname = "percona"\n[log]\ndir = "log"\n')
    monkeypatch.chdir(tmp_path)
    for line in (
        *("-service percona list -seqno 5", "list -seqno 5 --service percona", "-conf percona.toml list -seqno 5"),
        *("--conf=percona.toml list -seqno 5", "list -dir log -seqno 5"),
    ):
        assert thl.main(line.split()) == 0
        assert capsys.readouterr().out.startswith("SEQ# = 5 / FRAG# = 0 (last frag)\n")
    assert thl.main(["-service", "other", "list"]) == 2
    assert "there is neither other.toml nor tranlog.toml here" in capsys.readouterr().err


# --- verify ---


def test_verify_of_a_sound_log(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(log_dir, "verify", capsys)
    assert (code, err) == (0, "")
    lines = dict(line.split(" = ", 1) for line in out.splitlines())
    assert (lines["events"], lines["fragments"], lines["end"], lines["sound"]) == ("6", "7", "clean", "yes")
    assert lines["without checksum"] == "none"
    code, out, _ = run(log_dir, "verify -json", capsys)
    assert code == 0 and json.loads(out)["sound"] is True


def test_verify_names_every_damage_and_goes_on_behind_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    write_log(log, 60, LogOptions(segment_bytes=2000))
    for number in (2, 4):
        segment = log / f"thl.data.{number:010d}"
        raw = bytearray(segment.read_bytes())
        raw[len(raw) // 2] ^= 1
        segment.write_bytes(raw)
    code, out, err = run(log, "verify", capsys)
    assert code == 3
    problems = [line for line in out.splitlines() if line.startswith("PROBLEM")]
    assert len(problems) == 2
    assert "thl.data.0000000002, offset " in problems[0] and "thl.data.0000000004, offset " in problems[1]
    assert out.endswith("sound = no\n")
    assert err.startswith("thl: 2 problems in the log at ") and err.count("\n") == 1
    code, out, _ = run(log, "verify --json", capsys)
    found = json.loads(out)
    assert (code, found["sound"], len(found["problems"])) == (3, False, 2)


def test_verify_takes_a_torn_tail_for_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """log-format.md, "Ends of a log": what a crash leaves is no damage."""
    log = tmp_path / "log"
    write_log(log, 3)
    (log / "positions").unlink()
    segment = log / "thl.data.0000000001"
    segment.write_bytes(segment.read_bytes() + b"\x00\x00\x01\x00\x01")
    code, out, _ = run(log, "verify", capsys)
    assert code == 0
    assert "end = torn tail at thl.data.0000000001, offset " in out


def test_a_log_without_checksums_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    write_log(log, 3, LogOptions(checksum=False))
    code, out, _ = run(log, "verify", capsys)
    assert code == 0
    assert "without checksum = 4 fragments, whose bytes cannot be checked" in out


def test_what_a_rollback_abandoned_is_shown_only_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`thl list --abandoned` shows them, with the mark that took them."""
    path = tmp_path / "log"
    write_log(path, 3)
    with Log.open(path, source_id="till", clock=StandingClock()) as log:
        log.rollback(Gtid(Epoch(1), Seqno(1)))
    arguments = ["-dir", str(path), "list", "-headers"]
    assert thl.main(arguments) == ExitCode.DONE
    assert [line.split("\t")[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["0", "1"],
        ["1", "1"],
        ["2", "3"],
    ]
    assert thl.main([*arguments, "--abandoned"]) == ExitCode.DONE
    mark, *lines = capsys.readouterr().out.splitlines()
    assert mark == (
        "# ABANDONED by rollback mark 1 at 2:74, 2011-07-01 15:15:17.0: everything after GTID(1, 1) up to seqno 4"
    )
    assert [line.split("\t")[:2] for line in lines] == [["2", "1"], ["3", "1"], ["4", "2"]]
    assert thl.main([*arguments, "-abandoned", "-json", "-low", "4"]) == ExitCode.DONE
    shown = json.loads(capsys.readouterr().out)
    assert shown[0]["matchpoint"] == "GTID(1, 1)" and [one["seqno"] for one in shown[1:]] == [4]
    assert thl.main([*arguments[:3], "-abandoned", "-seqno", "3"]) == ExitCode.DONE
    assert "SEQ# = 3 / FRAG# = 0 (last frag)" in capsys.readouterr().out
    assert thl.main(["-dir", str(path), "verify"]) == ExitCode.DONE
    assert "abandoned = 3" in capsys.readouterr().out
    assert thl.main([*arguments, "-abandoned", "-gtid", "GTID(1, 1)"]) == ExitCode.USAGE

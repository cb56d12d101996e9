"""Forms, tail, dump and purge of `thl` over native logs; conformance/tungsten.md A9."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tranlog.change import Change, Column, Fragment, Op, RowChange, Statement, TableMap
from tranlog.codecs.fields import native_fields
from tranlog.ids import Seqno
from tranlog.log.upkeep.native_purge import PurgeEnd, PurgeFront, PurgeRefused, plan_purge
from tranlog.log.writing.log import Log, LogOptions, read_holds
from tranlog.payload import Payload, encode
from tranlog.service.thl import thl
from tranlog.source.packer import pack
from tranlog.types import CharsetBytes, Instant, LogicalType

AT = 1309533317000  # 2011-07-01 15:15:17 UTC
NOTE = TableMap(
    schema="shop",
    table="note",
    columns=(
        Column(name="id", source_type="int(11) unsigned", logical=LogicalType.INTEGER, unsigned=True),
        Column(name="at", source_type="timestamp", logical=LogicalType.INSTANT),
        Column(name="raw", source_type="varbinary(20)", logical=LogicalType.BYTES, length=20),
        Column(name="odd", source_type="varchar(9)", logical=LogicalType.TEXT, charset="utf8mb4", length=9),
    ),
    primary_key=(0,),
)
ROW = (7, Instant(AT * 1000 + 250_000), "Grüße".encode("latin-1"), CharsetBytes("utf8mb4", b"\xff\xfe"))


def fragment(number: int, *changes: Change, last: bool = True) -> Fragment:
    return Fragment(
        source_id="till",
        event_id=f"e:{number}",
        shard_id="shop.note",
        tstamp=AT + number * 1000,
        tables=(("shop", "note"),),
        payload=encode(Payload(changes=changes)),
        last=last,
    )


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    with Log.open(path, source_id="till", options=LogOptions(segment_bytes=4096)) as log:
        log.append(fragment(1, RowChange(NOTE, Op.INSERT, None, ROW), RowChange(NOTE, Op.DELETE, ROW, None)))
        log.append(
            fragment(
                2,
                Statement(schema="shop", sql="drop table gone", ddl=True),
                Statement(schema="shop", sql="Grüße".encode("latin-1"), ddl=False),
            )
        )
        log.append(fragment(3, RowChange(NOTE, Op.INSERT, None, ROW), last=False))
        log.append(fragment(3, RowChange(NOTE, Op.DELETE, ROW, None)))
        log.commit()
        for number in range(4, 60):
            log.append(fragment(number, RowChange(NOTE, Op.INSERT, None, (number, None, b"x" * 300, "a"))))
            log.commit()
    return path


def run(log: Path, line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = thl.main(["-dir", str(log), *line.split()])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return code, told.out, told.err


def test_sql(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(log_dir, "list -sql -low 1 -high 2 -charset latin1", capsys)
    assert code == 0
    assert out.splitlines() == [
        "/* SEQ# = 1 - INSERT shop.note (1) - SQL rendering of row change events is not supported */",
        "/* SEQ# = 1 - DELETE shop.note (1) - SQL rendering of row change events is not supported */",
        "USE shop;",
        "drop table gone;",
        "Grüße;",
    ]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("", ["7", "2011-07-01 15:15:17.250000+00", "0x4772fcdf65", "_utf8mb4 0xfffe"]),
        ("-charset latin1", ["7", "2011-07-01 15:15:17.250000+00", "Grüße", "ÿþ"]),
        ("-charset latin1 -hex", ["7", "2011-07-01 15:15:17.250000+00", "0x4772fcdf65", "_utf8mb4 0xfffe"]),
        ("-timezone Asia/Tokyo", ["7", "2011-07-02 00:15:17.250000+09", "0x4772fcdf65", "_utf8mb4 0xfffe"]),
        ("-timezone America/St_Johns", ["7", "2011-07-01 12:45:17.250000-02:30", "0x4772fcdf65", "_utf8mb4 0xfffe"]),
    ],
)
def test_values(options: str, shown: list[str], log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(log_dir, f"list -seqno 1 {options}", capsys)
    assert code == 0
    assert [line.split(") = ")[1] for line in out.splitlines() if line.startswith("  - COL")] == shown


def test_specs(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(log_dir, "list -seqno 1 -specs", capsys)
    assert (
        "  - COL(index=1 name=id type=int(11) unsigned [INTEGER] length=0 unsigned=true blob=false desc=) = 7\n"
        "  - COL(index=2 name=at type=timestamp [INSTANT] length=0 unsigned=false blob=false desc=) = "
    ) in out
    assert "length=20 unsigned=false blob=true desc=) = 0x4772fcdf65" in out


def test_what_a_segment_holds(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(log_dir, "index -json", capsys)
    segments = [json.loads(line) for line in out.splitlines()]
    assert len(segments) > 2
    for one in segments:
        code, out, _ = run(log_dir, f"list -headers -file {one['file']}", capsys)
        seqnos = sorted({int(line.split("\t")[0]) for line in out.splitlines()})
        assert code == 0 and seqnos == list(range(one["first_seqno"], one["last_seqno"] + 1))


def test_the_last_ones(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, listed, _ = run(log_dir, "list -headers -last 3", capsys)
    _, tailed, _ = run(log_dir, "tail -n 3 -headers", capsys)
    assert [line.split("\t")[0] for line in listed.splitlines()] == ["57", "58", "59"]
    assert tailed == listed


@pytest.fixture
def follower(log_dir: Path) -> Iterator[subprocess.Popen[str]]:
    code = "import sys; from tranlog.service.thl.thl import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "-dir", str(log_dir), "tail", "-f", "-n", "1", "-headers", "-hold", "audit"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_tail_follows_a_writer_and_ends_cleanly(log_dir: Path, follower: subprocess.Popen[str]) -> None:
    assert follower.stdout is not None
    assert follower.stdout.readline().startswith("59\t")
    assert [(one.name, one.restart_seqno) for one in read_holds(str(log_dir))] == [("audit", 59)], "by -hold"
    with Log.open(log_dir, source_id="till") as log:
        assert follower.stdout.readline().startswith("60\t")  # the writer's start
        for number in range(61, 64):
            log.append(fragment(number, RowChange(NOTE, Op.DELETE, ROW, None)))
            log.commit()
            assert follower.stdout.readline().startswith(f"{number}\t")
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=60)
    assert (follower.returncode, err) == (0, "")


def test_dump_names_every_byte_of_every_record(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Walk a segment by what the dump says: the records lie side by side, and every byte has a name."""
    run(log_dir, "purge -low 50 -y", capsys)  # so that there is a rollback mark too
    kinds = set()
    for path in sorted(log_dir.glob("thl.data.*")):
        raw = path.read_bytes()
        at = 16
        while at < len(raw):
            code, out, _ = run(log_dir, f"dump -file {path.name} -offset {at} -json", capsys)
            assert code == 0
            found = json.loads(out)
            named = b"".join(bytes.fromhex(one["hex"]) for one in found["fields"])
            assert named == raw[at : at + found["length"]]
            values = {one["name"]: one["value"] for one in found["fields"]}
            assert values["checksum"] == "matches"
            kinds.add(values["record_type"])
            at += found["length"]
    assert kinds == {"1", "2", "3", "4"}


def test_dump_of_a_fragment_and_of_a_header(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(log_dir, "dump -seqno 3 -fragno 1 --hex", capsys)
    assert code == 0
    assert "  fragno            1\n" in out and "  last_frag         1\n" in out and "'shop.note'" in out
    code, out, _ = run(log_dir, "dump -file thl.data.0000000001", capsys)
    assert "magic_number      0xC001CAFE" in out and "prev_seqno        -1" in out
    assert run(log_dir, "dump -seqno 3 -fragno 2", capsys)[0] == 1
    assert run(log_dir, "dump -seqno 4000", capsys)[0] == 1
    assert run(log_dir, "dump -file thl.data.0000009999 -offset 16", capsys)[0] == 4


@pytest.mark.parametrize("compress", [False, True])
def test_dump_looks_into_what_was_spilled(compress: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The referring record by its fields, and where the chunks stand; each chunk and each spill header by its own."""
    options = LogOptions(
        spill_buffer_bytes=1, spill_chunk_bytes=300, spill_segment_bytes=1_000, spill_compress=compress
    )
    with Log.open(tmp_path, source_id="till", options=options) as log, log.begin() as transaction:
        for number in range(20):
            transaction.add(fragment(7, RowChange(NOTE, Op.INSERT, None, (number, *ROW[1:])), last=number == 19))
    code, out, _ = run(tmp_path, "dump -seqno 1 -json", capsys)
    assert code == 0
    found = json.loads(out)
    values = {one["name"]: one["value"] for one in found["fields"]}
    assert (values["record_type"], values["fragments"], values["checksum"]) == ("5", "20", "matches")
    chunks = found["chunks"]
    assert len(chunks) == int(values["chunks"]) > 2
    assert [one["first_fragno"] for one in chunks] == [0, *(one["last_fragno"] + 1 for one in chunks[:-1])]
    assert chunks[-1]["last_fragno"] == 19 and len({one["file"] for one in chunks}) > 1
    told = run(tmp_path, "dump -seqno 1", capsys)[1]
    assert (
        f"chunk 1: {chunks[1]['file']}, offset {chunks[1]['offset']}: fragments {chunks[1]['first_fragno']} to" in told
    )
    for number, one in enumerate(chunks):
        by_place = json.loads(run(tmp_path, f"dump -file {one['file']} -offset {one['offset']} -json", capsys)[1])
        by_fragno = json.loads(run(tmp_path, f"dump -seqno 1 -fragno {one['last_fragno']} -json", capsys)[1])
        assert by_place == by_fragno
        chunk = {field["name"]: field["value"] for field in by_place["fields"]}
        assert (chunk["record_type"], chunk["seq"], chunk["checksum"]) == ("6", str(number), "matches")
        assert chunk["oid"] == values["oid"]
    assert run(tmp_path, "dump -seqno 1 -fragno 20", capsys)[0] == 1
    code, out, _ = run(tmp_path, f"dump -file {chunks[0]['file']}", capsys)
    assert code == 0 and "created_at" in out and "DOES NOT MATCH" not in out


def test_fields_of_a_record_that_is_cut_short() -> None:
    whole = bytes.fromhex("0000001a03") + bytes(8 + 8) + b"\x01" + bytes(4)
    for size in range(5, len(whole)):
        fields = native_fields(whole[:size])
        assert b"".join(one.raw for one in fields) == whole[:size]


@pytest.mark.parametrize(
    ("low", "high", "plan"),
    [
        (None, 30, PurgeFront(below=Seqno(31))),
        (0, 30, PurgeFront(below=Seqno(31))),
        (40, None, PurgeEnd(keep=Seqno(39))),
        (40, 59, PurgeEnd(keep=Seqno(39))),
        (59, 59, PurgeEnd(keep=Seqno(58))),
    ],
)
def test_what_a_purge_means(low: int | None, high: int | None, plan: object) -> None:
    assert plan_purge(low, high, first=0, last=59) == plan


@pytest.mark.parametrize(
    ("low", "high", "last", "why"),
    [
        (20, 40, 59, "must include one or both log end points"),
        (None, None, 59, "that is the whole log"),
        (0, 59, 59, "that is the whole log; `tranlog reset` removes it"),
        (70, None, 59, "it holds seqno 0 to 59"),
        (None, None, -1, "it is empty"),
    ],
)
def test_what_a_purge_refuses(low: int | None, high: int | None, last: int, why: str) -> None:
    found = plan_purge(low, high, first=0 if last >= 0 else -1, last=last)
    assert isinstance(found, PurgeRefused) and why in found.why


def test_purge_from_the_front_takes_whole_segments(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(log_dir, "index -json", capsys)
    segments = [json.loads(line) for line in out.splitlines()]
    inside = segments[1]["last_seqno"] + 1  # the first of the third segment, which stays
    code, out, _ = run(log_dir, f"purge -high {inside} -y", capsys)
    assert code == 0
    assert out.splitlines() == [f"Deleting events where SEQ# <={inside}"] + [
        f"removed {one['file']}" for one in segments[:2]
    ]
    code, out, _ = run(log_dir, "info -json", capsys)
    assert json.loads(out)["min_seqno"] == inside
    assert run(log_dir, "verify", capsys)[0] == 0


def test_purge_of_the_end_leaves_no_seqno_with_two_meanings(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(log_dir, "purge -low 50 -y -json", capsys)
    assert code == 0
    assert json.loads(out) == {"removed": [], "abandoned": {"after": "GTID(1, 49)", "last_seqno": 60}}
    _, out, _ = run(log_dir, "list -headers -low 49", capsys)
    found = [tuple(line.split("\t")[:2]) for line in out.splitlines()]
    assert found[0] == ("49", "1") and all(int(epoch) > 1 for _, epoch in found[1:])
    assert run(log_dir, "verify", capsys)[0] == 0


def test_a_middle_range_changes_nothing(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted((one.name, one.read_bytes()) for one in log_dir.iterdir() if one.is_file())
    code, _, err = run(log_dir, "purge -low 20 -high 40 -y", capsys)
    assert code == 3 and "must include one or both log end points" in err
    assert sorted((one.name, one.read_bytes()) for one in log_dir.iterdir() if one.is_file()) == before


def test_purge_while_somebody_writes(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log.open(log_dir, source_id="till"):
        code, _, err = run(log_dir, "purge -high 30 -y", capsys)
    assert (code == 4 and "is open for writing" in err) or "lock" in err


def test_headers_show_what_was_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/format.md, "Write sets"; a transaction of several fragments tells it with the last one."""
    path = tmp_path / "log"
    with Log.open(path, source_id="till") as log:
        for number, count in ((1, 1), (2, 3)):
            changes = [RowChange(NOTE, Op.INSERT, None, (at, None, b"x" * 500_000, "a")) for at in range(count)]
            fragments = pack(changes, source_id="till", event_id=f"e:{number}", tstamp=AT)
            assert len(fragments) == number
            for one in fragments:
                log.append(one)
        log.append(fragment(3, RowChange(NOTE, Op.INSERT, None, ROW)))
        log.commit()
    _, out, _ = run(path, "list -headers", capsys)
    assert [line.split("\t")[7] for line in out.splitlines()] == [
        "",
        "writes ROWS changes=1 KEY=1 ROW=0 REFERENCE=0 shop.note:INSERT:1",
        "",
        "writes ROWS changes=3 KEY=3 ROW=0 REFERENCE=0 shop.note:INSERT:1",
        "",
    ]
    _, out, _ = run(path, "list -headers -json -seqno 1", capsys)
    assert json.loads(out)[0]["comments"].startswith("writes ROWS changes=1")

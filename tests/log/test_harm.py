"""Random harm to a log: checking, repairing, opening and reading it must agree, and must end.

design/log-format.md, "Ends of a log". Each case harms a sound log in one to three ways and asks all four. A failure
prints `TRANLOG_CASE=seed:number`, which runs that case alone.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fix_effort import Effort
from fix_log import (
    PATH,
    append_large,
    fill,
    make_fragment,
    open_log,
    open_reader,
)
from tranlog.disk import OsDisk
from tranlog.errors import (
    CorruptRecordError,
    LogCodecError,
    LogError,
    LogMissingError,
    LogVersionError,
    RepairRefusedError,
)
from tranlog.ids import Gtid, Seqno
from tranlog.log.files.positions import POSITIONS_NAME, decode_positions, encode_positions
from tranlog.log.records.format import SEQNO_MAX, SYNC_BYTES
from tranlog.log.rules.damage import Damage
from tranlog.log.rules.repair import Keep, NothingToRepair
from tranlog.log.upkeep.repairing import repair
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log, LogOptions, LogReader
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

SEED = 24
FOUND = (4171, 4581, 5405, 9896, 10182, 12028, 16718, 16981)
"""Cases that once were faults, and are always run."""
CASE_S = 5.0
"""So long may one case take, on a machine that does much else."""

Content = list[tuple[int, str, bytes]]
Files = dict[str, bytes]


# --- logs to harm ----------------------------------------------------------------------------------------


def plain(rng: random.Random) -> SimDisk:
    disk = SimDisk()
    for turn in range(2):
        with open_log(disk, segment_bytes=rng.choice([1_000, 1_500, 100_000])) as log:
            append_large(log, f"large{turn}", [b"one", b"two" * 30, b"three"])
            for at in range(4):
                fill(log, rng.randrange(1, 5), start=100 * turn + 10 * at, size=rng.choice([5, 100]))
    return disk


def killed(rng: random.Random) -> SimDisk:
    """The writer was killed: zeros ahead, unsynced records, an open transaction."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=2_000, ahead_bytes=rng.choice([0, 3_000]), buffer_bytes=1)
    for at in range(rng.randrange(1, 12)):
        fill(log, rng.randrange(1, 3), start=10 * at)
    if rng.random() < 0.5:
        log.append(make_fragment("visible"))
        log.commit(sync=False)
    if rng.random() < 0.5:
        log.append(make_fragment("open", b"part", last=False))
    disk.kill()
    if rng.random() < 0.5:
        disk = disk.after_crash(rng)
    return disk


def spilled(rng: random.Random) -> SimDisk:
    disk = SimDisk()
    with open_log(
        disk, segment_bytes=4_000, spill_above=1_000, spill_buffer_bytes=300, checksum=rng.random() < 0.7
    ) as log:
        for at in range(5):
            fill(log, rng.randrange(1, 4), start=10 * at)
            append_large(log, f"spilled{at}", [bytes([65 + at]) * 200 for _ in range(rng.randrange(3, 8))])
            log.commit()
    return disk


def rolled_back(rng: random.Random) -> SimDisk:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 12)
        log.rollback(Gtid(log.epoch, Seqno(rng.randrange(1, 11))))
        fill(log, 6, start=100)
        if rng.random() < 0.5:
            log.rollback(Gtid(log.epoch, Seqno(log.last_seqno - rng.randrange(1, 4))))
    return disk


def without_checksums(rng: random.Random) -> SimDisk:
    disk = SimDisk()
    for checksum in rng.choice([(False,), (True, False), (False, True), (True, False, True)]):
        with open_log(disk, segment_bytes=1_500, checksum=checksum) as log:
            fill(log, rng.randrange(3, 12), start=10 * log.epoch)
    return disk


LOGS: tuple[Callable[[random.Random], SimDisk], ...] = (plain, plain, killed, spilled, rolled_back, without_checksums)


# --- harms -----------------------------------------------------------------------------------------------


def files_of(disk: SimDisk) -> Files:
    return {name: disk.content(f"{PATH}/{name}") for name in disk.list_dir(PATH) if name not in ("cut", "holds")}


def disk_of(disk: SimDisk, files: Files) -> SimDisk:
    """Return the same machine's disk with a log of these files; the positions file is still the writer's own."""
    copy = SimDisk(boot=int(disk.boot_id()[:8]))
    copy.make_dir(PATH)
    for name, raw in files.items():
        file = copy.open(f"{PATH}/{name}", write=True, create=True)
        if name == POSITIONS_NAME and (told := decode_positions(raw)) is not None:
            raw = encode_positions(told._replace(identity=file.identity()))
        file.close()
        copy.set_content(f"{PATH}/{name}", raw)
    return copy


def harm(files: Files, rng: random.Random) -> str:
    """Harm one file; return what was done."""
    names = sorted(name for name in files if name.startswith(("thl.", "index")))
    if not names:
        return "nothing is left"
    data = [one for one in names if one.startswith("thl.data.")]
    name = rng.choice(data if data and rng.random() < 0.8 else names)
    raw = bytearray(files[name])
    size = len(raw)
    at = rng.randrange(size + 1)
    length = rng.choice([1, 4, 5, SYNC_BYTES, 64, 512, 4096])
    kind = rng.choice(["flip", "flip", "flip", "zero", "zero", "cut", "double", "swap", "remove", "garbage", "zeros"])
    match kind:
        case "flip" if size:
            at = rng.randrange(size)
            raw[at] ^= 1 << rng.randrange(8)
        case "zero":
            raw[at : at + length] = bytes(len(raw[at : at + length]))
        case "cut":
            del raw[at:]
        case "double":
            raw[at:at] = raw[at : at + length]
        case "swap":
            other = rng.randrange(size + 1)
            one, two = bytes(raw[at : at + SYNC_BYTES]), bytes(raw[other : other + SYNC_BYTES])
            if len(one) == len(two):
                raw[at : at + SYNC_BYTES], raw[other : other + SYNC_BYTES] = two, one
        case "remove":
            del files[name]
            return f"remove {name}"
        case "garbage":
            raw += rng.randbytes(length)
        case "zeros":
            raw += bytes(length)
    files[name] = bytes(raw)
    return f"{kind} {name} at {at} of {size}, {length} bytes"


# --- what everybody says ---------------------------------------------------------------------------------


@dataclass
class Read:
    content: Content
    error: LogError | None
    first: int = -1
    last: int = -1


def read(disk: SimDisk) -> Read:
    """Read from the first transaction on, to the end or the first error."""
    found = Read([], None)
    try:
        with open_reader(disk) as reader:
            held = reader.range()
            found.first, found.last = held.first_seqno, held.last_seqno
            with reader.cursor() as cursor:
                while (one := cursor.next()) is not None:
                    found.content.append((one.header.seqno, one.header.event_id, b"".join(one.payloads())))
    except LogError as exc:
        found.error = exc
    return found


def try_open(disk: SimDisk) -> tuple[int, Read] | LogError:
    """Open for writing; return the seqno of the no-op that says so, and what can be read behind that."""
    try:
        log = open_log(disk)
    except LogError as exc:
        return exc
    with log:
        last = log.last_seqno
    return last, read(disk)


def check_case(disk: SimDisk, files: Files, living: Content, original: Content, checked: bool) -> str:
    found = read(disk_of(disk, files))
    opened = try_open(disk_of(disk, files))
    try:
        report = verify(PATH, disk=disk_of(disk, files))
    except (LogVersionError, LogCodecError):  # what a harmed header or first record may look like
        assert isinstance(opened, LogError) and found.error is not None
        return "foreign"
    again = disk_of(disk, files)
    plans = {keep: try_repair(disk_of(disk, files), keep) for keep in Keep}
    damage = [one for one in report.problems if one.kind not in (Damage.INDEX,)]
    checked = checked and report.unchecked == 0
    if checked:
        assert set(found.content) <= set(original), "something is read that was never written"
        if damage and found.error is None and decode_positions(files.get(POSITIONS_NAME, b"")) is not None:
            # A torn tail that nobody was shown is no damage; damage before it does not bring it back.
            last = report.last_seqno if report.tail is not None else SEQNO_MAX
            wanted = [one for one in living if report.first_seqno <= one[0] <= last]
            assert found.content == wanted, f"damaged, and read without an error, is {found.content}"
    if report.sound:
        if report.last_seqno < 0 and isinstance(found.error, LogMissingError):
            return "empty"
        assert found.error is None, f"sound, but reading says: {found.error}"
        assert not isinstance(opened, LogError), f"sound, but opening says: {opened}"
        assert opened[0] == report.last_seqno + 1 or report.last_seqno < 0, (
            f"{opened[0]} is not behind {report.last_seqno}"
        )
        assert opened[1].error is None and opened[1].content[:-1] == found.content
        for one in plans.values():
            assert isinstance(one, NothingToRepair), one
        return "sound"
    if isinstance(opened, LogError):
        assert damage, f"opening says: {opened}"
        if isinstance(opened, CorruptRecordError):
            places = {(one.segment, one.offset) for one in damage}
            if not checked:  # where nothing proves an epoch, each may take another one for the wrong one
                places = {(segment, opened.offset) for segment, _ in places}
            assert (opened.segment, opened.offset) in places, f"opening says: {opened}; verify: {damage}"
    for keep, one in plans.items():
        assert not isinstance(one, NothingToRepair), f"nothing to repair, but {damage}"
        if one is not None:
            check_repaired(again, files, keep, original, checked)
    if damage and found.error is None:
        return "read"
    return "unsound"


def try_repair(disk: SimDisk, keep: Keep) -> object | None:
    """Return what a repair would do; None where it is refused."""
    try:
        return repair(PATH, keep=keep, disk=disk, clock=ManualClock(), dry_run=True).decision
    except RepairRefusedError:
        return None


def check_repaired(disk: SimDisk, files: Files, keep: Keep, original: Content, checked: bool) -> None:
    mended = disk_of(disk, files)
    outcome = repair(PATH, keep=keep, disk=mended, clock=ManualClock())
    assert outcome.after is not None and outcome.after.sound, f"repaired ({keep}), and not sound: {outcome.after}"
    found = read(mended)
    if outcome.after.last_seqno >= 0 or not isinstance(found.error, LogMissingError):
        assert found.error is None, f"repaired ({keep}), and reading says: {found.error}"
    if checked:
        assert set(found.content) <= set(original)
    opened = try_open(mended)
    assert not isinstance(opened, LogError), f"repaired ({keep}), and opening says: {opened}"
    assert opened[1].error is None and opened[1].content[:-1] == found.content


def run_case(seed: int, number: int) -> str:
    rng = random.Random(f"{seed}:{number}")
    disk = rng.choice(LOGS)(rng)
    files = files_of(disk)
    if rng.random() < 0.3:
        files.pop("positions", None)
    sound = disk_of(disk, files)
    report = verify(PATH, disk=sound)
    assert report.sound, report
    living = read(disk_of(disk, files)).content
    original = list(living)
    with open_reader(disk_of(disk, files)) as reader:
        original += [(one.header.seqno, one.header.event_id, one.payload) for _, one in reader.abandoned()]
    checked = report.unchecked == 0
    done = [harm(files, rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    if not any(name.startswith("thl.data.") for name in files):
        return "nothing"
    try:
        return check_case(disk, files, living, original, checked)
    except BaseException as exc:
        exc.add_note(f"TRANLOG_CASE={seed}:{number} replays this: {done}")
        raise


# --- the cases -------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_everybody_agrees_about_a_harmed_log(effort: Effort, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    if case := os.environ.get("TRANLOG_CASE"):
        seed, _, number = case.partition(":")
        run_case(int(seed), int(number))
        return
    cases = effort(60, 400, 20_000)
    for found in FOUND:
        run_case(SEED, found)
    seen = Counter(run_case(SEED, number) for number in range(cases))
    assert seen["sound"] > cases // 10 and seen["unsound"] > cases // 4, f"the harms have become harmless: {seen}"


@pytest.mark.timeout(3600)
def test_a_log_copied_while_it_is_written_is_a_log(tmp_path: Path, effort: Effort) -> None:
    """Page after page, as cp does: what was written meanwhile stands behind zeros that were not yet written."""
    stop = threading.Event()
    path = tmp_path / "log"

    def write(log: Log) -> None:
        number = 0
        while not stop.is_set():
            log.transact([make_fragment(f"e{number}", bytes(rng.randrange(1, 900)))])
            number += 1

    rng = random.Random(SEED)
    options = LogOptions(segment_bytes=1 << 20, ahead_bytes=256 << 10)
    with Log.open(path, source_id="db1", options=options) as log:
        writer = threading.Thread(target=write, args=(log,))
        writer.start()
        try:
            for number in range(effort(3, 12, 200)):
                copy = tmp_path / f"copy{number}"
                copy_slowly(path, copy)
                before = verify(copy)
                assert before.sound, before.problems
                with LogReader.open(copy) as reader:
                    assert reader.range().last_seqno == before.last_seqno
                assert isinstance(repair(copy, dry_run=True).decision, NothingToRepair)
                with Log.open(copy, source_id="db1") as other:
                    assert other.last_seqno == before.last_seqno + 1
                shutil.rmtree(copy)
        finally:
            stop.set()
            writer.join()


def copy_slowly(path: Path, copy: Path) -> None:
    copy.mkdir()
    for name in sorted(os.listdir(path)):
        if not os.path.isfile(path / name):
            continue
        with open(path / name, "rb") as source, open(copy / name, "wb") as target:
            while page := source.read(4096):
                target.write(page)
                time.sleep(0.00005)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_check_beside_a_writer_finds_no_damage(tmp_path: Path) -> None:
    """Two looks at a moving file: a sync record is read that proves what was not there at the first look."""
    script = (
        "import sys\n"
        "from tranlog.change import Fragment\n"
        "from tranlog.log.writing.log import Log, LogOptions\n"
        "log = Log.open(sys.argv[1], source_id='db1', options=LogOptions(segment_bytes=1 << 22))\n"
        "print('open', flush=True)\n"
        "number = 0\n"
        "while True:\n"
        "    log.transact([Fragment(source_id='db1', event_id=str(number), shard_id='s', tstamp=1, tables=(),\n"
        "                           payload=bytes(number * 7919 % 3000), last=True)])\n"
        "    number += 1\n"
    )
    path = tmp_path / "log"
    writer = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None and writer.stdout.readline() == b"open\n"
        for _ in range(25):
            report = verify(path)
            assert report.sound, report.problems
        for _ in range(25):  # a reader elsewhere, that has no positions to go by
            disk = Elsewhere()
            with LogReader.open(path, disk=disk) as reader:
                assert reader.range().scanned
    finally:
        writer.kill()
        writer.communicate()


@pytest.mark.parametrize("purged", [False, True])
def test_a_reader_elsewhere_follows_a_log_over_its_segments(tmp_path: Path, purged: bool) -> None:
    """What the writer says of the next segment does not make damage of where the last one ends."""
    path = str(tmp_path / "log")
    with Log.open(path, source_id="db1", options=LogOptions(segment_bytes=4096)) as log:
        log.transact([make_fragment("e0", bytes(900))])
        with LogReader.open(path, disk=Elsewhere()) as reader:
            for number in range(1, 40):
                last = log.transact([make_fragment(f"e{number}", bytes(900))]).seqno
                if number % 9 == 0:
                    if purged:
                        log.purge(below=last)
                    found = reader.range()
                    assert found.scanned and found.last_seqno == last
                    assert found.first_seqno == log.first_seqno
        assert log.segments()[-1].number > 9


class Elsewhere(OsDisk):
    """The files as another machine sees them."""

    def boot_id(self) -> str:
        return "another machine"

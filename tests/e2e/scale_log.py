"""Let one log grow to many gigabytes, and measure at every size what it costs to open, seek, scan, purge and verify it.

    .venv/bin/python tests/e2e/scale_log.py --gigabytes 20

Each measurement is a process of its own, so its memory is its own. What grows with the log, and what does not, is the
question; the figures are those of one machine. The table ends up in docs/performance.md. Two thirds of a purge's
time are the disk's: it frees the blocks of whole segments.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tranlog.change import Fragment
from tranlog.ids import Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log

PAYLOAD = bytes(range(256)) * 4
AT_ONCE = 1_000
SEED = 20261121
SEEKS = 2_000
SCANNED = 200_000
COLUMNS = (
    "GB",
    "million tx",
    "write MB/s",
    "open ms",
    "seek us",
    "scan thousand tx/s",
    "verify MB/s",
    "purge ms",
    "index KB",
)
MEMORY = ("open MB", "seek MB", "scan MB", "verify MB", "purge MB", "write MB")


def fragment(number: int) -> Fragment:
    """Return a transaction of 1 KB."""
    return Fragment(
        source_id="scale",
        event_id=f"0-1-{number};binlog.000001:{number * 1100}",
        shard_id=f"shop{number % 16}",
        tstamp=1_800_000_000_000 + number,
        tables=(("shop", "orders"),),
        payload=PAYLOAD[: 830 + number % 120],
    )


def write(path: str, until_bytes: int) -> dict[str, float]:
    """Append until the segments have so many bytes; return how fast that was."""
    with Log.open(path, source_id="scale") as log:
        size = sum(segment.bytes for segment in log.segments())
        began, first = time.perf_counter(), size
        number = log.status().last_seqno + 1
        while size < until_bytes:
            for _ in range(AT_ONCE):
                log.append(fragment(number))
                number += 1
            log.commit()
            if number % (50 * AT_ONCE) < AT_ONCE:
                size = sum(segment.bytes for segment in log.segments())
        seconds = time.perf_counter() - began
    return {"rate": (size - first) / 1e6 / seconds}


def open_it(path: str) -> dict[str, float]:
    """Open for reading, and say what it holds."""
    began = time.perf_counter()
    with LogReader.open(path) as reader:
        held = reader.range()
        seconds = time.perf_counter() - began
    return {"ms": seconds * 1e3, "transactions": held.last_seqno - held.first_seqno + 1}


def seek(path: str) -> dict[str, float]:
    """Seek at random and read one header each time; the first few only warm up."""
    chance = random.Random(SEED)
    with LogReader.open(path) as reader:
        held = reader.range()
        seqnos = [Seqno(chance.randint(held.first_seqno, held.last_seqno)) for _ in range(SEEKS + 100)]
        with reader.cursor() as cursor:
            for seqno in seqnos[:100]:
                cursor.seek(seqno)
                cursor.next_header()
            began = time.perf_counter()
            for seqno in seqnos[100:]:
                cursor.seek(seqno)
                header = cursor.next_header()
                assert header is not None and header.seqno == seqno
    return {"us": (time.perf_counter() - began) / SEEKS * 1e6}


def scan(path: str) -> dict[str, float]:
    """Read headers and payloads one after the other, from the middle on, checksums verified."""
    with LogReader.open(path) as reader:
        held = reader.range()
        first = Seqno(max((held.first_seqno + held.last_seqno) // 2, held.last_seqno - SCANNED))
        with reader.cursor() as cursor:
            cursor.seek(first)
            began, count = time.perf_counter(), 0
            while (transaction := cursor.next()) is not None:
                for _ in transaction.payloads():
                    count += 1
                if count >= SCANNED:
                    break
    return {"rate": count / (time.perf_counter() - began) / 1e3}


def check(path: str) -> dict[str, float]:
    """Check every record."""
    began = time.perf_counter()
    report = verify(path)
    assert report.sound, report.problems
    return {"rate": report.bytes / 1e6 / (time.perf_counter() - began)}


def purge(path: str) -> dict[str, float]:
    """Remove the oldest tenth by hard links, so that the log itself stays for the next size."""
    with tempfile.TemporaryDirectory(prefix="scale-purge-", dir=os.path.dirname(path)) as folder:
        copy = os.path.join(folder, "log")
        os.mkdir(copy)
        names = sorted(os.listdir(path))
        newest = max(name for name in names if name.startswith("thl.data."))
        for name in names:
            source, target = os.path.join(path, name), os.path.join(copy, name)
            if os.path.isdir(source):
                shutil.copytree(source, target)
            elif name.startswith("thl.data.") and name != newest:
                os.link(source, target)
            else:
                shutil.copy(source, target)
        with Log.open(copy, source_id="scale") as log:
            below = Seqno(log.status().last_seqno // 10)
            began = time.perf_counter()
            log.purge(below=below)
            seconds = time.perf_counter() - began
    return {"ms": seconds * 1e3}


STEPS: dict[str, Callable[[str], dict[str, float]]] = {
    "open": open_it,
    "seek": seek,
    "scan": scan,
    "verify": check,
    "purge": purge,
}


def apart(step: str, path: str, until_bytes: int = 0) -> dict[str, float]:
    """Run one step in a process of its own; its answer, and the peak of its memory in MB."""
    done = subprocess.run(
        [sys.executable, __file__, "--step", step, "--path", path, "--bytes", str(until_bytes)],
        check=True,
        stdout=subprocess.PIPE,
    )
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def peak_mb() -> float:
    """Return the most memory that this process had; getrusage would count what the one that started it had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def measure(path: str, gigabytes: float) -> dict[str, float]:
    """Let the log grow to a size, and measure everything there."""
    found = {"write": apart("write", path, int(gigabytes * 1e9))}
    found |= {step: apart(step, path) for step in STEPS}
    index = Path(path, "index.table")
    row = {
        "GB": gigabytes,
        "million tx": found["open"]["transactions"] / 1e6,
        "write MB/s": found["write"]["rate"],
        "open ms": found["open"]["ms"],
        "seek us": found["seek"]["us"],
        "scan thousand tx/s": found["scan"]["rate"],
        "verify MB/s": found["verify"]["rate"],
        "purge ms": found["purge"]["ms"],
        "index KB": index.stat().st_size / 1e3 if index.exists() else 0.0,
    }
    return row | {f"{step} MB": found[step]["peak"] for step in ("open", "seek", "scan", "verify", "purge", "write")}


def table(rows: list[dict[str, float]]) -> str:
    """Return the figures as a table in Markdown: times first, memory below."""
    out = []
    for columns in (COLUMNS, ("GB", *MEMORY)):
        out.append("| " + " | ".join(columns) + " |")
        out.append("|" + "---|" * len(columns))
        out += ["| " + " | ".join(f"{row[name]:.3g}" for name in columns) + " |" for row in rows]
        out.append("")
    return "\n".join(out)


def sizes(gigabytes: float) -> list[float]:
    """Return the sizes to stop at: the whole, and a hundredth, a tenth and a half of it before."""
    return [round(gigabytes * part, 3) for part in (0.01, 0.1, 0.5, 1.0)]


def main() -> int:
    """Grow a log, print the table; with --json one object per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=20.0, help="how far it grows; as much must be free")
    parser.add_argument("--folder", help="where to put it; default: the folder for temporary files")
    parser.add_argument("--json", action="store_true", help="one JSON object per size instead of the table")
    parser.add_argument("--step", choices=["write", *STEPS], help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        answer = write(options.path, options.bytes) if options.step == "write" else STEPS[options.step](options.path)
        print(json.dumps({**answer, "peak": peak_mb()}))
        return 0
    rows = []
    with tempfile.TemporaryDirectory(prefix="tranlog-scale-", dir=options.folder) as folder:
        for size in sizes(options.gigabytes):
            rows.append(measure(os.path.join(folder, "log"), size))
            print(
                json.dumps(rows[-1]) if options.json else f"{size} GB: done",
                file=sys.stdout if options.json else sys.stderr,
            )
    if not options.json:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

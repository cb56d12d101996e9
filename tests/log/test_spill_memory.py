"""A transaction of any size is written and read in bounded memory.

"reading expands both in a stream with bounded memory (10 GB logical, under 100 MB)". Measured in a
process of its own, from outside of what it says about itself: the kernel's highest resident size.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys, zlib
from tranlog.change import Fragment
from tranlog.log.writing.log import Log, LogOptions, LogReader
from tranlog.log.upkeep.verify import verify

path, megabytes, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
block = bytes(range(256)) * 4096  # 1 MiB
log = Log.open(path, source_id="db", options=LogOptions(spill_compress=how == "compressed", spill_above=100_000_000))
# Of this program alone: getrusage counts what the process that started it had.
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")) // 1024

def fragments():
    for number in range(megabytes):
        payload = number.to_bytes(8, "big") + block[8:]
        yield Fragment(source_id="db", event_id="big", shard_id="a", tstamp=1, tables=(), payload=payload,
                       last=number == megabytes - 1)

log.append(Fragment(source_id="db", event_id="small", shard_id="a", tstamp=1, tables=(), payload=b"x"))
log.commit()
before = peak()
if how == "captured":
    for fragment in fragments():
        log.append(fragment)
    log.commit()
else:
    log.transact(fragments())
written = peak()
in_log = sum(one.bytes for one in log.segments())
on_disk = sum(one.bytes for one in log.spill_segments())
log.close()

crc = expected = count = size = 0
for number in range(megabytes):
    expected = zlib.crc32(number.to_bytes(8, "big") + block[8:], expected)
with LogReader.open(path) as reader, reader.cursor() as cursor:
    while (transaction := cursor.next()) is not None:
        if transaction.header.event_id == "big" and not transaction.is_noop():
            for record in transaction.records():
                crc = zlib.crc32(record.payload, crc)
                count += 1
                size += len(record.payload)
read = peak()
sound = verify(path).sound if how != "large" else True
print(json.dumps({"before": before, "written": written, "read": read, "verified": peak(), "in_log": in_log,
                  "on_disk": on_disk, "same": crc == expected, "count": count, "size": size, "sound": sound}))
"""


def measure(directory: Path, megabytes: int, how: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory / "log"), str(megabytes), how],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    assert found["same"] and found["sound"]
    assert (found["count"], found["size"]) == (megabytes, megabytes << 20)
    assert found["in_log"] < 10_000 or how == "captured"
    return found


@pytest.mark.long
@pytest.mark.parametrize("how", ["streamed", "compressed"])
def test_300_mb_go_through_under_100_mb_of_memory(tmp_path: Path, how: str) -> None:
    found = measure(tmp_path, 300, how)
    assert max(found.values()) and found["verified"] < 100, found
    assert (found["on_disk"] < 30 << 20) is (how == "compressed")


@pytest.mark.long
def test_a_captured_transaction_too_large_for_a_segment_does_too(tmp_path: Path) -> None:
    """It is read back from the segment in fragments when it grows too large, and goes on in spill."""
    found = measure(tmp_path, 200, "captured")
    assert found["verified"] < 100, found
    assert found["in_log"] < 10_000, "what had been written is cut back"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_10_gb_go_through_under_100_mb_of_memory(tmp_path: Path) -> None:
    """10 GiB of content; compressed, so that the disk need not hold them."""
    found = measure(tmp_path, 10 * 1024, "compressed")
    assert found["verified"] < 100, found

"""How a log is written, and its state: the values that its opener gives and its `status` returns.

Owns no behaviour but the check of the options, and how far ahead a file is written.

Source: thl-internals, "Configuration"; docs/format.md; docs/performance.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tranlog.errors import ConfigError
from tranlog.ids import Epoch, Seqno
from tranlog.log.records.format import HEADER_LENGTH_MAX, SEGMENT_BYTES_MAX
from tranlog.option_kinds import Bounds, check_bounds, check_kinds

_FLUSH_INTERVAL_S_MAX = 3_600
_RETENTION_S_MAX = 10_000 * 366 * 86_400
_ROOM_FOR_OTHERS = 2 * HEADER_LENGTH_MAX
"""The bytes that a segment keeps free after its largest transaction: its rotate and sync records, and a margin."""

AHEAD_BYTES_MAX = 1 << 26


def zeros_ahead(ahead_bytes: int, *, size: int, end: int, reached: int) -> int:
    """Return how many zeros to write after a commit that ends at `end`; the file reaches to `reached`.

    `size`: the bytes that its sync covers, those written before it included. Room for 16 commits like it, or
    more. None after a large commit, which pays for the new length by itself, and none that a segment could not hold.
    """
    count = max(ahead_bytes, 16 * size)
    return 0 if end <= reached or size > ahead_bytes or end + count > SEGMENT_BYTES_MAX else count


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How a log is written. Readers need none of it."""

    segment_bytes: int = 100_000_000
    """Bytes after which a segment is closed; the last transaction may exceed them. Short segments open fast."""
    checksum: bool = True
    """CRC-32 over every record, checked at each read, and at an open from the end of the stored index on."""
    retention_s: float | None = field(default=None, metadata={"example": "7d"})
    """Seconds that a closed segment is kept; None keeps all. Holds keep more. If it is below a day, a segment is closed
    after an hour, else after a day, so that few are kept much longer."""
    retention_bytes: int | None = field(default=None, metadata={"example": "20GB"})
    """Bytes of all segments together above which the oldest are removed; None: no limit. Holds keep more."""
    hard_retention_s: float | None = field(default=None, metadata={"example": "30d"})
    """Seconds after which a closed segment is removed even if a hold needs it; its reader gets an error."""
    hard_retention_bytes: int | None = field(default=None, metadata={"example": "50GB"})
    """Bytes above which the oldest are removed even if a hold needs them: one dead follower cannot fill the disk."""
    flush_interval_s: float = 0.0
    """Seconds between automatic flushes: complete transactions that were appended are then committed, with a sync if
    `sync_on_flush` is set. 0: nothing is visible before its commit."""
    sync_on_flush: bool = True
    """Whether those flushes sync. `commit` is not affected: it returns when what it covers is durable."""
    buffer_bytes: int = 120 * 1024
    """Bytes that may be appended before they are written; a commit writes them earlier. Kept below the size that malloc
    maps and unmaps each time, which costs more than the write."""
    ahead_bytes: int = 256 * 1024
    """Zeros written after the records, in the same write as a small commit, so that later syncs do not extend the file:
    a sync that does not change its length has less to write. 0 for none."""
    index_flush_bytes: int = 4 << 20
    """Bytes after the stored index at which a commit stores it again, in a thread of its own."""
    index_flush_s: float | None = 10.0
    """Seconds after which a commit does so, however little was appended; None: only after that many bytes."""
    spill_above: int = 1 << 30
    """Bytes of one transaction's records above which it spills, however it is appended: a segment has to hold it."""
    spill_buffer_bytes: int = 8 * 1024 * 1024
    """Bytes that an open transaction (`Log.begin`) keeps in memory before it spills."""
    spill_chunk_bytes: int = 1024 * 1024
    """Bytes of fragments in one chunk; a larger fragment is a chunk of its own. A reader holds one chunk."""
    spill_segment_bytes: int = 256 * 1024 * 1024
    """Bytes after which the next spill segment starts. Spill is removed in whole segments."""
    spill_compress: bool = False
    """Whether chunks are compressed (zlib, level 1)."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        check_kinds(self)
        check_bounds(self, _BOUNDS)
        if self.segment_bytes + self.spill_above + _ROOM_FOR_OTHERS > SEGMENT_BYTES_MAX:
            raise ConfigError(
                option="segment_bytes",
                value=self.segment_bytes,
                why=f"a segment ends at 4 GiB, and a transaction of spill_above = {self.spill_above} bytes must fit "
                "after segment_bytes",
            )
        if not self.sync_on_flush and not self.flush_interval_s:
            raise ConfigError(
                option="sync_on_flush",
                value=False,
                why="without flush_interval_s the only flush is a commit, and that acknowledges nothing which is not "
                "durable; leave it out, or set flush_interval_s, or call commit(sync=False) in the program",
            )
        for soft, hard in (("retention_s", "hard_retention_s"), ("retention_bytes", "hard_retention_bytes")):
            bound, last = getattr(self, soft), getattr(self, hard)
            if bound is not None and last is not None and last < bound:
                raise ConfigError(option=hard, value=last, why=f"it is below {soft} = {bound}, which waits for holds")


_KEEP_ALL = "leave it out to keep all"
_BOUNDS: Bounds = (
    ("segment_bytes", 1_000, math.inf, "a segment has at least 1000 bytes"),
    ("spill_above spill_segment_bytes", 1_000, math.inf, "it is at least 1000 bytes"),
    ("spill_buffer_bytes spill_chunk_bytes", 1, math.inf, "it is at least one byte"),
    ("spill_segment_bytes spill_chunk_bytes", 1, SEGMENT_BYTES_MAX - 1, "chunks begin below 4 GiB"),
    ("buffer_bytes", 1, math.inf, "the buffer holds at least one byte"),
    ("ahead_bytes", 0, AHEAD_BYTES_MAX, f"0 to {AHEAD_BYTES_MAX} bytes of zeros are possible"),
    ("index_flush_bytes", 1, math.inf, "a flush covers something"),
    ("index_flush_s", 0, math.inf, "it is negative; leave it out to count bytes only"),
    ("flush_interval_s", 0, _FLUSH_INTERVAL_S_MAX, f"it is 0 to {_FLUSH_INTERVAL_S_MAX} seconds"),
    ("retention_s hard_retention_s", 0, math.inf, f"it is negative; {_KEEP_ALL}"),
    ("retention_s hard_retention_s", 0, _RETENTION_S_MAX, "it is more than 10,000 years"),
    ("retention_bytes hard_retention_bytes", 1, math.inf, f"it is below 1; {_KEEP_ALL}"),
)


@dataclass(slots=True)
class ReadCounts:
    """From where readers got their bytes, since the log was opened."""

    just_written: int = 0
    """Reads served from the bytes that were written last."""
    recent: int = 0
    """Reads served from bytes before them that are still in memory."""
    file: int = 0
    """Reads that went to the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """The state of a log, for `status`."""

    path: str
    epoch: Epoch
    first_seqno: Seqno
    last_seqno: Seqno
    visible_seqno: Seqno
    durable_seqno: Seqno
    committed_seqno: Seqno
    segments: int
    syncs: int
    """Syncs since it was opened."""
    reads: ReadCounts
    """From where the cursors of the writer's process got what they read."""
    closed_because: str | None
    """Why nothing can be appended any more; None while it can."""

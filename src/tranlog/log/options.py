"""How a log is written, and where it stands: the values that its opener gives and its `status` returns.

Owns no behaviour but the check of the options. Source: thl-internals, "Configuration"; design/log-format.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from tranlog.errors import ConfigError
from tranlog.ids import Epoch, Seqno
from tranlog.log.format import HEADER_LENGTH_MAX, SEGMENT_BYTES_MAX

_ROOM_FOR_OTHERS = 2 * HEADER_LENGTH_MAX
"""What a segment keeps free behind its largest transaction: its rotate and sync records, and a margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How a log is written. Readers need none of it."""

    segment_bytes: int = 100_000_000
    """Bytes after which a segment is closed; the last transaction may pass them. Short ones open fast."""
    checksum: bool = True
    """CRC-32 over every record, held against it at each open and read."""
    retention_s: float | None = None
    """Seconds that a closed segment is kept; None keeps all. Holds keep more."""
    buffer_bytes: int = 256 * 1024
    """Bytes that may be appended before they are written; a commit writes them earlier."""
    spill_above: int = 1 << 30
    """Bytes of one transaction's records above which it is refused."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        if self.segment_bytes < 1_000:
            raise ConfigError(option="segment_bytes", value=self.segment_bytes, why="a segment has at least 1000 bytes")
        if self.spill_above < 1_000:
            raise ConfigError(option="spill_above", value=self.spill_above, why="no transaction would fit")
        if self.segment_bytes + self.spill_above + _ROOM_FOR_OTHERS > SEGMENT_BYTES_MAX:
            raise ConfigError(
                option="segment_bytes",
                value=self.segment_bytes,
                why=f"a segment ends at 4 GiB, and a transaction of spill_above = {self.spill_above} bytes must fit "
                "behind segment_bytes",
            )
        if self.buffer_bytes < 1:
            raise ConfigError(option="buffer_bytes", value=self.buffer_bytes, why="the buffer holds at least one byte")
        if self.retention_s is not None and self.retention_s < 0:
            raise ConfigError(
                option="retention_s", value=self.retention_s, why="it is negative; leave it out to keep all"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """Where a log stands, for `status`."""

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
    closed_because: str | None
    """Why nothing can be appended any more; None while it can."""

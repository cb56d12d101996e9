"""Identities: seqno, epoch, GTID, LSN, with their order, bytes and text.

Owns the one definition of each number that names a place in history. The hard idea: a GTID is a *pair*, and an
epoch is never reused, so two logs that hold the same GTID hold the same history up to it.
"""

from __future__ import annotations

import base64
import re
import struct
from typing import NewType

import msgspec

Seqno = NewType("Seqno", int)
"""Dense number of a transaction in the log, from 0; never reset, never reused."""
Epoch = NewType("Epoch", int)
"""One writer's reign over the log, from 1; rises at each start of a writer."""
Lsn = NewType("Lsn", int)
"""A byte position in one node's log: segment number in the high 32 bits, byte offset in the low 32."""

NO_SEQNO = Seqno(-1)
"""Stands where a seqno would be and there is none: an empty log's last, a new channel's applied."""
NO_EPOCH = Epoch(0)
"""The epoch of a position that has applied nothing yet."""
HISTORY_BYTES = 16
"""Of the identity of a log's history, which is random."""
NO_HISTORY = bytes(HISTORY_BYTES)
"""Stands where the identity of a history would be and there is none."""

SEGMENT_PREFIX = "thl.data."
SEGMENT_NUMBER_MAX = (1 << 32) - 1

_GTID_BYTES = struct.Struct(">QQ")
_GTID_TEXT = re.compile(r"GTID\(\s*([0-9]{1,20})\s*,\s*([0-9]{1,20})\s*\)")
_BINDATA = re.compile(r"""BinData\(\s*\d+\s*,\s*["']([^"']*)["']\s*\)""")
_SEGMENT_NAME = re.compile(r"thl\.data\.([0-9]{10})")
_NUMBER_MAX = (1 << 63) - 1  # records and targets hold seqno and epoch as signed 64-bit integers


class Gtid(msgspec.Struct, frozen=True, order=True, gc=False):
    """A transaction's identity: (epoch, seqno), ordered as a pair.

    Source: tokumx-replication (GTID), glossary.
    """

    epoch: Epoch
    seqno: Seqno

    def __str__(self) -> str:
        return f"GTID({self.epoch}, {self.seqno})"

    @staticmethod
    def check(gtid: object) -> None:
        """Raise TypeError for what is no GTID: before a step of a writer, which nothing unexpected may break off."""
        parts: tuple[object, ...] = msgspec.structs.astuple(gtid) if isinstance(gtid, Gtid) else (None,)
        if not all(isinstance(part, int) for part in parts):
            raise TypeError(f"a GTID is a Gtid of two ints, and not {gtid!r}")

    def to_base64(self) -> str:
        """Return the base64 of the 16 bytes, as TokuMX shows a GTID."""
        return base64.b64encode(self.to_bytes()).decode()

    def to_bytes(self) -> bytes:
        """Return 16 bytes, two big-endian u64, whose byte order is the GTIDs' order."""
        return _GTID_BYTES.pack(self.epoch, self.seqno)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Gtid:
        """Read what `to_bytes` wrote. Raises ValueError unless `raw` is 16 bytes long."""
        if len(raw) != _GTID_BYTES.size:
            raise ValueError(f"a GTID has 16 bytes, not {len(raw)}")
        epoch, seqno = _GTID_BYTES.unpack(raw)
        return cls(Epoch(epoch), Seqno(seqno))

    @classmethod
    def parse(cls, text: str) -> Gtid:
        """Read a GTID as people have it: `GTID(1, 15)`, the base64 of its 16 bytes, or that in `BinData(0, "...")`.

        Raises ValueError for anything else, and for what no log can hold.
        """
        match = _GTID_TEXT.fullmatch(text.strip())
        if match is not None:
            found = cls(Epoch(int(match[1])), Seqno(int(match[2])))
        else:
            packed = _BINDATA.fullmatch(text.strip())
            try:
                found = cls.from_bytes(base64.b64decode(text.strip() if packed is None else packed[1], validate=True))
            except ValueError as exc:  # binascii.Error is one
                raise ValueError(f"not a GTID: {text!r}; it reads GTID(1, 15), or is the base64 of 16 bytes") from exc
        if max(found.epoch, found.seqno) > _NUMBER_MAX:
            raise ValueError(
                f"not a GTID of a log: {found} is above SEQNO_MAX, {_NUMBER_MAX}, where a log's numbers end"
            )
        return found


def segment_name(number: int) -> str:
    """Return the file name of a segment, in either codec: ten decimal digits."""
    return f"{SEGMENT_PREFIX}{number:010d}"


def segment_number(name: str) -> int | None:
    """Return the number in a segment's file name; None for any other file."""
    match = _SEGMENT_NAME.fullmatch(name)
    if match is None:
        return None
    number = int(match[1])
    return number if 0 < number <= SEGMENT_NUMBER_MAX else None

"""The running hash of a log: 64 bits over every transaction up to one.

Owns the arithmetic. Two logs with the same hash at the same GTID hold the same history up to it, whoever wrote them.
The hard idea: a step is affine, `(h + x) * MULTIPLIER` modulo 2^64, and the multiplier is odd. So what n transactions
add is known without knowing what stands before them, and a hash is carried back as well as forward. Compiled, see
`tranlog.compiled`.

Hashes are signed here, as the machine's numbers are; `unsigned` is for whoever shows or sends one.

Source: docs/format.md, "The running hash"; docs/decisions/0032-running-hash.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from tranlog.checksum import crc32
from tranlog.ids import Gtid
from tranlog.log.records.format import CRC_32, EVENT_TYPE, REFERENCE_TYPE

MULTIPLIER: Final = 2_862_933_555_777_941_757
"""Below 2^62: compiled code then has it as a number of the machine."""
SEQNO_FACTOR: Final = 2_685_821_657_736_338_717
EPOCH_FACTOR: Final = 1_983_293_846_297_651_537
_INVERSE: Final = -2_313_046_976_756_913_067
"""What undoes the multiplier, modulo 2^64."""
RECORD_PIECES: Final = 3
"""A record is given as its bytes before the payload, the payload, and those after it."""
_MASK: Final = (1 << 64) - 1
_U32: Final = 0xFFFF_FFFF


def _wraps(number: i64) -> bool:
    """Whether a sum that passes 64 bits begins again below zero, as compiled code has it; plain integers grow."""
    return number + number < 0


_WRAPPING: Final = _wraps(0x7FFF_FFFF_FFFF_FFFF)


def signed(h: int) -> int:
    """Return a number modulo 2^64, as one from -2^63 to 2^63 - 1."""
    h &= _MASK
    return h - (1 << 64) if h >> 63 else h


def unsigned(h: int) -> int:
    """Return a hash as a number from 0 to 2^64 - 1."""
    return h & _MASK


def fold(h: i64, tag: i64, seqno: i64, epoch: i64) -> i64:
    """Return the hash after a record, given that before it; `tag` is what `tag_of` returns."""
    h = (h + tag + SEQNO_FACTOR * seqno + EPOCH_FACTOR * epoch) * MULTIPLIER
    if not _WRAPPING:
        h = signed(h)
    return h


def _times(factor: i64, number: i64) -> i64:
    product: i64 = factor * number
    if not _WRAPPING:
        product = signed(product)
    return product


def _power(base: i64, count: i64) -> i64:
    power: i64 = 1
    while count:
        if count & 1:
            power = _times(power, base)
        base = _times(base, base)
        count >>= 1
    return power


def after(h: i64, added: i64, count: i64) -> i64:
    """Return the hash after `count` transactions, given that before them and the one that they make of 0."""
    h = _times(_power(MULTIPLIER, count), h) + added
    if not _WRAPPING:
        h = signed(h)
    return h


def before(h: i64, added: i64, count: i64) -> i64:
    """Return the hash before `count` transactions, given that after them and the one that they make of 0."""
    return _times(_power(_INVERSE, count), h - added)


def tag_of(head: bytes, payload: bytes, trailer: bytes) -> int:
    """Return what a record's own bytes put into the hash: its checksum, or that of its header where it has none.

    Of a referring record it is the checksum of its header and of what all copies of its reference have in common.
    """
    if head[4] == REFERENCE_TYPE:
        return crc32(payload[40:48], crc32(payload[:24], crc32(head)))
    return int.from_bytes(trailer[1:], "big") if trailer[0] == CRC_32 else crc32(head)


def fold_pieces(h: int, pieces: Sequence[bytes], gtid: Gtid) -> int:
    """Return the hash after records of one transaction, each given as `tag_of` takes it, one after the other."""
    for at in range(0, len(pieces), RECORD_PIECES):
        h = fold(h, tag_of(pieces[at], pieces[at + 1], pieces[at + 2]), gtid.seqno, gtid.epoch)
    return h


def fold_span(raw: bytes, at: i64, end: i64, h: i64, hashes: list[int] | None = None) -> i64:
    """Return the hash after the event and referring records that stand in `raw[at:end]`, side by side and whole.

    `h` is the hash before the first. `hashes` gets the hash after each.
    """
    while at < end:
        behind: i64 = at + (read_i64_be(raw, at) >> 32 & _U32)
        trailer: i64 = read_i64_be(raw, behind - 8) & 0xFF_FFFF_FFFF
        tag: i64
        if raw[at + 4] == EVENT_TYPE and trailer >> 32 == CRC_32:
            tag = trailer & _U32
        else:
            payload: i64 = at + 13 + (read_i64_be(raw, at + 5) >> 32 & _U32)
            tag = tag_of(raw[at:payload], raw[payload : behind - 5], raw[behind - 5 : behind])
        h = fold(h, tag, read_i64_be(raw, at + 9), read_i64_be(raw, at + 20))
        if hashes is not None:
            hashes.append(h)
        at = behind
    return h

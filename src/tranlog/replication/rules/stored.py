"""The durable state of a node: its vote, its configuration, whether it owes a commit point. Their bytes, in two slots.

The hard idea: both slots are written and synced, one after the other, before anything is sent. A loss of power damages
only the slot that is being written, whose content was not sent yet; and if a slot is damaged later, the other one has
the same content. So no single damage makes a node forget a vote.

Source: docs/protocol.md, "Elections", "Configuration", "The file of a node".
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from tranlog.checksum import crc32
from tranlog.errors import GroupFileError
from tranlog.ids import Gtid
from tranlog.replication.rules.config import NO_NODE, GroupConfig, NodeId
from tranlog.replication.rules.packets import NO_GTID

MAGIC: Final = b"TLGN"
SLOT_BYTES: Final = 128 << 10
SLOT_HEAD: Final = struct.Struct(">4sIQI")
"""Magic, length of the body, number of the write, CRC-32 of number and body."""
_NUMBER = struct.Struct(">Q")


class Stored(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The durable state of one node. `epoch` and `candidate` are its last vote.

    `owing`: its log lost durable records. `had`: the last durable one, if known; otherwise `NO_GTID`.
    """

    group: str
    node: NodeId
    epoch: int = 0
    candidate: NodeId = NO_NODE
    owing: bool = False
    had: Gtid = NO_GTID
    config: GroupConfig | None = None


def slot_bytes(stored: Stored, number: int) -> bytes:
    """Return a slot's content; `number` rises with each write."""
    body = msgspec.msgpack.encode(stored)
    assert SLOT_HEAD.size + len(body) <= SLOT_BYTES
    return SLOT_HEAD.pack(MAGIC, len(body), number, crc32(_NUMBER.pack(number) + body)) + body


def read_slots(raw: bytes, *, path: str, group: str | None) -> tuple[Stored, int, bool]:
    """Return what the file holds, the number of its write, and whether both slots say so. Raises GroupFileError."""
    found = [one for at in (0, SLOT_BYTES) if (one := _read_slot(raw[at : at + SLOT_BYTES])) is not None]
    if not found:
        raise GroupFileError(
            path=path, why=f"neither of its two slots is whole ({len(raw)} bytes), so that this node's vote is unknown"
        )
    stored, number = max(found, key=lambda one: one[1])
    if group is not None and stored.group != group:
        raise GroupFileError(path=path, why=f"it is of the group {stored.group}, not of {group}")
    return stored, number, len(found) == 2 and found[0][1] == found[1][1]


def _read_slot(raw: bytes) -> tuple[Stored, int] | None:
    if len(raw) < SLOT_HEAD.size:
        return None
    magic, length, number, checksum = SLOT_HEAD.unpack_from(raw)
    body = raw[SLOT_HEAD.size : SLOT_HEAD.size + length]
    if magic != MAGIC or len(body) != length or crc32(_NUMBER.pack(number) + body) != checksum:
        return None
    try:
        return msgspec.msgpack.decode(body, type=Stored), number
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None

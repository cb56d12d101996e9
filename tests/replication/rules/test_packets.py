"""Packets: there and back, rubbish, and docs/protocol.md, which says what the code writes.

When a packet has to change, `.venv/bin/python tests/replication/rules/test_packets.py` writes the page's table.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import msgspec
import pytest

from fix_group import A, B, group, gtid, plain
from fix_mutation import Fuzz
from tranlog.errors import PacketError
from tranlog.replication.rules import config, packets, stored
from tranlog.replication.rules.config import ConfigId
from tranlog.replication.rules.packets import (
    CHECKED,
    CONTROL_BYTES_MAX,
    FIRST_BYTES_MAX,
    FRAME,
    KINDS,
    NO_GTID,
    RAW_BYTES_MAX,
    WITH_RAW,
    Ack,
    Lead,
    NotKnown,
    Packet,
    Pulse,
    Records,
    decode,
    encode,
    frame_size,
)

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
CONFIG = group(A, plain(B, tags={"site": "x"}), id=ConfigId(3, 7))
ACK = Ack(durable=gtid(3, 17), epoch=3, mark=1, credit=512)

EXAMPLES: dict[str, dict[str, object]] = {
    "Hello": {
        "group": "g1",
        "name": "shop",
        "node": A,
        "node_name": "n1",
        "versions": (1, 1),
        "state": 1,
        "epoch": 3,
        "first": gtid(1, 0),
        "last": gtid(3, 17),
    },
    "Join": {
        "node": B,
        "node_name": "n2",
        "purpose": "vote",
        "versions": (1, 1),
        "config": CONFIG.id,
        "last": gtid(3, 9),
        "heartbeat_ms": 250,
    },
    "Welcome": {"first": gtid(1, 0), "last": gtid(3, 17), "version": 1},
    "JoinRefused": {"text": "no"},
    "Where": {"number": 4, "gtid": gtid(3, 9), "h": 77},
    "Here": {
        "number": 4,
        "asked": gtid(3, 9),
        "found": gtid(2, 8),
        "h": 76,
        "first": 0,
        "last": gtid(4, 12),
        "epoch": 4,
    },
    "Follow": {"number": 4, "after": gtid(3, 9), "credit": 1048576},
    "Records": {
        "number": 4,
        "after": gtid(3, 9),
        "last": gtid(3, 10),
        "committed": NO_GTID,
        "epoch": 3,
        "part": 0,
        "raw": b"raw records",
    },
    "SpillChunk": {
        "number": 4,
        "oid": b"0123456789abcdef",
        "seq": 3,
        "codec": 1,
        "raw_length": 9,
        "offset": 0,
        "size": 9,
        "raw": b"raw chunk",
    },
    "ChunksGone": {"number": 4, "oid": b"0123456789abcdef"},
    "Ack": {"durable": gtid(3, 17), "epoch": 3, "mark": 1, "credit": 512},
    "AckRelay": {"node": B, "ack": ACK, "hops": 1},
    "PreVote": {"epoch": 4, "last": gtid(3, 17), "config": CONFIG.id, "priority": 5},
    "Vote": {"epoch": 4, "last": gtid(3, 17), "config": CONFIG.id, "priority": 5, "transfer": True},
    "Voted": {"epoch": 4, "pre": True, "why": "I am primary", "known": 3},
    "Heartbeat": {
        "epoch": 3,
        "state": 1,
        "last": gtid(3, 17),
        "durable": gtid(3, 17),
        "committed": gtid(3, 16),
        "config": CONFIG.id,
        "pulse": Pulse(9, 2),
        "echo": Pulse(8, 1),
        "stands": True,
        "owed": gtid(3, 16),
        "full": CONFIG,
        "holds": {"shop": 12},
    },
    "Lead": {"epoch": 3},
    "Begin": {"number": 1, "shard": "s"},
    "Part": {"number": 1, "raw": b"a fragment"},
    "Commit": {"number": 1, "event_id": "e", "w": "majority", "wtimeout_ms": 5000},
    "CommitAnswer": {"number": 1, "kind": "timed out", "gtid": gtid(3, 17), "written_to": ("n1",), "waited_ms": 5000},
    "AskConcern": {"number": 2, "gtid": gtid(3, 17), "w": 2},
    "WaitConsistent": {"number": 3, "kind": "at_least", "gtid": gtid(3, 17)},
    "Who": {"number": 4},
    "Find": {"number": 5, "event_id": "e", "after": gtid(3, 9)},
    "FindAnswer": {"number": 5, "kind": "found", "gtid": gtid(3, 12), "first": gtid(3, 10), "upto": gtid(3, 17)},
    "Files": {"number": 6, "names": (("thl.data.0000000001", 4096, 99),)},
    "Primary": {"number": 4, "node": A, "epoch": 3, "config": CONFIG},
    "GroupOrder": {"number": 7, "name": "remove", "raw": b'{"name":"n2"}'},
    "OrderAnswer": {"number": 7, "done": True, "raw": b"{}"},
    "DiskCall": {"number": 8, "call": "pread", "file": 1, "offset": 4096, "size": 262144},
    "DiskAnswer": {"number": 8, "raw": b"part of a file"},
    "NotKnown": {"number": 9, "kind": 99},
    "File": {"number": 6, "name": "thl.data.0000000001", "offset": 0, "raw": b"part of a file"},
}

ALL: list[Packet] = [kind(**EXAMPLES[kind.__name__]) for kind in KINDS.values()]


def table() -> str:
    """Return the page's table of packets."""
    rows = ["| kind | packet | fields | an example |", "|---|---|---|---|"]
    for (number, kind), example in zip(KINDS.items(), ALL, strict=True):
        fields = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
        rows.append(f"| {number} | {kind.__name__} | {fields} | `{encode(example).hex()}` |")
    return "\n".join(rows)


def test_the_page_has_every_packet_with_its_bytes() -> None:
    assert table() in PAGE.read_text(), "write it: .venv/bin/python tests/replication/rules/test_packets.py"


def test_the_page_has_every_limit() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE.read_text(), re.MULTILINE))
    names = "PROTOCOL_VERSION PROTOCOL_LOWEST CONTROL_BYTES_MAX FIRST_BYTES_MAX FIRST_WITHIN_S RAW_BYTES RAW_BYTES_MAX"
    names += " CONNECTIONS_MAX CLIENTS_MAX HANDSHAKES_MAX CHECKED_SINCE"
    assert {name: int(rows[name]) for name in names.split()} == {n: getattr(packets, n) for n in names.split()}
    assert int(rows["SLOT_BYTES"]) == stored.SLOT_BYTES
    assert int(rows["CONFIG_BYTES_MAX"]) == config.CONFIG_BYTES_MAX
    assert int(rows["NAME_BYTES_MAX"]) == config.NAME_BYTES_MAX
    assert f"`{stored.MAGIC.decode()}`" in PAGE.read_text()


def test_the_page_has_every_state() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z]+) \|", PAGE.read_text(), re.MULTILINE)
    assert [(int(code), name) for code, name in rows] == list(enumerate(packets.STATE_NAMES))


@pytest.mark.parametrize("packet", ALL, ids=lambda packet: type(packet).__name__)
def test_there_and_back(packet: Packet) -> None:
    frame = encode(packet)
    assert frame_size(frame[:8]) == len(frame)
    assert decode(frame) == packet


@pytest.mark.parametrize("packet", ALL, ids=lambda packet: type(packet).__name__)
def test_a_checked_frame_shows_each_flipped_byte(packet: Packet) -> None:
    """All but the raw bytes of Records, each of which has a checksum of its own, and the flag itself."""
    frame = encode(packet, checked=True)
    assert frame_size(frame[:8]) == len(frame) and decode(frame) == packet
    end = len(frame) - (len(packet.raw) if isinstance(packet, Records) else 0)
    for at in range(end):
        harmed = bytearray(frame)
        harmed[at] ^= 0x10
        with pytest.raises(PacketError):
            decode(bytes(harmed), first=True)


def test_the_page_has_a_checked_frame() -> None:
    assert f"`{encode(Lead(epoch=3), checked=True).hex()}`" in PAGE.read_text()


def test_later_fields_are_skipped_and_missing_ones_have_their_default() -> None:
    """A group whose nodes are renewed one by one."""
    fields = [value for value in msgspec.to_builtins(ACK)]
    newer = msgspec.msgpack.encode([*fields, "new", {"more": 1}])
    assert decode(FRAME.pack(len(newer), 14, 0, 0) + newer) == ACK
    older = msgspec.msgpack.encode(fields[:2])
    assert decode(FRAME.pack(len(older), 14, 0, 0) + older) == Ack(durable=ACK.durable, epoch=ACK.epoch)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"", "0 bytes are no head"),
        (FRAME.pack(0, 99, 0, 0), "there is no such kind"),
        (FRAME.pack(0, 14, 2, 0), "must be zero"),
        (FRAME.pack(2, 14, CHECKED, 0) + b"xx", "ends in its checksum"),
        (FRAME.pack(0, 14, 0, 1), "must be zero"),
        (FRAME.pack(CONTROL_BYTES_MAX + 1, 14, 0, 0), "at most"),
        (FRAME.pack(CONTROL_BYTES_MAX + RAW_BYTES_MAX + 1, 11, 0, 0), "at most"),
        (FRAME.pack(5, 14, 0, 0), "its head says 13"),
        (FRAME.pack(2, 11, 0, 0) + b"xx", "ends in the length"),
        (FRAME.pack(4, 11, 0, 0) + struct.pack(">I", 9), "its array has 9 bytes"),
        (FRAME.pack(1, 14, 0, 0) + b"\x90", "Ack"),
        (FRAME.pack(1, 14, 0, 0) + b"\xc1", "Ack"),
    ],
)
def test_what_is_no_packet_is_one_error(frame: bytes, why: str) -> None:
    with pytest.raises(PacketError, match=why):
        decode(frame)


def test_a_kind_that_is_not_known_has_its_number_after_the_first_frame() -> None:
    """Of a newer release: it is answered, and the connection goes on."""
    body = msgspec.msgpack.encode([7, "new", {"more": 1}])
    assert decode(FRAME.pack(len(body), 99, 0, 0) + body) == NotKnown(number=7, kind=99)
    with pytest.raises(PacketError, match="there is no such kind"):
        decode(FRAME.pack(len(body), 99, 0, 0) + body, first=True)
    body = msgspec.msgpack.encode(["no number"])
    with pytest.raises(PacketError, match="there is no such kind"):
        decode(FRAME.pack(len(body), 99, 0, 0) + body)


def test_the_first_frame_of_a_connection_is_small() -> None:
    head = FRAME.pack(FIRST_BYTES_MAX + 1, 1, 0, 0)
    assert frame_size(head) == FIRST_BYTES_MAX + 9
    with pytest.raises(PacketError, match="at most 65536"):
        frame_size(head, first=True)


def test_a_control_field_out_of_its_range_is_refused() -> None:
    body = msgspec.msgpack.encode([{"epoch": 1, "seqno": 2}, -1])
    with pytest.raises(PacketError, match="Expected `int` >= 0"):
        decode(FRAME.pack(len(body), 14, 0, 0) + body)


def test_rubbish_is_a_value_or_one_error(fuzz: Fuzz) -> None:
    """Packets of every kind, mutated; the head's length is made right again in most."""

    def mend(raw: bytes) -> bytes:
        return raw if len(raw) < 8 else struct.pack(">I", len(raw) - 8) + raw[4:]

    def read(raw: bytes) -> object:
        try:
            return decode(raw)
        except PacketError as exc:
            return exc

    fuzz.samples([encode(packet) for packet in ALL], read, mend=mend)


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(re.sub(r"\| kind \| packet \|.*?(?=\n\n|\Z)", lambda _: table(), text, flags=re.DOTALL))
    assert WITH_RAW

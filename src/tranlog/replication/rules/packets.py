"""The packets between nodes, as values and as bytes.

Owns the frame, the bodies and their limits. A frame is eight bytes, then its body: a msgpack array of the packet's
fields in order, or, for records and chunks, that array with its length before it and raw bytes after it. A reader
skips fields after those that it knows, and takes the default for those that a sender of an older version does not
send.

Source: docs/protocol.md.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final

import msgspec

from tranlog.checksum import crc32
from tranlog.errors import PacketError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.replication.rules.config import ConfigId, GroupConfig, NodeId

PROTOCOL_VERSION = 2
"""The newest version that this release speaks."""
PROTOCOL_LOWEST = 1
"""The oldest one."""
CHECKED_SINCE = 2
"""From this version on frames have a checksum."""
FRAME: Final = struct.Struct(">IBBH")
"""Length of what follows the eight bytes, kind, flags, zero."""
CHECKED: Final = 1
"""The flag of a frame whose body begins with the checksum."""
FRAME_CRC: Final = struct.Struct(">I")
HEAD: Final = struct.Struct(">I")
"""Length of the array before raw bytes."""
CONTROL_BYTES_MAX = 1 << 20
"""Of a frame without raw bytes."""
FIRST_BYTES_MAX = 64 << 10
"""Of the first frame of a connection, which comes within `FIRST_WITHIN_S`."""
FIRST_WITHIN_S = 5
CONNECTIONS_MAX = 384
"""So many others have a connection to a node at once."""
CLIENTS_MAX = 256
"""So many of them are clients, so that there is room for nodes."""
HANDSHAKES_MAX = 64
"""So many connections of one address may be in their handshake."""
RAW_BYTES = 512 << 10
"""About so many raw bytes make a frame of records; a larger record is cut over several."""
RAW_BYTES_MAX = 4 << 20

NO_GTID = Gtid(Epoch(0), Seqno(-1))
"""Before everything."""

# The states of a node, with the ancestor's codes.
STARTUP, PRIMARY, REPLICA, RECOVERING, FATAL, RESTORING, UNKNOWN, WITNESS, DOWN, ROLLBACK, REMOVED = range(11)
STATE_NAMES = (
    *("STARTUP", "PRIMARY", "REPLICA", "RECOVERING", "FATAL", "RESTORING", "UNKNOWN", "WITNESS", "DOWN", "ROLLBACK"),
    "REMOVED",
)
READABLE = frozenset((PRIMARY, REPLICA))
"""The states that serve reads."""

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Hash = Annotated[int, msgspec.Meta(ge=0)]
"""A running hash: 64 bits, without a sign."""
State = Annotated[int, msgspec.Meta(ge=0, le=10)]


class Packet(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The base class of all packets."""


class Hello(Packet, frozen=True):
    """A server's first word. `versions`: the lowest and the highest that it speaks.

    `process`: a random number of the node's process, 0 if not given; two at once are a node and a copy of it. `wall`:
    the node's clock, ms since 1970, 0 if not given; only shown to people.
    """

    group: str
    name: str
    node: NodeId
    node_name: str
    versions: tuple[int, ...]
    state: State
    epoch: Count
    first: Gtid
    last: Gtid
    process: Count = 0
    wall: Count = 0


class Join(Packet, frozen=True):
    """A client's answer. `purpose`: vote, follow, commit, read or administer; `group` as far as it knows one.

    `versions`: the lowest and the highest that it speaks; `process`: as in Hello, of a node. `from_event`: a reader's,
    in the place of `last`, the event id of the last transaction that it has.
    """

    node: NodeId
    node_name: str
    purpose: str
    versions: tuple[int, ...]
    config: ConfigId
    last: Gtid
    heartbeat_ms: int
    from_event: str = ""
    force: bool = False
    delay_ms: Count = 0
    group: str = ""
    process: Count = 0


class Welcome(Packet, frozen=True):
    """The server accepts: the range that it holds, and the version of the protocol that both speak now.

    `after`: the transaction that has the `from_event` of the Join.
    """

    first: Gtid
    last: Gtid
    version: int
    after: Gtid = NO_GTID


class JoinRefused(Packet, frozen=True):
    """The server refuses, with the reason."""

    text: str


class Where(Packet, frozen=True):
    """A follower asks whether the source has its `gtid`. `number` is the search's."""

    number: Count
    gtid: Gtid
    h: Hash


class Here(Packet, frozen=True):
    """The answer: `found` is the greatest GTID that the source has of that or an earlier epoch, `h` its hash.

    `found` below `first` (`NO_GTID`): the source has nothing so old. `last`: of the source's log.
    """

    number: Count
    asked: Gtid
    found: Gtid
    h: Hash
    first: Count
    last: Gtid
    epoch: Count


class Follow(Packet, frozen=True):
    """Send what comes after `after`, no more than `credit` bytes without an Ack. `number` is the stream's."""

    number: Count
    after: Gtid
    credit: Count
    delay_ms: Count = 0


class Records(Packet, frozen=True):
    """Records as they lie in the sender's log, from the first after `after` up to the end of `last`.

    A large transaction comes alone and in parts, bytes that are cut anywhere: this is its `part`, from 0 on, and in all
    but the last one of them `last` is `after`.
    """

    number: Count
    after: Gtid
    last: Gtid
    committed: Gtid
    epoch: Count
    part: Count
    raw: bytes


class SpillChunk(Packet, frozen=True):
    """A chunk of a large transaction, before the record that refers to it.

    One that is too large for a frame comes in parts: `raw` are its bytes from `offset` on, of `size` that it has.
    """

    number: Count
    oid: bytes
    seq: Count
    codec: Count
    raw_length: Count
    offset: Count
    size: Count
    raw: bytes


class ChunksGone(Packet, frozen=True):
    """The transaction of these chunks was aborted."""

    number: Count
    oid: bytes


class Ack(Packet, frozen=True):
    """Durable here up to `durable`, told to the primary of `epoch`.

    `mark` rises with each start, and with each rollback.
    """

    durable: Gtid
    epoch: Count
    mark: Count = 0
    credit: Count = 0


class AckRelay(Packet, frozen=True):
    """An ack of a node that follows the sender, passed on towards the primary, `hops` times so far."""

    node: NodeId
    ack: Ack
    hops: Count = 0


class PreVote(Packet, frozen=True):
    """Would you vote for me? Promises nothing."""

    epoch: Count
    last: Gtid
    config: ConfigId
    priority: Count


class Vote(Packet, frozen=True):
    """A request for the vote of `epoch`. `transfer`: the primary asked the sender to stand."""

    epoch: Count
    last: Gtid
    config: ConfigId
    priority: Count
    transfer: bool = False


class Voted(Packet, frozen=True):
    """The answer to either: `why` not, empty where granted. `known` is the voter's own epoch."""

    epoch: Count
    pre: bool
    why: str
    known: Count


class Pulse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One beat of one start of a node."""

    start: Count = 0
    beat: Count = 0


class Heartbeat(Packet, frozen=True):
    """A node's heartbeat.

    `echo`: the last pulse heard from the receiver. `stands`: it would be primary if it were asked to. `asks`: my log
    lost what was durable; name a commit point. `owed`: that commit point. `full`: the configuration itself, for who
    has an older one. `confirmed_ms`: of a primary that has committed in its epoch, how long ago it sent what a majority
    has answered; -1 else.
    """

    epoch: Count
    state: State
    last: Gtid
    durable: Gtid
    committed: Gtid
    config: ConfigId
    pulse: Pulse
    echo: Pulse
    asks: bool = False
    stands: bool = False
    owed: Gtid | None = None
    full: GroupConfig | None = None
    holds: dict[str, int] = {}
    confirmed_ms: int = -1


class Lead(Packet, frozen=True):
    """The primary of `epoch` steps down: stand now."""

    epoch: Count


class Begin(Packet, frozen=True):
    """A client begins a transaction. With an `event_id` it is a large one, the only one of its connection: its parts go
    into the log's spill segments as they come; else they are kept in memory until the Commit.

    `source_id`, and `tstamp`, ms since 1970, as in Commit.
    """

    number: Count
    shard: str = ""
    event_id: str = ""
    source_id: str = ""
    tstamp: Count = 0


class Part(Packet, frozen=True):
    """A fragment of it."""

    number: Count
    raw: bytes


class Commit(Packet, frozen=True):
    """It is complete; answer when `w` is met, or after `wtimeout_ms` (0: never). An empty `w`: the group's default.

    `tstamp`, ms since 1970, and `tables`, None for too many to list, are those of the transaction's header. `epoch`:
    of the one reign that takes it; 0 for any. `shard`: of a large transaction, else Begin has it.
    """

    number: Count
    event_id: str
    w: int | str
    wtimeout_ms: Count = 0
    source_id: str = ""
    tstamp: Count = 0
    tables: tuple[tuple[str, str], ...] | None = None
    epoch: Count = 0
    shard: str = ""


class CommitAnswer(Packet, frozen=True):
    """The outcome of a commit or of a question: `kind` is a word of `tranlog.replication.rules.concern`, or refused.

    For a large transaction it may come before the Commit: it was aborted, and nothing was written.

    `gtid` is `NO_GTID` if nothing was written. `primary`: the name of the primary, as far as the node knows it.
    `text`: why it was refused.
    """

    number: Count
    kind: str
    gtid: Gtid
    written_to: tuple[str, ...] = ()
    waited_ms: Count = 0
    primary: str = ""
    text: str = ""


class AskConcern(Packet, frozen=True):
    """Is `w` met for this GTID?"""

    number: Count
    gtid: Gtid
    w: int | str
    wtimeout_ms: Count = 0


class WaitConsistent(Packet, frozen=True):
    """Answer when this node's log has reached a position: `kind` is at_least, within or latest."""

    number: Count
    kind: str
    gtid: Gtid = NO_GTID
    lag_ms: Count = 0
    timeout_ms: Count = 0


class Who(Packet, frozen=True):
    """Who is primary?"""

    number: Count


class Primary(Packet, frozen=True):
    """The answer to Who: the primary, empty if none is known, and the members of the group."""

    number: Count
    node: NodeId
    epoch: Count
    config: GroupConfig


class GroupOrder(Packet, frozen=True):
    """An operator's order, passed on to the primary: its name, and its body in JSON."""

    number: Count
    name: str
    raw: bytes


class OrderAnswer(Packet, frozen=True):
    """The answer to an order in JSON, or the reason why it was refused."""

    number: Count
    done: bool
    raw: bytes


class Find(Packet, frozen=True):
    """Which transaction after `after` has this event id? None: among the newest, as many as one search covers.

    Answered by the primary, once a majority has confirmed it, or after `timeout_ms`.
    """

    number: Count
    event_id: str
    after: Gtid | None = None
    timeout_ms: Count = 0


class FindAnswer(Packet, frozen=True):
    """The result of a search: `kind` is a word of `tranlog.replication.rules.finding` or `concern`, or refused.

    `gtid`: of the transaction found. `first` and `upto`: the first and the last transaction searched. `complete`:
    nothing between `after` and `first` was left out.
    """

    number: Count
    kind: str
    gtid: Gtid = NO_GTID
    first: Gtid = NO_GTID
    upto: Gtid = NO_GTID
    complete: bool = False
    text: str = ""


class Files(Packet, frozen=True):
    """A restore asks for the list of the log's files; the answer names each with its bytes and their CRC-32.

    The number 0 only says that the source is there.
    """

    number: Count
    names: tuple[tuple[str, int, int], ...] = ()


class File(Packet, frozen=True):
    """A restore asks for a part of a file, with an empty `raw`; the answer has it."""

    number: Count
    name: str
    offset: Count
    raw: bytes


class DiskCall(Packet, frozen=True):
    """A reader asks for a file of the node's log: `call` is a word of `tranlog.replication.acting.served_log`.

    `name`: in the log's folder, empty for that folder; `file`: the number that an earlier `open` was answered with.
    """

    number: Count
    call: str
    name: str = ""
    file: Count = 0
    offset: Count = 0
    size: Count = 0


class DiskAnswer(Packet, frozen=True):
    """The result of a DiskCall. `errno` 0: it was done; otherwise `why`."""

    number: Count
    errno: Count = 0
    why: str = ""
    value: Count = 0
    raw: bytes = b""


class NotKnown(Packet, frozen=True):
    """A client has sent a packet with this number whose kind this node does not know; nothing was done.

    What `decode` makes of such a packet, too.
    """

    number: Count
    kind: Count = 0


KINDS: dict[int, type[Packet]] = {
    1: Hello,
    2: Join,
    3: Welcome,
    4: JoinRefused,
    8: Where,
    9: Here,
    10: Follow,
    11: Records,
    12: SpillChunk,
    13: ChunksGone,
    14: Ack,
    15: AckRelay,
    16: PreVote,
    17: Vote,
    18: Voted,
    19: Heartbeat,
    20: Lead,
    24: Begin,
    25: Part,
    26: Commit,
    27: CommitAnswer,
    28: AskConcern,
    29: WaitConsistent,
    30: Who,
    31: Find,
    32: Files,
    33: File,
    34: Primary,
    35: GroupOrder,
    36: OrderAnswer,
    37: FindAnswer,
    40: DiskCall,
    41: DiskAnswer,
    42: NotKnown,
}
"""Each packet's kind in the frame."""

_KIND_OF = {packet: kind for kind, packet in KINDS.items()}
_RECORDS = _KIND_OF[Records]
WITH_RAW = frozenset(kind for kind, packet in KINDS.items() if packet.__struct_fields__[-1] == "raw")
"""Kinds whose last field stands after the array, as it is."""
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(packet) for kind, packet in KINDS.items()
}


class _Numbered(Packet, frozen=True):
    number: Count


_DECODE_NUMBER = msgspec.msgpack.Decoder(_Numbered).decode


def encode(packet: Packet, *, checked: bool = False) -> bytes:
    """Return a packet's frame; `checked`: with its checksum."""
    return b"".join(encode_parts(packet, checked=checked))


def encode_parts(packet: Packet, *, checked: bool = False) -> tuple[bytes, bytes]:
    """Return a packet's frame as what is before its raw bytes, and those, which are not copied; as `encode`."""
    kind = _KIND_OF[type(packet)]
    raw = b""
    if kind not in WITH_RAW:
        body = _ENCODER.encode(packet)
    else:
        raw = packet.raw  # type: ignore[attr-defined]
        head = _ENCODER.encode(msgspec.structs.replace(packet, raw=b""))
        body = HEAD.pack(len(head)) + head
    if not checked:
        return FRAME.pack(len(body) + len(raw), kind, 0, 0) + body, raw
    frame = FRAME.pack(FRAME_CRC.size + len(body) + len(raw), kind, CHECKED, 0)
    return b"".join((frame, FRAME_CRC.pack(_checksum(kind, frame, body, raw)), body)), raw


def _checksum(kind: int, frame: bytes | memoryview, body: bytes | memoryview, raw: bytes | memoryview) -> int:
    """Return a frame's checksum. Records have their own, which their reader holds them against."""
    crc = crc32(body, crc32(frame))
    return crc if kind == _RECORDS or not raw else crc32(raw, crc)


def frame_size(head: bytes | memoryview, *, first: bool = False) -> int:
    """Return the length of the whole frame, given its first eight bytes. Raises PacketError.

    `first`: of a connection, where nobody is known yet.
    """
    if len(head) < FRAME.size:
        raise PacketError(kind="frame", why=f"{len(head)} bytes are no head of a frame, which has {FRAME.size}")
    length, kind, flags, zero = FRAME.unpack_from(head)
    if kind not in KINDS and first:
        raise _unknown(kind)
    name = KINDS.get(kind, NotKnown).__name__
    if flags & ~CHECKED or zero:
        raise PacketError(kind=name, why="bytes that must be zero are not")
    most = FIRST_BYTES_MAX if first else CONTROL_BYTES_MAX + (RAW_BYTES_MAX if kind in WITH_RAW else 0)
    most += FRAME_CRC.size if flags else 0
    if length > most:
        raise PacketError(kind=name, why=f"{length} bytes, and at most {most} are allowed")
    return FRAME.size + int(length)


def decode(frame: bytes | memoryview, *, first: bool = False) -> Packet:
    """Return the packet of a whole frame; nothing of it is used after. Raises PacketError for whatever is not one.

    Of a kind that is not known, a `NotKnown` where the packet begins with a number.
    """
    size = frame_size(frame, first=first)
    kind = frame[4]
    name = KINDS.get(kind, NotKnown).__name__
    if size != len(frame):
        raise PacketError(kind=name, why=f"{len(frame)} bytes, and its head says {size}")
    body = memoryview(frame)[FRAME.size :]
    told = None
    if frame[5] == CHECKED:
        if len(body) < FRAME_CRC.size:
            raise PacketError(kind=name, why="it ends in its checksum")
        (told,) = FRAME_CRC.unpack_from(body)
        body = body[FRAME_CRC.size :]
    raw = None
    if kind in WITH_RAW:
        if len(body) < HEAD.size:
            raise PacketError(kind=name, why="it ends in the length of its array")
        (length,) = HEAD.unpack_from(body)
        if length > len(body) - HEAD.size:
            raise PacketError(kind=name, why=f"its array has {length} bytes, and {len(body) - HEAD.size} are there")
        covered, raw = body[: HEAD.size + length], bytes(body[HEAD.size + length :])
        body = covered[HEAD.size :]
    else:
        covered = body
    if told is not None and told != _checksum(kind, frame[: FRAME.size], covered, raw or b""):
        raise PacketError(kind=name, why="its checksum is wrong: bytes were changed on the way")
    if kind not in KINDS:
        try:
            return NotKnown(number=_DECODE_NUMBER(body).number, kind=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise _unknown(kind) from exc
    try:
        packet: Packet = _DECODERS[kind].decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise PacketError(kind=name, why=str(exc)) from exc
    return packet if raw is None else msgspec.structs.replace(packet, raw=raw)


def _unknown(kind: int) -> PacketError:
    return PacketError(kind=str(kind), why="there is no such kind in this version of the protocol")

"""From the bytes of a replication connection to binlog events with proven checksums.

Owns packets, their errors, and the checksum after each event. Pure. The hard idea: whether checksums follow is told
by the first event of each file, and the events that the server makes up between two files may still follow the rule
of the file before.

Source: MariaDB's manual, "Replication protocol", "COM_BINLOG_DUMP".
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from tranlog.source.mariadb.events import (
    ARTIFICIAL,
    CHECKSUM_BYTES,
    HEADER_BYTES,
    EventFormatError,
    EventType,
    announces_checksums,
    event_name,
    has_valid_checksum,
)

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_HEADER_TAIL: Final = struct.Struct("<IIH")  # size, end offset, flags: from byte 9 of an event's header
_LARGEST_PACKET: Final = 0xFFFFFF
_SPECIAL: Final = frozenset({int(EventType.FORMAT_DESCRIPTION), int(EventType.ROTATE)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWord:
    """What the server said instead of an event: an error, or (code 0) that the stream is over."""

    code: int
    text: str


class EventSplitter:
    """Cuts what a connection delivers into events. One per connection; not for threads.

    Shape: events in order, each with its header and without its checksum. When the server says something else,
    `word` is set and no event follows; when bytes are damaged, `failure` is set, what was whole before them is
    returned, and no event follows.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._waiting = 0  # bytes in _parts
        self._needed = 4  # bytes that make sense of them
        self._long: list[bytes] = []  # full packets of an event that is longer than one
        self._checksums: bool | None = None
        self.word: ServerWord | None = None
        self.failure: EventFormatError | None = None

    @property
    def inside(self) -> bool:
        """Whether bytes wait for the rest of their event."""
        return bool(self._waiting or self._long)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes, return the events that they complete."""
        events: list[bytes] = []
        if self.word is None and self.failure is None:
            try:
                self._split(chunk, events)
            except EventFormatError as exc:
                self.failure = exc
        return events

    def _split(self, chunk: bytes, events: list[bytes]) -> None:
        if self._waiting:
            self._parts.append(chunk)
            self._waiting += len(chunk)
            if self._waiting < self._needed:
                return
            chunk = b"".join(self._parts)
            self._parts.clear()
            self._waiting = 0
        at, size = 0, len(chunk)
        checksums = self._checksums
        crc32, read_u32 = zlib.crc32, _U32.unpack_from
        self._needed = 4
        while size - at >= 4:
            length = read_u32(chunk, at)[0] & 0xFFFFFF
            end = at + 4 + length
            if end > size:
                self._needed = 4 + length
                break
            if checksums and length > 24 and not self._long and chunk[at + 4] == 0 and length < _LARGEST_PACKET:
                event = chunk[at + 5 : end - 4]
                # The two that may change the rule, or not follow it, take the long way.
                if event[4] not in _SPECIAL:
                    if crc32(event) != read_u32(chunk, end - 4)[0]:
                        raise _damaged(event)
                    events.append(event)
                    at = end
                    continue
            packet = chunk[at + 4 : end]
            at = end
            if length == _LARGEST_PACKET:
                self._long.append(packet)
                continue
            if self._long:
                packet = b"".join([*self._long, packet])
                self._long.clear()
            found = self._event(packet)
            if found is None:
                return
            events.append(found)
            checksums = self._checksums
        if at < size:
            self._parts.append(chunk[at:])
            self._waiting = size - at

    def _event(self, packet: bytes) -> bytes | None:
        """Return the event of a packet; None where it is the server's word."""
        if not packet:
            raise EventFormatError(why="an empty packet")
        if packet[0] == 0xFF:
            code = _U16.unpack_from(packet, 1)[0] if len(packet) > 2 else 0
            text = packet[3:].decode(errors="replace")
            self.word = ServerWord(code=code, text=text[6:] if text.startswith("#") else text)
            return None
        if packet[0] == 0xFE and len(packet) < 9:
            self.word = ServerWord(code=0, text="the server ended the stream")
            return None
        event = packet[1:]
        if packet[0] != 0 or len(event) < HEADER_BYTES:
            raise EventFormatError(why=f"a packet of {len(packet)} bytes that starts with {packet[0]}")
        announced, _, flags = _HEADER_TAIL.unpack_from(event, 9)
        if announced != len(event):
            raise EventFormatError(
                why=f"a {event_name(event[4])} of {len(event)} bytes says that it has {announced} bytes"
            )
        if event[4] == EventType.FORMAT_DESCRIPTION:
            self._checksums = announces_checksums(event)
            if self._checksums and not has_valid_checksum(event):
                raise _damaged(event)
            return event[:-4]
        if flags & ARTIFICIAL and event[4] == EventType.ROTATE and len(event) > HEADER_BYTES + CHECKSUM_BYTES:
            return event[:-4] if has_valid_checksum(event) else event
        if self._checksums is None:
            raise EventFormatError(why=f"a {event_name(event[4])} before any format description")
        if not self._checksums:
            return event
        if not has_valid_checksum(event):
            raise _damaged(event)
        if len(event) < HEADER_BYTES + CHECKSUM_BYTES:
            raise EventFormatError(why=f"a {event_name(event[4])} of {len(event)} bytes, its checksum among them")
        return event[:-4]


def _damaged(event: bytes) -> EventFormatError:
    end = _HEADER_TAIL.unpack_from(event, 9)[1]
    return EventFormatError(why=f"the {event_name(event[4])} that ends at offset {end} fails its checksum")

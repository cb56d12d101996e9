"""replication/acting/committed_bytes.py: a reader gets no byte of what the group has not committed, whatever it asks.

docs/protocol.md, "Readers".
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
from pathlib import Path

import pytest

from fix_live_group import LONG_S, LiveGroup, live_group, words
from tranlog.addresses import split_address
from tranlog.errors import NoPrimaryError
from tranlog.ids import segment_number
from tranlog.log.options import LogOptions
from tranlog.log.records.spill import SPILL_HEADER_BYTES, ChunkHeader, parse_chunk_header, spill_number
from tranlog.replication.acting.client import Satisfied
from tranlog.replication.acting.remote_log import open_remote
from tranlog.replication.rules.config import ConfigId, NodeId
from tranlog.replication.rules.packets import (
    FRAME,
    NO_GTID,
    RAW_BYTES_MAX,
    DiskAnswer,
    DiskCall,
    Hello,
    Join,
    Packet,
    Welcome,
    decode,
    encode,
    frame_size,
)

SPILLS = LogOptions(spill_above=100_000, spill_buffer_bytes=64 << 10, spill_chunk_bytes=32 << 10)
STEP = 4096


class RawReader:
    """A reader of its own, which heeds neither `positions` nor the commit point: it asks for every byte."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_connection(split_address("address", address), timeout=LONG_S)
        self._numbers = itertools.count(1)
        assert isinstance(self._receive(), Hello)
        join = Join(
            node=NodeId("raw"),
            node_name="raw",
            purpose="read",
            versions=(1, 1),
            config=ConfigId(),
            last=NO_GTID,
            heartbeat_ms=1000,
            force=True,
        )
        self._socket.sendall(encode(join))
        assert isinstance(self._receive(), Welcome)

    def close(self) -> None:
        self._socket.close()

    def _take(self, size: int) -> bytes:
        raw = b""
        while len(raw) < size:
            piece = self._socket.recv(size - len(raw))
            assert piece, "the node has ended the connection"
            raw += piece
        return raw

    def _receive(self) -> Packet:
        head = self._take(FRAME.size)
        return decode(head + self._take(frame_size(head) - len(head)))

    def call(self, call: str, name: str = "", *, file: int = 0, offset: int = 0, size: int = 0) -> DiskAnswer:
        number = next(self._numbers)
        self._socket.sendall(encode(DiskCall(number=number, call=call, name=name, file=file, offset=offset, size=size)))
        told = self._receive()
        assert isinstance(told, DiskAnswer) and told.number == number and not told.errno, told
        return told

    def everything(self, folder: Path) -> bytes:
        """Return all that the node sends of its log's files, asked for at every place where something could begin."""
        found = []
        for name in self.call("list").raw.decode().split("\0"):
            if segment_number(name) is None and spill_number(name) is None:
                continue
            file, held = self.call("open", name).value, (folder / name).read_bytes()
            for offset in (*range(0, len(held), STEP), *chunk_places(name, held)):
                found.append(self.call("pread", file=file, offset=offset, size=RAW_BYTES_MAX).raw)
            assert self.call("size", file=file).value <= len(held)
        return b"".join(found)


def chunk_places(name: str, held: bytes) -> list[int]:
    """Return where the chunks of a spill segment begin."""
    places, at = [], SPILL_HEADER_BYTES
    while spill_number(name) is not None and isinstance(header := parse_chunk_header(held[at:]), ChunkHeader):
        places.append(at)
        at += header.record_length
    return places


def put_alone(group: LiveGroup, *texts: str) -> str:
    """Commit at a primary that is alone, and does not know it yet; return its name."""
    while True:
        primary = group.await_primary()
        others = [name for name in group.options if name != primary]
        with group.client(find_s=1.0) as client, contextlib.suppress(NoPrimaryError):
            assert client.primary() == primary
            for name in others:
                group.stop(name)
            answers = [client.commit(words(text), w=1, wtimeout=LONG_S, event_id=text[:9]) for text in texts]
            if all(isinstance(answer, Satisfied) for answer in answers):
                return primary
        for name in others:  # it has noticed that it is alone
            group.start(name)


def held(folder: Path, text: str) -> bool:
    return any(text.encode() in file.read_bytes() for file in folder.glob("thl.*"))


@pytest.mark.long
def test_a_reader_gets_no_byte_of_what_is_not_committed(tmp_path: Path) -> None:
    """Of an open transaction, of one that the primary alone has, in the log and spilled; all of what is committed."""
    with live_group(tmp_path, log=SPILLS) as group, group.client() as client, contextlib.ExitStack() as stack:
        large = stack.enter_context(client.begin(event_id="open"))
        for _ in range(20):
            large.add(words("still open " * 1000))
        for text in ("committed", "spilled " * 30_000):
            assert isinstance(client.commit(words(text), w=3, wtimeout=LONG_S, event_id=text[:9]), Satisfied)
        primary = put_alone(group, "alone", "aside " * 40_000)
        folder = tmp_path / primary
        for text in ("committed", "spilled spilled", "alone", "aside aside"):
            assert held(folder, text), "it is there, and would be found"
        reader = RawReader(group.options[primary].listen)
        try:
            sent = reader.everything(folder)
        finally:
            reader.close()
        for text in ("committed", "spilled " * 3_000):
            assert text.encode() in sent
        for text in ("still open", "alone", "aside"):
            assert text.encode() not in sent


@pytest.mark.long
def test_an_index_that_covers_more_than_is_committed_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with live_group(tmp_path, log=LogOptions(segment_bytes=200_000)) as group:
        with group.client() as client:
            for number in range(20):
                answer = client.commit(words("x" * 10_000), w=3, wtimeout=LONG_S, event_id=f"e{number}")
                assert isinstance(answer, Satisfied)
        primary = put_alone(group, *["alone" * 3_000] * 15)  # a segment ends among them, and the index is stored
        node = next(one for name, one in group.options.items() if name == primary)
        with caplog.at_level(logging.WARNING, logger="tranlog.log"):
            with open_remote(f"thl://{node.listen}", prefer="nearest", find_s=LONG_S) as log:
                assert answer.gtid is not None
                header = log.header(answer.gtid.seqno)
        assert header is not None and header.gtid == answer.gtid
        assert "is ignored" not in caplog.text


@pytest.mark.long
def test_what_is_committed_later_is_sent_then(tmp_path: Path) -> None:
    with live_group(tmp_path, "a", log=SPILLS) as group, group.client() as client:
        with open_remote(group.url, find_s=LONG_S) as log, log.cursor() as cursor:
            for number in range(3):
                text = f"large {number}" * 20_000
                answer = client.commit(words(text), w=1, wtimeout=LONG_S, event_id=f"e{number}")
                assert isinstance(answer, Satisfied)
                cursor.seek(answer.gtid.seqno)
                found = cursor.next(timeout_s=LONG_S)
                assert found is not None and found.header.spilled and [*found.changes()] == words(text)

"""replication/acting/entrance.py: who is let as far as the handshake, what the others cost, and what both ends hear.

docs/protocol.md, "Frames"; docs/replication.md, "TLS and permissions".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tranlog.clock import SYSTEM_CLOCK
from tranlog.errors import ConfigError, HandshakeError
from tranlog.replication.acting import entrance as entrance_module
from tranlog.replication.acting import transport
from tranlog.replication.acting.entrance import Entrance
from tranlog.replication.acting.links import Greeting, greet
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules.config import NodeId
from tranlog.replication.rules.packets import NO_GTID, Hello, Packet
from tranlog.service.upkeep.certificates import make_authority, make_client, make_node
from tranlog.tls import group_side

DAY_MS = 86_400_000
HELLO = Hello(
    group="", name="shop", node=NodeId("n"), node_name="a", versions=(1,), state=2, epoch=1, first=NO_GTID, last=NO_GTID
)


class Polite:
    """Says who it is, and takes nothing."""

    def __init__(self) -> None:
        self.wires: list[Wire] = []

    def met(self, wire: Wire) -> None:
        self.wires.append(wire)
        wire.send(HELLO)

    def take(self, wire: Wire, packet: Packet, size: int) -> None:
        wire.done(size)

    def lost(self, wire: Wire) -> None:
        self.wires.remove(wire)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the certificates of two authorities, some of them bad."""
    folder = tmp_path_factory.mktemp("certs")
    now = SYSTEM_CLOCK.now_ms()
    for name in ("ours", "theirs"):
        make_authority(str(folder / name), days=3650, now_ms=now - 100 * DAY_MS)
        for node in "ab":
            make_node(str(folder / name), node, (), days=3650, now_ms=now)
        make_node(str(folder / name), "expired", (), days=1, now_ms=now - 50 * DAY_MS)
        make_node(str(folder / name), "early", (), days=300, now_ms=now + 50 * DAY_MS)
        make_client(str(folder / name), "program", days=300, now_ms=now)
    return folder


def side(folder: Path, name: str, *, server: bool = False, believes: str = "ours") -> ssl.SSLContext:
    """Return a side of TLS with `authority/name`; an empty name shows none."""
    authority = str(folder / believes / "group.pem")
    if not name:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(authority)
        return context
    pem, key = (folder / f"{name}.{end}" for end in ("pem", "key"))
    return group_side(authority, str(pem), str(key) if key.exists() else None, server=server)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def until(found: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not found():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def opened(tls: ssl.SSLContext | None, taker: Polite | None = None):  # type: ignore[no-untyped-def]
    entrance = Entrance("127.0.0.1:0", taker or Polite(), tls)
    await entrance.open()
    try:
        yield entrance, f"127.0.0.1:{entrance.port}"
    finally:
        entrance.close()
        await entrance.end()


@pytest.mark.parametrize(
    ("server", "client", "there", "here"),
    [
        ("ours/a", "ours/b", "", ""),
        ("ours/a", "ours/program", "", ""),
        ("ours/a", "ours/expired", "its certificate is refused: it has expired", "this end: it has expired"),
        ("ours/a", "ours/early", "it is not valid yet; look at both clocks", "refused the certificate of this end"),
        ("ours/a", "theirs/b", "another authority than the group's has signed it", "this end: another authority"),
        ("ours/a", "", "it showed no certificate", "refused the certificate of this end: none was shown"),
        (
            "ours/expired",
            "ours/b",
            "refused the certificate of this end: it has exp",
            "is refused: it has expired; make",
        ),
        (
            "theirs/a",
            "ours/b",
            "refused the certificate of this end: another",
            "is refused: another authority than the",
        ),
        (
            "ours/program",
            "ours/b",
            "refused the certificate of this end: it is",
            "a client's certificate is none of a node",
        ),
        (None, "ours/b", "it speaks TLS, and this end has no certificate", "it does not speak TLS"),
    ],
)
def test_a_bad_certificate_is_one_clear_line_at_both_ends(
    certs: Path, server: str | None, client: str, there: str, here: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        tls = None if server is None else side(certs, server, server=True)
        async with opened(tls) as (entrance, address):
            greeting = greet(address, Greeting(), side(certs, client))
            if here:
                with pytest.raises(HandshakeError, match=re.escape(here)) as caught:
                    await greeting
                assert caught.value.where == address
                await until(lambda: refusals(caplog))
            else:
                wire, hello = await greeting
                assert hello == HELLO
                assert wire.certified == ("a", ""), "the server's name"
                await until(lambda: entrance.wires)
                (met,) = entrance.wires
                for one in (wire, met):  # else a word may wait for the other end's delayed ack, some 40 ms
                    assert one._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                name = client.rpartition("/")[2]
                assert met.certified == (name, "client" if name == "program" else "")
                assert bool(met.certified_otherwise("b")) == (name != "b")
                wire.cut()
            await until(lambda: not entrance.wires)

    with caplog.at_level(logging.WARNING, logger="tranlog"):
        asyncio.run(work())
    lines = refusals(caplog)
    assert len(lines) == bool(there)
    assert all(there in line and re.search(r"peer=127.0.0.1:\d+ ", line) for line in lines), lines


def test_who_is_silent_or_speaks_no_tls_is_not_waited_for(
    certs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(entrance_module, "FIRST_WITHIN_S", 0.1)

    async def work() -> None:
        async with opened(side(certs, "ours/a", server=True)) as (entrance, address):
            host, port = address.split(":")
            for raw, why in ((b"", "no TLS handshake came within"), (b"GET / HTTP/1.0\r\n\r\n", "does not speak TLS")):
                caplog.clear()
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(raw)
                with contextlib.suppress(ConnectionResetError):
                    while await reader.read(1000):
                        pass
                writer.close()
                await until(lambda: refusals(caplog))
                (line,) = refusals(caplog)
                assert why in line
            with pytest.raises(HandshakeError, match="it was closed; it said nothing before, and may expect TLS"):
                await greet(address, Greeting(), None)
            caplog.clear()
            for _ in range(3):  # whoever looks whether somebody listens
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
            await until(lambda: len(entrance._serving) == 0)
            assert refusals(caplog) == []

    with caplog.at_level(logging.WARNING, logger="tranlog"):
        asyncio.run(work())


def test_an_address_has_a_share_of_the_handshakes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(entrance_module, "HANDSHAKES_MAX", 3)
    monkeypatch.setattr(entrance_module, "CONNECTIONS_MAX", 5)

    async def work() -> None:
        taker = Polite()
        async with opened(None, taker) as (entrance, address):
            port = int(address.split(":")[1])

            def connect() -> socket.socket:
                return socket.create_connection(("127.0.0.1", port))

            async def refused() -> str:
                caplog.clear()
                with connect() as one:
                    await until(lambda: refusals(caplog))
                    assert await asyncio.to_thread(one.recv, 10) == b""
                (line,) = refusals(caplog)
                return line

            through = [connect() for _ in range(2)]
            await until(lambda: len(entrance.wires) == 2)
            for wire in taker.wires:
                wire.purpose = "commit"
            strangers = [connect() for _ in range(3)]
            await until(lambda: len(entrance.wires) == 5)
            assert "there are 5 connections already" in await refused()
            through[0].close()
            await until(lambda: len(entrance.wires) == 4)
            assert "3 handshakes of this address are under way already" in await refused()
            strangers[0].close()
            await until(lambda: len(entrance.wires) == 3)
            with connect():
                await until(lambda: len(entrance.wires) == 4)
            for one in (*through, *strangers):
                one.close()
            await until(lambda: not entrance.wires)

    with caplog.at_level(logging.WARNING, logger="tranlog"):
        asyncio.run(work())


def test_last_words_are_not_kept_for_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_WITHIN_S", 0.1)

    async def work() -> None:
        taker = Polite()
        async with opened(None, taker) as (entrance, address):
            with socket.create_connection(("127.0.0.1", int(address.split(":")[1]))):
                await until(lambda: taker.wires)
                wire = taker.wires[0]
                while wire._transport.get_write_buffer_size() < 1 << 20:
                    wire._transport.write(bytes(1 << 20))
                wire.end("enough", warn=False)
                await until(lambda: not entrance.wires)

    asyncio.run(work())


@pytest.mark.parametrize("address", ["0.0.0.0:2112", "a.example:2112", "[::]:2112"])
def test_beyond_loopback_it_needs_tls(certs: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="others reach this address: set tls_certificate, tls_key and tls_ca"):
        Entrance(address, Polite(), None)
    Entrance(address, Polite(), side(certs, "ours/a", server=True))

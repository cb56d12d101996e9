"""Issue 7, item 5: the endpoint, by socket and by port; design/replication.md, "Security"."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tranlog.errors import ConfigError, ControlError, PipelineHeldError
from tranlog.service.config.exposure import Exposure, check_exposure, is_loopback, read_secret
from tranlog.service.frame.exits import Told
from tranlog.service.process.control import ControlOptions, ControlServer, call, open_port, open_socket, socket_paths
from tranlog.service.process.requests import (
    FRAME,
    Beat,
    Envelope,
    Flush,
    FrameError,
    GetOverview,
    GetState,
    GoOffline,
    GoOnline,
    Look,
    Reload,
    Request,
    WaitFor,
    frame,
    read_envelope,
)

pytestmark = pytest.mark.long

SECRET = "a secret of enough bytes"


def echo(request: Request) -> dict[str, Any]:
    if isinstance(request, Beat):
        raise ConfigError(option="heartbeat", value=request.name, why="is not wanted here")
    return {"state": "ONLINE", "asked": msgspec.to_builtins(request)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ControlServer]:
    with open_socket(socket_paths(str(tmp_path), "p", runtime_dir=None), echo, pipeline="p") as opened:
        yield opened


@pytest.mark.parametrize(
    "request_",
    [
        GetState(),
        GoOnline(until_seqno=5, skip_seqno="1,2-3", from_seqno=1),
        GoOffline(immediate=True),
        WaitFor(applied=7, timeout_s=2.5),
        Flush(),
        Look(name="stores"),
        GetOverview(),
        Reload(timeout_s=1.5),
    ],
)
def test_every_request_comes_over(server: ControlServer, request_: Request) -> None:
    assert call([server.address], request_)["asked"] == msgspec.to_builtins(request_)


def test_an_error_comes_back_as_what_it_is(server: ControlServer) -> None:
    with pytest.raises(Told) as caught:
        call([server.address], Beat(name="x"))
    assert (caught.value.kind, caught.value.code) == ("ConfigError", 2)
    assert "heartbeat" in str(caught.value)


def test_the_socket_is_its_owners_alone(server: ControlServer, tmp_path: Path) -> None:
    path = tmp_path / "control" / "p"
    assert server.address == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server.close()
    assert not path.parent.exists(), "nothing is left in the log's folder"


def test_a_second_process_is_refused_and_told_by_whom(server: ControlServer, tmp_path: Path) -> None:
    paths = socket_paths(str(tmp_path), "p", runtime_dir=None)
    with pytest.raises(PipelineHeldError) as caught:
        open_socket(paths, echo, pipeline="p")
    assert f" pid {os.getpid()}" in caught.value.holder
    other = open_socket(paths, lambda request: {"state": "OFFLINE:NORMAL"}, pipeline="p", take_over=True)
    assert call(paths, GetState())["state"] == "OFFLINE:NORMAL"
    server.close()  # whose name it was before: it is not its own any more
    assert call(paths, GetState())["state"] == "OFFLINE:NORMAL"
    other.close()


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    paths = socket_paths(str(tmp_path), "p", runtime_dir=None)
    program = (
        "import os, sys; from tranlog.service.process.control import *; "
        "open_socket(sys.argv[1:], lambda r: {}, pipeline='p'); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, *paths], check=False)
    assert done.returncode == -9
    assert stat.S_ISSOCK(os.stat(paths[0]).st_mode)
    with pytest.raises(ControlError) as caught:
        call(paths, GetState())
    assert "nobody listens" in str(caught.value)
    with open_socket(paths, echo, pipeline="p"):
        assert call(paths, GetState())["state"] == "ONLINE"


def test_a_path_longer_than_a_socket_address(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120) / ("y" * 120)
    deep.mkdir(parents=True)
    paths = socket_paths(str(deep), "p" * 60, runtime_dir=None)
    with open_socket(paths, echo, pipeline="p"):
        assert call(paths, GetState())["state"] == "ONLINE"


def test_a_log_where_no_socket_can_be(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "control").write_text("in the way")
    (tmp_path / "run").mkdir()
    paths = socket_paths(str(tmp_path / "log"), "p", runtime_dir=str(tmp_path / "run"))
    with open_socket(paths, echo, pipeline="p") as server:
        assert server.address.startswith(str(tmp_path / "run"))
        assert call(paths, GetState())["state"] == "ONLINE"
    with pytest.raises(ConfigError) as caught:
        open_socket(paths[:1], echo, pipeline="p")
    assert "control to HOST:PORT" in str(caught.value)


RUBBISH = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    FRAME.pack(0),
    FRAME.pack(1 << 31),
    FRAME.pack(10) + b"short",
    FRAME.pack(2) + b"[]",
    FRAME.pack(3) + b"\xff\xfe\xfd",
    FRAME.pack(20_000) + b"[" * 20_000,
    frame(Envelope(version=9, ask=GetState())),
]


@pytest.mark.parametrize("sent", RUBBISH)
def test_rubbish_is_answered_or_cut_off_and_harms_nobody(server: ControlServer, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(20)
        peer.connect(server.address)
        peer.sendall(sent)
        peer.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # it was cut off with some of the rubbish unread
            while part := peer.recv(65536):
                answer += part
    if answer:
        assert json.loads(answer[FRAME.size :])["error"]["type"] == "FrameError"
    assert call([server.address], GetState())["state"] == "ONLINE"


def test_an_unknown_field_is_no_request() -> None:
    with pytest.raises(FrameError):
        read_envelope(b'{"ask":{"request":"offline","imediate":true}}')


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "192.0.2.7"])
def test_no_port_that_others_reach_without_credentials(host: str) -> None:
    address = f"[{host}]:0" if ":" in host else f"{host}:0"
    for exposure in (Exposure(), Exposure(secret=SECRET), Exposure(certificate="x.pem")):
        with pytest.raises(ConfigError) as caught:
            open_port(ControlOptions(address=address, exposure=exposure), echo)
        assert "TLS and a shared secret" in caught.value.why
    assert not is_loopback(host)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:80", "127.9.9.9:1"])
def test_loopback_needs_none(address: str) -> None:
    assert check_exposure("control", address, Exposure())


@pytest.mark.parametrize("address", ["4712", "host:", ":1", "127.0.0.1:x", "127.0.0.1:70000"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_exposure("control", address, Exposure())
    assert caught.value.why == "must be HOST:PORT"


def test_a_secret_that_others_read_or_guess(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_secret(str(file))
    file.chmod(0o600)
    assert read_secret(str(file)) == SECRET
    with pytest.raises(ConfigError, match="16 bytes"):
        check_exposure("control", "127.0.0.1:0", Exposure(secret="short"))


def test_a_port_on_loopback(tmp_path: Path) -> None:
    with open_port(ControlOptions(address="127.0.0.1:0"), echo) as server:
        assert call([server.address], GetState())["state"] == "ONLINE"
    with pytest.raises(ControlError):
        call([server.address], GetState())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    pem, key = folder / "tls.pem", folder / "tls.key"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "30", "-subj", "/CN=tranlog", "-addext", names, "-keyout", str(key), "-out", str(pem)]
    subprocess.run(command, check=True, capture_output=True)
    return str(pem), str(key)


def test_tls_and_a_secret(certificate: tuple[str, str]) -> None:
    """Both sides prove who they are; the secret is not sent to whom is not believed."""
    pem, key = certificate
    exposure = Exposure(certificate=pem, key=key, secret=SECRET)
    with open_port(ControlOptions(address="127.0.0.1:0", exposure=exposure), echo) as server:
        assert call([server.address], GetState(), secret=SECRET, authority=pem)["state"] == "ONLINE"
        for wrong in (None, "another secret of 20"):
            with pytest.raises(Told) as caught:
                call([server.address], GetState(), secret=wrong, authority=pem)
            assert caught.value.kind == "NotAdmitted"
        with pytest.raises(ControlError):
            call([server.address], GetState(), secret=SECRET, timeout_s=5)  # plain, and it speaks TLS


def test_a_certificate_that_is_not_believed(certificate: tuple[str, str], tmp_path: Path) -> None:
    pem, key = certificate
    other = tmp_path / "other.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "30", "-subj", "/CN=other", "-keyout", str(tmp_path / "k"), "-out", str(other)]
    subprocess.run(command, check=True, capture_output=True)
    exposure = Exposure(certificate=pem, key=key, secret=SECRET)
    with (
        open_port(ControlOptions(address="127.0.0.1:0", exposure=exposure), echo) as server,
        pytest.raises(ControlError) as caught,
    ):
        call([server.address], GetState(), secret=SECRET, authority=str(other))
    assert "--tls-ca" in str(caught.value)


def test_who_waits_holds_up_nobody(tmp_path: Path) -> None:
    going, asked = threading.Event(), threading.Event()

    def slow(request: Request) -> dict[str, Any]:
        if isinstance(request, WaitFor):
            asked.set()
            assert going.wait(30)
        return {"state": "ONLINE"}

    with open_socket(socket_paths(str(tmp_path), "p", runtime_dir=None), slow, pipeline="p") as server:
        waiting = threading.Thread(target=call, args=([server.address], WaitFor(applied=1)))
        waiting.start()
        assert asked.wait(30)
        assert call([server.address], GetState())["state"] == "ONLINE"
        going.set()
        waiting.join(30)
        assert not waiting.is_alive()

"""The server of a process, by socket and by port: who may come in, and what a peer can cost.

docs/control.md, "Where it listens", "Who may" and "Operations"; RFC 9110 for the codes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from fix_server import Idle, at_port, connect, make_certificate
from tranlog.addresses import is_loopback
from tranlog.errors import ConfigError, ControlError, PipelineHeldError
from tranlog.service.config.exposure import Exposure, Role, check_exposure, read_secrets
from tranlog.service.frame.exits import Told
from tranlog.service.process import api, client, server
from tranlog.service.process.api import Beat, GoOffline, GoOnline, WaitFor, WithinTime, get, post
from tranlog.service.process.client import RunningPipeline
from tranlog.service.process.server import Door, Server, open_port, open_socket
from tranlog.service.process.sockets import socket_paths

pytestmark = pytest.mark.long

SECRET = "a secret of enough bytes"
READS = "another of enough bytes"


class Echo(Idle):
    """Answers what it was asked; `/wait` waits."""

    def __init__(self) -> None:
        self.going, self.asked = threading.Event(), threading.Event()

    @get("/state")
    def state(self) -> dict[str, Any]:
        return {"state": "ONLINE"}

    @get("/look/{name}")
    def look(self, name: str) -> dict[str, Any]:
        return {"name": name}

    @post("/online")
    def online(self, asked: GoOnline) -> dict[str, Any]:
        return {"asked": msgspec.to_builtins(asked)}

    @post("/offline")
    def offline(self, asked: GoOffline) -> dict[str, Any]:
        return {"asked": msgspec.to_builtins(asked)}

    @post("/add")
    def add(self) -> dict[str, Any]:
        return {}

    @post("/flush", role=Role.READ)
    def flush(self, asked: WithinTime) -> dict[str, Any]:
        return {"asked": msgspec.to_builtins(asked)}

    @post("/wait", role=Role.READ)
    def wait(self, asked: WaitFor) -> dict[str, Any]:
        self.asked.set()
        assert self.going.wait(30)
        return {"asked": msgspec.to_builtins(asked)}

    @post("/heartbeat")
    def heartbeat(self, asked: Beat) -> dict[str, Any]:
        if asked.name == "defect":
            raise KeyError(asked.name)
        raise ConfigError(option="heartbeat", value=asked.name, why="is not wanted here")


def ask(address: str, path: str = "/state", body: object = None, **more: Any) -> Any:
    return RunningPipeline(addresses=(address,), **more).ask(path, body)


def at_socket(paths: list[str], **more: Any) -> Server:
    return Server([Echo()], [open_socket(paths, pipeline="p", **more)])


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with at_socket(socket_paths(str(tmp_path), "p", runtime_dir=None)) as opened:
        yield opened.doors[0]


# --- what is asked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/online", GoOnline(until_seqno=5, skip_seqno="1,2-3", from_seqno=1)),
        ("/offline", GoOffline(immediate=True)),
        ("/flush", WithinTime(timeout_s=1.5)),
        ("/flush", {}),
    ],
)
def test_every_body_comes_over(door: Door, path: str, body: Any) -> None:
    assert ask(door.address, path, body)["asked"] == msgspec.to_builtins(body)


def test_an_error_comes_back_as_what_it_is(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Told) as caught:
        ask(door.address, "/heartbeat", Beat(name="x"))
    assert (caught.value.kind, caught.value.code) == ("ConfigError", 2)
    assert "heartbeat" in str(caught.value)
    with pytest.raises(Told) as caught:
        ask(door.address, "/heartbeat", Beat(name="defect"))
    assert (caught.value.kind, caught.value.code) == ("KeyError", 70)
    assert "an operation failed" in caplog.text and ask(door.address) == {"state": "ONLINE"}


def test_who_speaks_plain_http_is_answered_by_status() -> None:
    """What a browser's tools, curl and Prometheus see."""
    with at_port(Echo()) as address, httpx.Client(base_url=f"http://{address}") as http:
        assert http.post("/flush", json={"timeout_s": 2.0}).json() == {"asked": {"timeout_s": 2.0}}
        assert http.post("/flush").json() == {"asked": {}}, "no body is an empty one"
        for path, sent, code, word in (
            ("/flush", b'{"timeout":1}', 400, "unknown field"),
            ("/flush", b'{"timeout_s":-1}', 400, ">= 0"),
            ("/add", b'{"dry_run":true}', 400, "unknown field `dry_run`"),  # it was done, and not said
            ("/add", b"[", 400, "not what it takes"),
            ("/flush", b"[" * 20_000, 400, "not what it takes"),
            ("/flush", b"\xff\xfe", 400, "not what it takes"),
            ("/heartbeat", b'{"name":"x"}', 400, "not wanted"),
            ("/heartbeat", b'{"name":"defect"}', 500, "unexpected"),
            ("/nowhere", b"", 404, "does not write the log"),
            ("/../../etc/passwd", b"", 404, "no operation"),
            ("/%2e%2e/%2e%2e/etc/passwd", b"", 404, "no operation"),
            ("/flush/", b"", 404, "no operation"),
            ("/state", b"", 405, "Method"),
        ):
            found = http.post(path, content=sent)
            assert found.status_code == code and word in found.json()["error"]["message"], (path, found.text)
        assert http.get("/look/..%2f..%2fetc").status_code == 404
        assert http.get("/look/...").json() == {"name": "..."}
        assert http.head("/state").status_code == 200


def test_the_document_has_every_operation_and_what_it_takes() -> None:
    with at_port(Echo()) as address:
        found = httpx.get(f"http://{address}/openapi.json").json()
    others = {"/livez", "/readyz", "/metrics"}
    assert found["paths"].keys() == {spec.path for spec in api.operations(Echo)} | others
    flush = found["paths"]["/flush"]["post"]
    assert flush["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/WithinTime"}
    assert found["components"]["schemas"]["WithinTime"]["additionalProperties"] is False
    assert [one["name"] for one in found["paths"]["/look/{name}"]["get"]["parameters"]] == ["name"]


def test_who_waits_holds_up_nobody_and_is_told_how_it_goes_on(tmp_path: Path) -> None:
    echo, seen = Echo(), threading.Event()
    paths = socket_paths(str(tmp_path), "p", runtime_dir=None)
    with Server([echo], [open_socket(paths, pipeline="p")]):
        running = RunningPipeline(addresses=tuple(paths))
        told: list[Any] = []

        def watch(progress: Any) -> None:
            told.append(progress)
            seen.set()

        waiting = threading.Thread(target=lambda: told.append(running.ask("/wait", WaitFor(applied=1), watch=watch)))
        waiting.start()
        assert echo.asked.wait(30)
        assert running.ask("/state")["state"] == "ONLINE"
        assert seen.wait(30)
        echo.going.set()
        waiting.join(30)
        assert told[0] == {"state": "idle"} and told[-1] == {"asked": {"applied": 1}}


def test_an_answer_under_way_comes_before_the_end(tmp_path: Path) -> None:
    echo = Echo()
    paths = socket_paths(str(tmp_path), "p", runtime_dir=None)
    opened = Server([echo], [open_socket(paths, pipeline="p")])
    told: list[Any] = []
    waiting = threading.Thread(target=lambda: told.append(ask(paths[0], "/wait", WaitFor(applied=1))))
    waiting.start()
    assert echo.asked.wait(30)
    threading.Timer(0.3, echo.going.set).start()
    opened.close()
    waiting.join(30)
    assert told == [{"asked": {"applied": 1}}]


def test_who_comes_while_the_server_ends_is_let_go(tmp_path: Path) -> None:
    """Whether it is waiting to be taken or just was: its connection ends, and nothing of it is left open here."""
    for number in range(100):
        opened = Server([Echo()], [open_socket([str(tmp_path / "s")], pipeline="p")])
        address = opened.doors[0].address
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(connect(address)) for _ in range(1 + number % 3)]
            if number % 2:
                peers[0].sendall(b"GET /status HTTP/1.1\r\n")
            opened.close()
            for peer in peers:
                with contextlib.suppress(ConnectionResetError):
                    assert peer.recv(1) == b""
    gc.collect()  # what was left open would be a warning, which fails


def test_a_client_of_another_version_is_told_both(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "NAME", "tranlog/9.1.2 api/2")
    with pytest.raises(Told) as caught:
        ask(door.address)
    assert "tranlog/9.1.2 api/2" in str(caught.value) and api.NAME in str(caught.value) and caught.value.code == 2


def test_a_client_of_a_version_with_too_many_digits() -> None:
    """It came in without a token, and was answered 500: Python reads no number of so many digits."""
    with at_port(Echo(), exposure=Exposure(secret=SECRET)) as address:
        found = httpx.get(f"http://{address}/state", headers={"User-Agent": f"tranlog/1 api/{'9' * 5000}"})
    assert found.status_code == 400 and "the client is tranlog/1 api/99" in found.json()["error"]["message"]


def test_a_process_of_another_version_is_told_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "NAME", "tranlog/9.1.2 api/2")
    with at_socket(socket_paths(str(tmp_path), "p", runtime_dir=None)) as opened:
        monkeypatch.undo()
        with pytest.raises(ControlError) as caught:
            ask(opened.doors[0].address)
    assert "tranlog/9.1.2 api/2" in str(caught.value) and api.NAME in str(caught.value)


# --- the socket ------------------------------------------------------------------------------------------


def test_the_socket_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "control" / "p"
    with at_socket(socket_paths(str(tmp_path), "p", runtime_dir=None)) as opened:
        assert opened.doors[0].address == str(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.parent.exists(), "nothing is left in the log's folder"


def test_a_second_process_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    paths = socket_paths(str(tmp_path), "p", runtime_dir=None)
    first = at_socket(paths)
    with pytest.raises(PipelineHeldError) as caught:
        at_socket(paths)
    assert f" pid {os.getpid()} since 20" in caught.value.holder
    with at_socket(paths, take_over=True):
        first.close()  # whose name it was before: it is not its own any more
        assert ask(paths[0])["state"] == "ONLINE"


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    paths = socket_paths(str(tmp_path), "p", runtime_dir=None)
    program = (
        "import os, sys; from tranlog.service.process.server import *; "
        "Server([], [open_socket(sys.argv[1:], pipeline='p')]); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, *paths], check=False)
    assert done.returncode == -9
    assert stat.S_ISSOCK(os.stat(paths[0]).st_mode)
    with pytest.raises(ControlError, match="nobody listens"):
        ask(paths[0])
    with at_socket(paths):
        assert ask(paths[0])["state"] == "ONLINE"


def test_what_is_in_the_place_of_a_socket_is_replaced_by_it(tmp_path: Path) -> None:
    paths = socket_paths(str(tmp_path), "p", runtime_dir=None)
    (tmp_path / "control").mkdir()
    Path(paths[0]).write_text("no socket")
    with at_socket(paths):
        assert ask(paths[0])["state"] == "ONLINE"


def test_a_folder_that_went_away_is_made_again(tmp_path: Path) -> None:
    """The process goes on, the next one makes its own."""
    paths = socket_paths(str(tmp_path), "p", runtime_dir=None)
    with at_socket(paths):
        os.unlink(paths[0])
        os.rmdir(os.path.dirname(paths[0]))
        with pytest.raises(ControlError, match="nobody listens"):
            ask(paths[0])
        with at_socket(paths):
            assert ask(paths[0])["state"] == "ONLINE"


def test_a_path_longer_than_a_socket_address(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120) / ("y" * 120)
    deep.mkdir(parents=True)
    paths = socket_paths(str(deep), "p" * 60, runtime_dir=None)
    with at_socket(paths):
        assert ask(paths[0])["state"] == "ONLINE"


def test_a_log_where_no_socket_can_be(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "control").write_text("in the way")
    (tmp_path / "run").mkdir()
    paths = socket_paths(str(tmp_path / "log"), "p", runtime_dir=str(tmp_path / "run"))
    with at_socket(paths) as opened:
        assert opened.doors[0].address.startswith(str(tmp_path / "run"))
        assert RunningPipeline(addresses=tuple(paths)).ask("/state")["state"] == "ONLINE"
    with pytest.raises(ConfigError, match="control to HOST:PORT"):
        at_socket(paths[:1])


# --- who may ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "192.0.2.7"])
def test_no_port_that_others_reach_without_credentials(host: str) -> None:
    address = f"[{host}]:0" if ":" in host else f"{host}:0"
    for exposure in (Exposure(), Exposure(secret=SECRET), Exposure(certificate="x.pem")):
        with pytest.raises(ConfigError) as caught:
            open_port("control", address, exposure)
        assert "TLS and a shared secret or clients' certificates" in caught.value.why
    assert not is_loopback(host)
    guarded = Exposure(certificate="x.pem", authority="ca.pem")
    assert check_exposure("control", address, guarded) == check_exposure(
        "control", address, Exposure(certificate="x.pem", read_secret=SECRET)
    )


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:80", "127.9.9.9:1"])
def test_loopback_needs_none(address: str) -> None:
    assert check_exposure("control", address, Exposure())


@pytest.mark.parametrize("address", ["4712", "host:", ":1", "127.0.0.1:x", "127.0.0.1:70000", "off"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_exposure("control", address, Exposure())
    assert caught.value.why == "must be HOST:PORT"


def test_a_port_that_is_taken() -> None:
    with at_port(Echo()) as address, pytest.raises(ConfigError, match=r"on: Address already in use\. Correct"):
        open_port("metrics", address, Exposure())


def test_a_secret_that_others_read_or_guess(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_secrets(str(file))
    file.chmod(0o600)
    assert read_secrets(str(file)) == (SECRET, None)
    file.write_text(f"{SECRET}\n\nread {READS}\n")
    assert read_secrets(str(file)) == (SECRET, READS)
    for wrong in ("", f"{SECRET}\n{SECRET}\n", f"read {READS}\nread {READS}"):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="one token, or two"):
            read_secrets(str(file))
    for wrong in (f"{SECRET}é", f"read {READS}\x7f", f"\ufeff{SECRET}"):
        file.write_text(wrong)  # no header carries it: the commands ended with a defect, and nobody could come in
        with pytest.raises(ConfigError, match="printable ASCII"):
            read_secrets(str(file))
    with pytest.raises(ConfigError, match="16 bytes"):
        check_exposure("control", "127.0.0.1:0", Exposure(secret="short"))


def test_who_reads_may_not_operate() -> None:
    with at_port(Echo(), exposure=Exposure(secret=SECRET, read_secret=READS)) as address:
        for wrong in (None, "another secret of 20", SECRET[:-1], SECRET + "x"):
            with pytest.raises(Told) as caught:
                ask(address, secret=wrong)
            assert (caught.value.kind, caught.value.code) == ("NotAdmitted", 4)
            assert "--secret-file names" in str(caught.value)
        assert ask(address, secret=SECRET)["state"] == ask(address, secret=READS)["state"] == "ONLINE"
        assert ask(address, "/flush", {}, secret=READS) == {"asked": {}}
        assert ask(address, "/offline", {}, secret=SECRET) == {"asked": {}}
        with pytest.raises(Told, match="not for the role read"):
            ask(address, "/offline", {}, secret=READS)
        assert httpx.get(f"http://{address}/state", headers={"Authorization": f"bearer {READS}"}).is_success
        for path in ("/metrics", "/livez", "/openapi.json", "/nowhere"):
            found = httpx.get(f"http://{address}{path}", headers={"Authorization": f"Basic {SECRET}"})
            assert (found.status_code, found.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert found.headers["Connection"] == "close"


def test_who_comes_by_the_port_for_metrics_reads_alone() -> None:
    with Server([Echo()], [open_port("metrics", "127.0.0.1:0", Exposure(), most=Role.READ)]) as opened:
        # A head and its body are written one after the other, and the second waits for no ack of the first.
        assert opened.doors[0].listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert ask(opened.doors[0].address)["state"] == "ONLINE"
        with pytest.raises(Told, match="not for the role read"):
            ask(opened.doors[0].address, "/offline", {})


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "localhost"}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:1"}, 200),
        ({"Host": "attacker.example"}, 403),
        ({"Host": "127.0.0.1.attacker.example"}, 403),
        ({"Host": "[::1"}, 400),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
        ({"Host": "localhost", "Origin": "http://attacker.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
    ],
)
def test_a_page_from_elsewhere_is_refused(headers: dict[str, str], code: int) -> None:
    """Also one whose name was made to mean this machine."""
    with at_port(Echo()) as address:
        assert httpx.get(f"http://{address}/state", headers=headers).status_code == code


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    folder = tmp_path_factory.mktemp("tls")
    made = {name: make_certificate(folder, name) for name in ("server", "operators", "other")}
    made["anna"] = make_certificate(folder, "anna", signed_by="operators")
    for pem, key in made.values():
        Path(pem).with_suffix(".both").write_text(Path(pem).read_text() + Path(key).read_text())
    return made


def test_tls_and_a_secret(certificates: dict[str, tuple[str, str]]) -> None:
    """Both sides prove who they are; the secret is not sent to whom is not believed."""
    pem, key = certificates["server"]
    with at_port(Echo(), exposure=Exposure(certificate=pem, key=key, secret=SECRET)) as address:
        assert ask(address, secret=SECRET, authority=pem)["state"] == "ONLINE"
        for wrong in (None, "another secret of 20"):
            with pytest.raises(Told) as caught:
                ask(address, secret=wrong, authority=pem)
            assert caught.value.kind == "NotAdmitted"
        with pytest.raises(ControlError, match="if it speaks TLS, --tls-ca names"):
            ask(address, secret=SECRET)  # plain, and it speaks TLS
        with pytest.raises(ControlError, match="--tls-ca"):
            ask(address, secret=SECRET, authority=certificates["other"][0])
        assert ask(address, secret=SECRET, authority=pem)["state"] == "ONLINE"


def test_a_clients_certificate_is_as_good(certificates: dict[str, tuple[str, str]]) -> None:
    pem, key = certificates["server"]
    alone = Exposure(certificate=pem, key=key, authority=certificates["operators"][0])
    both = {name: str(Path(pair[0]).with_suffix(".both")) for name, pair in certificates.items()}
    for exposure in (alone, replace(alone, read_secret=READS)):
        with at_port(Echo(), exposure=exposure) as address:
            assert ask(address, "/offline", {}, authority=pem, certificate=both["anna"]) == {"asked": {}}
            with pytest.raises(ControlError):
                ask(address, authority=pem, certificate=both["other"])
            with pytest.raises((ControlError, Told)):
                ask(address, authority=pem)
    with at_port(Echo(), exposure=replace(alone, read_secret=READS)) as address:
        assert ask(address, authority=pem, secret=READS)["state"] == "ONLINE"


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"certificate": "server.pem"}, "tls_certificate"),
        ({"certificate": "nowhere.pem"}, "tls_certificate"),
        ({"certificate": "server.both", "authority": "server.key"}, "tls_client_ca"),
        ({"key": "server.key"}, "tls_key"),
        ({"authority": "server.pem"}, "tls_client_ca"),
    ],
)
def test_files_that_are_no_certificates(
    given: dict[str, str], option: str, certificates: dict[str, tuple[str, str]]
) -> None:
    folder = Path(certificates["server"][0]).parent
    exposure = Exposure(**{name: str(folder / file) for name, file in given.items()})
    with pytest.raises(ConfigError) as caught:
        open_port("control", "127.0.0.1:0", exposure)
    assert caught.value.option == option


# --- what a peer can cost --------------------------------------------------------------------------------


RUBBISH = [
    b"",
    b"\x00\x00\x00\x02{}",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /state HTTP/1.1\r\n\r\n",
    b"GET /state HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST /flush HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /flush HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"POST /flush HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nshort",
    b"GET /state HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    b"GET /" + b"y" * 100_000,
    b"GET /state HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
]


@pytest.mark.parametrize("sent", RUBBISH)
def test_rubbish_is_refused_or_cut_off_and_harms_nobody(
    door: Door, sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with connect(door.address) as peer:
        with contextlib.suppress(BrokenPipeError):
            peer.sendall(sent)
            peer.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # it was cut off with some of the rubbish unread
            while part := peer.recv(65536):
                answer += part
    assert not answer or answer.split()[1][:1] == b"4" or b"websocket" in sent
    assert ask(door.address)["state"] == "ONLINE"
    assert capfd.readouterr() == ("", ""), "nobody is told of it"


@pytest.mark.parametrize("size", [16_000, 17_000])
@pytest.mark.parametrize(
    "head", [b"GET /state?%b HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /state HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n"]
)
def test_a_head_that_is_too_large_is_refused_however_it_comes(door: Door, head: bytes, size: int) -> None:
    """What came at once was let in, up to a quarter of a megabyte."""
    with connect(door.address) as peer:
        peer.sendall(head % (b"y" * size))
        code = peer.recv(65536).split()[1]
    assert code == (b"200" if size == 16_000 else b"431")


def test_a_body_of_a_gigabyte_is_refused_before_it_is_there(door: Door) -> None:
    with connect(door.address) as peer:
        peer.sendall(b"POST /flush HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n")
        sent, part = 0, bytes(1 << 16)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while sent < 1 << 30:
                sent += peer.send(part)
        assert sent < 8 << 20
        answer = peer.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ") and b"bytes at most" in answer
    assert ask(door.address)["state"] == "ONLINE"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.5)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "begins", [b"", b"GET /state HTTP/1.1\r\n", b"GET /state HTTP/1.1\r\nHost: x\r\n\r\nGET /state HTTP"]
)
def test_a_slow_head_is_not_waited_for(door: Door, begins: bytes) -> None:
    """However it trickles, and after a request that was answered too."""
    with connect(door.address) as peer:
        peer.sendall(begins)
        began = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - began < 15:
                peer.sendall(b"X: y\r\n"[:1] if not begins else b"X: y\r\n")
                time.sleep(0.1)
        assert time.monotonic() - began < 10


@pytest.mark.usefixtures("hasty")
def test_a_slow_body_is_refused(door: Door) -> None:
    with connect(door.address) as peer:
        peer.sendall(b"POST /flush HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert peer.recv(65536).startswith(b"HTTP/1.1 408 ")


@pytest.mark.usefixtures("hasty")
def test_a_peer_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    class Large(Idle):
        @get("/large")
        def large(self) -> list[str]:
            return ["x" * 1000] * 20_000

    with Server([Large()], [open_socket([str(tmp_path / "s")], pipeline="p")]) as opened:
        with connect(opened.doors[0].address) as peer:
            peer.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(2)
            got = 0
            with contextlib.suppress(ConnectionResetError):
                while part := peer.recv(1 << 20):
                    got += len(part)
        assert 0 < got < 20_000_000


@pytest.mark.usefixtures("hasty")
def test_a_handshake_that_does_not_go_on(certificates: dict[str, tuple[str, str]]) -> None:
    pem, key = certificates["server"]
    with at_port(Echo(), exposure=Exposure(certificate=pem, key=key, secret=SECRET)) as address:
        with connect(address) as peer:
            peer.sendall(b"\x16\x03\x01")
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(1) == b""
        assert ask(address, secret=SECRET, authority=pem)["state"] == "ONLINE"


def test_a_crowd_at_one_door_leaves_the_other_free(tmp_path: Path) -> None:
    doors = [
        open_socket([str(tmp_path / "s")], pipeline="p"),
        open_port("metrics", "127.0.0.1:0", Exposure(secret=SECRET)),
    ]
    with Server([Echo()], doors) as opened, contextlib.ExitStack() as crowd:
        socket_path, port = (one.address for one in opened.doors)
        for _ in range(server.CONNECTIONS_MAX):
            crowd.enter_context(connect(port))
        deadline = time.monotonic() + 20
        with pytest.raises(ControlError):  # one more is let go at once
            ask(port, secret=SECRET)
        assert ask(socket_path)["state"] == "ONLINE"
        crowd.close()
        while True:
            try:
                assert ask(port, secret=SECRET)["state"] == "ONLINE"
                break
            except ControlError:
                assert time.monotonic() < deadline


def test_what_is_no_process_of_ours_is_named(tmp_path: Path) -> None:
    for said in (b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"HTTP/1.1 404 No\r\n\r\n"):
        with socket.create_server(("127.0.0.1", 0)) as other:

            def answer(other: socket.socket = other, said: bytes = said) -> None:
                peer, _ = other.accept()
                with peer:
                    peer.recv(65536)
                    peer.sendall(said)

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(ControlError):
                ask(f"127.0.0.1:{other.getsockname()[1]}")
            thread.join(20)

"""The endpoint of a running pipeline: sockets on both of its sides.

Owns the listening socket, where it is found, who may speak to it, and the threads that serve it; and the client's call.
What is asked is in `requests`, what it does in `operation`. The hard idea: a unix socket is a name in a folder, which
a killed process leaves behind. So the name is given to a socket that listens already, by a rename that replaces what
was there, after whoever was there has been asked and has not answered; and it is taken away only while it is ours.

Source: issue 7, item 5; design/replication.md, "Security".
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tranlog.errors import ConfigError, ControlError, PipelineHeldError, TranlogError
from tranlog.service.config.exposure import Exposure, check_exposure, client_context, is_loopback, split_address
from tranlog.service.frame.exits import Told, exit_code_of
from tranlog.service.process.requests import (
    ANSWER_BYTES_MAX,
    FRAME,
    REQUEST_BYTES_MAX,
    Answer,
    Envelope,
    Failure,
    FrameError,
    GetState,
    Request,
    frame,
    frame_length,
    read_answer,
    read_envelope,
)

logger = logging.getLogger(__name__)

CAPTURE_NAME: Final = ".capture"
"""Under this name a `tranlog capture` listens beside the pipelines; none of them may begin with a dot."""
_FOLDER: Final = "control"
_SUN_PATH_MAX: Final = 107
CONNECTIONS_MAX: Final = 80
_ACCEPT_S: Final = 0.5
_IDLE_S: Final = 30.0
"""How long a connection may take to ask; an answer may take as long as the request says."""
_PING_S: Final = 1.0
_GRACE_S: Final = 15.0
_START: Final = "Start one with `tranlog apply` or `tranlog run`, or use --host for its address"

Handle = Callable[[Request], dict[str, Any]]


# --- where it is found -----------------------------------------------------------------------------------


def socket_paths(log_dir: str, name: str, *, runtime_dir: str | None) -> list[str]:
    """Return where a pipeline's socket may be, the preferred place first: beside the log, else in `runtime_dir`.

    The second is for a log that its pipeline may only read, or whose file system knows no sockets.
    """
    log_dir = os.path.realpath(log_dir)
    paths = [os.path.join(log_dir, _FOLDER, name)]
    if runtime_dir:
        whose = format(hash_text(log_dir), "08x")
        paths.append(os.path.join(runtime_dir, "tranlog", f"{whose}-{name}"))
    return paths


def hash_text(text: str) -> int:
    """Return the same number for the same text in every process."""
    import zlib

    return zlib.crc32(text.encode(errors="surrogateescape"))


@contextlib.contextmanager
def _short(path: str) -> Iterator[str]:
    """Name a path in so few bytes that a socket's address holds it: by its folder's descriptor where it is long."""
    if len(os.fsencode(path)) <= _SUN_PATH_MAX:
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


# --- the server ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOptions:
    """Where a process listens. `address`: None for the unix socket, HOST:PORT for a port, "off" for neither."""

    address: str | None = None
    exposure: Exposure = field(default_factory=Exposure)

    def check(self) -> None:
        """Raise ConfigError for an address that may not be opened."""
        if self.address not in (None, "off"):
            check_exposure("control", self.address, self.exposure)


class ControlServer:
    """Answers requests until closed. Threads: its own; `close` by whoever opened it.

    Raises from `open`: ConfigError, and PipelineHeldError where another process answers under this name.
    """

    def __init__(self, listener: socket.socket, handle: Handle, *, exposure: Exposure, path: str | None) -> None:
        """For the functions that open one only."""
        self._listener = listener
        self._handle = handle
        self._exposure = exposure
        self._tls = exposure.server_context() if path is None else None
        self._path = path
        self._inode = os.stat(path).st_ino if path is not None else 0
        self._address = path or _address_text(*listener.getsockname()[:2])
        self._closing = threading.Event()
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        listener.settimeout(_ACCEPT_S)
        self._thread = threading.Thread(target=self._accept, name="control", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens: a path, or host and port."""
        return self._address

    def close(self) -> None:
        """Listen no more, and take the socket's name away if it is still ours."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread that accepts
        self._thread.join(_ACCEPT_S * 4)
        self._listener.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                if os.stat(self._path).st_ino == self._inode:
                    os.unlink(self._path)
                    os.rmdir(os.path.dirname(self._path))  # fails where others listen, and stays

    def __enter__(self) -> ControlServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._closing.is_set():
                    return
                logger.warning("the control endpoint could not accept", exc_info=True)
                self._closing.wait(_ACCEPT_S)
                continue
            if not self._slots.acquire(blocking=False):
                peer.close()
                continue
            threading.Thread(target=self._serve, args=(peer,), name="control-peer", daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            peer.settimeout(_IDLE_S)
            if self._tls is not None:
                peer = self._tls.wrap_socket(peer, server_side=True)
            with peer:
                while (body := _receive(peer, REQUEST_BYTES_MAX)) is not None:
                    answer = self._answer(body)
                    peer.sendall(frame(answer))
                    if answer.error is not None and answer.error.type == _NOT_ADMITTED:
                        return
        except (OSError, FrameError) as exc:
            logger.debug("a peer of the control endpoint went away: %s", exc)
        finally:
            peer.close()
            self._slots.release()

    def _answer(self, body: bytes) -> Answer:
        try:
            envelope = read_envelope(body)
        except FrameError as exc:
            return Answer(error=Failure(type="FrameError", message=str(exc), exit_code=2))
        if not self._exposure.admits(envelope.secret) and self._path is None:
            return Answer(error=Failure(type=_NOT_ADMITTED, message="the secret is not the pipeline's", exit_code=4))
        try:
            return Answer(ok=self._handle(envelope.ask))
        except TranlogError as exc:
            return Answer(error=Failure(type=type(exc).__name__, message=str(exc), exit_code=int(exit_code_of(exc))))
        except Exception as exc:  # a defect must not take the endpoint with it
            logger.exception("a request failed")
            return Answer(error=Failure(type=type(exc).__name__, message=f"unexpected: {exc}", exit_code=70))


def _address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_NOT_ADMITTED: Final = "NotAdmitted"


def open_port(options: ControlOptions, handle: Handle) -> ControlServer:
    """Listen at host and port. Raises ConfigError."""
    assert options.address is not None
    host, port = check_exposure("control", options.address, options.exposure)
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as exc:
        why = f"cannot be listened at: {exc.strerror or exc}"
        raise ConfigError(option="control", value=options.address, why=why) from exc
    return ControlServer(listener, handle, exposure=options.exposure, path=None)


def open_socket(paths: Sequence[str], handle: Handle, *, pipeline: str, take_over: bool = False) -> ControlServer:
    """Listen at the first of the paths that can be; mode 0600. What a killed process left there is replaced.

    Raises PipelineHeldError where a process answers at any of them, unless `take_over`; ConfigError where none can be.
    """
    for path in paths:
        if not take_over and (holder := _holder(path)) is not None:
            raise PipelineHeldError(pipeline=pipeline, holder=holder)
    failures = []
    for path in paths:
        try:
            try:
                listener = _bind(path)
            except FileNotFoundError:
                listener = _bind(path)  # who listened there last has just taken the folder away
        except OSError as exc:
            failures.append(f"{path}: {exc.strerror or exc}")
            continue
        return ControlServer(listener, handle, exposure=Exposure(), path=path)
    why = f"there is no place for it ({'; '.join(failures)}); set control to HOST:PORT or to off"
    raise ConfigError(option="control", value=None, why=why)


def _bind(path: str) -> socket.socket:
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    waiting = os.path.join(folder, f".{os.getpid()}-{os.path.basename(path)}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(waiting)
        with _short(waiting) as short:
            listener.bind(short)
        os.chmod(waiting, 0o600)
        listener.listen(CONNECTIONS_MAX)
        os.rename(waiting, path)  # nobody ever sees it before it listens, or with another mode
    except BaseException:
        listener.close()
        with contextlib.suppress(OSError):
            os.unlink(waiting)
        raise
    return listener


_CREDENTIALS: Final = struct.Struct("3i")
"""Of a unix socket's other end: pid, uid, gid."""


def _holder(path: str) -> str | None:
    """Return who answers at a path; None for nobody."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return None
        state = call([path], GetState(), timeout_s=_PING_S)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer, _short(path) as short:
            peer.settimeout(_PING_S)
            peer.connect(short)
            credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except (OSError, TranlogError, Told):
        return None
    pid, _, _ = _CREDENTIALS.unpack(credentials)
    holder = f"{socket.gethostname()} pid {pid}"
    since = state.get("since_ms")
    if isinstance(since, int):
        holder += f" since {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(since / 1000))} UTC"
    return holder


# --- the client ------------------------------------------------------------------------------------------


def call(
    addresses: Sequence[str],
    request: Request,
    *,
    timeout_s: float = _GRACE_S,
    secret: str | None = None,
    authority: str | None = None,
) -> dict[str, Any]:
    """Ask the first of the addresses where somebody listens, and return the answer.

    An address with a slash is a unix socket's path, any other HOST:PORT; beyond loopback it is spoken to through TLS
    only. Raises ControlError where nobody answers, Told for an error of the pipeline's.
    """
    where, why = ", ".join(addresses), "nobody listens there"
    for address in addresses:
        try:
            with _connect(address, timeout_s, secret, authority) as peer:
                peer.sendall(frame(Envelope(secret=secret, ask=request)))
                body = _receive(peer, ANSWER_BYTES_MAX)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            continue
        except (OSError, FrameError) as exc:
            raise ControlError(where=address, why=_words(exc), remedy=_START) from exc
        if body is None:
            raise ControlError(where=address, why="it ended without an answer", remedy=_START)
        try:
            answer = read_answer(body)
        except FrameError as exc:
            raise ControlError(where=address, why=str(exc), remedy=_START) from exc
        if answer.error is not None:
            raise Told(answer.error.type, answer.error.message, answer.error.exit_code)
        return answer.ok or {}
    raise ControlError(where=where, why=why, remedy=_START)


def _connect(address: str, timeout_s: float, secret: str | None, authority: str | None) -> socket.socket:
    if "/" in address:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.settimeout(timeout_s)
        try:
            with _short(address) as short:
                peer.connect(short)
        except BaseException:
            peer.close()
            raise
        return peer
    host, port = split_address("--host", address)
    plain = socket.create_connection((host, port), timeout=timeout_s)
    if is_loopback(host) and authority is None:
        return plain
    try:
        return client_context(authority).wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def _receive(peer: socket.socket, most: int) -> bytes | None:
    """Return one frame's body; None where the peer has ended."""
    head = _exactly(peer, FRAME.size)
    if head is None:
        return None
    body = _exactly(peer, frame_length(head, most=most))
    if body is None:
        raise FrameError("it ended inside a frame")
    return body


def _exactly(peer: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = peer.recv(min(size - len(parts), 1 << 16))
        if not part:
            if parts:
                raise FrameError("it ended inside a frame")
            return None
        parts += part
    return bytes(parts)


def _words(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {exc.verify_message}; --tls-ca names whom to believe"
    if isinstance(exc, TimeoutError):
        return "it did not answer in time"
    return getattr(exc, "strerror", None) or str(exc) or type(exc).__name__

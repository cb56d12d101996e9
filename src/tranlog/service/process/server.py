"""The HTTP server of a process: on its unix socket always, on a port where asked.

Owns the doors, who may come in by which, the limits of what a peer can cost, and the thread that serves. What can be
asked the parts of the process answer, see `api`. The hard idea: nothing that answers takes part in the work. The
server has a thread and a loop of its own, each operation runs in one more, and a peer holds a connection and no more:
its handshake, head, body and reading are bounded in time and size, and so is the number of peers at a door.

Source: RFC 9110.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import itertools
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tranlog.addresses import is_literal
from tranlog.closing import Closing
from tranlog.errors import ConfigError, PipelineHeldError, TranlogError
from tranlog.service.config.exposure import Exposure, Role, check_exposure
from tranlog.service.frame.exits import ExitCode, Told, exit_code_of, json_line
from tranlog.service.process import api
from tranlog.service.process.client import RunningPipeline
from tranlog.service.process.sockets import listen_at

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 80
"""At one door; one more is closed at once."""
BODY_BYTES_MAX: Final = 256 << 10
HEAD_BYTES_MAX: Final = 16 << 10
IDLE_S = 30.0
"""How long a peer may take for a handshake, for its next request's head, for a body, and to read what it was sent."""
_PROGRESS_S: Final = 1.0
_GRACE_S: Final = 2.0
"""How long answers under way may take when the process ends."""
_PING_S: Final = 1.0
_UNKNOWN: Final = (
    "is no operation of this process; one that applies does not write the log, one that captures has no pipeline "
    "(/openapi.json lists what it answers)"
)

ResultT = TypeVar("ResultT")


# --- doors -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A socket that listens. `path` and `inode`: of a unix socket, which its mode guards; else `exposure` guards it.

    `most`: what anybody may do who comes in here.
    """

    listener: socket.socket
    most: Role = Role.OPERATE
    exposure: Exposure = field(default_factory=Exposure)
    tls: ssl.SSLContext | None = None
    path: str | None = None
    inode: int = 0

    @property
    def address(self) -> str:
        """Where it listens: a path, or host and port."""
        if self.path is not None:
            return self.path
        host, port = self.listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Listen no more, and take the socket's name away if it is still ours."""
        self.listener.close()
        if self.path is not None:
            with contextlib.suppress(OSError):
                if os.stat(self.path).st_ino == self.inode:
                    os.unlink(self.path)
                    os.rmdir(os.path.dirname(self.path))  # fails where others listen, and stays


def open_port(option: str, address: str, exposure: Exposure, *, most: Role = Role.OPERATE) -> Door:
    """Listen at host and port. Raises ConfigError where the rule forbids it, or the port is taken."""
    host, port = check_exposure(option, address, exposure)
    tls = exposure.server_context()
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as exc:
        why = f"cannot be listened on: {(exc.strerror or str(exc)).partition(' (while ')[0]}"
        raise ConfigError(option=option, value=address, why=why) from exc
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # which each connection gets from it
    return Door(listener=listener, most=most, exposure=exposure, tls=tls)


def open_socket(paths: Sequence[str], *, pipeline: str, take_over: bool = False) -> Door:
    """Listen at the first of the paths that can be; mode 0600. What a killed process left there is replaced.

    Raises PipelineHeldError where a process answers at any of them, unless `take_over`; ConfigError where none can be.
    """
    if not take_over:
        refuse_second(paths, pipeline=pipeline)
    failures = []
    for path in paths:
        try:
            listener = listen_at(path)
        except OSError as exc:
            failures.append(f"{path}: {exc.strerror or exc}")
            continue
        return Door(listener=listener, path=path, inode=os.stat(path).st_ino)
    why = f"there is no place for its socket ({'; '.join(failures)}); set control to HOST:PORT"
    raise ConfigError(option="control", value=None, why=why)


def refuse_second(paths: Sequence[str], *, pipeline: str) -> None:
    """Raise PipelineHeldError where a process answers at any of the paths."""
    for path in paths:
        if os.path.exists(path) and (holder := _holder(path)) is not None:
            raise PipelineHeldError(pipeline=pipeline, holder=holder)


def _holder(path: str) -> str | None:
    """Return who answers at a path; None for nobody."""
    try:
        found = RunningPipeline(addresses=(path,)).typed("/livez", api.Health, timeout_s=_PING_S)
    except (TranlogError, Told):
        return None
    return f"{found.process} since {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(found.since_ms / 1000))} UTC"


# --- what is answered ------------------------------------------------------------------------------------


def _admit(scope: Scope) -> None:
    """Note what a peer may do. Raises HTTPException where it may not come in, whatever it looks for."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    state, host = scope["state"], headers.get("host", "")
    if len(scope["raw_path"]) + len(scope["query_string"]) + sum(map(len, itertools.chain(*scope["headers"]))) > (
        HEAD_BYTES_MAX
    ):  # h11 looks at the size of a head alone that did not come at once
        raise HTTPException(431, f"a head has {HEAD_BYTES_MAX} bytes at most")
    door, theirs = state["door"], api.other_api(headers.get("user-agent", ""))
    if theirs is not None:
        raise HTTPException(400, f"the client is {theirs} and this process {api.NAME}; use the same release for both")
    try:
        name, origin = urlsplit(f"//{host}").hostname or "", urlsplit(headers.get("origin", f"//{host}")).netloc
    except ValueError as exc:
        raise HTTPException(400, "the Host or the Origin is none") from exc
    if door.path is None and door.tls is None and name != "localhost" and not is_literal(name):
        raise HTTPException(403, f"Host {host!r} is neither localhost nor an address")  # a page, by a name of its own
    if origin != host:
        raise HTTPException(403, "pages from other origins may not call this process")
    role: Role | None = Role.OPERATE
    if door.path is None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        role = door.exposure.role_of(given if scheme.lower() == "bearer" else "", certified=state["certified"])
    if role is None:
        why = "no token, or not one of the pipeline's secret_file; --secret-file names a file that has one"
        raise HTTPException(401, why, {"WWW-Authenticate": "Bearer"})
    state["role"] = min(role, door.most)


def failure_of(exc: BaseException) -> api.Failure:
    """Return an error as it is told; a defect is logged, and must not take the server with it."""
    if isinstance(exc, TranlogError):
        return api.Failure(type=type(exc).__name__, message=str(exc), exit_code=int(exit_code_of(exc)))
    logger.error("an operation failed", exc_info=exc)
    return api.Failure(type=type(exc).__name__, message=f"unexpected: {exc}", exit_code=ExitCode.BUG)


def _failed(request: Request | None, exc: Exception) -> Response:
    """Return an error's answer, after which the connection is closed: some of the request may not have been read."""
    headers = {"Connection": "close"}
    if isinstance(exc, HTTPException):
        status, headers = exc.status_code, headers | dict(exc.headers or {})
        kind, code = (
            ("NotAdmitted", ExitCode.SURROUNDINGS) if status in (401, 403) else ("RequestError", ExitCode.USAGE)
        )
        what = _UNKNOWN if status == 404 else exc.detail
        message = what if request is None else f"{request.method} {request.url.path}: {what}"
        failure = api.Failure(type=kind, message=message, exit_code=code)
    else:
        failure = failure_of(exc)
        status = {ExitCode.USAGE: 400, ExitCode.BUG: 500}.get(ExitCode(failure.exit_code), 409)
    return Response(msgspec.json.encode(api.ErrorBody(error=failure)), status, headers, api.JSON)


async def _in_thread(work: Callable[[], ResultT]) -> ResultT:
    """Do what may wait in a thread of its own, which the process's end does not wait for."""
    found: Future[ResultT] = Future()
    found.set_running_or_notify_cancel()  # whoever waits may go away, the work goes on

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as exc:
            found.set_exception(exc)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), name="server-work", daemon=True).start()
    return await asyncio.wrap_future(found)


async def _body(request: Request, takes: type[ResultT]) -> ResultT:
    body = bytearray()
    try:
        async with asyncio.timeout(IDLE_S):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise HTTPException(413, f"a body has {BODY_BYTES_MAX} bytes at most")
        return msgspec.json.decode(body or b"{}", type=takes)
    except ClientDisconnect as exc:
        raise HTTPException(400, "the body ended before its length") from exc
    except TimeoutError as exc:
        raise HTTPException(408, f"the body did not come within {IDLE_S:.0f} s") from exc
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise HTTPException(400, f"not what it takes: {exc}") from exc


async def _streamed(part: Any, work: Callable[[], object]) -> AsyncIterator[str]:
    """Yield a line for each second that the work takes, and one for what came of it."""
    doing = asyncio.ensure_future(_in_thread(work))
    while not (await asyncio.wait([doing], timeout=_PROGRESS_S))[0]:
        yield json_line(api.Line(progress=await _in_thread(part.progress))) + "\n"
    error = doing.exception()
    yield json_line(api.Line(ok=doing.result()) if error is None else api.Line(error=failure_of(error))) + "\n"


async def _read_head(request: Request, takes: type[ResultT]) -> tuple[ResultT, api.Content]:
    """Read the line of JSON before content; the rest is read as whoever has it asks for it, in a thread."""
    stream = aiter(request.stream())

    async def part() -> bytes:
        try:
            async with asyncio.timeout(IDLE_S):
                return await anext(stream, b"")
        except ClientDisconnect as exc:
            raise HTTPException(400, "the content ended before its length") from exc
        except TimeoutError as exc:
            raise HTTPException(408, f"no more of the content came within {IDLE_S:.0f} s") from exc

    def rest(first: bytes) -> Iterator[bytes]:
        yield first
        while found := asyncio.run_coroutine_threadsafe(part(), loop).result():
            yield found

    loop, line = asyncio.get_running_loop(), bytearray()
    while b"\n" not in line and (found := await part()):
        line += found
        if len(line) > BODY_BYTES_MAX and b"\n" not in line[:BODY_BYTES_MAX]:
            raise HTTPException(413, f"a line of JSON has {BODY_BYTES_MAX} bytes at most")
    head, _, first = bytes(line).partition(b"\n")
    try:
        return msgspec.json.decode(head or b"{}", type=takes), rest(first)
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise HTTPException(400, f"not what it takes: {exc}") from exc


async def _sent(sending: api.Sending[Any]) -> AsyncIterator[bytes]:
    """Yield an answer's line of JSON, and its content, which is read in threads."""
    yield json_line(sending.head).encode() + b"\n"
    while (part := await _in_thread(lambda: next(sending.content, None))) is not None:
        yield part


class _HeldAnswer:
    """The answer with content that a connection was sent last; closed at the next one, or when the connection ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sending: api.Sending[Any] | None = None
        self._ended = False

    def hold(self, sending: api.Sending[Any]) -> api.Sending[Any]:
        """Hold an answer; of a connection that has ended it is closed at once."""
        with self._lock:
            before, self._sending = self._sending, sending
            if self._ended:
                before = sending
        if before is not None:
            before.close()
        return sending

    def end(self) -> None:
        """Close what is held, in a thread, and whatever comes."""
        with self._lock:
            self._ended = True
            held = self._sending
        if held is not None:
            threading.Thread(target=held.close, name="server-work", daemon=True).start()


class _Answers:
    """The ASGI application of one process: its parts' operations, and what every process answers."""

    def __init__(self, parts: Sequence[api.ServedPart]) -> None:
        every: list[Any] = [_Process(parts), *parts]
        specs = {spec: part for part in every for spec in api.operations(type(part))}
        document, families = msgspec.json.encode(api.document(specs)), itertools.chain.from_iterable

        async def metrics(request: Request) -> Response:
            try:
                encode, kind = choose_encoder(request.headers.get("accept", ""))
            except (TypeError, ValueError):  # a version that is none
                encode, kind = choose_encoder("")
            found: Any = SimpleNamespace(collect=lambda: families(part.families() for part in parts))
            return Response(await _in_thread(lambda: encode(found)), headers={"Content-Type": kind})

        async def openapi(request: Request) -> Response:
            return Response(document, media_type=api.JSON)

        routes = [
            Route(spec.path, functools.partial(self._operate, part, spec), methods=[spec.method])
            for spec, part in specs.items()
        ]
        routes += [Route("/metrics", metrics), Route("/openapi.json", openapi)]
        handlers: Any = dict.fromkeys((HTTPException, TranlogError, Exception), _failed)
        self._app = Starlette(routes=routes, exception_handlers=handlers)
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _admit(scope)
        except HTTPException as exc:
            await _failed(None, exc)(scope, receive, send)
        else:
            api.GONE.set(scope["state"]["gone"].is_set)
            await self._app(scope, receive, send)

    async def _operate(self, part: Any, spec: api.Spec, request: Request) -> Response:
        if request.state.role < spec.role:
            raise HTTPException(403, f"not for the role {request.state.role.name.lower()}")
        given: list[Any] = [*request.path_params.values()]
        if spec.reads:
            assert spec.takes is not None, "what takes content takes a body before it"
            given += await _read_head(request, spec.takes)
        elif spec.method == "POST":
            body = await _body(request, spec.takes or api.Nothing)
            given += [] if spec.takes is None else [body]
        work = functools.partial(spec.call, part, *given)
        if spec.sends:
            hold = request.state.held.hold
            return StreamingResponse(_sent(await _in_thread(lambda: hold(work()))), media_type=api.OCTETS)
        if spec.method == "POST" and not spec.reads and api.NDJSON in request.headers.get("accept", ""):
            return StreamingResponse(_streamed(part, work), media_type=api.NDJSON)
        found = await _in_thread(work)
        ill = isinstance(found, api.Health) and found.reasons
        return Response(json_line(found), 503 if ill else 200, media_type=api.JSON)


class _Process:
    """The part that every process has."""

    def __init__(self, parts: Sequence[api.ServedPart]) -> None:
        self._parts = parts
        self._since_ms = round(time.time() * 1000)

    @api.get("/livez")
    def progress(self) -> api.Health:
        """Say that it answers."""
        return self._health()

    @api.get("/readyz")
    def readyz(self) -> api.Health:
        """Say whether it does its work."""
        return self._health(*(part.ready() for part in self._parts))

    def _health(self, *reasons: str) -> api.Health:
        process = f"{socket.gethostname()} pid {os.getpid()}"
        return api.Health(process=process, since_ms=self._since_ms, reasons=[one for one in reasons if one])


# --- the thread ------------------------------------------------------------------------------------------


class _Peer(H11Protocol):
    """A connection. What uvicorn leaves unbounded ends here: the wait for a head, and for a peer that does not read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.gone = self.app_state["gone"] = asyncio.Event()
        self._held = self.app_state["held"] = _HeldAnswer()
        self.app_state["certified"] = bool(transport.get_extra_info("peercert"))
        self._unread = self.timeout_keep_alive_task = self.loop.call_later(IDLE_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        # The timer goes on until a head is whole, however many bytes come before.
        self.conn.receive_data(data)
        self.handle_events()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(IDLE_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unread.cancel()
        self._unset_keepalive_if_required()
        self._held.end()
        self.gone.set()


class Server(Closing):
    """Answers at some doors until closed. Threads: its own; `close` by whoever opened it."""

    def __init__(self, parts: Sequence[api.ServedPart], doors: Sequence[Door]) -> None:
        self.doors = doors
        self._config = uvicorn.Config(
            _Answers(parts),
            http=_Peer,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what goes wrong with a peer is not the process's trouble
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=round(IDLE_S),
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        self._state = ServerState()
        self._state.default_headers = [(b"server", api.NAME.encode())]
        self._began = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="server", daemon=True)
        self.thread.start()
        self._began.wait()

    def close(self) -> None:
        """Listen no more; answers under way have two seconds."""
        with contextlib.suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._stop.set)
        self.thread.join()
        for door in self.doors:
            door.close()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(lambda loop, told: logger.debug("a peer: %s", told.get("message")))
        for door in self.doors:
            door.listener.setblocking(False)
            self._listen(door, set())
        self._began.set()
        await self._stop.wait()
        for door in self.doors:
            self._loop.remove_reader(door.listener)
        for peer in tuple(self._state.connections):
            peer.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=_GRACE_S)
        for peer in tuple(self._state.connections):
            peer.transport.abort()
        await asyncio.sleep(0)

    def _listen(self, door: Door, peers: set[asyncio.Task[None]]) -> None:
        if not self._stop.is_set():
            self._loop.add_reader(door.listener, self._accept, door, peers)

    def _accept(self, door: Door, peers: set[asyncio.Task[None]]) -> None:
        """Take a connection: here, since what an awaited accept has taken is lost where it is cancelled."""
        try:
            peer, _ = door.listener.accept()
        except BlockingIOError:
            return
        except OSError:
            logger.warning("the server could not accept at=%s", door.address, exc_info=True)
            self._loop.remove_reader(door.listener)
            self._loop.call_later(_PROGRESS_S, self._listen, door, peers)
            return
        if len(peers) >= CONNECTIONS_MAX:
            peer.close()
            return
        task = self._loop.create_task(self._meet(peer, door))
        peers.add(task)
        task.add_done_callback(peers.discard)
        task.add_done_callback(lambda _: peer.close())

    async def _meet(self, peer: socket.socket, door: Door) -> None:
        """Hold a connection from its handshake to its end."""
        try:
            _, protocol = await self._loop.connect_accepted_socket(
                lambda: _Peer(self._config, self._state, {"door": door}),
                peer,
                ssl=door.tls,
                ssl_handshake_timeout=None if door.tls is None else IDLE_S,
            )
        except OSError as exc:
            logger.debug("a peer did not come in at=%s why=%s", door.address, exc)
            return
        try:
            await protocol.gone.wait()
        finally:
            protocol.transport.abort()  # the server may end before it knows of this one

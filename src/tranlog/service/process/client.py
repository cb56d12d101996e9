"""A running process from another program: what it is asked, and where it stands, typed.

Owns how a caller finds a process, and the call. What can be asked is in `api`, who answers is `server`. The hard idea:
one answer has all views of one moment, so no two numbers of a status come from different ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from tranlog.addresses import is_loopback, split_address
from tranlog.errors import ControlError, LogLockedError, TranlogError
from tranlog.pipeline.rules.states import OperationState
from tranlog.pipeline.status.view import PipelineStatus
from tranlog.service.config.config import Config, find_file, load
from tranlog.service.config.exposure import client_context, read_secrets
from tranlog.service.frame.exits import Told
from tranlog.service.process.api import NAME, NDJSON, OCTETS, CaptureState, Failure, Sending, operations, other_api
from tranlog.service.process.sockets import CAPTURE_NAME, NODE_NAME, STORE_NAME, runtime_dir, short, socket_paths

if TYPE_CHECKING:
    import httpx

GRACE_S: Final = 15.0
"""How much longer than its request a caller waits for the answer."""
NOBODY: Final = "nobody listens there"
_START: Final = (
    "Start one with `tranlog apply` or `tranlog run`, or `tranlog apply --offline` to say first how it goes on, "
    "or use --host for its address"
)
WRITER_START: Final = "Start it with `tranlog capture` or `tranlog run`, or use --host for its address"
NODE_START: Final = "Start the node with `tranlog node run`, or use --host for its address"
_NEWER: Final = "Use the release that the pipeline runs with"
_AGAIN: Final = "See whether its process runs, and take the message again"

AnswerT = TypeVar("AnswerT")
OpenedT = TypeVar("OpenedT", bound=contextlib.AbstractContextManager[object])
Watch = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def _client(address: str, timeout_s: float, authority: str | None, certificate: str | None) -> Iterator[httpx.Client]:
    import httpx  # a fifth of a second, for those who ask

    with contextlib.ExitStack() as opened:
        if "/" in address:
            base, path = "http://localhost", opened.enter_context(short(address))
            with socket.socket(socket.AF_UNIX) as probe:  # httpcore leaves its own open where nobody listens
                probe.settimeout(timeout_s)
                probe.connect(path)
            transport = httpx.HTTPTransport(verify=False, uds=path)
        else:
            host, _ = split_address("--host", address)
            tls = not is_loopback(host) or authority is not None or certificate is not None
            verify = client_context(authority, certificate) if tls else False
            base, transport = f"http{'s' if tls else ''}://{address}", httpx.HTTPTransport(verify=verify)
        yield opened.enter_context(httpx.Client(base_url=base, transport=transport, timeout=timeout_s, trust_env=False))


def _read(address: str, answer: httpx.Response, watch: Watch | None, start: str) -> Any:
    """Read an answer. Raises Told for an error in it, ControlError where it is none of ours; `start`: how such a
    process is started."""
    other = other_api(answer.headers.get("Server", ""))
    if other is not None:
        raise ControlError(where=address, why=f"it is {other}, and this program {NAME}", remedy=_NEWER)
    streamed = answer.headers.get("Content-Type", "").startswith(NDJSON)
    for line in answer.iter_lines():
        try:
            found = msgspec.json.decode(line)
            if streamed and "progress" in found:
                if watch is not None:
                    watch(found["progress"])
                continue
            if "ok" in found if streamed else answer.is_success:
                return found["ok"] if streamed else found
            failure = msgspec.convert(found["error"], Failure)
        except (msgspec.DecodeError, KeyError, TypeError) as exc:
            raise ControlError(where=address, why=f"it answers in another form: {exc}", remedy=_NEWER) from exc
        raise Told(failure.type, failure.message, failure.exit_code)
    raise ControlError(where=address, why="it ended without an answer", remedy=start)


def _head(address: str, answer: httpx.Response, start: str) -> tuple[Any, Iterator[bytes]]:
    """Read an answer's line of JSON; its content is read as it is asked for. Raises as `_read`."""
    if not answer.headers.get("Content-Type", "").startswith(OCTETS):
        _read(address, answer, None, start)
        raise ControlError(where=address, why="it answers in another form", remedy=_NEWER)
    parts, line = answer.iter_raw(), b""
    while b"\n" not in line:
        line += next(parts, b"\n")
    line, _, rest = line.partition(b"\n")
    try:
        return msgspec.json.decode(line), _content(address, rest, parts)
    except msgspec.DecodeError as exc:
        raise ControlError(where=address, why=f"it answers in another form: {exc}", remedy=_NEWER) from exc


def _content(address: str, first: bytes, parts: Iterator[bytes]) -> Iterator[bytes]:
    """Return an answer's content. Raises ControlError where it breaks off."""
    import httpx

    yield first
    try:
        yield from parts
    except (httpx.HTTPError, OSError) as exc:
        raise ControlError(where=address, why=f"it broke off: {_words(exc, _cause(exc))}", remedy=_AGAIN) from exc


class _Given:
    """What is sent: a body, a line of JSON, and content after it. `failure`: why the content could not be read."""

    def __init__(self, body: bytes, content: Iterable[bytes]) -> None:
        self._body = body
        self._content = content
        self.failure: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        yield self._body + b"\n"
        try:
            yield from self._content
        except BaseException as exc:
            self.failure = exc
            raise


def _cause(exc: BaseException | None) -> OSError | None:
    while exc is not None and not isinstance(exc, OSError):
        exc = exc.__cause__ or exc.__context__
    return exc


def _words(exc: Exception, cause: OSError | None) -> str:
    import httpx

    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {cause.verify_message}; --tls-ca names the authority to trust"
    if isinstance(exc, httpx.TimeoutException):
        return "it did not answer in time"
    if isinstance(exc, httpx.RemoteProtocolError) and cause is None:
        return "it ended the connection; if it speaks TLS, --tls-ca names the authority to trust"
    return (None if cause is None else cause.strerror) or str(exc) or type(exc).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPipeline:
    """The server of a pipeline's process. Nothing is connected between two calls. Threads: any.

    `addresses`: where it may listen, the first that answers is asked; a socket's path has a slash, else HOST:PORT.
    `authority`: whose certificates are believed beyond loopback, a PEM file; None: the system's. `certificate`: the
    caller's own with its key, a PEM file. `start`: how such a process is started, for messages.
    """

    addresses: tuple[str, ...]
    secret: str | None = field(default=None, repr=False)
    authority: str | None = None
    certificate: str | None = None
    start: str = _START

    @classmethod
    def at(
        cls,
        address: str,
        *,
        secret_file: str | None = None,
        authority: str | None = None,
        certificate: str | None = None,
    ) -> RunningPipeline:
        """Return the one that listens at HOST:PORT, or at a socket's path. Raises ConfigError for the secret's file."""
        return cls(
            addresses=(os.path.abspath(address) if "/" in address else address,),
            secret=_secret(secret_file),
            authority=authority,
            certificate=certificate,
        )

    @classmethod
    def find(
        cls, *, conf: str | None = None, service: str | None = None, pipeline: str | None = None
    ) -> RunningPipeline:
        """Return the one that a configuration names, found as `tranlog -conf CONF -service SERVICE` does.

        `pipeline`: instead of the configured name. Raises ConfigError.
        """
        config = load(find_file(conf=conf, service=service), environ=os.environ)
        return cls.of_config(config, pipeline=pipeline)

    @classmethod
    def of_config(
        cls,
        config: Config,
        *,
        pipeline: str | None = None,
        secret_file: str | None = None,
        authority: str | None = None,
        certificate: str | None = None,
    ) -> RunningPipeline:
        """Return the one of a configuration that is read already: at its socket, else at its port.

        Raises ConfigError for the secret's file.
        """
        options = config.pipeline
        paths = socket_paths(config.log_dir, pipeline or options.name, runtime_dir=runtime_dir())
        port = () if options.control is None else (options.control,)
        return cls(
            addresses=(*paths, *port),
            secret=_secret(secret_file or (options.secret_file if port else None)),
            authority=authority or (options.tls_certificate if port else None),
            certificate=certificate,
        )

    def ask(self, path: str, body: object = None, *, timeout_s: float = GRACE_S, watch: Watch | None = None) -> Any:
        """Ask for an operation, and return the answer as plain values.

        `body`: what it takes, one of the structs of `api` or a dict; None for one that only reads. `timeout_s`: for how
        long nothing may come; `watch` is given the state each second that a long one takes. Beyond loopback only TLS is
        spoken. Raises ControlError where nobody answers, Told for an error of the process's.
        """
        with self._asked(path, body, None, timeout_s) as (address, answer):
            return _read(address, answer, watch, self.start)

    def send(self, path: str, body: object, content: Iterable[bytes], *, timeout_s: float = GRACE_S) -> Any:
        """As `ask`, with content of any size after the body. Raises what reading the content raises, too."""
        given = _Given(msgspec.json.encode(body), content)
        try:
            with self._asked(path, body, given, timeout_s) as (address, answer):
                return _read(address, answer, None, self.start)
        except ControlError:
            if given.failure is not None:
                raise given.failure from None
            raise

    def fetch(self, path: str, body: object, *, timeout_s: float = GRACE_S) -> Sending[Any]:
        """As `ask`, for an answer with content. Its connection stays until the answer is closed."""
        with contextlib.ExitStack() as opened:
            address, answer = opened.enter_context(self._asked(path, body, None, timeout_s))
            head, content = _head(address, answer, self.start)
            return Sending(head=head, content=content, close=opened.pop_all().close)

    @contextlib.contextmanager
    def _asked(
        self, path: str, body: object, given: _Given | None, timeout_s: float
    ) -> Iterator[tuple[str, httpx.Response]]:
        """Send a request; give whose answer comes, and that. Raises ControlError where nobody answers, or no more."""
        import httpx

        method, sent = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
        for address in self.addresses:
            headers = {"User-Agent": NAME, "Accept": NDJSON}
            if self.secret is not None and "/" not in address:
                headers["Authorization"] = f"Bearer {self.secret}"
            content = sent if given is None else iter(given)
            try:
                with (
                    _client(address, timeout_s, self.authority, self.certificate) as client,
                    client.stream(method, path, content=content, headers=headers) as answer,
                ):
                    yield address, answer
                    return
            except (httpx.HTTPError, OSError) as exc:  # the latter of a socket's folder
                cause = _cause(exc)
                if not isinstance(cause, FileNotFoundError | ConnectionRefusedError | NotADirectoryError):
                    raise ControlError(where=address, why=_words(exc, cause), remedy=self.start) from exc
        raise ControlError(where=", ".join(self.addresses), why=NOBODY, remedy=self.start)

    def state(self, *, timeout_s: float = GRACE_S) -> OperationState:
        """Return its state, and the error that took it offline. Raises as `ask`."""
        return self.typed("/state", OperationState, timeout_s=timeout_s)

    def status(self, *, timeout_s: float = GRACE_S) -> PipelineStatus:
        """Return all views of it, with rates. Raises as `ask`.

        The rates are those since it was last asked, within a second; else it is watched for 0.3 s.
        """
        return self.typed("/status", PipelineStatus, timeout_s=timeout_s)

    def typed(self, path: str, kind: type[AnswerT], *, timeout_s: float = GRACE_S) -> AnswerT:
        """Return what an operation that only reads answers. Raises as `ask`, ControlError for another form."""
        found = self.ask(path, timeout_s=timeout_s)
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError as exc:
            where, why = ", ".join(self.addresses), f"it answers in another form: {exc}"
            raise ControlError(where=where, why=why, remedy=_NEWER) from exc


class _Elsewhere:
    """The operations of a part in another process, by the names of its methods."""

    def __init__(self, running: RunningPipeline, part: type, timeout_s: float) -> None:
        self._running = running
        self._specs = {spec.call.__name__: spec for spec in operations(part)}
        self._timeout_s = timeout_s

    def __getattr__(self, name: str) -> Callable[..., Any]:
        spec = self._specs[name]

        def call(asked: object = None, content: Iterable[bytes] = ()) -> Any:
            body, running, timeout_s = None if spec.method == "GET" else asked or {}, self._running, self._timeout_s
            if spec.sends:
                found = running.fetch(spec.path, body, timeout_s=timeout_s)
                return dataclasses.replace(found, head=msgspec.convert(found.head, spec.gives))
            if spec.reads:
                return msgspec.convert(running.send(spec.path, body, content, timeout_s=timeout_s), spec.gives)
            return msgspec.convert(running.ask(spec.path, body, timeout_s=timeout_s), spec.gives)

        return call


def operations_of(running: RunningPipeline, part: type[AnswerT], *, timeout_s: float) -> AnswerT:
    """Return a part of a running process: each of its operations is asked there. Raises as `RunningPipeline.ask`."""
    return cast(AnswerT, _Elsewhere(running, part, timeout_s))


@contextlib.contextmanager
def opened_or_asked(
    open_it: Callable[[], OpenedT], part: Callable[[OpenedT], AnswerT], owner: RunningPipeline, *, timeout_s: float
) -> Iterator[AnswerT]:
    """Give a part of what this process opens; where another has it open, the same part of that one.

    Raises as `open_it`; LogLockedError where its owner does not answer.
    """
    try:
        opened = open_it()
    except LogLockedError as locked:
        try:
            owner.ask("/livez")
        except ControlError:
            raise locked from None
        assert isinstance(part, type)
        yield operations_of(owner, part, timeout_s=timeout_s)
        return
    with opened:
        yield part(opened)


def owner_of(store_dir: str) -> RunningPipeline:
    """Return whoever has a message store open and serves it, running or not."""
    return RunningPipeline(addresses=tuple(socket_paths(store_dir, STORE_NAME, runtime_dir=runtime_dir())))


def writer_of(log_dir: str) -> RunningPipeline:
    """Return whoever captures into a log, running or not."""
    paths = socket_paths(log_dir, CAPTURE_NAME, runtime_dir=runtime_dir())
    return RunningPipeline(addresses=tuple(paths), start=WRITER_START)


def node_of(log_dir: str) -> RunningPipeline:
    """Return the node of a group that has a log, running or not."""
    paths = socket_paths(log_dir, NODE_NAME, runtime_dir=runtime_dir())
    return RunningPipeline(addresses=tuple(paths), start=NODE_START)


def capture_state(log_dir: str, *, timeout_s: float = GRACE_S) -> CaptureState | None:
    """Ask whoever captures into a log; None where nobody answers, or one of another release."""
    try:
        return writer_of(log_dir).typed("/capture", CaptureState, timeout_s=timeout_s)
    except (TranlogError, Told):
        return None


def _secret(file: str | None) -> str | None:
    if file is None:
        return None
    operates, reads = read_secrets(file)
    return operates or reads

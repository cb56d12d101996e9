"""What can be asked of a running process: the bodies of its operations, their answers, and the document of all.

Owns their form, and how a method becomes an operation; docs/control.md describes them. Leaves HTTP to `server`, and
what an operation does to the class that has the method. The hard idea: an operation is a method whose types say what
it takes and gives, so that route, check and document cannot differ from it.

Source: OpenAPI 3.1.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from tranlog.capture.capture import PartRead
from tranlog.capture.load_requests import LoadRequest
from tranlog.ids import Seqno
from tranlog.pipeline.driving.operation import ReplanEnd
from tranlog.pipeline.rules.states import OperationState
from tranlog.service.config.exposure import Role
from tranlog.service.process.log_index import WriterIndex

API: Final = 1
"""Changes when a client of an earlier release could misunderstand an operation."""
VERSION: Final = importlib.metadata.version("tranlog")
NAME: Final = f"tranlog/{VERSION} api/{API}"
"""What either side calls itself, in the headers User-Agent and Server."""
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
OCTETS: Final = "application/octet-stream"
"""A line of JSON, and after it content of any size."""

Content: TypeAlias = Iterator[bytes]
"""What an operation takes beside its body: bytes of any number, in parts."""
GONE: Final[ContextVar[Callable[[], bool]]] = ContextVar("GONE", default=lambda: False)
"""Asks whether whoever asked for what is being done has gone: what only waits may end then."""
Bytes: TypeAlias = bytes
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]


def other_api(name: str) -> str | None:
    """Return how the other side calls itself where it speaks another API than ours; None where it does not, or none."""
    found = re.fullmatch(r"tranlog/(\S+) api/(\d+)", name)
    return None if found is None or found[2] == str(API) else name


# --- bodies ----------------------------------------------------------------------------------------------


class _Body(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an operation takes."""


class Nothing(_Body, frozen=True):
    """What an operation takes that asks for nothing: no field, and none that it does not know."""


class GoOnline(_Body, frozen=True):
    """At most one `until_…`. `from_seqno` puts all channels before that seqno first."""

    until_seqno: Int64 | None = None
    until_gtid: str | None = None
    until_time_ms: Int64 | None = None
    until_event: str | None = None
    until_heartbeat: str | None = None
    skip_seqno: str | None = None
    from_seqno: Int64 | None = None


class GoOffline(_Body, frozen=True):
    """`immediate`: roll back the target transactions under way instead of finishing them."""

    immediate: bool = False


class WaitFor(_Body, frozen=True):
    """Until everything up to `applied` is in the target, and until the state is `state`."""

    applied: Int64 | None = None
    state: str | None = None
    timeout_s: Seconds = 60.0


class WithinTime(_Body, frozen=True):
    """How long it may take."""

    timeout_s: Seconds = 60.0


class Beat(_Body, frozen=True):
    """A heartbeat's name, and how long it may take to be in the log."""

    name: str
    timeout_s: Seconds = 60.0


class TellLoad(_Body, frozen=True):
    """What a load is to do; `load` none: the only one. What is not said stays; `rows_per_second` 0: no limit."""

    load: str | None = None
    paused: bool | None = None
    given_up: bool = False
    rows_per_second: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Trim(_Body, frozen=True):
    """Up to a seqno or by a time, ends inclusive.

    `told` is what the operator asked for, in words; `hard` does not wait for holds.
    """

    to_seqno: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    to_time_ms: Int64 | None = None
    told: str = ""
    hard: bool = False
    dry_run: bool = False


class Peek(_Body, frozen=True):
    """The first messages of a queue, at most `count`."""

    queue: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1


class DeclareQueue(_Body, frozen=True):
    """A queue's name. `transient`: it is gone when the process ends."""

    queue: str
    transient: bool = False


class PublishMessage(_Body, frozen=True):
    """A message for these queues, or for those to which exchange, key and headers lead. `length`: of its content.

    `header` is stored with it, in base64. `expires_at`: ms since 1970, 0 for never.
    """

    length: Annotated[int, msgspec.Meta(ge=0)]
    queues: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    exchange: str = ""
    key: str = ""
    headers: dict[str, Any] | None = None
    header: Bytes = b""
    expires_at: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    priority: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    transient: bool = False


class TakeMessage(_Body, frozen=True):
    """The next message of a queue."""

    queue: str


class AnswerMessage(_Body, frozen=True):
    """What becomes of a message that was taken: it is done with, or goes back to its queue."""

    delivery: str
    requeue: bool = False


class BackUp(_Body, frozen=True):
    """The directory of a copy, an absolute path."""

    to: str


class DeclareExchange(_Body, frozen=True):
    """An exchange, and the one for what no binding of it is for."""

    exchange: str
    kind: str
    alternate: str | None = None


class Bind(_Body, frozen=True):
    """A binding, from an exchange to a queue or to the exchange `destination`: one of the two."""

    exchange: str
    queue: str | None = None
    destination: str | None = None
    key: str = ""
    arguments: dict[str, Any] | None = None


class ByName(_Body, frozen=True):
    """A name: of a queue, an exchange or a producer."""

    name: str


class Decide(_Body, frozen=True):
    """The outcome of what is prepared under an xid, which is in base64."""

    xid: bytes
    commit: bool


# --- answers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Beaten:
    """A heartbeat, and where the log has it; None where it was not there in time, and may come still."""

    heartbeat: str
    seqno: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited(OperationState):
    """`reached`: whether it came in time."""

    reached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed(Waited):
    """`seqno`: the last one that the log held."""

    seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded(OperationState):
    """What became of the plan. `seqno`: where it changed, -1 where it has not; `at_restart`: keys that wait for one."""

    plan: ReplanEnd
    before: dict[str, Any]
    after: dict[str, Any]
    seqno: int
    at_restart: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureState(WriterIndex):
    """Whoever captures. `since_ms`: since when, ms since 1970; `in_flight`: the large transaction that it reads."""

    pipeline: str
    state: str
    since_ms: int
    in_flight: PartRead | None


class LoadsNow(msgspec.Struct, frozen=True, kw_only=True):
    """The loads that are not at their end."""

    loads: list[LoadRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The names of the segment that was begun, and of the one that was closed for it."""

    added: str
    closed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """What went, or would go: whole segments from the front, their bytes, and the last seqno in them.

    `passed` names the holds that lose something by it, `kept_for` those without which more would go. The log begins at
    `first_seqno`, NO_SEQNO while it is empty.
    """

    gone: tuple[int, ...]
    bytes: int
    up_to: Seqno | None
    passed: tuple[str, ...]
    kept_for: tuple[str, ...]
    first_seqno: Seqno


class MessageTold(msgspec.Struct, kw_only=True, frozen=True):
    """A message. `bytes`: of its content; `header`: what it was published with, in base64; None: it never expires."""

    id: str
    queue: str
    bytes: int
    stored_at_ms: int
    redelivered: bool
    attempts: int
    priority: int
    expires_at_ms: int | None
    header: Bytes


class Peeked(MessageTold, kw_only=True, frozen=True):
    """A message that waits. `begins`: the first bytes of its content, in base64."""

    begins: Bytes


class TakenMessage(msgspec.Struct, kw_only=True, frozen=True):
    """A message that was taken, by which name it is answered; None where none waits."""

    delivery: str = ""
    message: MessageTold | None = None


class PublishedMessage(msgspec.Struct, kw_only=True, frozen=True):
    """A message's id; None where it leads to no queue, and is not stored."""

    id: str | None


class Done(msgspec.Struct, frozen=True):
    """It is done, and durable."""


class Removed(msgspec.Struct, kw_only=True, frozen=True):
    """How many messages went."""

    messages: int


class Health(msgspec.Struct, kw_only=True, frozen=True):
    """Whether a process is well, and why not. `process` names it; `since_ms`: since when it listens, ms since 1970."""

    process: str
    since_ms: int
    reasons: list[str]


class Failure(msgspec.Struct, kw_only=True, frozen=True):
    """Why an operation was not done: our error's name, its words, and the exit code that it is worth."""

    type: str
    message: str
    exit_code: int


class ErrorBody(msgspec.Struct, kw_only=True, frozen=True):
    """The body of every answer that is none of the operation's own."""

    error: Failure


class Line(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One line of an answer that is streamed: how it goes on, and in the last one, what came of it."""

    progress: Any = None
    ok: Any = None
    error: Failure | None = None


# --- operations ------------------------------------------------------------------------------------------

HeadT = TypeVar("HeadT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending(Generic[HeadT]):
    """An answer with content of any size, closed when whoever asked for it is done with it, or gone."""

    head: HeadT
    content: Iterator[bytes]
    close: Callable[[], object]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ServedPart(Protocol):
    """What one process does: its operations, and these."""

    def progress(self) -> object:
        """Return how it goes on, for whoever waits."""

    def ready(self) -> str:
        """Say why it is not ready; empty where it is."""

    def families(self) -> Iterable[Any]:
        """Return its metrics, families of prometheus-client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One operation: a method of a part, and where it is asked for. A path may have one argument, in braces.

    `reads`: it takes content after its body. `sends`: its answer has content after it.
    """

    method: str
    path: str
    role: Role
    call: Callable[..., object]
    takes: type[msgspec.Struct] | None
    gives: Any
    reads: bool
    sends: bool


FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


def get(path: str) -> Callable[[FunctionT], FunctionT]:
    """Make a method an operation that only reads."""
    return _operation("GET", path, Role.READ)


def post(path: str, *, role: Role = Role.OPERATE) -> Callable[[FunctionT], FunctionT]:
    """Make a method an operation that does something, or takes its time."""
    return _operation("POST", path, role)


def _operation(method: str, path: str, role: Role) -> Callable[[FunctionT], FunctionT]:
    def mark(function: FunctionT) -> FunctionT:
        function.operation = (method, path, role)  # type: ignore[attr-defined]
        return function

    return mark


def operations(part: type) -> tuple[Spec, ...]:
    """Return the operations of a part, those of the classes below it too."""
    return tuple(_spec(one) for _, one in inspect.getmembers(part) if hasattr(one, "operation"))


def _spec(call: Any) -> Spec:
    method, path, role = call.operation
    hints = get_type_hints(call, include_extras=True)
    gives = hints.pop("return")
    takes = next((one for one in hints.values() if isinstance(one, type) and issubclass(one, msgspec.Struct)), None)
    reads, sends = Content in hints.values(), get_origin(gives) is Sending
    if sends:
        (gives,) = get_args(gives)
    return Spec(method=method, path=path, role=role, call=call, takes=takes, gives=gives, reads=reads, sends=sends)


def document(specs: Iterable[Spec]) -> dict[str, Any]:
    """Return the OpenAPI document of some operations, and of /metrics."""
    specs = [*specs]
    types = [ErrorBody, Line, *(one for spec in specs for one in (spec.takes, spec.gives) if one is not None)]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema = dict(zip(types, schemas, strict=True))
    text, refused = {"type": "string"}, {"default": _content("Why not", {JSON: schema[ErrorBody]})}
    metrics = {"text/plain": text, "application/openmetrics-text": text}
    paths = {"/metrics": {"get": {"responses": {"200": _content("By Accept", metrics)} | refused}}}
    for spec in specs:
        answers = {JSON: schema[spec.gives]} | ({NDJSON: schema[Line]} if spec.method == "POST" else {})
        if spec.sends:
            answers = {OCTETS: _OCTETS}
        told: dict[str, Any] = {"summary": (inspect.getdoc(spec.call) or "").partition("\n")[0]}
        told["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": msgspec.json.schema(hint)}
            for name, hint in get_type_hints(spec.call).items()
            if f"{{{name}}}" in spec.path
        ]
        if spec.takes is not None:
            body = {OCTETS: {"schema": _OCTETS}} if spec.reads else {JSON: {"schema": schema[spec.takes]}}
            told["requestBody"] = {"content": body}
        told["responses"] = {"200": _content("What came of it", answers)} | refused
        if spec.gives is Health:
            told["responses"]["503"] = _content("It does not, and why", answers)
        paths[spec.path] = {spec.method.lower(): told}
    return {
        "openapi": "3.1.0",
        "info": {"title": "tranlog", "version": VERSION, "x-api": API},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


_OCTETS: Final = {"type": "string", "format": "binary"}


def _content(description: str, by_type: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {kind: {"schema": schema} for kind, schema in by_type.items()}}

"""What an operator may ask of a running pipeline, and how question and answer look as bytes.

Owns the requests, their form and the frames; docs/control.md describes them. Leaves sockets to `control`, and what a
request does to `operation`. The hard idea: a frame says its length first and no request is large, so that
whoever connects can make the pipeline hold neither memory nor a thread for long.

Source: conformance/tungsten.md A9; issue 7, item 5.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeAlias

import msgspec

VERSION: Final = 1
FRAME: Final = struct.Struct(">I")
"""The number of bytes of JSON that follow."""
REQUEST_BYTES_MAX: Final = 256 << 10
ANSWER_BYTES_MAX: Final = 64 << 20


class _Request(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A request; its kind stands under `request`."""


class GetState(_Request, frozen=True, tag_field="request", tag="state"):
    """Where does it stand?"""


class GoOnline(_Request, frozen=True, tag_field="request", tag="online"):
    """Go online; at most one `until_…`. `from_seqno` puts all channels in front of that seqno first."""

    until_seqno: int | None = None
    until_gtid: str | None = None
    until_time_ms: int | None = None
    until_event: str | None = None
    until_heartbeat: str | None = None
    skip_seqno: str | None = None
    from_seqno: int | None = None


class GoOffline(_Request, frozen=True, tag_field="request", tag="offline"):
    """Go offline, after the target transactions under way or at once."""

    immediate: bool = False


class WaitFor(_Request, frozen=True, tag_field="request", tag="wait"):
    """Wait until everything up to `applied` is in the target, and until the state is `state`."""

    applied: int | None = None
    state: str | None = None
    timeout_s: float = 60.0


class Flush(_Request, frozen=True, tag_field="request", tag="flush"):
    """Wait until everything that the log holds by now is in the target."""

    timeout_s: float = 60.0


class Reload(_Request, frozen=True, tag_field="request", tag="reload"):
    """Read the configuration file again, and go on by the plan that it has now."""

    timeout_s: float = 60.0


class Beat(_Request, frozen=True, tag_field="request", tag="heartbeat"):
    """Have a heartbeat put into the log."""

    name: str


class AddSegment(_Request, frozen=True, tag_field="request", tag="add-segment"):
    """Of whoever captures: close the log's newest segment, and begin the next."""


class Trim(_Request, frozen=True, tag_field="request", tag="trim"):
    """Of whoever captures: remove the log's oldest segments, up to a seqno or by a time, ends inclusive.

    `told` is what the operator asked for, in words; `hard` does not wait for holds.
    """

    to_seqno: int = -1
    to_time_ms: int | None = None
    told: str = ""
    hard: bool = False
    dry_run: bool = False


class Look(_Request, frozen=True, tag_field="request", tag="status"):
    """The tables of one view: pipeline, stores, tasks, shards, stages, channels, watches; None: all, of one moment."""

    name: str | None = None


class GetOverview(_Request, frozen=True, tag_field="request", tag="overview"):
    """All of it at this moment, as `tranlog top` shows it."""


Request: TypeAlias = (
    GetState | GoOnline | GoOffline | WaitFor | Flush | Reload | Beat | AddSegment | Trim | Look | GetOverview
)


class Envelope(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What travels: the protocol's version, the secret where the port asks for one, the request."""

    version: int = VERSION
    secret: str | None = None
    ask: Request


class Failure(msgspec.Struct, kw_only=True, frozen=True):
    """Why a request was not done: our error's name, its words, and the exit code that it is worth."""

    type: str
    message: str
    exit_code: int


class Answer(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What comes back: one of the two."""

    ok: dict[str, Any] | None = None
    error: Failure | None = None


class FrameError(Exception):
    """What came is no frame, or no request, of this protocol."""


def frame(message: Envelope | Answer) -> bytes:
    """Return a message as it travels."""
    body = msgspec.json.encode(message)
    return FRAME.pack(len(body)) + body


def frame_length(head: bytes, *, most: int) -> int:
    """Return how many bytes follow. Raises FrameError for more than there may be."""
    (length,) = FRAME.unpack(head)
    if not 0 < length <= most:
        raise FrameError(f"a frame of {length} bytes, where 1 to {most} may come")
    return int(length)


def read_envelope(body: bytes) -> Envelope:
    """Read a request. Raises FrameError."""
    try:
        found = msgspec.json.decode(body, type=Envelope)
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise FrameError(f"no request of this protocol: {exc}") from exc
    if found.version != VERSION:
        raise FrameError(f"version {found.version} of the protocol, and this is version {VERSION}")
    return found


def read_answer(body: bytes) -> Answer:
    """Read an answer. Raises FrameError."""
    try:
        return msgspec.json.decode(body, type=Answer)
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise FrameError(f"no answer of this protocol: {exc}") from exc

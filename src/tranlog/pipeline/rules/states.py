"""The states of an operated pipeline, and the events that change them.

Owns the transitions, their names, and the messages to an operator; `operation` carries them out, and the process's
server takes the operator's requests. The hard idea: requests of an operator and changes of the pipeline are events of
one kind, so one table covers both. A request that is not possible now is refused with a reason, before any step.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tranlog.ids import NO_SEQNO
from tranlog.pipeline.rules.troubles import Trouble


class State(enum.StrEnum):
    """Where an operated pipeline stands, in the ancestor's words."""

    START = "START"
    OFFLINE_NORMAL = "OFFLINE:NORMAL"
    OFFLINE_ERROR = "OFFLINE:ERROR"
    GOING_ONLINE = "GOING-ONLINE:SYNCHRONIZING"
    """Asked for: the target is being looked at, Spark started, an earlier plan drained, the channels are claimed."""
    ONLINE = "ONLINE"
    """All channels have been claimed, and each can go on."""
    DEGRADED = "ONLINE:DEGRADED"
    """Online, and a channel cannot use the target, or has no slot: it is tried again."""
    GOING_OFFLINE = "GOING-OFFLINE"

    @property
    def resting(self) -> bool:
        """Whether nothing is applied and nothing is on its way."""
        return self in (State.START, State.OFFLINE_NORMAL, State.OFFLINE_ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingError:
    """Why a pipeline is OFFLINE:ERROR; seqno -1 and no event id where the error is about no transaction."""

    type: str
    message: str
    seqno: int = NO_SEQNO
    event_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Somebody waits: until everything up to `applied` is in the target, or for a state."""

    number: int
    applied: int | None
    state: State | None
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationState:
    """What an operator is told. `applied_seqno` is the least of the channels', as of the last report.

    `began_ms`, `since_ms`: since when the process operates the pipeline, and since when it is in this state; ms since
    1970. `troubles`: who cannot use the target, why, since when; `slots`: how many tasks Spark can run at a time, of
    `channels` that each need one.
    """

    pipeline: str
    state: State
    began_ms: int
    since_ms: int
    applied_seqno: int
    committed_seqno: int
    limit: str
    left_out: str
    pending: PendingError | None
    waits: tuple[Wait, ...]
    troubles: tuple[Trouble, ...] = ()
    slots: int = 0
    channels: int = 0


class Happening(enum.StrEnum):
    """What may move a pipeline from one state to another."""

    READY = "ready"
    """The process listens to its operator."""
    ASKED_ONLINE = "asked to go online"
    RUNNING = "running"
    """All channels of the wanted plan have been claimed, and each can go on."""
    STUCK = "stuck"
    """The same, but that one of them cannot go on."""
    ASKED_OFFLINE = "asked to go offline"
    ENDED = "ended"
    """At its limit, or because it was asked to."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The happening makes no sense in this state."""

    state: State
    happening: Happening
    why: str
    remedy: str


Step: TypeAlias = State | Refused

_TABLE: Final[Mapping[State, Mapping[Happening, State]]] = {
    State.START: {Happening.READY: State.OFFLINE_NORMAL},
    State.OFFLINE_NORMAL: {
        Happening.ASKED_ONLINE: State.GOING_ONLINE,
        Happening.ASKED_OFFLINE: State.OFFLINE_NORMAL,
    },
    State.OFFLINE_ERROR: {
        Happening.ASKED_ONLINE: State.GOING_ONLINE,
        Happening.ASKED_OFFLINE: State.OFFLINE_NORMAL,  # the operator has seen the error
    },
    State.GOING_ONLINE: {
        Happening.RUNNING: State.ONLINE,
        Happening.STUCK: State.DEGRADED,
        Happening.ASKED_OFFLINE: State.GOING_OFFLINE,
        Happening.ENDED: State.OFFLINE_NORMAL,
        Happening.FAILED: State.OFFLINE_ERROR,
    },
    State.ONLINE: {
        Happening.RUNNING: State.ONLINE,
        Happening.STUCK: State.DEGRADED,
        Happening.ASKED_OFFLINE: State.GOING_OFFLINE,
        Happening.ENDED: State.OFFLINE_NORMAL,
        Happening.FAILED: State.OFFLINE_ERROR,
    },
    State.DEGRADED: {
        Happening.RUNNING: State.ONLINE,
        Happening.STUCK: State.DEGRADED,
        Happening.ASKED_OFFLINE: State.GOING_OFFLINE,
        Happening.ENDED: State.OFFLINE_NORMAL,
        Happening.FAILED: State.OFFLINE_ERROR,
    },
    State.GOING_OFFLINE: {
        Happening.RUNNING: State.GOING_OFFLINE,  # a report from before it heard
        Happening.STUCK: State.GOING_OFFLINE,
        Happening.ASKED_OFFLINE: State.GOING_OFFLINE,  # once more, at once this time
        Happening.ENDED: State.OFFLINE_NORMAL,
        Happening.FAILED: State.OFFLINE_ERROR,
    },
}

_WHY: Final[Mapping[tuple[State, Happening], tuple[str, str]]] = {
    (State.START, Happening.ASKED_ONLINE): ("it is still starting", "Run it again"),
    (State.START, Happening.ASKED_OFFLINE): ("it is still starting", "Run it again"),
    (State.GOING_ONLINE, Happening.ASKED_ONLINE): ("it is on its way", "Run `tranlog wait --state ONLINE`"),
    (State.ONLINE, Happening.ASKED_ONLINE): ("it is online already", "Run `tranlog offline` first, for other limits"),
    (State.DEGRADED, Happening.ASKED_ONLINE): (
        "it is online already, and tries again by itself",
        "Check `tranlog state`; `tranlog offline` and `tranlog online` have all channels try at once",
    ),
    (State.GOING_OFFLINE, Happening.ASKED_ONLINE): (
        "it is still stopping",
        "Run `tranlog wait --state OFFLINE:NORMAL` first",
    ),
}


def step(state: State, happening: Happening) -> Step:
    """Return the state that a happening leads to, or why it leads nowhere."""
    following = _TABLE[state].get(happening)
    if following is not None:
        return following
    why, remedy = _WHY.get((state, happening), ("that does not happen in this state", "Check `tranlog state`"))
    return Refused(state=state, happening=happening, why=why, remedy=remedy)

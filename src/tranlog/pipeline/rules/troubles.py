"""The channels that cannot use the target, since when, and when each tries again. Decides, does not act.

Owns the growing pauses, and what ends a trouble. The hard idea: the driver pauses, not the task. A channel that fails
ends its task, which then holds no slot, no connection and no target transaction, and reads position and token again
when it is submitted again. So a run can be stopped at once during a pause.

Source: docs/operations.md, "A target that cannot be used".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tranlog.ids import Seqno
from tranlog.pipeline.rules.progress import ChannelStats
from tranlog.pipeline.rules.retry import Backoff
from tranlog.target.target import ChannelRow
from tranlog.types import Datetime, datetime_text

DRIVER: Final = -1
"""Stands for a channel's number where it is the driver that cannot use the target."""
PAUSE_FIRST_S: Final = 1.0
PAUSE_MOST_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Who cannot use the target, why, and since when, ms since 1970; `channel` -1: the driver itself."""

    channel: int
    reason: str
    since_ms: int


def trouble_text(trouble: Trouble) -> str:
    """Say who cannot use the target, since when, and why."""
    who = "the driver" if trouble.channel == DRIVER else f"channel {trouble.channel}"
    since = datetime_text(Datetime(trouble.since_ms // 1000 * 1_000_000))
    return f"{who}, which cannot use the target since {since} UTC: {trouble.reason}"


@dataclass(slots=True, kw_only=True)
class _Case:
    reason: str
    since_ms: int
    applied: Seqno
    backoff: Backoff
    again_at: float | None = None
    """When it is to try again; None: it is trying."""
    token: int = 0
    """The channel's before it tried."""


class Troubles:
    """The troubles of one run. Times in seconds are the monotonic clock's. Threads: one."""

    def __init__(self) -> None:
        self._cases: dict[int, _Case] = {}

    def failed(
        self,
        channel: int,
        reason: str,
        *,
        applied: Seqno,
        failing_s: float,
        now_s: float,
        now_ms: int,
        limit_s: float | None = None,
    ) -> bool:
        """Note that a channel could not use the target; return whether it is to try again.

        `applied`: its position; where that has moved since the failure before, it is another trouble. `failing_s`: how
        long the target had not answered it then. `limit_s`: how long a trouble may last, None for ever; the last try
        is at its end.
        """
        case = self._cases.get(channel)
        if case is None or applied > case.applied:
            case = self._cases[channel] = _Case(
                reason=reason,
                since_ms=now_ms - round(failing_s * 1000),
                applied=applied,
                backoff=Backoff(PAUSE_FIRST_S, PAUSE_MOST_S, now_s - failing_s),
            )
        case.reason = reason
        case.again_at = now_s + case.backoff.failed()
        if limit_s is None:
            return True
        left_s = limit_s - case.backoff.lasted(now_s)
        case.again_at = min(case.again_at, now_s + left_s)
        return left_s > 0

    def due(self, now_s: float) -> list[int]:
        """Return the channels whose pause is over."""
        return [one for one, case in self._cases.items() if case.again_at is not None and case.again_at <= now_s]

    def pausing(self) -> list[int]:
        """Return the channels that wait out a pause."""
        return [one for one, case in self._cases.items() if case.again_at is not None]

    def hurry(self) -> None:
        """End all pauses: the target was away for everybody, and answers again."""
        for case in self._cases.values():
            if case.again_at is not None:
                case.again_at = 0.0
                case.backoff.hurry()

    def trying(self, channel: int, rows: Iterable[ChannelRow]) -> None:
        """Note that a channel tries again; `rows` are as they were before."""
        case = self._cases.get(channel)
        if case is not None:
            case.again_at = None
            case.token = max([case.token, *(row.token for row in rows if row.channel == channel)])

    def over(self, channel: int) -> None:
        """Note that a channel goes on."""
        self._cases.pop(channel, None)

    def look(self, rows: Iterable[ChannelRow], committed: Seqno) -> None:
        """End the troubles of channels that have claimed their rows again and got on, have nothing to do, or wait for
        others; one that was claimed and stands still may be stopped by the very same.
        """
        by_channel: Mapping[int, ChannelRow] = {row.channel: row for row in rows}
        for channel, case in list(self._cases.items()):
            row = by_channel.get(channel)
            if row is None or case.again_at is not None or row.token <= case.token:
                continue
            waits = ChannelStats.parse(row.stats).waiting is not None
            if row.applied_seqno > case.applied or row.applied_seqno >= committed or waits:
                del self._cases[channel]

    def told(self) -> tuple[Trouble, ...]:
        """Return them, by channel."""
        return tuple(
            Trouble(channel=channel, reason=case.reason, since_ms=case.since_ms)
            for channel, case in sorted(self._cases.items())
        )

"""What a driver tells of a target that it cannot use."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from tranlog.errors import TargetUnavailableError, TransientTargetError
from tranlog.pipeline.driving.persistence import Persistence
from tranlog.pipeline.options import ApplyOptions
from tranlog.target.options import TargetOptions
from tranlog.testing.clock import ManualClock

LOST = TransientTargetError(why="the connection is lost")


def test_it_tells_why_it_cannot_connect_again() -> None:
    """And not that the connection which it no longer has is lost: of that nobody learns what to do."""
    refusals = ["no more connections", ""]

    def reconnect() -> None:
        if why := refusals.pop(0):
            raise TargetUnavailableError(where="there", why=why)

    def reasons() -> list[str]:
        return [one.reason for one in persistence.troubles.told()]

    options = ApplyOptions(pipeline="p", log_dir="log", target=TargetOptions(kind="sqlite", path="target.db"))
    target, stop = SimpleNamespace(where="there", reconnect=reconnect), threading.Event()
    persistence = Persistence(options, target, clock=ManualClock(), stop=stop, tell=lambda: None)  # type: ignore[arg-type]
    persistence.began = True
    persistence.cannot(LOST)
    assert reasons() == ["the connection is lost"]
    persistence.reconnect()
    persistence.cannot(LOST)
    assert reasons() == ["no more connections"]

    def fail() -> None:
        raise LOST

    stop.set()
    with pytest.raises(TargetUnavailableError, match="no more connections"):
        persistence.persist(fail)
    persistence.reconnect()
    with pytest.raises(TargetUnavailableError, match="the connection is lost"):
        persistence.persist(fail)

"""Distributed transactions before they are prepared: which session works in which branch, and which calls are allowed.

Owns the order of the calls. The work of a branch belongs to `transaction`, prepared branches to the log. The hard idea:
several sessions may work in one branch, and nothing is decided before each has ended its part.

Source: The XA Specification, "State tables"; PEP 249, "Optional Two-Phase Commit Extensions".
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from tranlog.queues.rules.records import XID_BYTES_MOST

W = TypeVar("W")

TIMEOUT_S = 60.0
TIMEOUT_MOST_S = 86_400.0


class CallRefused(Exception):
    """A call that the branch's state does not allow."""


class Branch(Generic[W]):
    """A branch that is not prepared. `sessions`: the sessions in it; True for one that has suspended its part.

    `doomed`: the reason why it can only be rolled back; empty while it can be committed. `over`: its time is.
    """

    __slots__ = ("begun_at", "doomed", "over", "sessions", "timeout_s", "work", "xid")

    def __init__(self, xid: bytes, work: W, begun_at: float) -> None:
        self.xid = xid
        self.work = work
        self.begun_at = begun_at
        self.timeout_s = TIMEOUT_S
        self.doomed = ""
        self.over = False
        self.sessions: dict[Hashable, bool] = {}


class Branches(Generic[W]):
    """The branches that are not prepared, by xid. Times are seconds that never go back."""

    def __init__(self) -> None:
        self._branches: dict[bytes, Branch[W]] = {}

    def find(self, xid: bytes) -> Branch[W] | None:
        """Return an existing branch."""
        return self._branches.get(xid)

    def _known(self, xid: bytes) -> Branch[W]:
        found = self._branches.get(xid)
        if found is None:
            raise CallRefused("it is not known")
        return found

    def begin(self, session: Hashable, xid: bytes, work: W, *, now: float, prepared: bool) -> Branch[W]:
        """Begin a branch and work in it. `prepared`: a branch with this xid is prepared."""
        if not 0 < len(xid) <= XID_BYTES_MOST:
            raise CallRefused(f"an xid has 1 to {XID_BYTES_MOST} bytes, not {len(xid)}")
        if prepared or xid in self._branches:
            raise CallRefused("it is known already; join it, or decide it first")
        self._free(session)
        made = self._branches[xid] = Branch(xid, work, now)
        made.sessions[session] = False
        return made

    def join(self, session: Hashable, xid: bytes) -> Branch[W]:
        """Join a branch that another session has begun."""
        found = self._known(xid)
        self._free(session)
        if session in found.sessions:
            raise CallRefused("this session works in it already; resume it")
        found.sessions[session] = False
        return found

    def resume(self, session: Hashable, xid: bytes) -> Branch[W]:
        """Resume a branch that this session has suspended."""
        found = self._known(xid)
        self._free(session)
        if found.sessions.get(session) is not True:
            raise CallRefused("this session has not suspended it")
        found.sessions[session] = False
        return found

    def _free(self, session: Hashable) -> None:
        at = self.current(session)
        if at is not None:
            raise CallRefused(f"the session works in {at.xid!r}; end that first")

    def current(self, session: Hashable) -> Branch[W] | None:
        """Return the branch in which a session works."""
        for branch in self._branches.values():
            if branch.sessions.get(session) is False:
                return branch
        return None

    def end(self, session: Hashable, xid: bytes, *, suspend: bool, fail: bool) -> None:
        """End a session's part of a branch, for now or for good; with `fail` it can only be rolled back."""
        found = self._known(xid)
        if session not in found.sessions:
            raise CallRefused("this session does not work in it")
        if suspend:
            if found.sessions[session]:
                raise CallRefused("this session has suspended it already")
            found.sessions[session] = True
            return
        if fail:
            found.doomed = found.doomed or "a session ended it as failed"
        del found.sessions[session]

    def leave(self, session: Hashable) -> list[W]:
        """End a session: the branches in which it works, or which it has suspended, can only be rolled back.

        Return the work of those in which nobody works any more, which the caller undoes.
        """
        for branch in self._branches.values():
            if branch.sessions.pop(session, None) is not None:
                branch.doomed = branch.doomed or "a session that worked in it was closed"
        return [one.work for one in self._branches.values() if one.doomed and not one.sessions]

    def to_decide(self, xid: bytes, *, commit: bool) -> Branch[W]:
        """Return a branch whose sessions have all ended their part, for prepare and one-phase commit, or rollback."""
        found = self._known(xid)
        if found.sessions:
            raise CallRefused(f"{len(found.sessions)} sessions work in it; end their part first")
        if commit and found.doomed:
            raise CallRefused(f"it can only be rolled back: {found.doomed}")
        return found

    def forget(self, xid: bytes) -> None:
        """Forget a branch that is prepared or ended."""
        self._branches.pop(xid, None)

    def give_up(self, xid: bytes) -> W | None:
        """Forget a branch that can only be rolled back, if nobody works in it or its time is over.

        Return its work, which the caller undoes; None for any other branch.
        """
        found = self._branches.get(xid)
        if found is None or not found.doomed or (found.sessions and not found.over):
            return None
        del self._branches[xid]
        return found.work

    def set_timeout(self, xid: bytes, seconds: float) -> None:
        """Set the number of seconds after which a branch ends by itself."""
        if not 0 < seconds <= TIMEOUT_MOST_S:
            raise CallRefused(f"a timeout is above 0 and at most {TIMEOUT_MOST_S:.0f} seconds, not {seconds}")
        self._known(xid).timeout_s = seconds

    def timeout(self, xid: bytes) -> float:
        """Return after how many seconds a branch ends by itself."""
        return self._known(xid).timeout_s

    def expire(self, now: float) -> list[W]:
        """Doom the branches that have timed out; return their work, once, which the caller undoes."""
        over = [one for one in self._branches.values() if now - one.begun_at > one.timeout_s and not one.over]
        for branch in over:
            branch.over = True
            branch.doomed = branch.doomed or f"its {branch.timeout_s:g} seconds were over"
        return [branch.work for branch in over]

"""Who may call a connection, and which call is in progress.

The hard idea: a call notes itself here before it does anything and takes that back as the last thing, so a call that an
exception broke off between any two lines is known by it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from threading import get_ident
from types import CodeType
from typing import TYPE_CHECKING, Final

from tranlog.errors import SourceError

if TYPE_CHECKING:
    from tranlog.source.sqlite.cursor import SqliteCursor

_NO_THREAD: Final = 0
_LEFT_ALONE: Final = "Open one of its own there, with connect(path)"


@dataclass(eq=False, kw_only=True)
class ConnectionOwnerError(SourceError):
    """A connection was used where it was not opened: in another thread, or in a forked process."""

    path: str
    where: str

    def __str__(self) -> str:
        return f"this connection to {self.path} was opened in another {self.where}. {_LEFT_ALONE}"


@dataclass(eq=False, kw_only=True)
class CallBrokenOffError(SourceError):
    """The call before was broken off in its midst by an exception, and its transaction was rolled back."""

    path: str

    def __str__(self) -> str:
        return (
            f"an exception broke off the last call on the connection to {self.path}, in the midst of its work: the "
            "open transaction was rolled back. Begin it again"
        )


class Calls:
    """One connection's calls. Threads: any; only the owner passes `check_owner`."""

    __slots__ = ("current", "path", "thread")

    def __init__(self, path: str) -> None:
        self.path = path
        self.thread = get_ident()
        """The owner; none in a forked process."""
        self.current: SqliteCursor | None = None
        """The cursor whose call is in progress; that of one that was broken off stays here."""

    def disown(self) -> None:
        """Let nobody call any more: this is a forked process."""
        self.thread = _NO_THREAD

    @property
    def disowned(self) -> bool:
        """Whether the connection is another process's."""
        return self.thread == _NO_THREAD

    def check_owner(self) -> None:
        """Raise ConnectionOwnerError where the caller did not open the connection."""
        if get_ident() != self.thread:
            raise ConnectionOwnerError(path=self.path, where="process" if self.disowned else "thread")

    def is_broken_off(self, entries: tuple[CodeType, ...]) -> bool:
        """Whether the call in progress is over, and did not say so; else it goes on below the caller's caller.

        `entries` are the methods that begin one. SQL that runs in an SQL function calls inside a call.
        """
        cursor = self.current
        if cursor is None:
            return False
        frame = sys._getframe(2).f_back  # that one may be a new call on the same cursor
        while frame is not None and not (frame.f_code in entries and frame.f_locals["self"] is cursor):
            frame = frame.f_back
        return frame is None

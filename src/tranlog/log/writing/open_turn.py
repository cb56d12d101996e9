"""The open turn: a transaction of several fragments that is being appended, until its last one.

Owns who may append the next fragment, and what is known of those before it. The hard idea: its fragments stand at the
end of the log, so nobody else appends meanwhile, and giving it up is a cut at its start; unless it grew too large and
is spilled, for then nothing of it is in the log yet.

Source: docs/decisions/0012.
"""

from __future__ import annotations

import threading

from tranlog.log.writing.spilling import SpilledTransaction


class OpenTurn:
    """The turn of the thread that makes it. The log's lock guards it.

    It begins at offset `start` of the newest segment; `fragno` is the next fragment's number, `bytes` the size of the
    records so far, `added` the running hash that they make of 0. `spilled` is where its fragments went once it was too
    large, and `start` and `added` say nothing then.
    """

    __slots__ = ("_thread", "added", "bytes", "fragno", "owner", "spilled", "start")

    def __init__(self, start: int, spilled: SpilledTransaction | None = None) -> None:
        self.start = start
        self.spilled = spilled
        self.fragno = 0
        self.bytes = 0
        self.added = 0
        self.go_on()

    def go_on(self) -> None:
        """Have it be this thread's: one that is copied from another log is no thread's own."""
        self.owner = threading.get_ident()
        self._thread = threading.current_thread()

    def took(self, size: int, added: int) -> None:
        """Count a fragment that was appended; `added` is what all of them make of 0."""
        self.fragno += 1
        self.bytes += size
        self.added = added

    def dropped(self) -> bool:
        """Whether nobody is left to go on with it."""
        return not self._thread.is_alive()

"""Transient messages: those that are never written, and gone when the store is closed.

Owns the list of them, and how much memory they use. The hard idea: a queue is ordered by the places of records, and a
transient message has no record. So it is put between the record before it and the next one, after the transient
messages that are there already.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid, "Log Usage": what is not in the log has the id 0.
"""

from __future__ import annotations

from tranlog.errors import TransientRoomError
from tranlog.ids import Lsn
from tranlog.queues.rules.state import NO_LSN, Message, TransientPlace

WAITING_BYTES = 400
"""What a message takes beside its content, and is counted for."""


class TransientMessages:
    """The transient messages of one store, whose lock guards them. `used`: bytes of memory, at most `most`."""

    def __init__(self, path: str, most: int) -> None:
        self.messages: set[Message] = set()
        self.most = most
        self.used = 0
        self._path = path
        self._number = 0

    def begin(self, header_length: int, total_length: int, stored_at: int) -> Message:
        """Reserve memory for a message of so many bytes, whose content comes later. Raises TransientRoomError."""
        size = total_length + WAITING_BYTES
        if self.used + size > self.most:
            raise TransientRoomError(path=self._path, size=size, used=self.used, most=self.most)
        self.used += size
        message = Message(NO_LSN, NO_LSN, stored_at, header_length, total_length, total_length)
        self.messages.add(message)
        return message

    def place(self, queue_id: int, behind: Lsn, commit: Lsn | None, expires_at: int, priority: int) -> TransientPlace:
        """Return a place after everything below `behind`. `commit`: the Commit that shows it; None: it is shown now."""
        self._number += 1
        here, after = Lsn(behind - 1), NO_LSN if commit is None else commit
        return TransientPlace(queue_id, commit or here, here, expires_at, priority, number=self._number, after=after)

    def forget(self, message: Message) -> None:
        """Forget a message, and release its memory. Forgetting twice is harmless."""
        if message in self.messages:
            self.messages.discard(message)
            message.content = None
            self.used -= message.total_length + WAITING_BYTES

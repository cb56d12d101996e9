"""Publishing: content of any size becomes sections, and the last section decides.

Owns how content is cut and checked. The hard idea: content that does not fit one section is written to the log section
by section, and other records may stand between them. It has no effect until its last section is there, with the queues
that it is on.

Source: docs/format.md, "Groups, order, what a recovery believes".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from operator import index
from typing import Any

from tranlog.errors import UnknownQueueError
from tranlog.queues.core import StoreCore, names_of, sections_of
from tranlog.queues.rules.containers import Need
from tranlog.queues.rules.records import FIRST, POSITION_BYTES_MOST, WHOLE, ProducerStep
from tranlog.queues.rules.state import Message
from tranlog.queues.transaction import TransactionWork, WaitingPublish

_BYTES = (bytes, bytearray, memoryview)


class MessagePublishing:
    """Publishes to one store. Threads: any; the store's lock is taken here."""

    def __init__(self, core: StoreCore) -> None:
        self._core = core

    def publish(
        self,
        content: bytes | Iterable[bytes | memoryview],
        queues: Sequence[str],
        length: int | None,
        header: bytes,
        expires_at: int,
        priority: int,
        once: ProducerStep | None = None,
        *,
        wait: bool = True,
        transient: bool = False,
    ) -> Message | None:
        """Put a message on queues; see `MessageStore.publish`. None if it was published before, durably."""
        names = names_of(queues)
        if not names and once is None:
            raise ValueError("a message is published to at least one queue")
        _check_stamps(expires_at, priority)
        whole = content if type(content) is bytes and not header else None
        if isinstance(content, _BYTES):
            length = content.nbytes if isinstance(content, memoryview) else len(content)
            content = (content,)
        elif length is None:
            raise ValueError("content is bytes, or parts of it with their length")
        else:
            length = index(length)
        total, core, stamps = len(header) + length, self._core, (expires_at, priority)
        if total >= 1 << 63:
            raise ValueError(f"header and content have at most 2^63 - 1 bytes, not {total}")
        if total <= core.section_bytes or not names:
            raw = b""
            if names:
                raw = b"".join((header, *content)) if whole is None else whole
                if len(raw) != total:
                    _check_length(len(raw), total)
            with core.journal.lock, core.journal:
                stored, kept = self._ids(names, transient)
                if once is not None and core.has_seen(once):
                    message = None
                elif not kept:
                    message = self._put_small(len(header), raw, stored, *stamps, once, wait=wait)
                else:
                    with self._twin(len(header), total) as twin:
                        message = self._put_small(len(header), raw, stored, *stamps, once) or twin
                        core.show_transient(twin, raw, kept, *stamps)
                if not (wait and (stored or once)):
                    return message
                turn, target = core.journal.take_turn()
            core.journal.commits.wait(turn, target)
            return message
        with core.journal.lock:
            seen = once is not None and core.has_seen(once)
            stored, kept = self._ids(names, transient)
        message = None
        if not seen:
            with self._twin(len(header), total) if kept else nullcontext() as copy:
                message = self._large(
                    iter(content), names, header, total, *stamps, once=once, transient=transient, twin=copy
                )
        if wait and (stored or once):
            core.journal.commit()
        return message

    def publish_many(
        self,
        contents: Sequence[Any],  # bytes, a bytearray or a memoryview each
        queues: Sequence[str],
        header: bytes,
        expires_at: int,
        priority: int,
    ) -> list[Message]:
        """Put messages on queues; see `MessageStore.publish_many`."""
        core, names = self._core, names_of(queues)
        _check_stamps(expires_at, priority)
        raws = [header + one for one in contents] if len(names) == 1 else []  # bytes, whatever they were
        if len(names) == 1 and max(map(len, raws), default=0) <= core.section_bytes:
            with core.journal.lock, core.journal:
                stored, _ = self._ids(names, transient=False)
                if stored:
                    return core.publish_each(len(header), raws, stored[0], expires_at, priority)
        each = (self.publish(one, names, None, header, expires_at, priority, wait=False) for one in contents)
        return [one for one in each if one is not None]

    def _ids(self, queues: Iterable[str], transient: bool) -> tuple[list[int], list[int]]:
        """Return the ids of queues: those for which a message goes to the log, and those for which to memory alone."""
        self._core.journal.check_open()
        stored: list[int] = []
        kept: list[int] = []
        for name in queues:
            queue = self._core.catalogue.queue(name)
            (kept if transient or queue.transient else stored).append(queue.id)
        return stored, kept

    def _put_small(
        self,
        header_length: int,
        raw: bytes,
        queues: Sequence[int],
        expires_at: int,
        priority: int,
        once: ProducerStep | None,
        *,
        wait: bool = False,
    ) -> Message | None:
        """Put a message that fits one section into the log; for no queue, no more than where its producer stands."""
        core = self._core
        if queues:
            return core.publish_small(header_length, raw, queues, expires_at, priority, once, wait)
        if once is not None:
            core.journal.admit(POSITION_BYTES_MOST, Need.PUBLISH)
            core.stand(once, WHOLE)
        return None

    @contextmanager
    def _twin(self, header_length: int, total: int) -> Iterator[Message]:
        """Take memory for the transient message of a publish; it is given back where that is on no queue then."""
        core = self._core
        with core.journal.lock:
            twin = core.transient.begin(header_length, total, core.now_ms())
        try:
            yield twin
        finally:
            if not twin.places:
                with core.journal.lock:
                    core.forget(twin)

    def collect(
        self,
        work: TransactionWork,
        content: bytes,
        queues: Sequence[str],
        header: bytes,
        expires_at: int,
        priority: int,
        *,
        transient: bool = False,
    ) -> None:
        """Add a publish to a transaction; content too large for one section is written to the log before the commit."""
        core, journal = self._core, self._core.journal
        names = names_of(queues)
        if not names:
            raise ValueError("a message is published to at least one queue")
        _check_stamps(expires_at, priority)
        total, written = memoryview(header).nbytes + memoryview(content).nbytes, None
        with journal.lock:
            ids = stored, kept = self._ids(names, transient)
        try:
            if stored and total > core.section_bytes:
                written = self._large(iter((content,)), names, header, total, 0, 0, decide=False)
            with journal.lock, journal:
                if self._ids(names, transient) != ids:
                    raise UnknownQueueError(what="queue for this message any more")
                twin = core.transient.begin(len(header), total, core.now_ms()) if kept else None
                raw = b"".join((header, content)) if twin is not None or written is None else b""
                publish = WaitingPublish(len(header), raw, written, stored, expires_at, priority, kept, twin)
                work.publishes.append(publish)
        except BaseException:
            if written is not None:
                self._delete(written)
            raise

    def _large(
        self,
        parts: Iterator[bytes | memoryview],
        names: Sequence[str],
        header: bytes,
        total: int,
        expires_at: int,
        priority: int,
        *,
        decide: bool = True,
        once: ProducerStep | None = None,
        transient: bool = False,
        twin: Message | None = None,
    ) -> Message | None:
        """Put a message section by section; others go on in between. The last one decides, if this is to decide.

        `twin`: the transient message for the queues for which it is in memory alone. None where another thread has
        published it meanwhile.
        """
        core, journal = self._core, self._core.journal
        sections = sections_of(_joined(header, parts), core.section_bytes)
        message: Message | None = None
        gathered: list[bytes] = []
        got = 0
        try:
            with journal.lock, journal:
                ids = stored, kept = self._ids(names, transient)
            section = next(sections, b"")
            for following in sections:
                _check_length(got + len(section) + 1, total, least=0)
                got += len(section)
                if twin is not None:
                    gathered.append(section)
                if stored:
                    with journal.lock, journal:
                        if message is None:
                            message = core.begin_large(len(header), total, section)
                        else:
                            core.add_section(message, section)
                section = following
            _check_length(got + len(section), total)
            with journal.lock, journal:
                if once is not None and core.has_seen(once):
                    if message is not None:
                        core.delete(message)
                    return None
                if self._ids(names, transient) != ids:
                    raise UnknownQueueError(what="queue for this message any more")
                if message is None:
                    self._put_small(len(header), b"", (), expires_at, priority, once)
                else:
                    behind = len(stored) + 7 * (once is not None)
                    core.add_section(message, section, FIRST if decide else WHOLE, behind=behind if decide else 0)
                    if decide:
                        core.enqueue(message, stored, expires_at, priority, once)
                if twin is not None:
                    core.show_transient(twin, b"".join((*gathered, section)), kept, expires_at, priority)
        except BaseException:
            if message is not None:
                self._delete(message)
            raise
        return message or twin

    def _delete(self, message: Message) -> None:
        """Delete a message whose publish failed, unless it was over by then."""
        journal = self._core.journal
        with journal.lock, journal:
            if journal.is_open and not message.places:
                self._core.delete(message)


def _joined(header: bytes, parts: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    yield header
    yield from parts


def _check_stamps(expires_at: int, priority: int) -> None:
    """Raise ValueError for what no record can say, TypeError for what is no whole number."""
    if not 0 <= index(expires_at) < 1 << 63:
        raise ValueError(f"expires_at is in ms since 1970, or 0 for never, not {expires_at}")
    if not 0 <= index(priority) <= 255:
        raise ValueError(f"a priority is 0 to 255, not {priority}")


def _check_length(found: int, total: int, *, least: int | None = None) -> None:
    """Raise ValueError where content is not as long as was said."""
    if not (total if least is None else least) <= found <= total:
        raise ValueError(f"header and content have {found} bytes so far, and {total} were announced")

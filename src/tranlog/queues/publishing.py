"""Publishing: content of any size becomes sections, and the last one of them decides.

Owns how content is cut and checked. The hard idea: what does not fit one section goes to the log ahead, section by
section, with others in between; until its last section is there, with the queues that it is on, it counts for nothing.

Source: docs/format.md, "Groups, order, what a recovery believes".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tranlog.queues.core import StoreCore, sections_of
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
    ) -> Message | None:
        """Put a message on queues; see `MessageStore.publish`. None where it was there before."""
        names = list(dict.fromkeys(queues))
        if not names and once is None:
            raise ValueError("a message is published to at least one queue")
        if expires_at or priority:
            _check_stamps(expires_at, priority)
        if isinstance(content, _BYTES):
            length, content = len(content), (content,)
        elif length is None:
            raise ValueError("content in parts needs its length")
        total, core = len(header) + length, self._core
        if total <= core.section_bytes or not names:
            raw = b"".join((header, *content)) if names else b""
            if names and len(raw) != total:
                _check_length(len(raw), total)
            with core.journal.lock, core.journal:
                ids = self._ids(names)
                if once is not None:
                    if core.has_seen(once):
                        return None
                    if not ids:
                        core.journal.admit(POSITION_BYTES_MOST, Need.DRAIN)
                        core.stand(once, WHOLE)
                        return None
                return core.publish_small(len(header), raw, ids, expires_at, priority, once)
        if once is not None:
            with core.journal.lock:
                if core.has_seen(once):
                    return None
        return self._large(iter(content), names, header, total, expires_at, priority, once=once)

    def _ids(self, queues: Iterable[str]) -> list[int]:
        self._core.journal.check_open()
        return [self._core.catalogue.queue(name).id for name in queues]

    def collect(
        self,
        work: TransactionWork,
        content: bytes,
        queues: Sequence[str],
        header: bytes,
        expires_at: int,
        priority: int,
    ) -> None:
        """Add a publish to a transaction; content too large for one section goes to the log ahead."""
        core, journal = self._core, self._core.journal
        names = list(dict.fromkeys(queues))
        if not names:
            raise ValueError("a message is published to at least one queue")
        _check_stamps(expires_at, priority)
        total, written = len(header) + len(content), None
        if total > core.section_bytes:
            written = self._large(iter((content,)), names, header, total, 0, 0, decide=False)
        with journal.lock, journal:
            raw = header + content if written is None else b""
            work.publishes.append(WaitingPublish(len(header), raw, written, self._ids(names), expires_at, priority))

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
    ) -> Message | None:
        """Put a message section by section; others go on in between. The last one decides, if this is to decide.

        None where another thread has published it meanwhile.
        """
        core, journal = self._core, self._core.journal
        sections = sections_of(_joined(header, parts), core.section_bytes)
        message: Message | None = None
        try:
            with journal.lock, journal:
                self._ids(names)
            section = next(sections)
            for following in sections:
                _check_length((message.got if message else 0) + len(section) + 1, total, least=0)
                with journal.lock, journal:
                    if message is None:
                        message = core.begin_large(len(header), total, section)
                    else:
                        core.add_section(message, section)
                section = following
            _check_length((message.got if message else 0) + len(section), total)
            assert message is not None, "it is larger than one section"
            with journal.lock, journal:
                if once is not None and core.has_seen(once):
                    core.delete(message)
                    return None
                ids = self._ids(names) if decide else []
                core.add_section(message, section, FIRST if ids else WHOLE, behind=len(ids) + 7 * (once is not None))
                if ids:
                    core.enqueue(message, ids, expires_at, priority, once)
        except BaseException:
            if message is not None:
                with journal.lock, journal:
                    if journal.is_open and not message.places:
                        core.delete(message)
            raise
        return message


def _joined(header: bytes, parts: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    yield header
    yield from parts


def _check_stamps(expires_at: int, priority: int) -> None:
    """Raise ValueError for what no record can say."""
    if not 0 <= expires_at < 1 << 63:
        raise ValueError(f"expires_at is in ms since 1970, or 0 for never, not {expires_at}")
    if not 0 <= priority <= 255:
        raise ValueError(f"a priority is 0 to 255, not {priority}")


def _check_length(found: int, total: int, *, least: int | None = None) -> None:
    """Raise ValueError where content is not as long as was said."""
    if not (total if least is None else least) <= found <= total:
        raise ValueError(f"header and content have {found} bytes so far, and {total} were announced")

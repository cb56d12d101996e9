"""A directory that a Java replicator writes, as a source: followed from the end of our log on.

Owns the position in such a directory and what a change of it under us means. Reading it is `tungsten.stream`'s. It
stands in this layer because a source knows nothing of logs, and this one is a log. The hard idea: the replicator
knows nothing of us. It purges what it likes, and after a reset or a restore it assigns seqnos again, so a position
names what was read by seqno, epoch and event id, and a directory that has something else there is refused.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NoReturn

import msgspec

from tranlog.change import NOOP, Fragment
from tranlog.errors import (
    ConfigError,
    LogMissingError,
    LogUnreadableError,
    NativeLogError,
    PositionLostError,
    PurgedError,
    SegmentGoneError,
    SourceSetupError,
    SourceUnavailableError,
    UnsupportedEventError,
)
from tranlog.option_kinds import check_kinds
from tranlog.payload import Payload
from tranlog.payload import encode as encode_payload
from tranlog.shard import ShardRuleKind
from tranlog.source.kinds import SourceKind
from tranlog.tungsten.reading.reader import TungstenReader
from tranlog.tungsten.reading.stream import WholeReader, stand_before, with_tables
from tranlog.tungsten.rules.arrange import Whole
from tranlog.tungsten.rules.translate import MEANINGS, MISSING, NO_CHANGES, NativeFragment, outer_of

logger = logging.getLogger(__name__)

SOURCE_ID: Final = "thl_source_id"
EVENT_ID: Final = "thl_event_id"
"""Metadata of what was captured: the ids that the replicator's log has."""
_POLL_S: Final = 0.05
"""How often a directory is looked at while nothing comes: as often as the replicator's own readers look."""
_POSITION: Final = re.compile(r"([0-9]{1,19}):([0-9]{1,19}):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThlSourceOptions:
    """Which directory is followed, and under which name its transactions stand in our log."""

    kind: ClassVar[str] = "thl"
    path: str = field(metadata={"path": True, "example": "thl"})
    """The replicator's log directory."""
    source_id: str = field(metadata={"default": "the service's name"})
    """Names this source in every record; keep it."""

    @property
    def where(self) -> str:
        """The directory."""
        return self.path

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        check_kinds(self)
        if not self.path:
            raise ConfigError(option="path", value=self.path, why="the replicator's log directory is needed")


class ThlPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Up to where a directory was read: the last seqno covered, and the event's own epoch and event id."""

    seqno: int
    epoch: int
    event_id: str

    def __str__(self) -> str:
        return f"{self.seqno}:{self.epoch}:{self.event_id}"

    @classmethod
    def parse(cls, text: str) -> ThlPosition:
        """Read the text form. Raises PositionLostError for what is none."""
        match = _POSITION.fullmatch(text)
        if match is None:
            raise PositionLostError(event_id=text, why="it is no position of a replicator's log (seqno:epoch:event id)")
        return cls(seqno=int(match[1]), epoch=int(match[2]), event_id=match[3])


class ThlSource:
    """Follows a Tungsten directory. Threads: as `Source`."""

    def __init__(self, options: ThlSourceOptions) -> None:
        options.check()
        self.source_id = options.source_id
        self._path = options.path
        self._stopped = threading.Event()
        self._reading: WholeReader | None = None
        self._last: ThlPosition | None = None

    def check(self) -> None:
        """Look whether the directory is there. Raises SourceSetupError, SourceUnavailableError, CorruptRecordError."""
        self._open()

    def _open(self) -> TungstenReader:
        try:
            return TungstenReader.open(self._path)
        except NativeLogError as exc:
            raise SourceSetupError(
                why=f"{exc.segment} of {self._path} is in tranlog's own format",
                remedy="Name a directory of a Java replicator, and of nothing else",
            ) from exc
        except (LogMissingError, LogUnreadableError, SegmentGoneError) as exc:
            where = os.path.abspath(self._path)
            raise SourceUnavailableError(where=where, why=exc.why if hasattr(exc, "why") else str(exc)) from exc

    def start(self, event_id: str | None) -> None:
        """Stand after `event_id`; see `Source.start`."""
        self.close()
        wanted = None if event_id is None else ThlPosition.parse(event_id)
        reader = self._open()
        if wanted is None:
            self._reading = stand_before(reader, None, strict=True)
            self._last = None
            return
        self._check_reach(reader, wanted)
        reading = stand_before(reader, wanted.seqno, strict=True)
        try:
            self._check_there(reader, reading, wanted)
        except BaseException:
            reading.close()
            raise
        self._last = wanted
        if reader.first_seqno > wanted.seqno:  # purged after the position, and what comes next is there
            reading.close()
            reading = stand_before(reader, wanted.seqno + 1, strict=True)
        self._reading = reading

    def _check_reach(self, reader: TungstenReader, wanted: ThlPosition) -> None:
        held = f"{self._path} holds seqno {reader.first_seqno} to {reader.next_seqno - 1}"
        if reader.last_seqno < 0 or reader.next_seqno <= wanted.seqno:
            held = held if reader.last_seqno >= 0 else f"{self._path} holds no transaction"
            why = f"{held}: it was reset, restored from an older copy, or is another log"
            raise PositionLostError(event_id=str(wanted), why=why)
        if reader.first_seqno > wanted.seqno + 1:
            raise PositionLostError(event_id=str(wanted), why=f"{held}: what comes next was purged")

    def _check_there(self, reader: TungstenReader, reading: WholeReader, wanted: ThlPosition) -> None:
        """Hold what the directory has at the position against it; what is read here was captured before."""
        if reader.first_seqno > wanted.seqno:
            return
        whole = self._next(reading, wanted)
        found = None if whole is None else _position_of(whole)
        if found is None or whole is None or whole.seqno > wanted.seqno:
            there = "no event of that seqno"
        elif (found.epoch, found.event_id) != (wanted.epoch, wanted.event_id):
            there = f"event {found.event_id!r} of epoch {found.epoch} there"
        else:
            return
        why = f"{self._path} has {there}: it was reset or restored, or is another log"
        raise PositionLostError(event_id=str(wanted), why=why)

    def _next(self, reading: WholeReader, last: ThlPosition | None) -> Whole | None:
        event_id = "" if last is None else str(last)
        try:
            whole = reading.next()
            if whole is None and (why := reading.lost()) is not None:
                raise PositionLostError(event_id=event_id, why=f"{self._path} was reset or restored: {why}")
        except PurgedError as exc:
            why = f"{self._path} begins at seqno {exc.first} now: what comes next was purged"
            raise PositionLostError(event_id=event_id, why=why) from exc
        except SegmentGoneError as exc:
            raise PositionLostError(event_id=event_id, why=f"{exc.path} is gone before it was read") from exc
        if whole is not None and last is not None and whole.pieces[-1].record.epoch < last.epoch:
            why = f"seqno {whole.seqno} has the earlier epoch {whole.pieces[-1].record.epoch}: it was reset or restored"
            raise PositionLostError(event_id=event_id, why=why)
        return whole

    def read(self, timeout_s: float) -> Iterator[Fragment]:
        """Yield what is there, waiting for the first; see `Source.read`."""
        assert self._reading is not None, "start() comes first"
        left = timeout_s
        waited = False
        while not self._stopped.is_set():
            whole = self._next(self._reading, self._last)
            if whole is not None:
                yield from self._fragments(self._reading, whole)
                self._last = _position_of(whole)
                waited = True
            elif waited or left <= 0:
                return
            else:
                pause = min(_POLL_S, left)
                self._stopped.wait(pause)
                left -= pause

    def _fragments(self, reading: WholeReader, whole: Whole) -> Iterator[Fragment]:
        position = str(_position_of(whole))
        for native, tables in with_tables(reading.fragments(whole, keep=False)):
            last = native.outer.last_frag
            if not last and native.content.metadata == ((NOOP, MISSING),):
                continue  # our log numbers the fragments itself
            self._refuse(native, position)
            outer, content = native.outer, native.content
            ids = ((SOURCE_ID, outer.source_id), (EVENT_ID, outer.event_id))
            yield Fragment(
                source_id=self.source_id,
                event_id=position,
                shard_id=outer.shard_id,
                tstamp=outer.tstamp,
                tables=tables,
                payload=encode_payload(
                    Payload(metadata=content.metadata + ids, options=content.options, changes=content.changes)
                ),
                last=last,
            )

    def _refuse(self, native: NativeFragment, position: str) -> None:
        """Raise UnsupportedEventError where changes would be missing at a target."""
        for loss in native.losses & NO_CHANGES:
            raise UnsupportedEventError(
                what=f"seqno {native.outer.seqno} of {self._path} holds {MEANINGS[loss]}",
                event_id=position,
                remedy="Apply that transaction at the target by hand, and begin a new log after it (`tranlog reset`)",
            )

    def release(self, event_id: str) -> None:
        """Forget nothing: the directory is the replicator's."""

    def stop(self) -> None:
        """Make a waiting `read` end soon."""
        self._stopped.set()

    def close(self) -> None:
        """Let go of the files; closing twice is harmless."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None


def _position_of(whole: Whole) -> ThlPosition:
    outer, _ = outer_of(whole.pieces[-1].record)
    return ThlPosition(seqno=whole.end_seqno, epoch=outer.epoch, event_id=outer.event_id)


class ThlKind(SourceKind[ThlSourceOptions]):
    """The log directory of a Java replicator, no database; see SourceKind for what its methods do."""

    options = ThlSourceOptions

    def shard_fields(self, rule: ShardRuleKind | None, mapping: Mapping[str, str]) -> dict[str, Any]:
        if mapping:
            why = "the transactions of a replicator's log keep the shards that they have there"
            raise ConfigError(option="shards.map", value=dict(mapping), why=why)
        return {}

    def open(self, options: ThlSourceOptions) -> ThlSource:
        source = ThlSource(options)
        source.check()
        return source

    def tables(self, options: ThlSourceOptions) -> NoReturn:
        why = "a replicator's log has no tables to read; name the database (`tables create` also takes --from log)"
        raise ConfigError(option="source.kind", value=options.kind, why=why)

    def event_id(self, options: ThlSourceOptions) -> str:
        reader = TungstenReader.open(options.path)
        return f"seqno {reader.next_seqno - 1}" if reader.last_seqno >= 0 else "no transaction"


KIND: Final = ThlKind()

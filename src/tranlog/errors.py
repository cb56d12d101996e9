"""The tree of our exceptions: what the world did, never what is ordinary and never our own bugs.

Owns every exception that a caller of tranlog may catch. Fields are typed and set by keyword; the message is
built from them and ends with what to do next; nobody parses a message. All of them survive pickling, since
Spark carries them from a task to the driver. Which exit code an error gets is decided in `service.frame.exits`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tranlog.ids import Gtid


def _utc_text(ms: int) -> str:
    """Return ms since 1970 as `2011-07-01 15:15:17`; as the number where the calendar ends."""
    try:
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{ms} ms since 1970,"


def _rebuild(kind: type[TranlogError], args: tuple[Any, ...], fields: dict[str, Any]) -> TranlogError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class TranlogError(Exception):
    """Whatever tranlog raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


# --- the log ---------------------------------------------------------------------------------------------


class LogError(TranlogError):
    """The log, its files or its disk."""


@dataclass(eq=False, kw_only=True)
class CorruptRecordError(LogError):
    """Bytes that are proven to have been durable are not what was written.

    `segment` is the file's name, `offset` the first byte of the bad record in it; `seqno` the seqno of the
    record or, where it cannot be read, of the last good one before it (None: none before it).
    """

    segment: str
    offset: int
    seqno: int | None
    why: str

    def __str__(self) -> str:
        near = "at the start of the log" if self.seqno is None else f"at or after seqno {self.seqno}"
        return (
            f"damaged log: {self.segment}, offset {self.offset}, {near}: {self.why}; nothing was changed. "
            "Run `thl verify` for the extent; restore the file from a copy, or repair explicitly"
        )


@dataclass(eq=False, kw_only=True)
class LogMissingError(LogError):
    """There is no log where one was named."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"no log at {self.path}: {self.why}. Check the directory, or start `tranlog capture` to create it"


@dataclass(eq=False, kw_only=True)
class LogUnreadableError(LogError):
    """The operating system refused to read or list the log's files."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"cannot read the log at {self.path}: {self.why}. Check owner and permissions"


@dataclass(eq=False, kw_only=True)
class LogCodecError(LogError):
    """A segment is in the Tungsten replicator's own codec: the whole log, or, mixed in, a part of it."""

    path: str
    segment: str

    def __str__(self) -> str:
        return (
            f"{self.segment} of the log at {self.path} was written by the Tungsten replicator, in its own format; here "
            "a native log is needed, and no log is both. Nothing was changed. Use `thl convert` to make one of it, or "
            "`tranlog capture --source thl:DIR`; or name another directory"
        )


@dataclass(eq=False, kw_only=True)
class LogVersionError(LogError):
    """A segment was written by a release whose format this one does not know."""

    path: str
    segment: str
    version: str

    def __str__(self) -> str:
        return (
            f"{self.segment} of the log at {self.path} has format version {self.version}, which is newer than 1.1, the "
            "one that this release knows. Nothing was changed. Use the release that wrote it"
        )


@dataclass(eq=False, kw_only=True)
class ForeignHistoryError(LogError):
    """A file in a log's directory belongs to another log: it bears the identity of another history, or none.

    `found` and `history`, which is the log's, are in hex; `found` is empty where there is none.
    """

    path: str
    file: str
    found: str
    history: str

    def __str__(self) -> str:
        if not self.found:
            return (
                f"{self.file} of the log at {self.path} bears no identity of a history: an earlier release wrote it, "
                "and this one does not read such logs. Nothing was changed. Begin a new log in an empty directory"
            )
        return (
            f"{self.file} belongs to another log than the rest of {self.path}: it bears the history "
            f"{self.found}, the log {self.history}. Nothing was changed. Restore this log's own {self.file}, "
            "or move that one out of the directory: `thl verify` then says what is missing"
        )


@dataclass(eq=False, kw_only=True)
class NativeLogError(LogError):
    """The directory holds a log in our own codec, not the Tungsten replicator's."""

    path: str
    segment: str

    def __str__(self) -> str:
        return (
            f"{self.segment} of the log at {self.path} is in tranlog's own format, not in the Tungsten replicator's; "
            "nothing was changed. Name another directory, or read this one as a native log"
        )


@dataclass(eq=False, kw_only=True)
class MixedCodecsError(LogError):
    """A directory holds segments of both codecs."""

    path: str
    native: str
    tungsten: str

    def __str__(self) -> str:
        return (
            f"the directory {self.path} holds two logs: {self.native} is in tranlog's own format, {self.tungsten} in "
            "the Tungsten replicator's; nothing was changed. Move the segments of one of them to another directory"
        )


@dataclass(eq=False, kw_only=True)
class AppendOrderError(LogError):
    """A transaction that does not follow what the log holds; it was not stored."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"the log at {self.path} refuses {self.why}; nothing was stored. Append what is to come, in order"


@dataclass(eq=False, kw_only=True)
class PurgeRangeError(LogError):
    """A range that cannot be purged; nothing was removed."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"nothing was purged from the log at {self.path}: {self.why}. Name another range; `thl index` shows them"


@dataclass(eq=False, kw_only=True)
class ConversionRefusedError(LogError):
    """A log holds what the other codec cannot say; nothing was written."""

    path: str
    why: str

    def __str__(self) -> str:
        return (
            f"the log at {self.path} is not converted: {self.why}. Nothing was written. See what each means by "
            "`thl convert --help`; with --lossy what can be left out is left out"
        )


@dataclass(eq=False, kw_only=True)
class ConversionTargetError(LogError):
    """What is in the destination of a conversion is not the beginning of this one; nothing was changed."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"nothing is converted into {self.path}: {self.why}. Nothing was changed; name another directory"


@dataclass(eq=False, kw_only=True)
class HoldError(LogError):
    """A hold, which keeps retention from purging what somebody still needs, cannot be written or read."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"the hold at {self.path} failed: {self.why}. Retention does not wait for what it stands for; check it"


@dataclass(eq=False, kw_only=True)
class SegmentGoneError(LogError):
    """A segment was deleted under an open log."""

    path: str

    def __str__(self) -> str:
        return f"segment {self.path} was removed while the log was open; close the log, restore the file, open again"


@dataclass(eq=False, kw_only=True)
class LogReplacedError(LogError):
    """A directory was reset or restored while it was read: what was read is no longer in it."""

    path: str
    why: str

    def __str__(self) -> str:
        return (
            f"the log at {self.path} was reset or restored while it was read: {self.why}. Start again: the position is "
            "then held against what is there now"
        )


@dataclass(eq=False, kw_only=True)
class PurgedError(LogError):
    """The wanted seqno lies before the first one that the log still holds.

    As far as the log has kept it: `limit` is the rule or the command that gave it up, with everything up to `up_to`,
    at `at_ms` (ms since 1970); `passed` are the holds that it did not wait for. None and empty: nothing is known.
    """

    seqno: int
    first: int
    limit: str | None = None
    up_to: int | None = None
    at_ms: int | None = None
    passed: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"seqno {self.seqno} is purged: the log starts at {self.first}"
        if self.limit is not None:
            when = "" if self.at_ms is None else f" at {_utc_text(self.at_ms)} UTC"
            text += f". {self.limit} gave up everything to seqno {self.up_to}{when}"
            if self.passed:
                text += f", although {', '.join(self.passed)} still needed it"
        return f"{text}. Start from there, or from a new snapshot"


@dataclass(eq=False, kw_only=True)
class SegmentEmptyError(LogError):
    """No segment can be started behind one that holds no transaction."""

    path: str

    def __str__(self) -> str:
        return (
            f"no segment was added: {self.path} is the newest one and holds no transaction yet. Nothing was changed; "
            "start one after the next transaction"
        )


@dataclass(eq=False, kw_only=True)
class RollbackError(LogError):
    """A log cannot be rolled back to a matchpoint; nothing was changed."""

    matchpoint: Gtid
    why: str

    def __str__(self) -> str:
        return (
            f"the log cannot be rolled back to {self.matchpoint}: {self.why}. Nothing was changed; name another "
            "matchpoint, or mend what stands in the way"
        )


@dataclass(eq=False, kw_only=True)
class AbandonedError(LogError):
    """What a cursor returned last was abandoned since: a rollback went back to before it.

    `seqno` is the transaction returned last, `mark` where the rollback mark stands, `epoch` the one that begins there.
    """

    seqno: int
    matchpoint: Gtid
    mark: str
    epoch: int

    def __str__(self) -> str:
        return (
            f"seqno {self.seqno} was read and is no longer true: the rollback mark at {self.mark} (epoch {self.epoch}) "
            f"abandoned everything after {self.matchpoint}. Take back what came after it, and seek to "
            f"{self.matchpoint.seqno + 1}"
        )


@dataclass(eq=False, kw_only=True)
class IndexCutError(LogError):
    """The index was asked to forget what it must keep: a bound that is outside the range, or not proven durable."""

    seqno: int
    first: int
    last: int
    last_txn_end: int

    def __str__(self) -> str:
        return (
            f"the index cannot be cut at seqno {self.seqno}: it covers {self.first} to {self.last}, and the last "
            f"transaction ends at {self.last_txn_end}. Nothing was changed; name a seqno that it can end at"
        )


@dataclass(eq=False, kw_only=True)
class IndexDamagedError(LogError):
    """A stored index contradicts itself or the log; it is only ever rebuilt, never believed."""

    why: str

    def __str__(self) -> str:
        return f"the stored index is not right: {self.why}. Open the log for writing: it is rebuilt from the segments"


@dataclass(eq=False, kw_only=True)
class RepairRefusedError(LogError):
    """A repair that was asked for cannot be done, or must not be."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"the log at {self.path} was not repaired: {self.why}. Nothing was changed. See `thl repair --help`"


@dataclass(eq=False, kw_only=True)
class LogLockedError(LogError):
    """Another writer holds the log, or took it over."""

    path: str
    holder: str

    def __str__(self) -> str:
        return f"the log at {self.path} is held by another writer ({self.holder}). Stop it first; readers need no lock"


@dataclass(eq=False)
class LogClosedError(LogError):
    """The log was closed, or closed itself after a failed sync: nothing after the last sync is assumed durable."""

    why: str = "it was closed"

    def __str__(self) -> str:
        return f"the log is closed: {self.why}. Open it again: what was durable is there"


@dataclass(eq=False, kw_only=True)
class DiskFullError(LogError):
    """The disk has no room. The transaction is refused whole; the log stays readable and, given room, writable."""

    path: str

    def __str__(self) -> str:
        return f"disk full at {self.path}: the transaction was refused, nothing of it is kept. Make room and try again"


@dataclass(eq=False, kw_only=True)
class DiskFailedError(LogError):
    """A write or a sync failed: nothing since the last good sync is assumed durable, and writing ends."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"writing {self.path} failed: {self.why}. The log is closed for writing; check the disk, open it again"


@dataclass(eq=False, kw_only=True)
class SpillFailedError(DiskFailedError):
    """A write or a sync of a spill segment failed: what had spilled there is refused, and the log stays open."""

    def __str__(self) -> str:
        return (
            f"writing {self.path} failed: {self.why}. The transaction was refused, nothing of it is kept, and the log "
            "goes on; check the disk, hand it over again"
        )


@dataclass(eq=False, kw_only=True)
class PurgeFailedError(LogError):
    """A segment that nobody needs any more cannot be removed. The log stays open; the next purge tries again."""

    path: str
    why: str

    def __str__(self) -> str:
        return (
            f"removing {self.path} failed: {self.why}. The log goes on, and the next purge tries again; check the disk "
            "and the permissions of its directory"
        )


@dataclass(eq=False, kw_only=True)
class RecordLimitError(LogError):
    """A record that the format cannot hold: refused at append, nothing written."""

    event_id: str
    why: str

    def __str__(self) -> str:
        named = self.event_id if len(self.event_id) <= 80 else self.event_id[:80] + "…"
        return (
            f"the transaction with event id {named!r} was refused: {self.why}. Nothing of it was written; "
            "change it at the source, or start a new log behind it (`tranlog reset`)"
        )


@dataclass(eq=False, kw_only=True)
class PayloadError(LogError):
    """A record's payload cannot be decoded, although its checksum held or was off."""

    why: str
    seqno: int | None = None

    def __str__(self) -> str:
        where = "" if self.seqno is None else f" of seqno {self.seqno}"
        return f"the payload{where} cannot be decoded: {self.why}. See its header by `thl list -headers`"


@dataclass(eq=False, kw_only=True)
class LibraryMissingError(LogError):
    """A library that tranlog can do without, until now, is not installed."""

    library: str
    what: str

    def __str__(self) -> str:
        return f"{self.what} need {self.library}, which is not installed. Install it: `pip install {self.library}`"


@dataclass(eq=False, kw_only=True)
class NotInLogError(LogError):
    """A position that was stored elsewhere names a transaction which this log does not hold."""

    what: str
    gtid: Gtid
    found: str

    def __str__(self) -> str:
        return (
            f"{self.what} stands at {self.gtid}, but this log {self.found}: it was cleared, re-created or belongs to "
            "something else. Use the right log, or set the position by `tranlog position set`"
        )


# --- sources ---------------------------------------------------------------------------------------------


class SourceError(TranlogError):
    """The source database, or how it is set up."""


@dataclass(eq=False, kw_only=True)
class SourceSetupError(SourceError):
    """The source cannot be captured as it is set up. `remedy` holds the statements or steps that change it."""

    why: str
    remedy: str

    def __str__(self) -> str:
        return f"this source cannot be captured: {self.why}. {self.remedy}"


@dataclass(eq=False, kw_only=True)
class SourceUnavailableError(SourceError):
    """The source does not answer."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"the source at {self.where} does not answer: {self.why}. Start it, then start capture again"


@dataclass(eq=False, kw_only=True)
class PositionLostError(SourceError):
    """The source no longer has, or never had, the position at which the log ends. `way_on`: a sentence."""

    event_id: str
    why: str
    way_on: str = ""

    def __str__(self) -> str:
        return (
            f"the source cannot go on after event id {self.event_id!r}: {self.why}. {self.way_on}Nothing was captured; "
            "take a new copy of the target and start a new log after it (`tranlog reset --forget-position`)"
        )


@dataclass(eq=False, kw_only=True)
class SourceClaimedError(SourceError):
    """The source is another log's: one log at a time follows it. `claim` and `ours` name the two."""

    where: str
    claim: str
    ours: str

    def __str__(self) -> str:
        return (
            f"the source at {self.where} is claimed by another log ({self.claim}), and this one is {self.ours}: a copy "
            "of that log, or a new one. Use that log, or run `tranlog capture --take-source` to give the source to "
            "this one"
        )


@dataclass(eq=False, kw_only=True)
class UnsupportedEventError(SourceError):
    """The source sent something that must not be skipped and cannot be carried."""

    what: str
    event_id: str
    remedy: str

    def __str__(self) -> str:
        return f"capture stopped at event id {self.event_id!r}: {self.what}. {self.remedy}"


@dataclass(eq=False, kw_only=True)
class UnsupportedTypeError(SourceError):
    """A column's type cannot be carried."""

    table: str
    column: str
    type_name: str

    def __str__(self) -> str:
        return (
            f"column {self.column} of table {self.table} has type {self.type_name}, which is not supported. "
            "Change the column's type, or leave the table out of capture"
        )


@dataclass(eq=False, kw_only=True)
class ForeignWriterError(SourceError):
    """Something other than our connection wrote to a captured SQLite database."""

    table: str
    why: str

    def __str__(self) -> str:
        return f"a write to {self.table} bypassed capture: {self.why}. Write through tranlog.source.sqlite.connect"


# --- targets ---------------------------------------------------------------------------------------------


class TargetError(TranlogError):
    """The target database, or what it holds."""


@dataclass(eq=False, kw_only=True)
class ConflictError(TargetError):
    """A change does not fit what the target holds. The transaction that it belongs to was rolled back whole."""

    seqno: int
    table: str
    key: str
    why: str

    def __str__(self) -> str:
        return (
            f"conflict at seqno {self.seqno}, table {self.table}, key {self.key}: {self.why}. Nothing of this "
            "transaction was applied. Mend the row at the target, then start `tranlog apply` again"
        )


@dataclass(eq=False, kw_only=True)
class TargetTableError(TargetError):
    """A table, or a column of it, is missing at the target."""

    table: str
    why: str
    seqno: int | None = None
    remedy: str = "Create it, or run `tranlog tables create`"

    def __str__(self) -> str:
        where = "" if self.seqno is None else f" (seqno {self.seqno})"
        return f"target table {self.table}{where}: {self.why}. {self.remedy}"


@dataclass(eq=False, kw_only=True)
class TargetUnavailableError(TargetError):
    """The target does not answer, or refuses to work: away, disk full, not permitted."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"the target at {self.where} cannot be used: {self.why}. Mend that, then start again"


@dataclass(eq=False, kw_only=True)
class TransientTargetError(TargetError):
    """A deadlock, a serialization failure or a lost connection: roll back, read the position, go on."""

    why: str

    def __str__(self) -> str:
        return f"the target asked to try again: {self.why}. Start apply again if it does not go on by itself"


@dataclass(eq=False, kw_only=True)
class DdlStopError(TargetError):
    """A statement that the target must not run by itself."""

    seqno: int
    text: str
    why: str
    remedy: str = 'Apply it at the target by hand and move on by `tranlog position set`, or set ddl = "ignore"'

    def __str__(self) -> str:
        return f"stopped at seqno {self.seqno}, statement {self.text!r}: {self.why}. {self.remedy}"


@dataclass(eq=False, kw_only=True)
class TargetPositionError(TargetError):
    """The target's own record of where a pipeline stands is gone, not whole, or not as tranlog made it.

    `upto`: what the log knows the pipeline to have applied there at least; None: nothing is known.
    """

    where: str
    pipeline: str
    why: str
    upto: int | None = None
    remedy: str = (
        "Undo what was done to tranlog's own tables, by hand or from a backup of the target, then start again: it goes "
        "on from the positions there. Where they are lost, find out up to where the target's rows are, and run "
        "`tranlog position set SEQNO`"
    )

    def __str__(self) -> str:
        upto = "" if self.upto is None else f"; by the log's hold it had applied everything up to seqno {self.upto}"
        return (
            f"where pipeline {self.pipeline!r} stands is not known at the target at {self.where}: {self.why}{upto}. "
            f"Nothing more is applied, so that nothing is applied twice. {self.remedy}"
        )


@dataclass(eq=False, kw_only=True)
class TargetAheadError(TargetError):
    """The target's position is not in this log."""

    pipeline: str
    channel: int
    gtid: Gtid
    why: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline!r}, channel {self.channel} stands at {self.gtid}, and {self.why}. The log was "
            "cleared, re-created or is not the one this target follows. Use the right log, or `tranlog position set`"
        )


# --- the message store -----------------------------------------------------------------------------------


class QueueError(TranlogError):
    """The message store, its queues, or what was asked of them."""


@dataclass(eq=False, kw_only=True)
class StoreDamagedError(QueueError):
    """A store's files are not what was written: nothing was changed."""

    path: str
    file: str
    offset: int
    why: str

    def __str__(self) -> str:
        return (
            f"the message store at {self.path} is damaged: {self.file}, offset {self.offset}: {self.why}. Nothing was "
            "changed. Restore log and catalogue together from a copy"
        )


@dataclass(eq=False, kw_only=True)
class CatalogueError(QueueError):
    """A store's catalogue cannot be used, or does not belong to its log."""

    path: str
    why: str

    def __str__(self) -> str:
        return (
            f"the catalogue of the message store at {self.path} cannot be used: {self.why}. Nothing was changed. "
            "Restore log and catalogue together, or mend what is in the way"
        )


@dataclass(eq=False, kw_only=True)
class UnknownQueueError(QueueError):
    """A queue, exchange or binding that is not in the catalogue."""

    what: str

    def __str__(self) -> str:
        return f"there is no {self.what}. Nothing was changed; name another, or create it first"


@dataclass(eq=False, kw_only=True)
class DeclaredOtherwiseError(QueueError):
    """A name that cannot be given, or is taken by something with other properties."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} was not declared: {self.why}. Nothing was changed; name another"


@dataclass(eq=False, kw_only=True)
class NotHeldError(QueueError):
    """A delivery that is not held any more: answered already, or taken back."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}. Nothing was changed; take the message again"


@dataclass(eq=False, kw_only=True)
class TransactionStateError(QueueError):
    """A transaction was asked for something that its state does not allow."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}. Nothing was changed; start another, or see which are in doubt"


# --- the pipeline ----------------------------------------------------------------------------------------


class PipelineError(TranlogError):
    """The pipeline's own state or its engine."""


@dataclass(eq=False, kw_only=True)
class ReplacedError(PipelineError):
    """A newer driver or task holds this pipeline: this one wrote nothing more and ends."""

    pipeline: str
    holder: str

    def __str__(self) -> str:
        holder = self.holder or "another driver, which has ended since"
        return (
            f"pipeline {self.pipeline!r} was taken over by {holder}; this process applied nothing more and ends. "
            "Stop the other one if this one is to run"
        )


@dataclass(eq=False, kw_only=True)
class PipelineHeldError(PipelineError):
    """Another driver of the same pipeline is alive."""

    pipeline: str
    holder: str

    def __str__(self) -> str:
        return f"pipeline {self.pipeline!r} is being run by {self.holder}. Stop it first, or use --take-over"


@dataclass(eq=False, kw_only=True)
class StateError(PipelineError):
    """A running pipeline was asked for something that makes no sense in the state that it is in."""

    pipeline: str
    state: str
    asked: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"pipeline {self.pipeline!r} is {self.state} and was {self.asked}: {self.why}. {self.remedy}"


@dataclass(eq=False, kw_only=True)
class ControlError(PipelineError):
    """The endpoint of a running pipeline cannot be reached, or does not answer as it should."""

    where: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"no running pipeline answers at {self.where}: {self.why}. {self.remedy}"


@dataclass(eq=False, kw_only=True)
class EngineError(PipelineError):
    """Spark cannot start or cannot run the pipeline: no Java, too few slots, a lost executor."""

    why: str
    remedy: str

    def __str__(self) -> str:
        return f"Spark cannot run the pipeline: {self.why}. {self.remedy}"


@dataclass(eq=False, kw_only=True)
class FilterError(PipelineError):
    """A filter cannot do its work on a table or a transaction, of which nothing was applied.

    `filter` is its number and what it does; `seqno` and `event_id` None: it was not asked about a transaction.
    """

    filter: str
    why: str
    table: str | None = None
    seqno: int | None = None
    event_id: str | None = None

    def __str__(self) -> str:
        table = "" if self.table is None else f", table {self.table}"
        where = "" if self.seqno is None else f" at seqno {self.seqno}, event id {self.event_id!r}"
        kept = "" if self.seqno is None else "Nothing of this transaction was applied. "
        return f"{self.filter}{table} stopped{where}: {self.why}. {kept}Mend the filter, then start again"


# --- configuration ---------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class ConfigError(TranlogError):
    """An option that is unknown, missing or has an impossible value."""

    option: str
    value: object
    why: str

    def __str__(self) -> str:
        given = "" if self.value is None else f" = {self.value!r}"
        stop = "" if self.why.endswith("?") else "."
        return f"configuration: {self.option}{given}: {self.why}{stop} Correct it and start again"

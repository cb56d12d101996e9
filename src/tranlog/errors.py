"""The tree of our exceptions: what the world did, never what is ordinary and never our own bugs.

Owns every exception that a caller of tranlog may catch; how one is made of its fields is `raising`'s. Each message ends
with what to do next; nobody parses a message. Which exit code an error gets is decided in `service.frame.exits`.
"""

from __future__ import annotations

from dataclasses import field
from datetime import UTC, datetime, timedelta

from tranlog.ids import Gtid
from tranlog.raising import BEGIN_ANEW
from tranlog.raising import TranlogError as TranlogError


def _utc_text(ms: int) -> str:
    """Return ms since 1970 as `2011-07-01 15:15:17`; as the number where the calendar ends."""
    try:
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{ms} ms since 1970,"


# --- the log ---------------------------------------------------------------------------------------------


class LogError(TranlogError):
    """The log, its files or its disk."""


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


class LogMissingError(LogError):
    """There is no log where one was named."""

    path: str
    why: str

    template = "no log at {path}: {why}. Check the directory, or start `tranlog capture` to create it"


class StoreMissingError(LogMissingError):
    """There is no message store where one was named."""

    template = "no message store at {path}: {why}. Check the directory, or create it by `tranlog queue declare`"


class LogUnreadableError(LogError):
    """The log's files could not be read or listed, mostly since the operating system refused it."""

    path: str
    why: str
    remedy: str = ""

    def __str__(self) -> str:
        denied = self.why in ("Permission denied", "Operation not permitted", "Read-only file system")
        here = "Check owner and permissions" if denied else "Check the path and its disk"
        remedy = "Open the log again, at any node" if self.path.startswith("thl://") else here
        return f"cannot read the log at {self.path}: {self.why}. {self.remedy or remedy}"


class LogCodecError(LogError):
    """A segment is in the Tungsten replicator's own codec: the whole log, or, mixed in, a part of it."""

    path: str
    segment: str

    template = (
        "{segment} of the log at {path} was written by the Tungsten replicator, in its own format; here "
        "a native log is needed, and a log has one format. Nothing was changed. Use `thl convert` to make one of it, "
        "or `tranlog capture --source thl:DIR`; or name another directory"
    )


class LogVersionError(LogError):
    """A segment was written by a release whose format this one does not know."""

    path: str
    segment: str
    version: str

    template = (
        "{segment} of the log at {path} has format version {version}, which is newer than 1.1, the "
        "one that this release knows. Nothing was changed. Use the release that wrote it"
    )


class ForeignHistoryError(LogError):
    """A file in a log's directory belongs to another log: it has the id of another history, or none.

    `found` and `history`, which is the log's, are in hex; `found` is empty where there is none.
    """

    path: str
    file: str
    found: str
    history: str

    def __str__(self) -> str:
        if not self.found:
            return (
                f"{self.file} of the log at {self.path} has no history id: an earlier release wrote it, and this one "
                "does not read such logs. Nothing was changed. Start a new log in an empty directory"
            )
        return (
            f"{self.file} belongs to another log than the rest of {self.path}: its history is "
            f"{self.found}, the log's {self.history}. Nothing was changed. Restore this log's own {self.file}, "
            "or move this one out of the directory: `thl verify` then reports what is missing"
        )


class NativeLogError(LogError):
    """The directory holds a log in our own codec, not the Tungsten replicator's."""

    path: str
    segment: str

    template = (
        "{segment} of the log at {path} is in tranlog's own format, not in the Tungsten replicator's; "
        "nothing was changed. Name another directory, or read this one as a native log"
    )


class MixedCodecsError(LogError):
    """A directory holds segments of both codecs."""

    path: str
    native: str
    tungsten: str

    template = (
        "the directory {path} holds two logs: {native} is in tranlog's own format, {tungsten} in "
        "the Tungsten replicator's; nothing was changed. Move the segments of one of them to another directory"
    )


class AppendOrderError(LogError):
    """A transaction that does not follow what the log holds; it was not stored."""

    path: str
    why: str

    template = "the log at {path} refuses {why}; nothing was stored. Append the next transactions, in order"


class RawRecordError(LogError):
    """Raw records are not what follows in the log. `offset` is one in these bytes."""

    path: str
    offset: int
    seqno: int
    why: str

    template = (
        "the log at {path} refuses raw records: at offset {offset}, where seqno {seqno} belongs: {why}; "
        "none of them was stored. Append what follows its last transaction"
    )


class PurgeRangeError(LogError):
    """A range that cannot be purged; nothing was removed."""

    path: str
    why: str

    template = "nothing was purged from the log at {path}: {why}. Name another range; `thl index` shows them"


class ConversionRefusedError(LogError):
    """A log holds what the other codec cannot express; nothing was written."""

    path: str
    why: str

    template = (
        "the log at {path} is not converted: {why}. Nothing was written. See `thl convert --help` "
        "for what each means; use --lossy to leave out what can be left out"
    )


class ConversionTargetError(LogError):
    """What is in the destination of a conversion is not the beginning of this one; nothing was changed."""

    path: str
    why: str

    template = "nothing is converted into {path}: {why}. Nothing was changed; name another directory"


class HoldError(LogError):
    """A hold, which keeps retention from purging what somebody still needs, cannot be written or read."""

    path: str
    why: str

    template = "the hold at {path} failed: {why}. Retention does not keep what it needs; check it"


class SegmentGoneError(LogError):
    """A segment was deleted under an open log."""

    path: str

    template = "segment {path} was removed while the log was open; close the log, restore the file, open again"


class LogReplacedError(LogError):
    """A directory was reset or restored while it was read: what was read is no longer in it."""

    path: str
    why: str

    template = "the log at {path} was reset or restored while it was read: {why}. Start again; the position is checked"


class PurgedError(LogError):
    """The wanted seqno lies before the first one that the log still holds.

    As far as is known: `limit` is the rule or the command that removed it, with everything up to `up_to`, at `at_ms`
    (ms since 1970); `passed` are the holds that it did not wait for. `remedy`: what its reader can do.
    """

    seqno: int
    first: int
    limit: str | None = None
    up_to: int | None = None
    at_ms: int | None = None
    passed: tuple[str, ...] = ()
    remedy: str = "Start from there, or from a new snapshot"

    def __str__(self) -> str:
        text = f"seqno {self.seqno} is purged: the log starts at {self.first}"
        if self.limit is not None:
            when = "" if self.at_ms is None else f" at {_utc_text(self.at_ms)} UTC"
            text += f". {self.limit} removed everything up to seqno {self.up_to}{when}"
            text += f", although {', '.join(self.passed)} still needed it" if self.passed else ""
        return f"{text}. {self.remedy}"


class SegmentEmptyError(LogError):
    """No segment can be started after one that holds no transaction."""

    path: str

    template = (
        "no segment was added: {path} is the newest one and holds no transaction yet. Nothing was changed; "
        "start one after the next transaction"
    )


class RollbackError(LogError):
    """A log cannot be rolled back to a matchpoint; nothing was changed."""

    matchpoint: Gtid
    why: str

    template = "the log cannot be rolled back to {matchpoint}: {why}. Nothing was changed; name another matchpoint"


class AbandonedError(LogError):
    """What a cursor returned last was abandoned since: a rollback went back to before it.

    `seqno` is the transaction returned last, `mark` where the rollback mark stands, `number` the mark's own.
    """

    seqno: int
    matchpoint: Gtid
    mark: str
    number: int

    def __str__(self) -> str:
        return (
            f"seqno {self.seqno} was read and is no longer valid: rollback mark {self.number} at {self.mark} "
            f"abandoned everything after {self.matchpoint}. Undo what came after it, and seek to "
            f"{self.matchpoint.seqno + 1}"
        )


class IndexCutError(LogError):
    """The index was asked to forget what it must keep: a bound that is outside the range, or not proven durable."""

    seqno: int
    first: int
    last: int
    last_txn_end: int

    template = (
        "the index cannot be cut at seqno {seqno}: it covers {first} to {last}, and the last "
        "transaction ends at {last_txn_end}. Nothing was changed; name a seqno that it can end at"
    )


class IndexDamagedError(LogError):
    """A stored index contradicts itself or the log; it is only ever rebuilt, never used."""

    why: str

    template = "the stored index is wrong: {why}. Open the log for writing to rebuild it from the segments"


class RepairRefusedError(LogError):
    """A repair that was asked for cannot be done, or must not be."""

    path: str
    why: str

    template = "the log at {path} was not repaired: {why}. Nothing was changed. See `thl repair --help`"


class LogLockedError(LogError):
    """Another writer holds the log, or took it over."""

    path: str
    holder: str

    template = "the log at {path} is held by another writer ({holder}). Stop it first; readers need no lock"


class LogClosedError(LogError):
    """The log was closed, or closed itself after a failed sync: nothing after the last sync is assumed durable."""

    why: str = field(default="it was closed", kw_only=False)

    template = "the log is closed: {why}. Open it again: what was durable is still there"


class MemberLogError(LogError):
    """A log of a member of a group, which its node alone may write. `whose`: the node, and its group."""

    path: str
    whose: str

    template = (
        "the log at {path} belongs to {whose}: only the node may write it. Nothing was changed. Use `tranlog node run` "
        "and `tranlog group`, or copy the log without its folder group/"
    )


class NotPrimaryError(LogError):
    """A member of a group follows, and takes no transaction of its own; or it led, and does no more."""

    path: str
    known: str = "Transactions that waited for its sync may or may not stay in the log"

    template = (
        "the log at {path} is not its group's primary, or is no longer. {known}. Append at the primary what is missing"
    )


class DiskFullError(LogError):
    """The disk has no room. The transaction is refused whole; the log stays readable and, given room, writable."""

    path: str

    template = "disk full at {path}: the transaction was refused, none of it is kept. Free some space and try again"


class DiskFailedError(LogError):
    """A write or a sync failed: nothing since the last good sync is assumed durable, and writing ends."""

    path: str
    why: str

    template = "writing {path} failed: {why}. The log is closed for writing; check the disk, open it again"


class SpillFailedError(DiskFailedError):
    """A write or a sync of a spill segment failed: what had spilled there is refused, and the log stays open."""

    template = (
        "writing {path} failed: {why}. The transaction was refused, none of it is kept, and the log "
        "stays open; check the disk, then append it again"
    )


class PurgeFailedError(LogError):
    """A segment that nobody needs any more cannot be removed. The log stays open; the next purge tries again."""

    path: str
    why: str

    template = (
        "removing {path} failed: {why}. The log stays open, and the next purge tries again; check the disk "
        "and the permissions of its directory"
    )


class RecordLimitError(LogError):
    """A record that the format cannot hold: refused at append, nothing written."""

    event_id: str
    why: str

    def __str__(self) -> str:
        named = self.event_id if len(self.event_id) <= 80 else self.event_id[:80] + "…"
        return (
            f"the transaction with event id {named!r} was refused: {self.why}. None of it was written; "
            "change it at the source, or start a new log after it (`tranlog reset --forget-position`)"
        )


class PayloadError(LogError):
    """A record's payload cannot be decoded, although its checksum held or was off."""

    why: str
    seqno: int | None = None

    def __str__(self) -> str:
        where = "" if self.seqno is None else f" of seqno {self.seqno}"
        return f"the payload{where} cannot be decoded: {self.why}. See its header with `thl list -headers`"


class LibraryMissingError(LogError):
    """A library that tranlog can do without, until now, is not installed."""

    library: str
    what: str

    template = "{what} need {library}, which is not installed. Install it: `pip install {library}`"


class NotInLogError(LogError):
    """A position that was stored elsewhere names a transaction which this log does not hold."""

    what: str
    gtid: Gtid
    found: str

    template = (
        "{what} is at {gtid}, but this log {found}: it was cleared, re-created or belongs to "
        "something else. Use the right log, or begin anew: name another start, or give a stream a new checkpoint"
    )


# --- sources ---------------------------------------------------------------------------------------------


class SourceError(TranlogError):
    """The source database, or how it is set up."""


class SourceSetupError(SourceError):
    """The source cannot be captured as it is set up. `remedy` holds the statements or steps that change it."""

    why: str
    remedy: str

    template = "this source cannot be captured: {why}. {remedy}"


class SourceUnavailableError(SourceError):
    """The source does not answer; or `says`, with its `remedy`, what else keeps it from being read now."""

    where: str
    why: str
    says: str = "does not answer"
    remedy: str = "Start it, then start capture again"
    template = "the source at {where} {says}: {why}. {remedy}"


class PositionLostError(SourceError):
    """The source no longer has, or never had, the position at which the log ends. `way_on`: a sentence."""

    event_id: str
    why: str
    way_on: str = ""

    template = (
        "the source cannot continue after event id {event_id!r}: {why}. {way_on}Nothing was captured. " + BEGIN_ANEW
    )


class SourceClaimedError(SourceError):
    """The source is another log's: one log at a time follows it. `claim` and `ours` name the two."""

    where: str
    claim: str
    ours: str

    template = (
        "the source at {where} is claimed by another log ({claim}), and this one is {ours}: a copy "
        "of that log, or a new one. Use that log, or run `tranlog capture --take-source` to give the source to "
        "this one"
    )


class UnsupportedEventError(SourceError):
    """The source sent something that must not be skipped and cannot be carried."""

    what: str
    event_id: str
    remedy: str

    template = "capture stopped at event id {event_id!r}: {what}. {remedy}"


class UnsupportedTypeError(SourceError):
    """A column's type cannot be carried."""

    table: str
    column: str
    type_name: str

    template = (
        "column {column} of table {table} has type {type_name}, which is not supported. "
        "Change the column's type, or leave the table out of capture"
    )


class ForeignWriterError(SourceError):
    """Something other than our connection wrote to a captured SQLite database."""

    table: str
    why: str
    remedy: str

    template = "a write to {table} bypassed capture: {why}. {remedy}"


# --- targets ---------------------------------------------------------------------------------------------


class TargetError(TranlogError):
    """The target database, or what it holds."""


class ConflictError(TargetError):
    """A change does not fit what the target holds. The transaction that it belongs to was rolled back whole."""

    seqno: int
    table: str
    key: str
    why: str

    template = (
        "conflict at seqno {seqno}, table {table}, key {key}: {why}. None of this transaction was applied. "
        "Fix the row at the target, or what refuses it there, then `tranlog online`, or start again where it has ended"
    )


class TargetTableError(TargetError):
    """A table, or a `column` of it, is missing at the target."""

    table: str
    why: str
    seqno: int | None = None
    column: str = ""
    remedy: str = "Create it, or run `tranlog tables create`; with `--from source` that makes all tables of a load"

    def __str__(self) -> str:
        where = "" if self.seqno is None else f" (seqno {self.seqno})"
        return f"target table {self.table}{where}: {self.why}. {self.remedy}"


class TargetUnavailableError(TargetError):
    """The target does not answer, or refuses to work: away, disk full, not permitted."""

    where: str
    why: str

    template = "the target at {where} cannot be used: {why}. Fix that, then start again"


class TransientTargetError(TargetError):
    """A deadlock, a serialization failure or a lost connection: roll back, read the position, continue."""

    why: str

    template = "the target asked to try again: {why}. Start apply again if it does not continue by itself"


class DdlStopError(TargetError):
    """A statement that the target must not run by itself."""

    seqno: int
    text: str
    why: str
    remedy: str = "Do at the target what its whole transaction did, then `tranlog position set` to this seqno"

    template = "stopped at seqno {seqno}, statement {text!r}: {why}. {remedy}"


class TargetPositionError(TargetError):
    """The target's own record of a pipeline's position is missing, incomplete, or not as tranlog made it.

    `upto`: what the log knows the pipeline to have applied there at least; None: nothing is known.
    """

    where: str
    pipeline: str
    why: str
    upto: int | None = None
    remedy: str = (
        "Undo what was done to tranlog's own tables, by hand or from a backup of the target, then start again: it "
        "continues from the positions there. If they are lost, find out which seqno the target's rows reach, and run "
        "`tranlog position set SEQNO`"
    )

    def __str__(self) -> str:
        upto = "" if self.upto is None else f"; the log's hold says that it had applied up to seqno {self.upto}"
        return (
            f"the position of pipeline {self.pipeline!r} is not known at the target at {self.where}: {self.why}{upto}. "
            f"Nothing more is applied, so that nothing is applied twice. {self.remedy}"
        )


class TargetAheadError(TargetError):
    """The target's position is not in this log."""

    pipeline: str
    channel: int
    gtid: Gtid
    why: str

    template = (
        "pipeline {pipeline!r}, channel {channel} is at {gtid}, and {why}. The log was "
        "cleared, re-created or is not the one this target follows. Use the right log, or `tranlog position set`"
    )


# --- the message store -----------------------------------------------------------------------------------


class QueueError(TranlogError):
    """The message store, its queues, or what was asked of them."""


class StoreDamagedError(QueueError):
    """A store's files are not what was written: nothing was changed."""

    path: str
    file: str
    offset: int
    why: str

    template = (
        "the message store at {path} is damaged: {file}, offset {offset}: {why}. Nothing was "
        "changed. Restore log and catalogue together from a copy"
    )


class CatalogueError(QueueError):
    """A store's catalogue cannot be used, or does not belong to its log."""

    path: str
    why: str

    template = (
        "the catalogue of the message store at {path} cannot be used: {why}. Nothing was changed. "
        "Restore log and catalogue together, or fix what prevents it"
    )


class CatalogueAwayError(CatalogueError):
    """The server that has a store's catalogue does not let us in, or the session was lost."""

    template = (
        "the catalogue of the message store at {path} cannot be reached: {why}. Nothing was changed. "
        "Start its server, or correct how it is reached, and try again"
    )


class UnknownQueueError(QueueError):
    """A queue, exchange or binding that is not in the catalogue."""

    what: str

    template = "there is no {what}. Nothing was changed; name another, or create it first"


class DeclaredOtherwiseError(QueueError):
    """A name that cannot be given, or is taken by something with other properties."""

    what: str
    why: str

    template = "{what} was not declared: {why}. Nothing was changed; name another"


class NotHeldError(QueueError):
    """A delivery that is not held any more: answered already, or taken back."""

    what: str
    why: str

    template = "{what}: {why}. Nothing was changed; take the message again"


class TransactionStateError(QueueError):
    """A transaction was asked for something that its state does not allow."""

    what: str
    why: str

    template = "{what}: {why}. Nothing was changed; start another, or see which are in doubt"


class TransientRoomError(QueueError):
    """Transient messages take as much memory as they may: one more was refused."""

    path: str
    size: int
    used: int
    most: int

    template = (
        "the message store at {path} has no memory for a transient message that takes {size} bytes: {used} of {most} "
        "are taken. It was refused; take some off their queues, or open the store with more transient_bytes"
    )


# --- the pipeline ----------------------------------------------------------------------------------------


class PipelineError(TranlogError):
    """The pipeline's own state or its engine."""


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


class PipelineHeldError(PipelineError):
    """Another driver of the same pipeline is alive."""

    pipeline: str
    holder: str

    template = "pipeline {pipeline!r} is being run by {holder}. Stop it first, or use --take-over"


class StateError(PipelineError):
    """A running pipeline was asked for something that makes no sense in the state that it is in."""

    pipeline: str
    state: str
    asked: str
    why: str
    remedy: str

    template = "pipeline {pipeline!r} is {state} and was {asked}: {why}. {remedy}"


class ControlError(PipelineError):
    """The endpoint of a running process cannot be reached, or does not answer as it should."""

    where: str
    why: str
    remedy: str

    template = "no running process answers at {where}: {why}. {remedy}"


class EngineError(PipelineError):
    """Spark cannot start or cannot run the pipeline: no Java, too few slots, a lost executor."""

    why: str
    remedy: str

    template = "Spark cannot run the pipeline: {why}. {remedy}"


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
        kept = "" if self.seqno is None else "None of this transaction was applied. "
        return f"{self.filter}{table} stopped{where}: {self.why}. {kept}Fix the filter, then start again"


# --- replication -----------------------------------------------------------------------------------------


class ReplicationError(TranlogError):
    """The nodes of a group, what they say to each other, and what each remembers."""


class PacketError(ReplicationError):
    """Bytes that are not a packet. `kind`: its name, if it is known."""

    kind: str
    why: str

    template = "a packet ({kind}) cannot be read: {why}. Close the connection; check what runs on the other side"


class GroupFileError(ReplicationError):
    """The file in which a node keeps its vote and its configuration cannot be used; nothing was changed."""

    path: str
    why: str

    template = (
        "{path} cannot be used: {why}. Nothing was changed. Restore exactly this file, or remove the node from the "
        "group and admit it as a new one: with its vote forgotten, one epoch could have two primaries"
    )


class HandshakeError(ReplicationError):
    """The other end of a connection is not who was expected, or lets nobody in. `where`: its address."""

    where: str
    why: str

    template = "no connection with {where}: {why}. Check the address, and what runs there"


class NoPrimaryError(ReplicationError):
    """No node that could be reached knows a primary. `group`: where it was looked for.

    `known`: what is known of the transaction that was sent, or asked about.
    """

    group: str
    why: str
    known: str = "Nothing was written"

    template = "no primary of {group} was found: {why}. {known}. See `tranlog group status`"


class NoNodeError(ReplicationError):
    """No node could be read as was wanted, in time; nothing was read. `where`: a node, or a group's addresses."""

    where: str
    why: str

    template = "{where} cannot be read as wanted: {why}. Change what is wanted, or see `tranlog group status`"


class CommitRefusedError(ReplicationError):
    """A transaction, or a question, that the group refuses. `known`: as in NoPrimaryError."""

    why: str
    known: str = "Nothing was written"

    template = "the group refused it: {why}. {known}. Correct it, or see `tranlog group status`"


class GroupOrderError(ReplicationError):
    """What an operator asked of a group was not done."""

    why: str

    template = "the group did not do it: {why}. See `tranlog group status`"


# --- configuration ---------------------------------------------------------------------------------------


class ConfigError(TranlogError):
    """An option that is unknown, missing or has an impossible value."""

    option: str
    value: object
    why: str

    def __str__(self) -> str:
        given = "" if self.value is None else f" = {self.value!r}"
        stop = "" if self.why.endswith("?") else "."
        return f"configuration: {self.option}{given}: {self.why}{stop} Correct it and start again"

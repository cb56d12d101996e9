"""Publishes and answers that take effect together: a transaction of this store, or a branch of a distributed one.

Owns the work collected before the outcome, and how it is written: as one group, so that one record decides, whatever
the size. The hard idea: before that nothing of it is in the log, except content too large to wait in memory. So an
interrupted transaction has nothing to undo there.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid, "Transaction Log Records"; PEP 249, "Optional Two-Phase Commit
Extensions".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from tranlog.errors import DiskFullError, TransactionStateError, UnknownQueueError
from tranlog.ids import Lsn
from tranlog.queues.core import Delivery, StoreCore, names_of
from tranlog.queues.rules.branches import Branch, Branches, CallRefused
from tranlog.queues.rules.containers import Need
from tranlog.queues.rules.records import (
    ACKED,
    COMMIT,
    DELETE_TX,
    DEQUEUE,
    DEQUEUE_BODY,
    DTX_START,
    END_TX,
    ENQUEUE,
    ENQUEUE_BODY,
    FIRST,
    LAST,
    OVERHEAD,
    PREPARE,
    REJECTED,
    ROLLBACK,
    START,
    START_BODY,
    TX_START,
    WHOLE,
    XID_BYTES_MOST,
)
from tranlog.queues.rules.state import NO_LSN, Message, QueueTransaction

if TYPE_CHECKING:
    from tranlog.queues.store import MessageStore


class WaitingPublish(NamedTuple):
    """A publish that waits for the commit: its bytes, or the message that already has them in the log.

    `kept`: the queues on which it is only in memory, as the message `twin`, whose memory is reserved.
    """

    header_length: int
    raw: bytes
    written: Message | None
    queues: list[int]
    expires_at: int
    priority: int
    kept: list[int]
    twin: Message | None


class TransactionWork:
    """What a transaction has collected. The store's lock guards it."""

    __slots__ = ("answers", "publishes")

    def __init__(self) -> None:
        self.publishes: list[WaitingPublish] = []
        self.answers: list[tuple[Delivery, int]] = []

    def sizes(self) -> list[int]:
        """Return how many bytes each record of its group takes, at most."""
        sizes = [OVERHEAD + XID_BYTES_MOST]
        for one in self._stored():
            if one.written is None:
                sizes.append(OVERHEAD + START_BODY.size + len(one.raw))
            sizes += [OVERHEAD + ENQUEUE_BODY.size] * len(one.queues)
        return [*sizes, *[OVERHEAD + DEQUEUE_BODY.size] * len(self.answers), OVERHEAD]

    def _stored(self) -> list[WaitingPublish]:
        return [one for one in self.publishes if one.queues]

    def answer(self, core: StoreCore, deliveries: Sequence[Delivery], reason: int) -> None:
        """Take deliveries, so that nobody else can answer them. Raises NotHeldError, and takes none then."""
        for delivery in deliveries:
            core.check_held(delivery)
        with core.journal:
            for delivery in dict.fromkeys(deliveries):
                del core.held[delivery.place]
                self.answers.append((delivery, reason))

    def undo(self, core: StoreCore) -> None:
        """Release the deliveries that it took, and delete what it has in the log."""
        answers, self.answers = self.answers, []
        publishes, self.publishes = self.publishes, []
        for delivery, _ in answers:
            if delivery.place in delivery.message.places:
                core.come_back(delivery.message, delivery.place)
        for one in publishes:
            if one.written is not None:
                core.delete(one.written)
            if one.twin is not None:
                core.forget(one.twin)
        core.journal.changed.tell()

    def write(self, core: StoreCore, xid: bytes | None) -> None:
        """Put it as one group: with an xid up to Prepare, else up to Commit, and carry that out.

        Transient messages have no record; a transaction with only transient messages writes none.

        Raises UnknownQueueError if a queue was deleted meanwhile, and as the journal does; nothing is changed then.
        """
        known = {queue.id for queue in core.catalogue.queues.values()}
        for one in self.publishes:
            if not known.issuperset((*one.queues, *one.kept)):
                raise UnknownQueueError(what="queue for a message of the transaction any more")
        every = [one for one in self.answers if one[0].place in one[0].message.places]
        answers = [one for one in every if not one[0].message.transient]
        turns: list[Lsn] = []  # where each transient message stands among the others
        commit = None
        if xid is not None or answers or self._stored():
            commit = self._write(core, xid, answers, turns)
        for delivery, reason in every:
            if delivery.message.transient:
                core.dequeue(delivery.message, delivery.place, reason)
        for one in self.publishes:
            if one.twin is not None:
                behind = turns.pop(0) if turns else None
                core.show_transient(
                    one.twin, one.raw, one.kept, one.expires_at, one.priority, behind=behind, commit=commit
                )
        self.publishes, self.answers = [], []

    def _write(
        self, core: StoreCore, xid: bytes | None, answers: Sequence[tuple[Delivery, int]], turns: list[Lsn]
    ) -> Lsn:
        """Put what is not transient; return the place of Prepare or Commit. `turns` is filled."""
        journal, state = core.journal, core.state
        operations = sum(len(one.queues) for one in self.publishes) + len(answers)
        outcome = 0 if xid is None else outcome_bytes(operations)
        journal.admit_records(self.sizes(), Need.PUBLISH if self._stored() else Need.DRAIN, outcome)
        put = journal.put
        transaction = put(TX_START, FIRST, NO_LSN, b"") if xid is None else put(DTX_START, FIRST, NO_LSN, xid)
        stored_at = core.now_ms()
        placed = []
        for one in self.publishes:
            start = NO_LSN if one.written is None else one.written.id
            if one.written is None and one.queues:
                body = START_BODY.pack(0, stored_at, one.header_length, len(one.raw)) + one.raw
                start = put(START, 0, NO_LSN, body)
            for queue_id in one.queues:
                body = ENQUEUE_BODY.pack(queue_id, transaction, one.expires_at, one.priority)
                placed.append((one, start, queue_id, put(ENQUEUE, 0, start, body)))
            if one.twin is not None:
                turns.append(journal.place)
        for delivery, reason in answers:
            body = DEQUEUE_BODY.pack(delivery.place.queue_id, transaction, reason)
            put(DEQUEUE, 0, delivery.message.id, body)
        decided = put(COMMIT if xid is None else PREPARE, LAST, transaction, b"")
        # All of it is in the log: from here on nothing can be refused.
        state.begin(transaction, xid or b"")
        for one, start, queue_id, place in placed:
            if state.messages.get(start) is None:
                core.started(start, stored_at, one.header_length, one.raw)
            state.enqueue(place, start, queue_id, transaction, one.expires_at, one.priority)
        for delivery, _ in answers:
            state.dequeue(delivery.message.id, delivery.place.queue_id, transaction)
        if xid is None:
            finish(core, state.transactions[transaction], decided, commit=True, need=Need.DRAIN)
        else:
            state.prepare(transaction)
            journal.reserved += outcome
        return decided


def outcome_bytes(operations: int) -> int:
    """Return how many bytes the outcome of a prepared transaction takes, at most."""
    return (operations + 4) * (OVERHEAD + 4)


def finish(core: StoreCore, transaction: QueueTransaction, decided: Lsn, *, commit: bool, need: Need) -> None:
    """Carry out an outcome that is in the log at `decided`: show, release and delete messages."""
    messages = list(dict.fromkeys(message for message, _, _ in transaction.operations))
    if commit:
        for message, place in core.state.commit(decided, transaction.id):
            core.row(place.queue_id).add(message, place)
    else:
        freed = core.state.roll_back(transaction.id)
        core.put_back.add((place for _, place in freed), decided, core.journal.shown)
        for message, place in freed:
            core.come_back(message, place)
    for _, place, puts in transaction.operations if commit else ():
        counts = core.row(place.queue_id).counts
        if puts:
            counts.published += 1
        else:
            counts.acknowledged += 1
    gone = [one for one in messages if not one.places and core.state.messages.get(one.id) is not None]
    for message in gone:
        core.delete(message, need)
    with suppress(DiskFullError):  # the outcome is in the log
        core.journal.admit(2 * OVERHEAD, need)
        core.journal.put(END_TX, WHOLE, transaction.id, b"")
        core.journal.put(DELETE_TX, WHOLE, transaction.id, b"")
    core.journal.changed.tell()


def in_doubt(core: StoreCore) -> dict[bytes, QueueTransaction]:
    """Return the prepared transactions without an outcome, by xid."""
    return {one.xid: one for one in core.state.transactions.values() if one.prepared}


def decide(core: StoreCore, branches: Branches[TransactionWork], xid: bytes, *, commit: bool) -> None:
    """Put the outcome of a prepared transaction, and carry it out; or undo a branch that nobody can prepare any more.

    Raises CallRefused.
    """
    transaction = in_doubt(core).get(xid)
    if transaction is None:
        given_up = None if commit else branches.give_up(xid)
        if given_up is None:
            raise CallRefused("it is not known" if branches.find(xid) is None else "it is not prepared")
        given_up.undo(core)
        return
    core.journal.reserved -= outcome_bytes(len(transaction.operations))
    core.journal.admit(OVERHEAD, Need.OUTCOME)
    decided = core.journal.put(COMMIT if commit else ROLLBACK, WHOLE, transaction.id, b"")
    finish(core, transaction, decided, commit=commit, need=Need.OUTCOME)


class StoreTransaction:
    """A transaction of one store. Threads: one at a time. As a context it is committed, or rolled back by an exception.

    Nobody sees what it publishes before the commit, and nobody else can take the messages that it answers. One that is
    dropped undecided is rolled back at the next look for messages.
    """

    def __init__(self, store: MessageStore) -> None:
        """For `MessageStore.transaction` only."""
        self._store = store
        self._work = TransactionWork()
        self._over = False

    def publish(
        self,
        content: bytes,
        *,
        queues: Sequence[str],
        header: bytes = b"",
        expires_at: int = 0,
        priority: int = 0,
        transient: bool = False,
    ) -> None:
        """Publish at the commit. Raises as `MessageStore.publish`, TransactionStateError."""
        self._check()
        stamps = expires_at, priority
        self._store._publishing.collect(self._work, content, queues, header, *stamps, transient=transient)

    def ack(self, *deliveries: Delivery) -> None:
        """Acknowledge these messages at the commit. Raises NotHeldError, TransactionStateError."""
        self._check()
        self._store._take_answers(self._work, deliveries, ACKED)

    def reject(self, *deliveries: Delivery) -> None:
        """Reject these messages at the commit. Raises as `ack`."""
        self._check()
        self._store._take_answers(self._work, deliveries, REJECTED)

    def commit(self, *, wait: bool = True) -> None:
        """Commit; return once that is durable, or at once without `wait`.

        Raises UnknownQueueError if a queue was deleted meanwhile: it can be rolled back then. TransactionStateError.
        """
        self._check()
        with self._store._journal.lock, self._store._journal:
            if self._work.publishes or self._work.answers:
                self._work.write(self._store._core, None)
            self._over = True
        if wait:
            self._store.sync()

    def rollback(self) -> None:
        """Roll back: the messages that it answered are on their queues again."""
        self._check()
        with self._store._journal.lock, self._store._journal:
            self._over = True
            self._work.undo(self._store._core)

    def _check(self) -> None:
        if self._over:
            raise TransactionStateError(what="the transaction", why="it is over")

    def __del__(self) -> None:
        if not self._over:
            self._store._dropped.append(self._work)  # who looks next undoes it: a collector takes no lock

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._over:
                self.commit()
        finally:
            if not self._over and self._store._journal.is_open:
                self.rollback()


class BranchSession:
    """A session for branches of distributed transactions, one branch at a time. Threads: one at a time.

    The names are those of Python's DB-API. Methods raise TransactionStateError if the branch's state does not allow
    them, and change nothing then.
    """

    def __init__(self, store: MessageStore, branches: Branches[TransactionWork]) -> None:
        """For `MessageStore.session` only."""
        self._store = store
        self._branches = branches
        self._xid = b""  # of the branch that it began, joined or resumed last

    def tpc_begin(self, xid: bytes, *, join: bool = False, resume: bool = False) -> None:
        """Begin a branch; with `join` join another session's, with `resume` resume a suspended one."""
        with self._store._deciding(xid) as core:
            if join:
                self._branches.join(self, xid)
            elif resume:
                self._branches.resume(self, xid)
            else:
                now = self._store.monotonic()
                prepared = xid in in_doubt(core)
                self._branches.begin(self, xid, TransactionWork(), now=now, prepared=prepared)
            self._xid = xid

    def tpc_end(self, xid: bytes | None = None, *, suspend: bool = False, fail: bool = False) -> None:
        """End this session's part of a branch; with `suspend` for now, with `fail` only a rollback is left."""
        xid = self._xid if xid is None else xid
        with self._store._deciding(xid):
            self._branches.end(self, xid, suspend=suspend, fail=fail)

    def publish(
        self, content: bytes, *, queues: Sequence[str], header: bytes = b"", expires_at: int = 0, priority: int = 0
    ) -> None:
        """Publish in the branch. Raises as `MessageStore.publish`, and TransactionStateError for a transient queue.

        A prepared branch outlives the process, and transient messages do not.
        """
        work, names = self._current().work, names_of(queues)
        with self._store._deciding(self._xid) as core:
            known = core.catalogue.queues
            self._no_transient([name for name in names if name in known and known[name].transient])
        self._store._publishing.collect(work, content, names, header, expires_at, priority)

    def ack(self, *deliveries: Delivery) -> None:
        """Acknowledge these messages in the branch. Raises NotHeldError, TransactionStateError as `publish`."""
        work = self._current().work
        given: Sequence[object] = deliveries
        transient = [str(one) for one in given if isinstance(one, Delivery) and one.message.transient]
        with self._store._deciding(self._xid):
            self._no_transient(transient)
        self._store._take_answers(work, deliveries, ACKED)

    @staticmethod
    def _no_transient(names: list[str]) -> None:
        if names:
            raise CallRefused(f"{names[0]} is transient, and a distributed transaction is to outlive the process")

    def _current(self) -> Branch[TransactionWork]:
        with self._store._deciding(self._xid):
            found = self._branches.current(self)
            if found is None:
                raise CallRefused("this session works in no branch; begin one")
            if found.doomed:
                raise CallRefused(f"it can only be rolled back: {found.doomed}")
            return found

    def tpc_prepare(self) -> None:
        """Prepare the branch that this session began last: it waits for its outcome, also after a crash. Durable.

        Ends the session's own part of the branch, if it is the only session in it.
        """
        with self._store._deciding(self._xid) as core:
            self._end_own()
            branch = self._branches.to_decide(self._xid, commit=True)
            branch.work.write(core, self._xid)
            self._branches.forget(self._xid)
        self._store.sync()

    def tpc_commit(self, xid: bytes | None = None) -> None:
        """Commit; durable on return. Without an xid, the session's own branch, in one phase if it is not prepared.

        With an xid, a prepared branch of any session.
        """
        if xid is None:
            with self._store._deciding(self._xid) as core:
                if self._branches.find(self._xid) is not None:
                    self._end_own()
                    self._branches.to_decide(self._xid, commit=True).work.write(core, None)
                    self._branches.forget(self._xid)
                else:
                    self._store._decide(self._xid, commit=True)
            self._store.sync()
            return
        self._store.tpc_commit(xid)

    def tpc_rollback(self, xid: bytes | None = None) -> None:
        """Roll back the session's own branch, or with an xid a prepared one; durable on return."""
        if xid is None:
            with self._store._deciding(self._xid) as core:
                if self._branches.find(self._xid) is not None:
                    self._end_own()
                    self._branches.to_decide(self._xid, commit=False).work.undo(core)
                    self._branches.forget(self._xid)
                else:
                    self._store._decide(self._xid, commit=False)
            self._store.sync()
            return
        self._store.tpc_rollback(xid)

    def _end_own(self) -> None:
        """End this session's part, where it is the only one: the DB-API knows no other way."""
        found = self._branches.find(self._xid)
        if found is not None and found.sessions == {self: False}:
            self._branches.end(self, self._xid, suspend=False, fail=False)

    def tpc_recover(self) -> list[bytes]:
        """Return the xids of the prepared transactions without an outcome."""
        return self._store.tpc_recover()

    def set_timeout(self, seconds: float) -> None:
        """Roll the branch back after so many seconds, unless it is prepared by then."""
        seconds = float(seconds)
        with self._store._deciding(self._xid):
            self._branches.set_timeout(self._xid, seconds)

    def timeout(self) -> float:
        """Return after how many seconds the branch is rolled back."""
        with self._store._deciding(self._xid):
            return self._branches.timeout(self._xid)

    def close(self) -> None:
        """End the session. Its branches can only be rolled back then, and are, if no other session works in them."""
        with self._store._deciding(self._xid) as core:
            for work in self._branches.leave(self):
                work.undo(core)

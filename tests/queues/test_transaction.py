"""Transactions of a message store: all or nothing, seen by nobody before, and the order of calls for two phases.

Conformance A4 and C: dtx.py, tx.py, TransactionalTest, TwoPhaseCommitTest.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from fix_sqlite_disk import SimVfs
from tranlog.errors import DiskFullError, NotHeldError, TransactionStateError, UnknownQueueError
from tranlog.queues.core import Delivery
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.rules.branches import TIMEOUT_MOST_S
from tranlog.queues.rules.records import ACKED, DEQUEUE, DEQUEUE_BODY, TX_START, WHOLE
from tranlog.queues.rules.state import NO_LSN
from tranlog.queues.store import MessageStore
from tranlog.queues.transaction import BranchSession, StoreTransaction
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

OPTIONS = QueueStoreOptions(container_bytes=12_288, ack_sync_s=None)


class Machine:
    """A disk, and the store on it, which can be killed and opened again."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.vfs = SimVfs(self.disk)
        self.store = self.open()

    def open(self) -> MessageStore:
        return MessageStore.open("/s", options=OPTIONS, disk=self.disk, clock=self.clock, connect=self.vfs.connect)

    def kill(self) -> MessageStore:
        self.store._catalogue.close()
        self.disk.kill()
        self.store = self.open()
        return self.store


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    for name in "ab":
        made.store.declare(name)
    yield made
    made.store._catalogue.close()
    made.vfs.unregister()


@pytest.fixture
def store(machine: Machine) -> MessageStore:
    return machine.store


def take(store: MessageStore, queue: str) -> Delivery:
    delivery = store.get(queue)
    assert delivery is not None
    return delivery


def contents(store: MessageStore, queue: str) -> list[bytes]:
    """Return what waits on a queue, and leave it there."""
    found = []
    while (delivery := store.get(queue)) is not None:
        found.append(delivery)
    store.requeue(*found)
    return [delivery.content for delivery in found]


def swap(store: MessageStore, work: object) -> None:
    """Take a message of a and publish it to b."""
    delivery = take(store, "a")
    work.ack(delivery)  # type: ignore[attr-defined]
    work.publish(delivery.content, queues=["b"])  # type: ignore[attr-defined]


def test_a_transaction_is_seen_once_it_is_committed(store: MessageStore) -> None:
    """tx.py: commit; TransactionalTest: Commit; each of a swap on neither queue before."""
    store.publish(b"x", queues=["a"])
    with store.transaction() as transaction:
        swap(store, transaction)
        assert (contents(store, "a"), contents(store, "b")) == ([], [])
    assert (contents(store, "a"), contents(store, "b")) == ([], [b"x"])


def test_what_was_rolled_back_is_as_it_was(machine: Machine, store: MessageStore) -> None:
    """tx.py: rollback, auto_rollback; an exception in the block rolls back."""
    store.publish(b"x", queues=["a"])

    def breaking() -> None:
        with store.transaction() as transaction:
            swap(store, transaction)
            transaction.publish(b"y" * 9_000, queues=["b"])
            raise RuntimeError("the program's own")

    with pytest.raises(RuntimeError, match="own"):
        breaking()
    assert (contents(store, "a"), contents(store, "b")) == ([b"x"], [])
    transaction = store.transaction()
    swap(store, transaction)
    machine.kill()  # with the transaction open
    assert (contents(machine.store, "a"), contents(machine.store, "b")) == ([b"x"], [])


def test_a_transaction_ends_once(store: MessageStore) -> None:
    transaction = store.transaction()
    transaction.commit()
    for call in (transaction.commit, transaction.rollback, transaction.ack):
        with pytest.raises(TransactionStateError, match="over"):
            call()


@pytest.mark.parametrize("ends", [None, StoreTransaction.commit, StoreTransaction.rollback])
def test_a_transaction_that_is_dropped_is_rolled_back(
    machine: Machine, store: MessageStore, ends: Callable[[StoreTransaction], None] | None
) -> None:
    """As a function leaves it that raised, or a generator that was closed: its messages were gone until a restart."""
    store.publish_many([b"1", b"2"], queues=["a"])
    transaction = store.transaction()
    transaction.ack(take(store, "a"))
    transaction.publish(b"x" * 70_000, queues=["b"])
    transaction.publish(b"3", queues=["b"], transient=True)
    if ends is not None:
        ends(transaction)
    del transaction
    gc.collect()
    came = ends is StoreTransaction.commit
    assert contents(store, "a") == ([b"2"] if came else [b"1", b"2"])
    assert contents(store, "b") == ([b"x" * 70_000, b"3"] if came else [])
    assert store.status().transient_messages == came
    assert contents(machine.kill(), "a") == ([b"2"] if came else [b"1", b"2"])


def test_a_session_and_a_watcher_hear_of_a_dropped_transaction(store: MessageStore) -> None:
    store.publish(b"1", queues=["a"])
    for hears in (lambda: store.tpc_recover(), lambda: store.session().tpc_begin(b"x")):
        store.transaction().ack(take(store, "a"))
        gc.collect()
        hears()
        assert store.queues()["a"] == (1, 0)


def test_what_a_transaction_took_nobody_else_can_answer(store: MessageStore) -> None:
    """TransactionalTest: LockedRecordTest."""
    store.publish(b"x", queues=["a"])
    delivery = take(store, "a")
    transaction = store.transaction()
    transaction.ack(delivery)
    for answer in (store.ack, store.requeue, store.transaction().ack):
        with pytest.raises(NotHeldError):
            answer(delivery)
    transaction.rollback()
    assert contents(store, "a") == [b"x"]


def test_one_transaction_takes_a_message_off_two_queues(machine: Machine, store: MessageStore) -> None:
    """Conformance A7.6, A7.7: the ancestor skipped one of them, or left later messages unprocessed."""
    store.publish(b"x", queues=["a", "b"])
    store.publish(b"y", queues=["a", "b"])
    with store.transaction() as transaction:
        for _ in range(2):
            transaction.ack(take(store, "a"), take(store, "b"))
    assert not store._core.state.messages
    machine.kill()
    assert machine.store.recovered.messages == 0


def test_a_queue_deleted_meanwhile_stops_what_publishes_there(store: MessageStore) -> None:
    store.publish(b"x", queues=["a", "b"])
    transaction = store.transaction()
    transaction.ack(take(store, "a"), take(store, "b"))
    transaction.publish(b"y", queues=["a"])
    store.delete("a")
    with pytest.raises(UnknownQueueError, match="transaction"):
        transaction.commit()
    transaction.rollback()
    assert contents(store, "b") == [b"x"]


def test_a_context_whose_commit_is_refused_is_rolled_back(store: MessageStore) -> None:
    store.publish(b"one", queues=["a"])
    transaction = store.transaction()

    def work() -> None:
        with transaction:
            transaction.ack(take(store, "a"))
            transaction.publish(b"two", queues=["b"])
            transaction.publish(b"x" * 9_000, queues=["b"])
            store.delete("b")

    with pytest.raises(UnknownQueueError):
        work()
    assert contents(store, "a") == [b"one"] and len(store._core.state.messages) == 1
    with pytest.raises(TransactionStateError):
        transaction.rollback()


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_what_is_prepared_waits_for_its_outcome(machine: Machine, commits: bool, restarts: int) -> None:
    """TwoPhaseCommitTest: Commit, PrepareAndAbort, RecoverPreparedThen; conformance 0.7: on neither queue meanwhile."""
    store = machine.store
    store.publish(b"x", queues=["a"])
    session = store.session()
    session.tpc_begin(b"one")
    swap(store, session)
    session.tpc_prepare()
    for _ in range(restarts):
        store = machine.kill()
        assert store.recovered.in_doubt == 1
    assert store.tpc_recover() == [b"one"]
    assert (contents(store, "a"), contents(store, "b")) == ([], [])
    (store.tpc_commit if commits else store.tpc_rollback)(b"one")
    wanted = ([], [b"x"]) if commits else ([b"x"], [])
    back = [] if commits else [(1, True)]
    assert [(one.attempts, one.redelivered) for one in store.peek("a", 2)] == back
    counts = store.status().queues["a"].counts
    assert counts is not None and counts.requeued == len(back)
    assert (contents(store, "a"), contents(store, "b")) == wanted
    store = machine.kill()
    assert all(one.attempts and one.redelivered for one in store.peek("a", 2))
    assert (contents(store, "a"), contents(store, "b")) == wanted
    assert store.tpc_recover() == []
    assert store._journal.reserved == 0


def test_what_a_rollback_put_back_is_handed_out_once_that_is_durable(machine: Machine) -> None:
    """Else it is handed out, and after a crash in doubt again: somebody may commit then what took it."""
    store = machine.store
    store.publish(b"x", queues=["a"])
    session = store.session()
    session.tpc_begin(b"one")
    swap(store, session)
    session.tpc_prepare()
    with store._deciding(b"one"):
        store._decide(b"one", commit=False)
    assert store.peek("a") == []
    assert take(store, "a").content == b"x"  # after a sync of its own
    store = machine.kill()
    assert store.tpc_recover() == [] and contents(store, "a") == [b"x"]


def test_what_recovery_rolled_back_is_so_in_the_log(machine: Machine) -> None:
    """A transaction without outcome took a message; after it another one may take that, and the log is still right."""
    store = machine.store
    store.publish(b"x", queues=["a"])
    with store._journal.lock, store._journal:
        transaction = store._journal.put(TX_START, WHOLE, NO_LSN, b"")
        taken = DEQUEUE_BODY.pack(store._catalogue.queue("a").id, transaction, ACKED)
        store._journal.put(DEQUEUE, WHOLE, store._core.state.messages.values()[0].id, taken)
    store.sync()
    store = machine.kill()
    assert store.recovered.rolled_back == 1
    with store.transaction() as second:
        second.ack(take(store, "a"))
        second.publish(b"y", queues=["b"])
    store = machine.kill()
    assert (contents(store, "a"), contents(store, "b")) == ([], [b"y"])
    assert store.recovered.rolled_back == 0


def test_a_branch_without_operations_is_in_doubt_too(machine: Machine) -> None:
    """Conformance A7.11: the ancestor forgot it."""
    session = machine.store.session()
    session.tpc_begin(b"empty")
    session.tpc_prepare()
    assert machine.kill().tpc_recover() == [b"empty"]
    machine.store.tpc_commit(b"empty")
    assert machine.kill().tpc_recover() == []


def test_exactly_the_prepared_are_listed(machine: Machine) -> None:
    """dtx.py: recover (9 transactions, 2, 5, 6 and 8 prepared); forget_xid_on_completion."""
    store = machine.store
    for number in range(1, 10):
        session = store.session()
        session.tpc_begin(b"%d" % number)
        session.publish(b"x", queues=["a"])
        if number in (2, 5, 6, 8):
            session.tpc_prepare()
        elif number in (1, 3):
            session.tpc_commit()
        elif number == 4:
            session.tpc_rollback()
    store = machine.kill()
    assert store.tpc_recover() == [b"2", b"5", b"6", b"8"]
    assert len(contents(store, "a")) == 2
    store.tpc_commit(b"5")
    session = store.session()
    session.tpc_begin(b"5")  # free again
    session.tpc_rollback()
    assert store.tpc_recover() == [b"2", b"6", b"8"]


def test_join_suspend_and_resume(store: MessageStore) -> None:
    """dtx.py: start_join, suspend_resume, suspend_start_end_resume."""
    one, two = store.session(), store.session()
    one.tpc_begin(b"x")
    one.publish(b"1", queues=["a"])
    two.tpc_begin(b"x", join=True)
    two.publish(b"2", queues=["a"])
    two.tpc_end()
    one.tpc_end(suspend=True)
    one.tpc_begin(b"other")
    one.publish(b"elsewhere", queues=["b"])
    one.tpc_rollback()
    one.tpc_begin(b"x", resume=True)
    one.publish(b"3", queues=["a"])
    one.tpc_end()
    one.tpc_prepare()
    one.tpc_commit()
    assert (contents(store, "a"), contents(store, "b")) == ([b"1", b"2", b"3"], [])


def begun(store: MessageStore) -> BranchSession:
    session = store.session()
    session.tpc_begin(b"x")
    return session


def failed(store: MessageStore) -> BranchSession:
    session = begun(store)
    session.tpc_end(fail=True)
    return session


def suspended(store: MessageStore) -> BranchSession:
    session = begun(store)
    session.tpc_end(suspend=True)
    return session


def shared(store: MessageStore) -> BranchSession:
    session = begun(store)
    store.session().tpc_begin(b"x", join=True)
    return session


def prepared(store: MessageStore) -> BranchSession:
    session = begun(store)
    session.tpc_prepare()
    return session


Call = Callable[[BranchSession], object]
ILLEGAL: list[tuple[str, Callable[[MessageStore], BranchSession], Call, str]] = [
    ("start_already_known", begun, lambda one: one._store.session().tpc_begin(b"x"), "known already"),
    ("start known, prepared", prepared, lambda one: one._store.session().tpc_begin(b"x"), "known already"),
    ("a second one at once", begun, lambda one: one.tpc_begin(b"y"), "end that first"),
    ("start_join_and_resume", begun, lambda one: one.tpc_begin(b"x", join=True), "end that first"),
    ("join, unknown", begun, lambda one: one._store.session().tpc_begin(b"y", join=True), "not known"),
    ("join, suspended", suspended, lambda one: one.tpc_begin(b"x", join=True), "resume it"),
    ("bad_resume", begun, lambda one: one._store.session().tpc_begin(b"x", resume=True), "has not suspended"),
    ("resume, unknown", begun, lambda one: one._store.session().tpc_begin(b"y", resume=True), "not known"),
    ("end_unknown_xid", begun, lambda one: one.tpc_end(b"y"), "not known"),
    ("end of another session", begun, lambda one: one._store.session().tpc_end(b"x"), "does not work in it"),
    ("suspend twice", suspended, lambda one: one.tpc_end(suspend=True), "suspended it already"),
    ("select_required", suspended, lambda one: one.publish(b"", queues=["a"]), "works in no branch"),
    ("end_suspend_and_fail: prepare", failed, lambda one: one.tpc_prepare(), "ended it as failed"),
    ("end_suspend_and_fail: commit", failed, lambda one: one.tpc_commit(), "ended it as failed"),
    ("invalid_prepare_not_ended", shared, lambda one: one.tpc_prepare(), "2 sessions work in it"),
    ("invalid_commit_not_ended", shared, lambda one: one.tpc_commit(), "2 sessions work in it"),
    ("invalid_rollback_not_ended", shared, lambda one: one.tpc_rollback(), "2 sessions work in it"),
    ("prepare, suspended", suspended, lambda one: one.tpc_prepare(), "1 sessions work in it"),
    ("invalid_commit_one_phase_false", begun, lambda one: one._store.tpc_commit(b"x"), "not prepared"),
    ("rollback by xid, not prepared", begun, lambda one: one._store.tpc_rollback(b"x"), "not prepared"),
    ("prepare twice", prepared, lambda one: one.tpc_prepare(), "not known"),
    ("commit, unknown", begun, lambda one: one._store.tpc_commit(b"y"), "not known"),
    ("rollback, unknown", begun, lambda one: one._store.tpc_rollback(b"y"), "not known"),
    ("get_timeout, unknown", prepared, lambda one: one.timeout(), "not known"),
    ("set_timeout_too_high", begun, lambda one: one.set_timeout(TIMEOUT_MOST_S + 1), "at most 86400"),
    ("no timeout", begun, lambda one: one.set_timeout(0), "above 0"),
    ("an xid too long", begun, lambda one: one._store.session().tpc_begin(b"x" * 1025), "1 to 1024"),
    ("an empty xid", begun, lambda one: one._store.session().tpc_begin(b""), "1 to 1024"),
]


@pytest.mark.parametrize(("state", "call", "why"), [row[1:] for row in ILLEGAL], ids=[row[0] for row in ILLEGAL])
def test_what_a_branch_does_not_allow_is_refused(
    store: MessageStore, state: Callable[[MessageStore], BranchSession], call: Call, why: str
) -> None:
    """Conformance A4.44 to A4.47; the names are those of dtx.py."""
    session = state(store)
    before = store.tpc_recover()
    with pytest.raises(TransactionStateError, match=why):
        call(session)
    assert store.tpc_recover() == before


def test_a_session_that_is_closed_dooms_its_branch(store: MessageStore) -> None:
    """dtx.py: implicit_end."""
    store.publish(b"x", queues=["a"])
    session = store.session()
    session.tpc_begin(b"x")
    swap(store, session)
    session.close()
    assert contents(store, "a") == [b"x"]
    other = store.session()
    other._xid = b"x"
    with pytest.raises(TransactionStateError, match="was closed"):
        other.tpc_prepare()
    other.tpc_rollback()
    store.session().tpc_begin(b"x")


def test_a_session_that_is_closed_holds_nothing_of_what_it_suspended(store: MessageStore) -> None:
    for content in (b"1", b"2"):
        store.publish(content, queues=["a"])
    session = store.session()
    for xid in (b"x", b"y"):
        session.tpc_begin(xid)
        session.ack(take(store, "a"))
        session.tpc_end(suspend=True)
    session.close()
    assert contents(store, "a") == [b"1", b"2"]


def test_a_branch_that_failed_is_undone_when_its_time_is_over(machine: Machine, store: MessageStore) -> None:
    store.publish(b"x", queues=["a"])
    session = store.session()
    session.tpc_begin(b"x")
    session.ack(take(store, "a"))
    session.tpc_end(fail=True)
    machine.clock.advance(59)
    assert contents(store, "a") == []
    machine.clock.advance(2)
    assert contents(store, "a") == [b"x"]
    with pytest.raises(TransactionStateError, match="ended it as failed"):
        session.tpc_prepare()


def test_a_branch_is_undone_when_its_time_is_over(machine: Machine, store: MessageStore) -> None:
    """dtx.py: get_timeout, set_timeout."""
    store.publish(b"x", queues=["a"])
    session = store.session()
    session.tpc_begin(b"x")
    assert session.timeout() == 60
    session.set_timeout(2)
    swap(store, session)
    machine.clock.advance(1.9)
    assert contents(store, "a") == []
    machine.clock.advance(0.2)
    assert contents(store, "a") == [b"x"]
    with pytest.raises(TransactionStateError, match="2 seconds were over"):
        session.publish(b"y", queues=["a"])
    with pytest.raises(TransactionStateError, match="2 seconds were over"):
        session.tpc_commit()
    session.tpc_rollback()
    session.tpc_begin(b"y")
    session.tpc_prepare()
    machine.clock.advance(1_000)
    assert store.tpc_recover() == [b"y"]


def lost(machine: Machine) -> None:
    """Nobody has its session any more, and the branch has not heard of it."""
    session = machine.store.session()
    session.tpc_begin(b"x")
    session.ack(take(machine.store, "a"))
    with pytest.raises(TransactionStateError, match="it is not prepared"):
        machine.store.tpc_rollback(b"x")
    machine.clock.advance(61)


def closed(machine: Machine) -> None:
    session = machine.store.session()
    session.tpc_begin(b"x")
    session.ack(take(machine.store, "a"))
    session.close()


@pytest.mark.parametrize("end", [lost, closed])
def test_a_branch_whose_session_is_gone_is_rolled_back_by_its_xid(
    machine: Machine, store: MessageStore, end: Callable[[Machine], None]
) -> None:
    """As the error of who begins it again says; its xid was taken until the store was opened anew."""
    store.publish(b"1", queues=["a"])
    end(machine)
    with pytest.raises(TransactionStateError, match="decide it first"):
        store.session().tpc_begin(b"x")
    with pytest.raises(TransactionStateError, match="it is not prepared"):
        store.tpc_commit(b"x")
    store.tpc_rollback(b"x")
    session = store.session()
    session.tpc_begin(b"x")
    session.ack(take(store, "a"))
    session.tpc_prepare()
    store.tpc_commit(b"x")
    assert store.queues()["a"] == (0, 0)


@pytest.mark.parametrize("restarts", [0, 1])
def test_what_is_reserved_for_an_outcome_is_what_it_gives_back(machine: Machine, restarts: int) -> None:
    """Each queue of a publish is an operation."""
    store = machine.store
    store.publish(b"x", queues=["a", "b"])
    session = store.session()
    session.tpc_begin(b"one")
    session.publish(b"y", queues=["a", "b"])
    session.ack(take(store, "a"))
    session.tpc_prepare()
    for _ in range(restarts):
        store = machine.kill()
    assert store._journal.reserved > 0
    store.tpc_commit(b"one")
    assert store._journal.reserved == 0


def test_an_outcome_has_its_room_on_a_full_disk(machine: Machine, store: MessageStore) -> None:
    for number in range(20):
        store.publish(b"%d" % number, queues=["a"])
    sessions = []
    for number in range(4):
        session = store.session()
        session.tpc_begin(b"%d" % number)
        for _ in range(5):
            swap(store, session)
        session.tpc_prepare()
        sessions.append(session)
    for name in ("c", "d"):
        store.declare(name)
    store.publish_many([b""] * 400, queues=["c", "d"])
    machine.disk.room = 0
    with suppress(DiskFullError):
        while True:
            store.publish(b"x" * 500, queues=["a"])
    drained = 0
    with suppress(DiskFullError):
        while True:  # answers that free nothing, since what is prepared holds the base
            store.ack(take(store, "c"))
            drained += 1
    assert drained > 10
    for number in range(4):
        (store.tpc_commit if number % 2 else store.tpc_rollback)(b"%d" % number)
    machine.disk.room = None
    store = machine.kill()
    assert store.tpc_recover() == []
    assert len(contents(store, "b")) == 10

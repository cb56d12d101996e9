"""The crash matrix of the message store: each row a step, cut at every call that it makes on the disk.

Each case is a row of part B of the ancestor's conformance list, or several where the step writes their records as one
group. B is what is found where the step was cut before its records were durable, A where they were. Nothing else may be
found, both are found, and a step that returned is found done. Then the opening is cut at calls of its own, and what is
found after that is the same.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import pytest

from fix_crash import replayable
from fix_effort import Effort
from fix_sqlite_disk import SimVfs
from tranlog.errors import TranlogError
from tranlog.queues.core import Delivery
from tranlog.queues.moving import move
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.rules.records import ACKED, DEQUEUE, DEQUEUE_BODY, START, START_BODY, TX_START, WHOLE
from tranlog.queues.rules.state import NO_LSN
from tranlog.queues.store import MessageStore
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk

OPTIONS = QueueStoreOptions(container_bytes=12_288, write_buffers=1, ack_sync_s=None)
LARGE = b"large" * 4_000
"""Seven sections, in three containers."""

View = tuple[dict[str, list[bytes]], list[bytes]]
"""By queue what waits on it, in its order; and the branches in doubt."""
Step = Callable[[MessageStore], object]


class RunningStore:
    """A store on a disk, ended as a process is."""

    def __init__(self, disk: SimDisk) -> None:
        self._vfs = SimVfs(disk)
        self._made: MessageStore | None = None
        self._disk = disk

    def __enter__(self) -> MessageStore:
        try:
            self._made = MessageStore.open(
                "/s", options=OPTIONS, disk=self._disk, clock=ManualClock(), connect=self._vfs.connect
            )
        except BaseException:
            self._vfs.unregister()
            raise
        return self._made

    def __exit__(self, *_: object) -> None:
        assert self._made is not None
        self._made._catalogue.close()
        self._vfs.unregister()


def view(store: MessageStore) -> View:
    """Return what can be seen of a store, and leave it so."""
    found: dict[str, list[bytes]] = {}
    for queue in store._catalogue.queues.values():
        found[queue.name] = []
        for message in store._core.row(queue.id):
            place = message.place_on(queue.id)
            assert place is not None
            found[queue.name].append(Delivery(store._core, queue.name, message, place, False).content)
    return found, store.tpc_recover()


def take(store: MessageStore, queue: str) -> Delivery:
    delivery = store.get(queue)
    assert delivery is not None
    return delivery


def put(*messages: tuple[bytes, str]) -> Step:
    """Publish each to queues, which a text names by their letters."""

    def step(store: MessageStore) -> None:
        for content, queues in messages:
            store.publish(content, queues=list(queues))

    return step


def branch(store: MessageStore, xid: bytes = b"xid") -> None:
    """Prepare a branch that takes x off a, and puts y and a large one on b."""
    session = store.session()
    session.tpc_begin(xid)
    session.ack(take(store, "a"))
    session.publish(b"y", queues=["b"])
    session.publish(LARGE, queues=["b"])
    session.tpc_prepare()


def prepared(store: MessageStore) -> None:
    store.publish(b"x", queues=["a"])
    branch(store)


def local(store: MessageStore) -> None:
    with store.transaction() as transaction:
        transaction.ack(take(store, "a"))
        transaction.publish(b"y", queues=["b"])
        transaction.publish(LARGE, queues=["a", "b"])


def one_phase(store: MessageStore) -> None:
    session = store.session()
    session.tpc_begin(b"xid")
    session.ack(take(store, "a"))
    session.publish(b"y", queues=["b"])
    session.tpc_commit()


def left_open(store: MessageStore) -> None:
    """A transaction that never ends, whose large content is in the log."""
    transaction = store.transaction()
    transaction.ack(take(store, "a"))
    transaction.publish(LARGE, queues=["b"])
    store.sync()


def rolled_back(store: MessageStore) -> None:
    transaction = store.transaction()
    transaction.ack(take(store, "a"))
    transaction.publish(LARGE, queues=["b"])
    transaction.rollback()
    store.sync()


def transient(store: MessageStore) -> None:
    """Of both kinds; what is transient is gone, whatever the end."""
    store.declare("t", transient=True)
    store.publish(b"gone", queues=["b"], transient=True)
    store.publish(b"x", queues=["a", "t"])


def empties(store: MessageStore) -> None:
    """One Commit, and a Delete for each message that it leaves on no queue."""
    with store.transaction() as transaction:
        for _ in range(4):
            transaction.ack(take(store, "a"))


def no_end(store: MessageStore) -> None:
    """A transaction in the log without an outcome, and a message without a queue, as another release may leave them."""
    journal = store._journal
    with journal.lock, journal:
        transaction = journal.put(TX_START, WHOLE, NO_LSN, b"")
        taken = DEQUEUE_BODY.pack(store._catalogue.queue("a").id, transaction, ACKED)
        journal.put(DEQUEUE, WHOLE, store._core.state.messages.values()[0].id, taken)
        journal.put(START, WHOLE, NO_LSN, START_BODY.pack(0, 0, 0, 1) + b"z")
    store.sync()


def first_section(store: MessageStore) -> None:
    """The Start of a message of several sections, and one Chunk."""
    core = store._core
    with core.journal.lock, core.journal:
        message = core.begin_large(0, 9_000, b"1" * 2_700)
        core.add_section(message, b"2" * 2_700)
    store.sync()


def all_but_the_last(store: MessageStore) -> None:
    """Every section, and no Enqueue."""
    core = store._core
    with core.journal.lock, core.journal:
        message = core.begin_large(0, 5_400, b"1" * 2_700)
        core.add_section(message, b"2" * 2_700)
    store.sync()


def two_at_once(store: MessageStore) -> None:
    store.publish(b"1" * 700, queues=["a"], wait=False)
    store.publish(b"2" * 700, queues=["b"], wait=False)
    store.sync()


def base_moves(store: MessageStore) -> None:
    """The last message of the lowest containers goes, and the next sync gives them back."""
    store.ack(take(store, "a"), wait=True)
    store.publish(b"2", queues=["b"])


def full_containers(store: MessageStore) -> None:
    store.publish(b"x", queues=["a"])
    for _ in range(3):
        store.publish(b"w" * 2_500, queues=["a"])
        store.publish(b"w" * 2_500, queues=["b"])
    assert store.purge("b") == 3
    store.ack(*[take(store, "a") for _ in range(3)], wait=True)


def moved(store: MessageStore) -> None:
    """What stands in the lowest container is written again, and the container given back."""
    core = store._core
    with core.journal.lock, core.journal:
        movable, fixed, undecided = core.state.pinning(
            core.state.lowest(core.journal.buffer.number), core.journal.files.container_bytes
        )
        assert movable and not fixed and not undecided
        for message in movable:
            move(core.journal, core.state, core.section, message)
    store.sync()


def to_be_moved(store: MessageStore) -> None:
    put((b"x", "ab"), (LARGE, "a"))(store)
    store.requeue(take(store, "a"))
    store.sync()


def ack(*queues: str) -> Step:
    return lambda store: store.ack(*[take(store, queue) for queue in queues], wait=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A step on a store that `before` left, what is found where it was cut, and where it was done.

    `between`: what may be found besides, where the step is more than one group.
    """

    step: Step
    b: View
    a: View
    before: Step = lambda store: None
    between: tuple[View, ...] = ()


def seen(a: list[bytes] | None = None, b: list[bytes] | None = None, *xids: bytes, **more: list[bytes]) -> View:
    return {"a": a or [], "b": b or []} | more, list(xids)


MATRIX = {
    "SQL create queue": Row(step=lambda store: store.declare("c"), b=seen(), a=seen(c=[])),
    "SQL delete queue": Row(
        before=put((b"x", "a"), (b"y", "ab"), (b"z", "b")),
        step=lambda store: store.delete("a"),
        b=seen([b"x", b"y"], [b"y", b"z"]),
        a=({"b": [b"y", b"z"]}, []),
    ),
    "expunge Dequeue k of n": Row(
        before=put(*((b"%d" % number * 900, "a") for number in range(8)), (LARGE, "a"), (b"y", "ab")),
        step=lambda store: store.delete("a"),
        b=seen([*(b"%d" % number * 900 for number in range(8)), LARGE, b"y"], [b"y"]),
        a=({"b": [b"y"]}, []),
    ),
    "Message-Start and Enqueue, one group": Row(step=put((b"x", "a")), b=seen(), a=seen([b"x"])),
    "Message-Start of k chunks, Chunk i<k": Row(step=first_section, b=seen(), a=seen()),
    "Chunk k (last), no Enqueue": Row(step=all_but_the_last, b=seen(), a=seen()),
    "Chunk k (last) and Enqueue, one group": Row(step=put((LARGE, "a")), b=seen(), a=seen([LARGE])),
    "Enqueue(q2, 0) second of a fan-out": Row(step=put((b"x", "ab")), b=seen(), a=seen([b"x"], [b"x"])),
    "Enqueue, and a place on a transient queue": Row(step=transient, b=seen(), a=seen([b"x"])),
    "Dequeue(q, 0), other locations left": Row(
        before=put((b"x", "ab")), step=ack("a"), b=seen([b"x"], [b"x"]), a=seen([], [b"x"])
    ),
    "Dequeue(q, 0), last location, and Message-Delete": Row(
        before=put((b"x", "a"), (b"y", "b")), step=ack("a"), b=seen([b"x"], [b"y"]), a=seen([], [b"y"])
    ),
    "base move": Row(
        before=full_containers, step=base_moves, b=seen([b"w" * 2_500]), a=seen([], [b"2"]), between=(seen(),)
    ),
    "Tx-Start, Enqueue/Dequeue(q, t) with t open": Row(
        before=put((b"x", "a")), step=left_open, b=seen([b"x"]), a=seen([b"x"])
    ),
    "Dtx-Start up to Prepare": Row(before=put((b"x", "a")), step=branch, b=seen([b"x"]), a=seen([], [], b"xid")),
    "Commit (local)": Row(before=put((b"x", "a")), step=local, b=seen([b"x"]), a=seen([LARGE], [b"y", LARGE])),
    "Commit (1PC)": Row(before=put((b"x", "a")), step=one_phase, b=seen([b"x"]), a=seen([], [b"y"])),
    "Commit (2PC), and Transaction-Delete": Row(
        before=prepared,
        step=lambda store: store.tpc_commit(b"xid"),
        b=seen([], [], b"xid"),
        a=seen([], [b"y", LARGE]),
    ),
    "Rollback (open)": Row(before=put((b"x", "a")), step=rolled_back, b=seen([b"x"]), a=seen([b"x"])),
    "Rollback (prepared)": Row(
        before=prepared, step=lambda store: store.tpc_rollback(b"xid"), b=seen([], [], b"xid"), a=seen([b"x"])
    ),
    "Message-Deletes following a Commit, j of n": Row(
        before=put(*((b"%d" % number, "a") for number in range(4)), (b"y", "b")),
        step=empties,
        b=seen([b"0", b"1", b"2", b"3"], [b"y"]),
        a=seen([], [b"y"]),
    ),
    "recovery's own Delete / Abort writes": Row(before=put((b"x", "a")), step=no_end, b=seen([b"x"]), a=seen([b"x"])),
    "two objects in one group commit": Row(
        step=two_at_once, b=seen(), a=seen([b"1" * 700], [b"2" * 700]), between=(seen([b"1" * 700]),)
    ),
    "container creation, rename, directory fsync": Row(
        before=put((b"x" * 2_700, "a"), (b"y" * 2_700, "a")),
        step=put((LARGE, "b")),
        b=seen([b"x" * 2_700, b"y" * 2_700]),
        a=seen([b"x" * 2_700, b"y" * 2_700], [LARGE]),
    ),
    "checkpoint: a container's survivors moved": Row(
        before=to_be_moved, step=moved, b=seen([b"x", LARGE], [b"x"]), a=seen([b"x", LARGE], [b"x"])
    ),
}


def stepped(row: Row, cut: int) -> tuple[SimDisk, bool]:
    """Run a row's step, cut at its call `cut`; return the disk, and whether the step was done."""
    disk = SimDisk()
    with RunningStore(disk) as store:
        store.declare("a")
        store.declare("b")
        row.before(store)
        store.sync()
        disk.cut_at = disk.calls + cut
        try:
            row.step(store)
        except (PowerCut, TranlogError):
            assert disk.dead
    return disk, not disk.dead


def ended(disk: SimDisk, rng: random.Random, kill: bool) -> SimDisk:
    if kill:
        disk.kill()
        return disk
    return disk.after_crash(rng)


def found(disk: SimDisk, rng: random.Random) -> View:
    """Open it, cut at one of the opening's calls or not, and again; return what is seen then, which is then final."""
    if rng.random() < 0.7:
        disk.cut_at = disk.calls + rng.randrange(1, 30)
        first: View | None = None
        with contextlib.suppress(PowerCut, TranlogError), RunningStore(disk) as store:
            first = view(store)
        disk = ended(disk, rng, kill=rng.random() < 0.3)
        with RunningStore(disk) as store:
            second = view(store)
            assert first in (None, second), "an opening, broken off or not, and the next one differ"
            store.close()
    with RunningStore(disk) as store:
        last = view(store)
        store.close()
    with RunningStore(disk) as store:
        assert store.recovered.clean and not (store.recovered.dropped or store.recovered.deleted)
        assert view(store) == last
        known = {queue.id for queue in store._catalogue.queues.values()}
        for message in store._core.state.messages.values():
            assert message.complete and message.places, "a message that is on no queue"
            assert known.issuperset(place.queue_id for place in message.places), "one on a queue that is gone"
        if b"xid" not in last[1]:
            store.session().tpc_begin(b"xid")  # it is free
    return last


@pytest.mark.long
@pytest.mark.parametrize("name", MATRIX)
def test_each_row_of_the_crash_matrix(name: str, effort: Effort) -> None:
    row = MATRIX[name]
    views = []
    for cut in count(1):
        done = False
        for fate in range(effort(2, 5, 20)):
            with replayable(f"{name}: cut={cut} fate={fate}"):
                disk, done = stepped(row, cut)
                rng = random.Random(cut * 101 + fate)
                view_now = found(ended(disk, rng, kill=fate == 0), rng)
                assert view_now in ([row.a] if done else [row.b, *row.between, row.a])
                views.append(view_now)
        if done:
            break
    assert row.b in views and row.a in views

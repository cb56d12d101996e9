"""What the tests of the message store share: a program's life on a store, and the states that it went through.

The log is one total order of groups, each whole or not there, so what a crash leaves is the state after some group:
none that was told to be durable is behind it. The catalogue is apart: what it returned from is there.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from fix_sqlite_disk import SimVfs
from tranlog.queues.core import Delivery
from tranlog.queues.moving import move
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore
from tranlog.queues.transaction import BranchSession, StoreTransaction
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

PATH = "/store"
Entry = tuple[int, int, int]
"""Which message, how often it came back, and the branch in doubt that takes it, 0 for none."""
State = dict[int, tuple[Entry, ...]]
"""By a queue's id what is on it, in order. By a branch in doubt, negative: queue and message of each publish."""
Rows = dict[int, list[Entry]]
MANY = b"many"
"""The header of what is published at once."""
EXCHANGE = "x"
"""A topic exchange."""
MATCHES = {"k": ("k", "#"), "k.1": ("k.*", "#")}
"""By the key of a message the keys of bindings that it goes by."""
PRODUCER = 0
"""Stands for a queue: the number at which the producer stands that publishes once."""
Seen = tuple[dict[int, tuple[tuple[int, int], ...]], list[int], int]
"""What can be seen of a state: what waits on each queue, which branches are in doubt, where the producer stands."""


def seen_of(state: State, known: set[int]) -> Seen:
    """Return what can be seen of a state, on the queues that are known."""
    rows = {queue: tuple((one, times) for one, times, by in row if not by) for queue, row in state.items() if queue > 0}
    doubt = sorted(-one for one in state if one < 0)
    producer = state[PRODUCER][0][0] if PRODUCER in state else 0
    return {queue: row for queue, row in rows.items() if row and queue in known}, doubt, producer


def content_of(number: int, seed: int) -> bytes:
    """Return the content of a message of a life, told from all others."""
    rng = random.Random(seed * 1_000_003 + number)
    size = rng.choice((0, 1, 30, 200, 900, 2_500, 6_000, 14_000))
    return b"%d:" % number + rng.randbytes(size)


def options(seed: int) -> QueueStoreOptions:
    rng = random.Random(seed)
    return QueueStoreOptions(
        container_bytes=rng.choice((12_288, 16_384, 24_576)),
        initial_containers=rng.choice((2, 3, 5)),
        write_buffers=1,
        content_bytes=rng.choice((0, 5_000, 1_000_000)),
        ack_sync_s=None,  # no thread, whose calls would come at another moment in each run
    )


@contextlib.contextmanager
def opened(disk: SimDisk, seed: int) -> Iterator[MessageStore]:
    """Open a store on a simulated disk; what it leaves open is let go, as the end of a process does."""
    vfs = SimVfs(disk)
    store = None
    try:
        store = MessageStore.open(PATH, options=options(seed), disk=disk, clock=ManualClock(), connect=vfs.connect)
        yield store
    finally:
        if store is not None:
            store._catalogue.close()
        vfs.unregister()


@dataclass(slots=True)
class QueueLedger:
    """The states that the log went through, and how many of them are known to be durable.

    `ids` are the queues that the catalogue has for certain, by name; `maybe` the names of which that is not known.
    `bound` are its bindings for certain, by queue and key; `maybe_bound` those of which that is not known.
    `transient` are the messages that no end of the process leaves. `taken` has by a branch what it takes, in order.
    """

    seed: int
    states: list[State] = field(default_factory=lambda: [{}])
    ids: dict[str, int] = field(default_factory=dict)
    maybe: set[str] = field(default_factory=set)
    bound: set[tuple[str, str]] = field(default_factory=set)
    maybe_bound: set[tuple[str, str]] = field(default_factory=set)
    epochs: list[int] = field(default_factory=list)
    transient: set[int] = field(default_factory=set)
    taken: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    made: int = 0

    def now(self) -> Rows:
        return {queue: list(row) for queue, row in self.states[-1].items()}

    def then(self, state: Rows) -> None:
        """Note the state after the next group, before the store is asked for it."""
        self.states.append({queue: tuple(row) for queue, row in state.items()})

    def durable(self) -> None:
        """Take note that all of them are durable."""
        self.states = self.states[-1:]

    def lose_transient(self) -> None:
        """Take note that the process has ended."""
        for state in self.states:
            for queue in [one for one in state if one > 0]:
                state[queue] = tuple(one for one in state[queue] if one[0] not in self.transient)

    def remove(self, queue_id: int, number: int) -> None:
        state = self.now()
        state[queue_id] = [one for one in state[queue_id] if one[0] != number]
        self.then(state)


def number_of(delivery: Delivery, seed: int) -> int:
    """Return which message that is; its content is whole."""
    raw = delivery.content
    number = int(raw[: raw.index(b":")])
    assert raw == content_of(number, seed), "a message came back with other bytes"
    assert delivery.header in (b"h%d" % number, MANY)
    return number


def look_into(store: MessageStore, seed: int) -> Seen:
    """Return what is on the queues of a store that was just opened, by reading all of it."""
    found = {}
    for queue in store._catalogue.queues.values():
        row = []
        for message in store._core.row(queue.id):
            place = message.place_on(queue.id)
            assert place is not None
            delivery = Delivery(store._core, queue.name, message, place, True)
            row.append((number_of(delivery, seed), place.attempts))
        if row:
            found[queue.id] = tuple(row)
    return found, sorted(int(xid) for xid in store.tpc_recover()), store.producers().get("p", 0)


def bindings_of(store: MessageStore) -> set[tuple[str, str]]:
    """Return the bindings of a store, by queue and key."""
    names = {queue.id: queue.name for queue in store._catalogue.queues.values()}
    return {(names[one.queue_id], one.routing_key) for one in store._catalogue.bindings if one.queue_id is not None}


def check_opened(store: MessageStore, ledger: QueueLedger) -> None:
    """Hold what an opening found against the ledger, and go on from there."""
    assert store.recovered.epoch not in ledger.epochs and store.recovered.epoch > max(ledger.epochs, default=0)
    ledger.epochs.append(store.recovered.epoch)
    ids = {queue.name: queue.id for queue in store._catalogue.queues.values()}
    for name in ids.keys() | ledger.ids.keys():
        if name not in ledger.maybe:
            assert ids.get(name) == ledger.ids.get(name), f"queue {name}"
    bound = bindings_of(store)
    assert bound ^ ledger.bound <= ledger.maybe_bound, f"bound are {bound}, and not {ledger.bound}"
    ledger.bound, ledger.maybe_bound = bound, set()
    found = look_into(store, ledger.seed)
    known = set(ids.values())
    ledger.lose_transient()
    wanted = [seen_of(state, known) for state in ledger.states]
    assert found in wanted, f"{found} is none of {wanted}"
    state = ledger.states[wanted.index(found)]
    left = {queue: row for queue, row in state.items() if queue <= 0 or queue in known}
    ledger.states, ledger.ids, ledger.maybe = [left], ids, set()
    check_space(store)


def check_space(store: MessageStore) -> None:
    """Nothing stands below the lowest container, and nothing is counted that is not there."""
    state = store._core.state
    live: dict[int, int] = {}
    for place in (*(one.stands for one in state.messages.values()), *(one for one in state.transactions)):
        live[place >> 32] = live.get(place >> 32, 0) + 1
    assert dict(state.live) == live and state.lowest(0) == min(live, default=0)
    assert min(live, default=store._journal.buffer.number) >= store._files.in_use[0]
    for message in state.messages.values():
        assert message.complete and message.places, "recovery leaves no message that is on no queue"


def check_run(life: QueueLife) -> None:
    """Hold a store that runs against the ledger: what waits and what is held, in order, and what is in doubt."""
    held = {(delivery.place.queue_id, number) for delivery, number in life.held}
    row = {
        queue: tuple(one for one in entries if (queue, one[0]) not in held)
        for queue, entries in life.ledger.states[-1].items()
    }
    assert look_into(life.store, life.seed) == seen_of(row, set(life.ledger.ids.values()))
    assert bindings_of(life.store) == life.ledger.bound
    live: dict[int, int] = {}
    state = life.store._core.state
    for place in (*(one.stands for one in state.messages.values()), *state.transactions):
        live[place >> 32] = live.get(place >> 32, 0) + 1
    assert dict(state.live) == live and state.lowest(0) == min(live, default=0)
    assert state.live_bytes == sum(one.total_length for one in state.messages.values())


class QueueLife:
    """A program on a store: declares, binds, publishes, takes, answers, purges, deletes, closes."""

    def __init__(self, disk: SimDisk, ledger: QueueLedger, seed: int) -> None:
        self.disk = disk
        self.ledger = ledger
        self.seed = seed
        self.rng = random.Random(seed)
        self.held: list[tuple[Delivery, int]] = []
        self.store: MessageStore

    def live(self, steps: int) -> None:
        left = steps
        while left:
            with opened(self.disk, self.seed) as self.store:
                check_opened(self.store, self.ledger)
                self.held.clear()
                for _ in range(min(left, self.rng.randrange(5, 25))):
                    left -= 1
                    self.step()
                self.store.close()
                self.ledger.durable()

    def step(self) -> None:
        step = self.rng.randrange(37)
        if not self.ledger.ids or step == 0:
            self.declare()
        elif step < 7:
            self.publish()
        elif step == 7:
            self.publish_many()
        elif step < 12:
            self.take()
        elif step < 16:
            self.answer()
        elif step == 16:
            self.store.sync()
            self.ledger.durable()
        elif step == 17:
            self.purge()
        elif step == 18 and len(self.ledger.ids) > 1:
            self.delete()
        elif step < 24:
            self.transact()
        elif step < 26:
            self.prepare()
        elif step < 28:
            self.decide()
        elif step < 30:
            self.move_some()
        elif step < 33:
            self.publish_once()
        elif step < 35:
            self.bind()
        elif step < 37:
            self.publish_by_key()

    def some(self) -> str:
        return self.rng.choice(sorted(self.ledger.ids))

    def declare(self) -> None:
        name = self.rng.choice(("a", "b", "ü\0", "d"))
        self.ledger.maybe.add(name)
        self.ledger.ids[name] = self.store.declare(name)
        self.ledger.maybe.discard(name)

    def delete(self) -> None:
        name = self.some()
        self.ledger.maybe.add(name)
        bound = {one for one in self.ledger.bound if one[0] == name}
        self.ledger.maybe_bound |= bound
        queue_id = self.ledger.ids[name]
        self.held = [one for one in self.held if one[0].place.queue_id != queue_id]
        self.store.delete(name)
        del self.ledger.ids[name]
        self.ledger.maybe.discard(name)
        self.ledger.bound -= bound
        self.ledger.maybe_bound -= bound
        state = self.ledger.now()
        state.pop(queue_id, None)
        self.ledger.then(state)
        self.ledger.durable()

    def bind(self) -> None:
        """Bind a queue by a key, or unbind it."""
        self.store.declare_exchange(EXCHANGE, "topic")
        one = self.some(), self.rng.choice(("k", "k.*", "#"))
        self.ledger.maybe_bound.add(one)
        (self.store.unbind if one in self.ledger.bound else self.store.bind)(EXCHANGE, queue=one[0], key=one[1])
        self.ledger.bound ^= {one}
        self.ledger.maybe_bound.discard(one)

    def publish_by_key(self) -> None:
        """One message on the queues to which its key leads."""
        if EXCHANGE not in self.store._catalogue.exchanges:
            return
        number, content = self.new_message()
        key = self.rng.choice(sorted(MATCHES))
        names = {name for name, by in self.ledger.bound if by in MATCHES[key]}
        if names:
            state = self.ledger.now()
            for name in names:
                state.setdefault(self.ledger.ids[name], []).append((number, 0, 0))
            self.ledger.then(state)
        message = self.store.publish(content, exchange=EXCHANGE, key=key, header=b"h%d" % number)
        assert (message is None) == (not names)
        if names:
            self.ledger.durable()

    def new_message(self) -> tuple[int, bytes]:
        self.ledger.made += 1
        return self.ledger.made, content_of(self.ledger.made, self.seed)

    def publish(self) -> None:
        number, content = self.new_message()
        names = self.rng.sample(sorted(self.ledger.ids), self.rng.randrange(1, min(3, len(self.ledger.ids)) + 1))
        state = self.ledger.now()
        for name in names:
            state.setdefault(self.ledger.ids[name], []).append((number, 0, 0))
        self.ledger.then(state)
        wait, transient = self.rng.random() < 0.5, self.is_transient(number)
        self.store.publish(content, queues=names, header=b"h%d" % number, wait=wait, transient=transient)
        if wait and not transient:
            self.ledger.durable()

    def publish_many(self) -> None:
        """Each counts by itself: a crash leaves the first ones."""
        name, made = self.some(), [self.new_message() for _ in range(self.rng.randrange(1, 5))]
        for number, _ in made:
            state = self.ledger.now()
            state.setdefault(self.ledger.ids[name], []).append((number, 0, 0))
            self.ledger.then(state)
        wait = self.rng.random() < 0.5
        self.store.publish_many([content for _, content in made], queues=[name], header=MANY, wait=wait)
        if wait:
            self.ledger.durable()

    def is_transient(self, number: int) -> bool:
        """Whether a message is published as a transient one, and note it: each fourth is."""
        if number % 4:
            return False
        self.ledger.transient.add(number)
        return True

    def publish_once(self) -> None:
        """The next number of a producer, or one that it is not sure of."""
        state = self.ledger.now()
        at = state[PRODUCER][0][0] if PRODUCER in state else 0
        repeats = at > 0 and self.rng.random() < 0.3
        number, content = self.new_message()
        names = self.rng.sample(sorted(self.ledger.ids), self.rng.randrange(0, min(2, len(self.ledger.ids)) + 1))
        if not repeats:
            for name in names:
                state.setdefault(self.ledger.ids[name], []).append((number, 0, 0))
            state[PRODUCER] = [(at + 1, 0, 0)]
            self.ledger.then(state)
        mine = at + (not repeats)
        message = self.store.publish_once("p", mine, content, queues=names, header=b"h%d" % number)
        assert (message is None) == (repeats or not names)
        self.ledger.durable()

    def take(self) -> None:
        for delivery in self.store.get_many(self.some(), self.rng.randrange(1, 4)):
            number = number_of(delivery, self.seed)
            held = {one for other, one in self.held if other.place.queue_id == delivery.place.queue_id}
            row = self.ledger.states[-1][delivery.place.queue_id]
            waiting = (one for one, _, branch in row if not branch and one not in held)
            assert number == next(waiting), "taken out of order"
            self.held.append((delivery, number))

    def answer(self) -> None:
        if not self.held:
            return
        delivery, number = self.held.pop(self.rng.randrange(len(self.held)))
        if self.rng.random() < 0.3:
            self.comes_back(delivery.place.queue_id, number)
            self.store.requeue(delivery)
            return
        answered = [(delivery, number), *self.held[: self.rng.randrange(3)]]
        del self.held[: len(answered) - 1]
        for delivery, number in answered:
            self.ledger.remove(delivery.place.queue_id, number)
        wait = self.rng.random() < 0.4
        (self.store.ack if self.rng.random() < 0.8 else self.store.reject)(*(one for one, _ in answered), wait=wait)
        if wait:
            self.ledger.durable()

    def comes_back(self, queue_id: int, number: int) -> None:
        """Note that a message goes back to its queue."""
        state = self.ledger.now()
        state[queue_id] = [(one, times + (one == number), by) for one, times, by in state[queue_id]]
        self.ledger.then(state)

    def work(self, on: StoreTransaction | BranchSession) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Publish and answer in a transaction; return queue and message of what it puts, and of what it takes."""
        puts, takes = [], []
        for _ in range(self.rng.randrange(4)):
            number, content = self.new_message()
            names = self.rng.sample(sorted(self.ledger.ids), self.rng.randrange(1, min(3, len(self.ledger.ids)) + 1))
            if isinstance(on, StoreTransaction):
                on.publish(content, queues=names, header=b"h%d" % number, transient=self.is_transient(number))
            else:
                on.publish(content, queues=names, header=b"h%d" % number)
            puts += [(self.ledger.ids[name], number) for name in names]
        for _ in range(min(len(self.held), self.rng.randrange(4))):
            delivery, number = self.held.pop(self.rng.randrange(len(self.held)))
            if isinstance(on, BranchSession) and delivery.message.transient:
                self.held.append((delivery, number))  # it would be refused
                break
            on.ack(delivery)
            takes.append((delivery.place.queue_id, number))
        return puts, takes

    def transact(self) -> None:
        """A transaction of this store."""
        transaction = self.store.transaction()
        puts, takes = self.work(transaction)
        if self.rng.random() < 0.3:
            for queue_id, number in takes:
                self.comes_back(queue_id, number)
            transaction.rollback()
            return
        state = self.ledger.now()
        for queue_id, number in takes:
            state[queue_id] = [one for one in state[queue_id] if one[0] != number]
        for queue_id, number in puts:
            state.setdefault(queue_id, []).append((number, 0, 0))
        self.ledger.then(state)
        wait = self.rng.random() < 0.6
        transaction.commit(wait=wait)
        if wait:
            self.ledger.durable()

    def prepare(self) -> None:
        """A branch of a distributed transaction, up to Prepare."""
        self.ledger.made += 1
        branch = self.ledger.made
        session = self.store.session()
        session.tpc_begin(b"%d" % branch)
        puts, takes = self.work(session)
        self.ledger.taken[branch] = takes
        state = self.ledger.now()
        for queue_id, number in takes:
            state[queue_id] = [(one, times, branch if one == number else by) for one, times, by in state[queue_id]]
        state[-branch] = [(queue_id, number, 0) for queue_id, number in puts]
        self.ledger.then(state)
        session.tpc_prepare()
        self.ledger.durable()

    def decide(self) -> None:
        """The outcome of a branch that is in doubt."""
        branches = [-one for one in self.ledger.states[-1] if one < 0]
        if not branches:
            return self.prepare()
        branch = self.rng.choice(branches)
        state = self.ledger.now()
        puts = state.pop(-branch)
        commits = self.rng.random() < 0.6
        for queue_id in [one for one in state if one > 0]:
            row = state[queue_id]
            if commits:
                state[queue_id] = [one for one in row if one[2] != branch]
            else:
                state[queue_id] = [(one, times, 0 if by == branch else by) for one, times, by in row]
        for queue_id, number, _ in puts:
            if commits and queue_id in self.ledger.ids.values():
                state.setdefault(queue_id, []).append((number, 0, 0))
        self.ledger.then(state)
        for queue_id, number in () if commits else self.ledger.taken[branch]:
            if queue_id in self.ledger.ids.values():
                self.comes_back(queue_id, number)
        (self.store.tpc_commit if commits else self.store.tpc_rollback)(b"%d" % branch)
        self.ledger.durable()

    def move_some(self) -> None:
        """Move messages forward, whether that is worth it or not."""
        core = self.store._core
        with core.journal.lock, core.journal:
            lowest = core.state.lowest(core.journal.buffer.number)
            movable, _, _ = core.state.pinning(lowest, core.journal.files.container_bytes)
            for message in movable:
                move(core.journal, core.state, core.section, message)

    def purge(self) -> None:
        name = self.some()
        queue_id = self.ledger.ids[name]
        held = {number for delivery, number in self.held if delivery.place.queue_id == queue_id}
        for number, _, branch in self.ledger.now().get(queue_id, []):
            if number not in held and not branch:
                self.ledger.remove(queue_id, number)
        self.store.purge(name)
        self.ledger.durable()

"""A process of `make queue-kill`: many producers and consumers on one message store, until somebody kills it.

`queue_rounds.py` starts it. Every thread writes what it asks for into the pipe before it asks, and what it was told
after that; a line is one write, so lines are whole and in order. It begins with what it finds in the store. With
`drain` it decides and takes all that is there, and looks again.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from tranlog.queues.core import Delivery
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore
from tranlog.queues.transaction import BranchSession, StoreTransaction

LONE = ("alone0", "alone1")
"""Queues with one consumer."""
SHARED = ("shared0", "shared1", "shared2")
OLD = "old"
"""Where messages stay long."""
QUEUES = (*LONE, *SHARED, OLD)
WAITING_MOST = 200
OLD_MOST = 12
MESSAGES_A_LIFE = 1_000_000
SIZES = (0, 1, 30, 200, 200, 900, 900, 3_000, 12_000)
FOUND_A_LINE = 200
Pairs = list[tuple[str, int]]


def content_of(number: int) -> bytes:
    """Return a message's content, told from all others."""
    rng = random.Random(number)
    return b"%d:" % number + rng.randbytes(rng.choice(SIZES))


def number_of(delivery: Delivery) -> int:
    """Return a message's number. Raises ValueError where it is not as it was published."""
    raw = delivery.content
    number = int(raw[: raw.index(b":")])
    if raw != content_of(number) or delivery.header != b"h%d" % number:
        raise ValueError(f"message {number} came back with other bytes")
    return number


class QueueLoad:
    """The threads of one life of the store. `once`: by producer its last number, its message, and where that goes."""

    def __init__(self, path: str, pipe: int, seed: int, life: int, once: dict[str, tuple[int, int, list[str]]]) -> None:
        self.pipe = pipe
        self.seed = f"{seed}:{life}"
        self.once = once
        self.numbers = itertools.count(life * MESSAGES_A_LIFE)
        self.works = itertools.count()
        self.left: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.room = threading.Event()
        self.tell("opening")
        began = time.monotonic()
        options = QueueStoreOptions(container_bytes=random.Random(seed).choice((12_288, 16_384, 32_768)))
        self.store = MessageStore.open(path, options=options)
        self.tell("opened", round(1000 * (time.monotonic() - began)))
        for name in QUEUES:
            self.store.declare(name)

    def tell(self, *line: object) -> None:
        """Write a line into the pipe."""
        os.write(self.pipe, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def look(self) -> list[bytes]:
        """Tell what is in the store; return what is in doubt."""
        self.tell("looks")
        for name in QUEUES:
            numbers = [number_of(one) for one in self.store.peek(name, 1 << 30)]
            for at in range(0, len(numbers), FOUND_A_LINE):
                self.tell("found", name, numbers[at : at + FOUND_A_LINE])
        doubt = self.store.tpc_recover()
        self.tell("looked", [xid.decode() for xid in doubt])
        return doubt

    # --- until it is killed --------------------------------------------------------------------------

    def run(self) -> None:
        """Start everybody, and let producers pause while much waits."""
        for xid in self.look():
            self.left.put(xid)
        threads: list[Callable[[random.Random, str], None]] = []
        threads += [self.publish] * 2 + [self.publish_some] + [self.fan_out] * 2
        threads += [partial(self.publish_once, producer=one) for one in ("once0", "once1")]
        threads += [partial(self.consume, at=one) for one in (*LONE, *SHARED, *SHARED)]
        threads += [self.consume_old] + [self.transact] * 2 + [self.prepare] * 2 + [self.decide] * 2
        for number, each in enumerate(threads):
            threading.Thread(target=self.forever, args=(each, f"t{number}"), daemon=True).start()
        while True:
            waiting = sum(count for count, _ in self.store.queues().values())
            (self.room.set if waiting < WAITING_MOST else self.room.clear)()
            time.sleep(0.005)

    def forever(self, each: Callable[[random.Random, str], None], name: str) -> None:
        """Run a thread; what it ends with is told."""
        rng = random.Random(f"{self.seed}:{name}")
        try:
            while True:
                each(rng, name)
        except BaseException as exc:
            self.tell("broke", f"{type(exc).__name__}: {exc}")

    def ask(self, puts: Pairs, takes: Pairs) -> int:
        """Tell what will be asked for; return its number."""
        work = next(self.works)
        self.tell("asks", work, puts, takes)
        return work

    def message(self) -> tuple[int, bytes, bytes]:
        """Return the next message: number, content, header."""
        number = next(self.numbers)
        return number, content_of(number), b"h%d" % number

    def publish(self, rng: random.Random, name: str) -> None:
        """One message on one queue."""
        self.room.wait()
        number, content, header = self.message()
        to = rng.choice((*LONE, *SHARED))
        work = self.ask([(to, number)], [])
        self.store.publish(content, queues=[to], header=header)
        self.tell("done", work)

    def publish_some(self, rng: random.Random, name: str) -> None:
        """Several messages, one sync for all; now and then one that stays."""
        self.room.wait()
        works = []
        for _ in range(rng.randrange(2, 8)):
            number, content, header = self.message()
            to = OLD if rng.random() < 0.03 else rng.choice((*LONE, *SHARED))
            works.append(self.ask([(to, number)], []))
            self.store.publish(content, queues=[to], header=header, wait=False)
            self.tell("placed", works[-1])
        self.store.sync()
        for work in works:
            self.tell("done", work)

    def fan_out(self, rng: random.Random, name: str) -> None:
        """One message on several queues."""
        self.room.wait()
        number, content, header = self.message()
        names = rng.sample((*LONE, *SHARED), rng.randrange(2, 6))
        work = self.ask([(one, number) for one in names], [])
        self.store.publish(content, queues=names, header=header)
        self.tell("done", work)

    def publish_once(self, rng: random.Random, name: str, producer: str) -> None:
        """The next number of a producer; first the last one again, which may have been lost."""
        self.room.wait()
        at, number, names = self.once.get(producer, (0, 0, []))
        if not names or rng.random() < 0.7:
            time.sleep(rng.random() * 0.1)
            at, number, names = at + 1, next(self.numbers), rng.sample(SHARED, rng.randrange(1, 3))
        work = next(self.works)
        self.tell("once", work, producer, at, [(one, number) for one in names])
        self.store.publish_once(producer, at, content_of(number), queues=names, header=b"h%d" % number)
        self.tell("done", work)
        self.once[producer] = at, number, names

    def get(self, name: str, at: str, timeout_s: float = 0.0) -> tuple[Delivery, int] | None:
        """Take a message, and tell."""
        delivery = self.store.get(at, timeout_s=timeout_s)
        if delivery is None:
            return None
        number = number_of(delivery)
        self.tell("took", name, at, number)
        return delivery, number

    def consume(self, rng: random.Random, name: str, at: str) -> None:
        """Take some messages of a queue and answer them: together, by turns, or not."""
        taken = [one for _ in range(rng.randrange(1, 4)) if (one := self.get(name, at, 0.05)) is not None]
        if rng.random() < 0.1:
            for delivery, number in taken:
                self.tell("returns", [(at, number)])
                self.store.requeue(delivery)
            return
        works = [self.ask([], [(at, number)]) for _, number in taken]
        answer = self.store.reject if rng.random() < 0.1 else self.store.ack
        if rng.random() < 0.5:
            answer(*(delivery for delivery, _ in taken), wait=True)
            for work in works:
                self.tell("done", work)
        else:
            answer(*(delivery for delivery, _ in taken))

    def consume_old(self, rng: random.Random, name: str) -> None:
        """Take what waits longest, once there is much of it."""
        time.sleep(0.05)
        if self.store.queues()[OLD][0] > OLD_MOST:
            self.consume(rng, name, OLD)

    def collect(self, rng: random.Random, name: str, on: StoreTransaction | BranchSession) -> tuple[Pairs, Pairs]:
        """Move some messages in a transaction; return what it puts and what it takes."""
        puts, takes = [], []
        for _ in range(rng.randrange(4)):
            at = rng.choice(SHARED)
            taken = self.get(name, at)
            if taken is not None:
                on.ack(taken[0])
                takes.append((at, taken[1]))
        for _ in range(rng.randrange(4)):
            number, content, header = self.message()
            names = rng.sample((*LONE, *SHARED), rng.randrange(1, 4))
            on.publish(content, queues=names, header=header)
            puts += [(one, number) for one in names]
        return puts, takes

    def transact(self, rng: random.Random, name: str) -> None:
        """A transaction of the store."""
        self.room.wait()
        transaction = self.store.transaction()
        puts, takes = self.collect(rng, name, transaction)
        if rng.random() < 0.2:
            self.tell("returns", takes)
            transaction.rollback()
            return
        work = self.ask(puts, takes)
        transaction.commit()
        self.tell("done", work)

    def prepare(self, rng: random.Random, name: str) -> None:
        """A branch of a distributed transaction, decided here, later, or by the next process."""
        self.room.wait()
        session = self.store.session()
        xid = b"x%d" % next(self.numbers)
        session.tpc_begin(xid)
        puts, takes = self.collect(rng, name, session)
        if rng.random() < 0.1:
            work = self.ask(puts, takes)
            session.tpc_commit()
            self.tell("done", work)
            return
        self.tell("prepares", xid.decode(), puts, takes)
        session.tpc_prepare()
        self.tell("prepared", xid.decode())
        if rng.random() < 0.2:
            self.left.put(xid)
        else:
            self.outcome(rng, xid)

    def decide(self, rng: random.Random, name: str) -> None:
        """Decide what others have left."""
        xid = self.left.get()
        time.sleep(rng.random() * 0.1)
        self.outcome(rng, xid)

    def outcome(self, rng: random.Random, xid: bytes) -> None:
        """Decide a prepared branch."""
        commits = rng.random() < 0.6
        self.tell("decides", xid.decode(), commits)
        (self.store.tpc_commit if commits else self.store.tpc_rollback)(xid)
        self.tell("decided", xid.decode())

    # --- at the end ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Decide and take everything, and look again."""
        rng = random.Random(self.seed)
        for xid in self.look():
            self.outcome(rng, xid)
        for at in QUEUES:
            while (taken := self.get("drain", at)) is not None:
                work = self.ask([], [(at, taken[1])])
                self.store.ack(taken[0], wait=True)
                self.tell("done", work)
        self.look()
        self.store.close()


def main(arguments: Sequence[str]) -> None:
    """Run one life: the store, a seed, the number of the life, what is published once, and `drain` or nothing."""
    path, seed, life, once, *drain = arguments
    load = QueueLoad(path, sys.stdout.fileno(), int(seed), int(life), json.loads(once))
    if drain:
        load.drain()
    else:
        load.run()


if __name__ == "__main__":
    main(sys.argv[1:])

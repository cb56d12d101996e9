"""What does a commit at a group cost, and what do many at once share?

Three nodes on loopback. At w = 1 the primary is in this process, and clients are threads that hand their transactions
to it and wait for the answer, against as many threads at `Log.transact` of a log alone; the same over sockets has no
anchor. At w = "majority" every node is a process of its own, and clients are tasks here, each with a connection: one,
against two raw syncs of this disk in a row, which is what the two disks of a majority need at least if one waits for
the other; then 64 of them, against the one, and against the syncs that the primary made meanwhile.

Beside that a transaction of a gigabyte, which spills and whose chunks travel while it is open, and 64 clients at w = 1
that commit as fast as they can: what the nearest voter lacked at most. At last the primary is killed again and again.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import msgspec
from bare_disk import BareDisk
from frame import Bench, Question, at_least, at_most, run
from nodes import PAYLOAD, Nodes, fragment, nodes, options_of

from tranlog.change import Statement
from tranlog.errors import NoPrimaryError
from tranlog.log.writing.log import Log
from tranlog.replication.acting.client import AsyncGroup, LoopThread, Satisfied
from tranlog.replication.acting.core_thread import CommitWanted, put_whole
from tranlog.replication.acting.node import GroupNode
from tranlog.replication.rules.concern import SATISFIED, Outcome
from tranlog.replication.rules.packets import PRIMARY
from tranlog.service.group_client import connect_async

QUESTION = Question(
    name="group_commits",
    text="How many transactions of 1 KB does a group of three commit at w = 1 and at majority, how soon, beside what?",
    peer="in each row the one that it names",
)
CLIENTS = (1, 8, 64)
SECONDS, TRY_SECONDS = 5, 2
LARGE, TRY_LARGE = 1 << 30, 1 << 28
FAILOVERS, TRY_FAILOVERS = 30, 5
SQL = "x" * 1000


def by_threads(count: int, seconds: float, commit: Callable[[int], object]) -> float:
    """Have so many threads commit for a while; return commits a second."""
    done = [0] * count
    until = time.perf_counter() + seconds

    def work(at: int) -> None:
        while time.perf_counter() < until:
            commit(at)
            done[at] += 1

    threads = [threading.Thread(target=work, args=(at,)) for at in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began)


@contextmanager
def node_here(group: Nodes, name: str) -> Iterator[tuple[GroupNode, LoopThread]]:
    """Run a node of the group in this process."""
    loop, member = LoopThread(), group.nodes[name].member

    async def begin() -> GroupNode:
        node = GroupNode(options_of(group.nodes[name].folder, name, member.address))
        await node.start()
        return node

    node = loop.run(begin())
    try:
        until = time.monotonic() + 60
        while node.standing.state != PRIMARY or node.standing.committed.epoch != node.standing.epoch:
            assert time.monotonic() < until, "no primary was elected"
            time.sleep(0.02)
        yield node, loop
    finally:
        loop.end(node.stop)


def in_process(bench: Bench, seconds: float) -> None:
    """Clients in the primary's process."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as name:
        with nodes(Path(name), "abc") as group, closing(Log.open(Path(name, "alone"), source_id="bench")) as alone:
            for other in "bc":
                group.nodes[other].start()
            with node_here(group, "a") as (node, _):
                thread = node.thread
                assert thread is not None
                ready = [[fragment(at)] for at in range(max(CLIENTS))]
                write = [partial(put_whole, fragments=one) for one in ready]

                def commit(at: int) -> None:
                    answered: Future[Outcome] = Future()
                    thread.post(CommitWanted(write[at], 1, 0, Answer(answered), lambda: None))  # type: ignore[union-attr]
                    outcome = answered.result()
                    assert outcome.kind == SATISFIED, outcome

                for count in CLIENTS:
                    bench.compare(
                        f"w = 1 in the primary's process, clients: {count}, against Log.transact",
                        ours=lambda: by_threads(count, seconds, commit),  # noqa: B023
                        peer=lambda: by_threads(count, seconds, lambda at: alone.transact(ready[at])),  # noqa: B023
                        unit="tx/s",
                        must=at_least(0.7),
                    )


class Answer:
    """Who waits for what became of a commit in this process."""

    gone = False

    def __init__(self, answered: Future[Outcome]) -> None:
        self._answered = answered

    def __call__(self, outcome: Outcome, text: str) -> None:
        self._answered.set_result(outcome)


class Clients:
    """Programs that commit at a group, each with a connection."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._count = count
        self._groups: list[AsyncGroup] = []
        self._loop = LoopThread()
        self._loop.run(self._connect())

    async def _connect(self) -> None:
        self._groups = [connect_async(self._url, find_s=60.0) for _ in range(self._count)]
        await asyncio.gather(*[one.primary() for one in self._groups])

    def commits(self, seconds: float, w: int | str, count: int) -> list[float]:
        """Have so many of them commit for a while; return how long each commit took, in seconds."""
        taken: list[float] = []

        async def work(group: AsyncGroup, until: float) -> None:
            while (began := time.perf_counter()) < until:
                answer = await group.commit([Statement(schema="shop", sql=SQL, ddl=False)], w=w)
                assert isinstance(answer, Satisfied), answer
                taken.append(time.perf_counter() - began)

        async def all_of_them() -> None:
            until = time.perf_counter() + seconds
            await asyncio.gather(*[work(one, until) for one in self._groups[:count]])

        self._loop.run(all_of_them())
        return taken

    def rate(self, seconds: float, w: int | str, count: int) -> float:
        """As `commits`; return commits a second."""
        return len(self.commits(seconds, w, count)) / seconds

    def close(self) -> None:
        """End the connections."""

        async def end() -> None:
            for one in self._groups:
                await one.close()

        self._loop.end(end)


def over_sockets(bench: Bench, seconds: float) -> None:
    """All nodes in processes of their own."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as name:
        with nodes(Path(name), "abc") as group:
            for one in group.nodes.values():
                one.start()
            primary = group.nodes[group.primary("abc")]
            bare, clients = BareDisk(Path(name, "bare")), Clients(group.url, max(CLIENTS))

            def syncs_of_two() -> float:
                taken = []
                for _ in range(100):
                    began = time.perf_counter()
                    bare.write(2, len(PAYLOAD) + 150)
                    taken.append(time.perf_counter() - began)
                return statistics.median(taken) * 1e3

            try:
                for count in CLIENTS:
                    rates = [clients.rate(seconds, 1, count) for _ in range(bench.rounds(3))]
                    bench.add(f"w = 1 over sockets, clients: {count}", ours=rates, unit="tx/s")
                bench.compare(
                    "w = majority, 1 client, latency against two raw syncs",
                    ours=lambda: statistics.median(clients.commits(seconds, "majority", 1)) * 1e3,
                    peer=syncs_of_two,
                    unit="ms",
                    must=at_most(3.0, stretch=2.0),
                )
                shared: list[float] = []

                def many() -> float:
                    before = primary.ask("syncs")["syncs"]
                    taken = clients.commits(seconds, "majority", 64)
                    shared.append(len(taken) / (primary.ask("syncs")["syncs"] - before))
                    return len(taken) / seconds

                bench.compare(
                    "w = majority, 64 clients against 1",
                    ours=many,
                    peer=lambda: clients.rate(seconds, "majority", 1),
                    unit="tx/s",
                    must=at_least(4, stretch=8),
                )
                bench.add(
                    "w = majority, 64 clients, commits a sync of the primary", ours=shared, unit="", must=at_least(16)
                )
                lags: list[float] = []
                for _ in range(bench.rounds(3)):
                    load = threading.Thread(target=clients.commits, args=(3 * seconds, 1, 64))
                    load.start()
                    lags.append(0.0)
                    while load.is_alive():
                        lags[-1] = max(lags[-1], primary.ask("lag")["lag"] / (1 << 20))
                        time.sleep(0.02)
                bench.add("w = 1, 64 clients, the nearest voter lacks at most", ours=lags, unit="MiB", must=at_most(64))
            finally:
                clients.close()
                bare.close()


def beside_a_large_one(bench: Bench, seconds: float) -> None:
    """Commits while a transaction of a gigabyte is open, spills, travels and ends."""
    size = bench.size(LARGE, trying=TRY_LARGE)
    piece = os.urandom(1 << 20)
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as name, nodes(Path(name), "abc") as group:
        for other in "bc":
            group.nodes[other].start()
        with node_here(group, "a") as (node, _):
            thread, clients = node.thread, Clients(group.url, 1)
            assert thread is not None

            def large() -> None:
                one = thread.log.log.begin()
                for _ in range(size // len(piece)):
                    one.add(msgspec.structs.replace(fragment(0), payload=piece))

                ended: Future[Outcome] = Future()
                thread.post(
                    CommitWanted(
                        lambda log: one.commit(sync=False), "majority", 0, Answer(ended), lambda: None, oid=one.oid
                    )
                )
                assert ended.result().kind == SATISFIED

            def p99(beside: bool) -> float:
                taken: list[float] = []
                work = threading.Thread(target=large)
                if beside:
                    work.start()
                while not taken or work.is_alive():
                    taken += clients.commits(seconds, "majority", 1)
                if beside:
                    work.join()
                taken.sort()
                return taken[int(0.99 * len(taken))] * 1e3

            try:
                bench.compare(
                    f"w = majority, 1 client, p99 beside a transaction of {size >> 20} MiB",
                    ours=lambda: p99(True),
                    peer=lambda: p99(False),
                    unit="ms",
                    must=at_most(3.0),
                    rounds=3,
                )
            finally:
                clients.close()


def failover(bench: Bench) -> None:
    """Kill the primary; how long to the first commit at a majority."""
    taken = []
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as name, nodes(Path(name), "abc") as group:
        for one in group.nodes.values():
            one.start()

        async def first_commit() -> float:
            async with connect_async(group.url, find_s=60.0) as client:
                while True:
                    try:
                        answer = await client.commit([Statement(schema="shop", sql=SQL, ddl=False)], w="majority")
                    except NoPrimaryError:
                        continue
                    if isinstance(answer, Satisfied):
                        return time.perf_counter()

        for _ in range(bench.size(FAILOVERS, trying=TRY_FAILOVERS)):
            asyncio.run(first_commit())
            former = group.nodes[group.primary("abc")]
            time.sleep(1.0)
            began = time.perf_counter()
            former.kill()
            taken.append(asyncio.run(first_commit()) - began)
            former.start()
            until = former.ask("standing")
            while until.get("durable", -1) < 0:
                until = former.ask("standing")
            time.sleep(1.0)
    taken.sort()
    bench.add("kill -9 of the primary to the first majority, p50", ours=taken, unit="s", must=at_most(1.0))
    bench.add(
        "kill -9 of the primary to the first majority, p99",
        ours=[taken[min(int(0.99 * len(taken)), len(taken) - 1)]],
        unit="s",
        must=at_most(1.5),
    )


def measure(bench: Bench) -> None:
    """Each row in its own group."""
    seconds = bench.size(SECONDS, trying=TRY_SECONDS)
    in_process(bench, seconds)
    over_sockets(bench, seconds)
    beside_a_large_one(bench, seconds)
    failover(bench)


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))

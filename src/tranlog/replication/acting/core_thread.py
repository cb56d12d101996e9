"""The one thread of a node that decides and writes: packets, ticks and commits in, what is to be said out.

Owns the core, the log and the node's file, and that an event's effects are carried out before the next event is looked
at. What comes in waits in a queue, what goes out is handed over in lots; the event loop does the rest. The hard idea:
a sync is not waited for. A second thread syncs whatever is visible, again and again while there is more, and says so
as an event; so one sync serves all who committed, or were sent, meanwhile, and runs beside the replicas' own.

Source: docs/protocol.md, "The order of things", "Numbers".
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from tranlog.change import Fragment
from tranlog.clock import Clock
from tranlog.errors import ConfigError, DiskFailedError, LogClosedError, LogError, NotPrimaryError
from tranlog.ids import Gtid
from tranlog.replication.acting.following import LogChange, NodeLog, carries_out
from tranlog.replication.acting.state import StateFile
from tranlog.replication.rules import concern
from tranlog.replication.rules.concern import Outcome
from tranlog.replication.rules.config import NO_NODE, ConfigId, GroupConfig, NodeId, check_w
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.effects import Effect, EndReign, Fatal, Persist, Restore, RollBack, Send, Tell
from tranlog.replication.rules.packets import NO_GTID, PRIMARY, Packet
from tranlog.replication.rules.reading import AtLeast, Latest, Position, may_read
from tranlog.replication.rules.stored import Stored

logger = logging.getLogger(__name__)

TICK_S = 0.05
_LOT = 256
"""So many events are taken before what goes out is handed over."""
REFUSED = "refused"
"""The answer to a commit that was never written, or a question that cannot be answered: the text says why."""

ResultT = TypeVar("ResultT")


class Came(msgspec.Struct, frozen=True):
    """A packet of another node, and what is called when it was dealt with."""

    sender: NodeId
    packet: Packet
    done: Callable[[], None]


class CommitWanted(msgspec.Struct, frozen=True):
    """A transaction to commit. `answer` is called in the event loop, and before it `taken`, when it is in the log or
    refused; `w` None and `wtimeout_ms` None: as the group has it.
    """

    fragments: Sequence[Fragment]
    w: int | str | None
    wtimeout_ms: int | None
    answer: Callable[[Outcome, str], None]
    taken: Callable[[], None]


class Awaited(msgspec.Struct, frozen=True):
    """A reader that waits for a consistency, until a moment of the monotonic clock in ms; None: for ever."""

    wish: AtLeast | Latest
    deadline: int | None
    answer: Callable[[Outcome, str], None]


class NodeStanding(msgspec.Struct, frozen=True):
    """Where a node stands, as its event loop knows it."""

    state: int
    epoch: int
    primary: NodeId
    config: GroupConfig
    first: int
    last: Gtid
    durable: Gtid
    committed: Gtid
    fatal: str = ""


class Hearer(Protocol):
    """Who takes what the thread has to say. All but `failed` are called in the event loop."""

    def stands(self, standing: NodeStanding) -> None:
        """It stands there now."""

    def send(self, to: NodeId, packet: Packet) -> None:
        """Send a packet."""

    def restore(self, wanted: Restore) -> None:
        """It needs a whole log of another node, or shall have one."""

    def failed(self, exc: BaseException) -> None:
        """It has ended with an error. In the thread itself."""


class CoreThread:
    """Runs one node's core. Threads: any may `post` and `call`; `start` and `stop` by one."""

    def __init__(
        self,
        stored: Stored,
        state: StateFile,
        log: NodeLog,
        hearer: Hearer,
        *,
        start: int,
        clock: Clock,
        chance: Callable[[], int],
        hand_over: Callable[[Callable[[], None]], object],
    ) -> None:
        """`hand_over` calls something in the event loop; `chance` gives a random number."""
        self.log = log
        self._state = state
        self._hearer = hearer
        self._clock = clock
        self._chance = chance
        self._hand_over = hand_over
        now, wall = self._now(), clock.now_ms()
        lost = log.log.missing_seqno is not None
        self.core = Core(stored, log, start=start, now=now, wall=wall, committed=log.committed(), lost=lost)
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._out: list[Callable[[], None]] = []
        self._asked: dict[int, Callable[[Outcome, str], None]] = {}
        self._awaited: list[Awaited] = []
        self._number = 0
        self._kept_for = ConfigId()
        self._shown: NodeStanding | None = None
        self._ending = False
        self._unsynced = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node")
        self._syncing = threading.Thread(target=self._sync, name="node sync")

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self._syncing.start()

    def stop(self) -> None:
        """End after what was posted, and close the log. Raises as `NodeLog.close`."""
        self.post(self._end)
        self._thread.join()
        self._ending = True
        self._unsynced.set()
        self._syncing.join()
        self.log.close()

    def post(self, event: Came | CommitWanted | Awaited | Callable[[], None]) -> None:
        """Have an event looked at, in its turn."""
        self._events.put(event)

    def call(self, ask: Callable[[Core], ResultT]) -> Future[ResultT]:
        """Ask, or tell, the core something; its effects are carried out before the answer comes."""
        answer: Future[ResultT] = Future()

        def run() -> None:
            try:
                found = ask(self.core)
            except Exception as exc:  # it belongs to whoever asked
                answer.set_exception(exc)
            else:
                self._carry_out()
                answer.set_result(found)

        self.post(run)
        return answer

    def _end(self) -> None:
        self._ending = True

    # --- the thread ---

    def _now(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _run(self) -> None:
        try:
            due = self._clock.monotonic()
            while not self._ending:
                events = self._take(due - self._clock.monotonic())
                wanted: list[CommitWanted] = []
                for event in events:
                    if isinstance(event, CommitWanted):
                        wanted.append(event)
                        continue
                    if wanted:
                        self._commit(wanted)
                        wanted = []
                    self._look_at(event)
                if wanted:
                    self._commit(wanted)
                if self._clock.monotonic() >= due:
                    due = self._clock.monotonic() + TICK_S
                    self.core.tick(self._now(), self._clock.now_ms(), self._chance())
                    self._carry_out()
                self._answer_readers()
                self._tell()
            for answer in [*self._asked.values(), *(one.answer for one in self._awaited)]:
                self._later(answer, Outcome(concern.FAILED_OVER, NO_GTID))
            self._tell()
        except BaseException as exc:
            self._hearer.failed(exc)

    def _take(self, seconds: float) -> list[object]:
        """Return the events that are there, after a wait for the first of them."""
        found = []
        try:
            found.append(self._events.get(timeout=max(seconds, 0.0)))
            while len(found) < _LOT:
                found.append(self._events.get_nowait())
        except queue.Empty:
            pass
        return found

    def _look_at(self, event: object) -> None:
        if isinstance(event, Came):
            self.core.step(event.sender, event.packet, self._now())
            self._carry_out()
            self._out.append(event.done)
        elif isinstance(event, Awaited):
            wish = Latest(self.core.mind.pulse.beat) if isinstance(event.wish, Latest) else event.wish
            self._awaited.append(msgspec.structs.replace(event, wish=wish))
        elif callable(event):
            event()

    def _carry_out(self) -> None:
        """Do what the core wants, in order."""
        while effects := self.core.ready():
            for effect in effects:
                self._do(effect)

    def _do(self, effect: Effect) -> None:
        core = self.core
        match effect:
            case Send(to=to, packet=packet):
                self._out.append(partial(self._hearer.send, to, packet))
            case Tell(number=number, outcome=outcome):
                answer = self._asked.pop(number, None)
                if answer is not None:
                    self._later(answer, outcome)
            case Persist(stored=stored):
                self._tell()
                self._state.store(stored)
                if self.log.log.missing_seqno is not None:
                    self.log.log.missing_noted()
                if stored.config is not None and stored.config.id != self._kept_for:
                    self._kept_for = stored.config.id
                    self.log.forget_others({member.node for member in stored.config.members})
            case Fatal(text=text):
                logger.error("This node is FATAL, and follows nobody. why=%s", text)
            case Restore():
                self._out.append(partial(self._hearer.restore, effect))
            case _ if carries_out(effect):
                self._tell()
                self._after(self.log.carry_out(effect))  # type: ignore[arg-type]
                if isinstance(effect, EndReign | RollBack):
                    logger.info("%s last=%s epoch=%d", type(effect).__name__, self.log.last, core.mind.epoch)
            case _:
                raise AssertionError(effect)

    def _after(self, done: LogChange) -> None:
        match done:
            case LogChange.LOGGED:
                self._unsynced.set()
                self.core.logged()
            case LogChange.UNUSABLE:
                self.core.unusable()
            case LogChange.ROLLED_BACK:
                self.core.rolled_back()
            case LogChange.NOTHING:
                pass

    # --- commits ---

    def _commit(self, wanted: list[CommitWanted]) -> None:
        """Append transactions, have them seen together, and ask for each whether its `w` is met."""
        core, log = self.core, self.log.log
        core.tick(self._now(), self._clock.now_ms(), self._chance())
        self._carry_out()
        written: list[tuple[CommitWanted, Gtid]] = []
        for one in wanted:
            self._out.append(one.taken)
            try:
                check_w(core.config, core.config.w if one.w is None else one.w)
                if not core.accepts_writes:
                    raise NotPrimaryError(path=log.path)
                written.append((one, log.transact(one.fragments, sync=False)))
            except NotPrimaryError:
                self._later(one.answer, Outcome(concern.NOT_PRIMARY, NO_GTID, primary=core.mind.primary))
            except (LogClosedError, DiskFailedError):
                raise
            except (LogError, ConfigError) as exc:
                self._later(one.answer, Outcome(REFUSED, NO_GTID), str(exc))
        if written:
            self._after(LogChange.LOGGED)
            for one, gtid in written:
                self.ask(gtid, one.w, one.wtimeout_ms, one.answer)
        self._carry_out()

    def ask(
        self, gtid: Gtid, w: int | str | None, wtimeout_ms: int | None, answer: Callable[[Outcome, str], None]
    ) -> None:
        """Ask whether `w` is met for a GTID. In this thread; see `call`."""
        self._number += 1
        self._asked[self._number] = answer
        try:
            self.core.ask(self._number, gtid, w, wtimeout_ms)
        except ConfigError as exc:
            del self._asked[self._number]
            self._later(answer, Outcome(REFUSED, gtid), str(exc))

    def _answer_readers(self) -> None:
        mind, still, now = self.core.mind, [], self._now()
        for one in self._awaited:
            at = Position(mind.committed, 0, mind.state == PRIMARY, mind.epoch, self.core.confirmed())
            if self.core.serves_reads and may_read(one.wish, at, 0):
                self._later(one.answer, Outcome(concern.SATISFIED, mind.committed))
            elif one.deadline is not None and now >= one.deadline:
                self._later(one.answer, Outcome(concern.TIMED_OUT, mind.committed))
            else:
                still.append(one)
        self._awaited = still

    # --- what goes out ---

    def _later(self, answer: Callable[[Outcome, str], None], outcome: Outcome, text: str = "") -> None:
        name = self.core.config.member(outcome.primary) if outcome.primary != NO_NODE else None
        told = msgspec.structs.replace(outcome, primary=NodeId("" if name is None else name.name))
        self._out.append(lambda: answer(told, text))

    def _tell(self) -> None:
        """Hand over what there is to say."""
        core, mind, log = self.core, self.core.mind, self.log
        standing = NodeStanding(
            state=mind.state,
            epoch=mind.epoch,
            primary=mind.primary,
            config=core.config,
            first=log.first,
            last=log.last,
            durable=log.durable,
            committed=mind.committed,
            fatal=mind.fatal,
        )
        if standing != self._shown:
            self._shown = standing
            self._out.insert(0, lambda: self._hearer.stands(standing))
        out, self._out = self._out, []
        if out:
            self._hand_over(lambda: _do_all(out))

    # --- syncing ---

    def _sync(self) -> None:
        try:
            while True:
                self._unsynced.wait()
                self._unsynced.clear()
                if self._ending:
                    return
                log = self.log.log
                try:
                    log.commit()
                except NotPrimaryError:
                    pass
                except LogClosedError:
                    if self.log.log is log:
                        raise
                self.post(self._durable)
        except BaseException as exc:
            self._hearer.failed(exc)

    def _durable(self) -> None:
        self.core.durable()
        self._carry_out()


def _do_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()

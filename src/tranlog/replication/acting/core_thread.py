"""The part of a node that decides and writes: packets, ticks and commits in, packets and answers out.

Owns the core, the log and the node's file, and that an event's effects are carried out before the next event is
handled. One thread at a time works here (`turn`): the event loop for packets from its sockets, and the node's own
thread for ticks, orders and everything that waits for the disk. The hard idea: nothing here waits for a sync. Another
thread syncs and posts an event when it is done; after that event the next sync begins, for everything that came until
then. So one sync serves many commits and records, and runs at the same time as the replicas' syncs.

Source: docs/protocol.md, "The order of things", "Numbers".
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from tranlog.change import Fragment
from tranlog.clock import Clock
from tranlog.errors import ConfigError, DiskFailedError, DiskFullError, LogClosedError, LogError, NotPrimaryError
from tranlog.ids import Gtid
from tranlog.log.writing.member import MemberLog
from tranlog.replication.acting.commit_queue import CommitQueue
from tranlog.replication.acting.following import LogChange, NodeLog, carries_out
from tranlog.replication.acting.state import StateFile
from tranlog.replication.acting.turn import Outbox, Syncing, Turn
from tranlog.replication.rules import concern
from tranlog.replication.rules.concern import Outcome
from tranlog.replication.rules.config import NO_NODE, ConfigId, GroupConfig, NodeId, check_w
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.effects import (
    Committed,
    Effect,
    EndReign,
    Fatal,
    Persist,
    Put,
    PutChunk,
    Restore,
    RollBack,
    Send,
    Tell,
)
from tranlog.replication.rules.flow_control import FlowControl
from tranlog.replication.rules.packets import NO_GTID, Packet
from tranlog.replication.rules.reading import AtLeast, Latest, Within, may_read
from tranlog.replication.rules.stored import Stored

logger = logging.getLogger(__name__)

TICK_S = 0.05
FULL_HAND_OVER_MS = 10_000
"""A primary whose disk is full waits so long for a replica that has everything."""
_LOT = 256
"""So many events are looked at before what goes out is handed over."""
_SMALL_BYTES = 64 << 10
"""A transaction of less is appended with others before they are shown."""
REFUSED = "refused"
"""The answer to a commit that was never written, or a question that cannot be answered: the text says why."""
_SAID = (Send, Tell, Fatal, Restore, Committed)
"""The effects that touch no disk."""

ResultT = TypeVar("ResultT")


class Asker(Protocol):
    """The sender of a question. Called in the event loop."""

    @property
    def gone(self) -> bool:
        """Whether the sender has ended and needs no answer any more. Threads: any."""

    def __call__(self, outcome: Outcome, text: str) -> None:
        """Take the answer; `text`: why it was refused."""


class Came(msgspec.Struct, frozen=True):
    """A packet of another node, and the function to call after it was handled."""

    sender: NodeId
    packet: Packet
    done: Callable[[], None]


class CommitWanted(msgspec.Struct, frozen=True):
    """A transaction to commit: `write` puts it into the log, not synced, and need not show it.

    `taken` is called in the event loop once it is in the log or refused, and after it `answer`. `w` and `wtimeout_ms`
    None: the group's default. `epoch`: the only reign that may take it; 0: any. `oid`: of its spilled chunks, empty if
    nothing was spilled. `large`: writing it takes a while. `sent`: by whom, as its connection names itself, and the
    event id.
    """

    write: Callable[[MemberLog], Gtid]
    w: int | str | None
    wtimeout_ms: int | None
    answer: Asker
    taken: Callable[[], None]
    epoch: int = 0
    oid: bytes = b""
    large: bool = False
    sent: tuple[str, str] = ("", "")


def is_small(fragments: Sequence[Fragment]) -> bool:
    """Whether a transaction is appended with others before they are shown."""
    return len(fragments) == 1 and fragments[0].last and len(fragments[0].payload) < _SMALL_BYTES


def put_whole(log: MemberLog, fragments: Sequence[Fragment]) -> Gtid:
    """Append a whole transaction. A small one is not shown yet; before a large one, all earlier ones are shown.

    So if the disk is too full for a large one, only that one is refused. Raises as `Log.transact`.
    """
    if is_small(fragments):
        return log.append(fragments[0])
    log.commit(sync=False)
    return log.transact(fragments, sync=False)


class Awaited(msgspec.Struct, frozen=True):
    """A reader that waits for a consistency, until a moment of the monotonic clock in ms; None: for ever."""

    wish: AtLeast | Within | Latest
    deadline: int | None
    answer: Asker


class _Asked(msgspec.Struct, frozen=True):
    ask: Callable[[Core], Any]
    answer: Future[Any]


class NodeStanding(msgspec.Struct, frozen=True):
    """The state of a node, as its event loop knows it."""

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
    """The receiver of the core's output. All methods but `failed` are called in the event loop."""

    standing: NodeStanding
    """Where it stands: set in any thread, before anything is said of it."""

    def stands(self) -> None:
        """The node's state, primary or configuration has changed."""

    def send(self, to: NodeId, packet: Packet) -> None:
        """Send a packet."""

    def restore(self, wanted: Restore) -> None:
        """The node needs the whole log of another node, or an operator ordered it."""

    def failed(self, exc: BaseException) -> None:
        """The thread has ended with an error. Called in any thread."""


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
        loop: asyncio.AbstractEventLoop,
        flow: FlowControl,
    ) -> None:
        """In the thread of `loop`; `chance` gives a random number."""
        self.log = log
        self._state = state
        self._hearer = hearer
        self._clock = clock
        self._chance = chance
        now, wall = self._now(), clock.now_ms()
        lost = log.log.missing_seqno is not None
        self.core = Core(stored, log, start=start, now=now, wall=wall, committed=log.committed(), lost=lost)
        self.commits = CommitQueue(flow)
        self._out = Outbox(loop)
        self._turn = Turn(loop, self._out, lambda: self._work(waits=False))
        self._effects: deque[Effect] = deque()
        self._asked: dict[int, Asker] = {}
        self._awaited: list[Awaited] = []
        self._number = 0
        self._committed: Gtid | None = None  # what readers here are to be told
        self._kept_for = ConfigId()
        self._shown: NodeStanding | None = None
        self._ending = False
        self._syncing = Syncing(self._sync, hearer.failed)
        self._thread = threading.Thread(target=self._run, name="node")

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self._syncing.start()

    def stop(self) -> None:
        """End after the posted events, and close the log. Raises as `NodeLog.close`."""
        self.post(self._end)
        self._thread.join()
        self._syncing.stop()
        self.log.close()

    def post(self, event: Came | CommitWanted | Awaited | Callable[[], None]) -> None:
        """Post an event, to be handled in a turn."""
        self._turn.post(event)

    def deadline(self, timeout_ms: int) -> int | None:
        """Return the deadline so many ms from now, for `Awaited`; None for 0. Threads: any."""
        return self._now() + timeout_ms if timeout_ms else None

    def call(self, ask: Callable[[Core], ResultT]) -> Future[ResultT]:
        """Call the core; its effects are carried out, and the loop is told of them, before the answer.

        Runs in the node's own thread. If that has failed, the answer is its error.
        """
        answer: Future[ResultT] = Future()
        self._turn.post(_Asked(ask, answer))
        return answer

    def _end(self) -> None:
        self._ending = True

    def _now(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # --- the node's own thread ---

    def _run(self) -> None:
        turn, due = self._turn, self._clock.monotonic()
        try:
            while not self._ending:
                turn.wait(max(due - self._clock.monotonic(), 0.0))
                with turn:
                    if turn.failure is not None:
                        raise turn.failure
                    self._work(waits=True)
                    if self._clock.monotonic() >= due:
                        due = self._clock.monotonic() + TICK_S
                        self.core.tick(self._now(), self._clock.now_ms(), self._chance())
                        self._carry_out(waits=True)
                        self._forget_gone()
                        self._tell()
            with turn:
                self._answer_all()
        except BaseException as exc:
            self._hearer.failed(exc)
            while not self._ending:  # whoever asks is answered, until the node has ended
                while turn.events:
                    event = turn.events.popleft()
                    if event == self._end:
                        self._end()
                    elif isinstance(event, _Asked) and not event.answer.done():
                        event.answer.set_exception(exc)
                turn.wait(TICK_S)

    def _answer_all(self) -> None:
        """Answer who still waits, as the end has come."""
        for answer in [*self._asked.values(), *(one.answer for one in self._awaited)]:
            self._later(answer, Outcome(concern.FAILED_OVER, NO_GTID))
        for one in self.commits.clear():
            self._later(one.answer, Outcome(concern.NOT_PRIMARY, NO_GTID))
        self._tell()

    # --- a turn ---

    def _work(self, *, waits: bool) -> bool:
        """Look at what has come; without `waits` up to what may wait for a sync: False where there is such."""
        events, looked, done = self._turn.events, 0, True
        if self._ending and not waits:
            return False
        while done and not self._ending:
            while events and isinstance(wanted := events[0], CommitWanted):
                self.commits.put(wanted, self._now())
                events.popleft()
            done = self._carry_out(waits=waits) and self._commit(waits=waits)
            if waits:
                self._syncing.begin()  # what follows may take a while
            if not done or not events:
                break
            event = events[0]
            if isinstance(event, CommitWanted):
                continue  # it has come since
            if not waits and (isinstance(event, _Asked) or event == self._end):
                done = False
                break
            self._look_at(event)
            events.popleft()
            looked += 1
            if looked % _LOT == 0:
                if waits:
                    self._carry_out(waits=True)  # a tick must find a log in which that stands
                    break  # it may be time for one
                self._tell()
        if done and self._awaited:
            self.core.confirm([one.wish for one in self._awaited], self._now())
            done = self._carry_out(waits=waits)
        if done:
            self._answer_readers()
        self._tell()
        return done

    def _look_at(self, event: object) -> None:
        if isinstance(event, Came):
            self.core.step(event.sender, event.packet, self._now())
            self._out.put(event.done)
        elif isinstance(event, Awaited):
            mind = self.core.mind
            wish = Latest(mind.pulse.beat, mind.committed) if isinstance(event.wish, Latest) else event.wish
            self._awaited.append(msgspec.structs.replace(event, wish=wish))
        elif isinstance(event, _Asked) and event.answer.set_running_or_notify_cancel():
            try:
                found = event.ask(self.core)
            except Exception as exc:  # it belongs to whoever asked
                event.answer.set_exception(exc)
            else:
                self._carry_out(waits=True)
                self._out.hand_out()
                event.answer.set_result(found)
        elif callable(event):
            event()

    def _carry_out(self, *, waits: bool) -> bool:
        """Do what the core wants, in order; without `waits` up to what may wait for a sync: False then."""
        effects = self._effects
        effects.extend(self.core.ready())
        while effects:
            if not waits and self._waits(effects[0]):
                return False
            self._do(effects.popleft())
            effects.extend(self.core.ready())
        return True

    def _waits(self, effect: Effect) -> bool:
        return not isinstance(effect, _SAID) and (isinstance(effect, Persist) or self.log.waits(effect))

    def _do(self, effect: Effect) -> None:
        core = self.core
        match effect:
            case Send(to=to, packet=packet):
                self._out.put(partial(self._hearer.send, to, packet))
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
                logger.error("This node is FATAL, and follows no node. why=%s", text)
            case Restore():
                self._out.put(partial(self._hearer.restore, effect))
            case Committed(gtid=gtid):
                self._committed = gtid
            case Put() | PutChunk():
                self._out.hand_out()
                self._after(self.log.carry_out(effect))
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
                self._syncing.grew()
                self.core.logged()
            case LogChange.UNUSABLE:
                self.core.unusable()
            case LogChange.ROLLED_BACK:
                self.core.rolled_back()
            case LogChange.NOTHING:
                pass

    # --- commits ---

    def _commit(self, *, waits: bool) -> bool:
        """Write what may be written of the transactions that wait; without `waits` no large one, in no new segment."""
        if not self.commits:
            return True
        if not (waits or self.log.log.fits(_SMALL_BYTES)):
            return False
        self.core.tick(self._now(), self._clock.now_ms(), self._chance())
        while self._carry_out(waits=waits):
            wanted = self.commits.take(self.core, large=waits)
            if not wanted:
                break
            self._write(wanted)
        else:
            return False
        if self.commits:
            if self.commits.has_large and not waits:
                self._turn.wake()
            name, lag = self.commits.lags(self.core)
            late = self.commits.late(self.core)
            for one in late:
                self._out.put(one.taken)
            why = f"nothing was written: writers wait for {name}, the nearest voter, which lacks {lag} bytes"
            self._refuse(late, why)
        return True

    def _write(self, wanted: list[CommitWanted]) -> None:
        """Append transactions, have them seen together, and ask for each whether its `w` is met."""
        core, log = self.core, self.log.log
        written: list[tuple[CommitWanted, Gtid]] = []
        for one in wanted:
            self._out.put(one.taken)
            try:
                check_w(core.config, core.config.w if one.w is None else one.w)
                if not core.accepts_writes or one.epoch not in (0, core.mind.epoch):
                    raise NotPrimaryError(path=log.path)
                written.append((one, one.write(log)))
            except NotPrimaryError:
                self._later(one.answer, Outcome(concern.NOT_PRIMARY, NO_GTID, primary=core.mind.primary))
            except (LogClosedError, DiskFailedError):
                raise
            except ConfigError as exc:
                self._refuse([one], _why(exc))
            except LogError as exc:
                self._refuse([one], str(exc))
                if isinstance(exc, DiskFullError):
                    written = self._kept(written, exc)
        try:
            log.commit(sync=False)
        except DiskFullError as exc:
            written = self._kept(written, exc)
        if written:
            self.commits.flow.grew(self.log.last, log.visible_lsn)
            for one, gtid in written:
                self.ask(gtid, one.w, one.wtimeout_ms, one.answer, later=True)
            self._after(LogChange.LOGGED)

    def _kept(self, written: list[tuple[CommitWanted, Gtid]], exc: DiskFullError) -> list[tuple[CommitWanted, Gtid]]:
        """Return what a full disk left of a lot: what is visible; refuse the others. Another node may have room."""
        if len(self.core.config.members) > 1:
            self.core.hand_over(NO_NODE, FULL_HAND_OVER_MS)
        visible = self.log.log.visible_seqno
        self._refuse([one for one, gtid in written if gtid.seqno > visible], str(exc))
        return [(one, gtid) for one, gtid in written if gtid.seqno <= visible]

    def take_back(self, sent: tuple[str, str]) -> None:
        """Refuse what waits to be written of what its client asks about now. In this thread; see `call`."""
        wanted = self.commits.take_back(sent)
        for one in wanted:
            self._out.put(one.taken)
        self._refuse(wanted, "nothing was written: its client asked what became of it while it waited")

    def _refuse(self, wanted: list[CommitWanted], why: str) -> None:
        for one in wanted:
            self._later(one.answer, Outcome(REFUSED, NO_GTID), why)

    def ask(
        self,
        gtid: Gtid,
        w: int | str | None,
        wtimeout_ms: int | None,
        answer: Asker,
        *,
        later: bool = False,
    ) -> None:
        """Ask whether `w` is met for a GTID; as `Core.ask`. In this thread; see `call`."""
        self._number += 1
        self._asked[self._number] = answer
        try:
            self.core.ask(self._number, gtid, w, wtimeout_ms, later=later)
        except ConfigError as exc:
            del self._asked[self._number]
            self._later(answer, Outcome(REFUSED, gtid), _why(exc))

    def waiters(self) -> int:
        """Return how many questions are open. In this thread."""
        return len(self._awaited) + len(self._asked) + len(self.core.mind.waiting)

    def _answer_readers(self) -> None:
        if not self._awaited:
            return
        self._take_commit_point()
        mind, still, now, at = self.core.mind, [], self._now(), self.core.position()
        if self.core.serves_reads and not self.log.shows(at.shown):
            return  # a sync that has just ended writes it down; its word comes here
        for one in self._awaited:
            if self.core.serves_reads and may_read(one.wish, at, now):
                lost = isinstance(one.wish, AtLeast) and self.core.has_lost(one.wish.gtid)
                self._later(one.answer, Outcome(concern.ROLLED_BACK if lost else concern.SATISFIED, at.shown))
            elif isinstance(one.wish, Latest) and not at.is_primary:
                self._later(one.answer, Outcome(concern.NOT_PRIMARY, at.shown, primary=mind.primary))
            elif one.deadline is not None and now >= one.deadline:
                self._later(one.answer, Outcome(concern.TIMED_OUT, at.shown))
            elif one.answer.gone:
                self._later(one.answer, Outcome(concern.FAILED_OVER, NO_GTID))
            else:
                still.append(one)
        self._awaited = still

    def _forget_gone(self) -> None:
        """Keep nothing for clients that have left."""
        gone = {number for number, answer in self._asked.items() if answer.gone}
        if gone:
            self._asked = {number: answer for number, answer in self._asked.items() if number not in gone}
            self.core.mind.waiting = [one for one in self.core.mind.waiting if one.number not in gone]

    # --- what goes out ---

    def _later(self, answer: Asker, outcome: Outcome, text: str = "") -> None:
        name = self.core.config.member(outcome.primary) if outcome.primary != NO_NODE else None
        told = msgspec.structs.replace(outcome, primary=NodeId("" if name is None else name.name))
        self._out.put(lambda: answer(told, text))

    def _tell(self) -> None:
        """Hand over what there is to say."""
        self._take_commit_point()
        standing = _standing(self.core, self.log)
        before, self._shown = self._shown, standing
        if before != standing:
            self._hearer.standing = standing
            if before is None or _role(before) != _role(standing):
                self._out.put_first(self._hearer.stands)
        self._out.hand_out()
        self._syncing.begin()

    def _take_commit_point(self) -> None:
        if self._committed is not None:
            self.log.carry_out(Committed(self._committed))
            self._committed = None

    # --- syncing ---

    def _sync(self) -> None:
        """Sync once; in a thread of its own."""
        log, closed = self.log.log, None
        try:
            log.commit()
        except NotPrimaryError:
            pass
        except LogClosedError as exc:
            closed = exc
        self._turn.post(partial(self._synced, log, closed))

    def _synced(self, log: MemberLog, closed: LogClosedError | None) -> None:
        """A sync of this log is over. A rollback to before everything closes one, and has another in the same turn."""
        if closed is not None and self.log.log is log:
            raise closed
        self._syncing.over()
        self.core.durable()


def _why(exc: ConfigError) -> str:
    """Return what is wrong with a commit or a question; its error says by itself what to do."""
    return f"{exc.option} = {exc.value!r}: {exc.why}"


def _standing(core: Core, log: NodeLog) -> NodeStanding:
    mind = core.mind
    return NodeStanding(
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


def _role(standing: NodeStanding) -> tuple[int, int, NodeId, GroupConfig]:
    return standing.state, standing.epoch, standing.primary, standing.config

"""What a process answers: `tranlog apply` of its pipeline, `tranlog capture` of its log, `tranlog run` of both.

Owns the two parts, and opening the one server that serves them. The hard idea: nothing is opened before the security
rule has been checked, and nothing that answers takes part in the work: a request that hangs costs its own thread and
its own connection to the target.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from tranlog.capture.capture import Capture
from tranlog.capture.load_requests import give_order, read_requests
from tranlog.clock import SystemClock
from tranlog.codecs.opening import open_readable
from tranlog.errors import ConfigError, ControlError, LogMissingError, SourceError, TranlogError
from tranlog.ids import NO_SEQNO, Gtid, Seqno
from tranlog.log.writing.log import Log, LogOptions
from tranlog.option_kinds import check_kinds
from tranlog.pipeline.driving.operation import OnlineOrder, Operation
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules import limits
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.states import OperationState, State
from tranlog.pipeline.rules.troubles import trouble_text
from tranlog.pipeline.status import view as views
from tranlog.pipeline.status.gathering import KeptTarget, gather
from tranlog.pipeline.status.status import Status
from tranlog.pipeline.upkeep.position import applied_of, set_position
from tranlog.queues.store import MessageStore
from tranlog.service.config.config import Config, PipelineOptions
from tranlog.service.config.exposure import Exposure, Role, check_exposure, read_secrets
from tranlog.service.process import api
from tranlog.service.process.last_error import forget_error
from tranlog.service.process.log_index import extent_of
from tranlog.service.process.node_part import NodePart
from tranlog.service.process.sockets import CAPTURE_NAME, NODE_NAME, STORE_NAME, runtime_dir, socket_paths
from tranlog.service.process.store_part import StorePart
from tranlog.service.process.upkeep import LogUpkeep
from tranlog.service.show.loads import load_text
from tranlog.service.show.overview import Overview, overview_of
from tranlog.source.kinds import SourceOptions, source_kind
from tranlog.target.options import is_there, open_target
from tranlog.target.target import Target

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from tranlog.service.process.server import Door, Server

logger = logging.getLogger(__name__)

WAIT_MOST_S = 86_400.0
HEARTBEAT_BYTES_MAX = 200
RATE_S = 0.3
"""How long it is watched for rates, at least; readings for them are so far apart."""
_SINCE_S = 1.0
"""An earlier reading tells rates in place of watching, while it is not older."""
_TURN_S = 1.0
"""How often who waits for their turn looks whether anybody waits for the answer."""

StateT = TypeVar("StateT", bound=OperationState)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingOptions:
    """At which ports a process is reached, HOST:PORT, None for none; who comes by `metrics` only reads.

    `service` and `source` are what the configuration calls them; an overview shows them. `source_event_id` asks the
    source where it stands; None: it is not asked.
    """

    control: str | None = None
    metrics: str | None = None
    exposure: Exposure = field(default_factory=Exposure)
    service: str = ""
    source: str = ""
    source_event_id: Callable[[], str] | None = None

    @classmethod
    def of(cls, options: PipelineOptions) -> OperatingOptions:
        """Return them as the configuration has them. Raises ConfigError for a secret's file that cannot be read."""
        secret, read_secret = (None, None) if options.secret_file is None else read_secrets(options.secret_file)
        exposure = Exposure(
            certificate=options.tls_certificate,
            key=options.tls_key,
            secret=secret,
            read_secret=read_secret,
            authority=options.tls_client_ca,
        )
        return cls(control=options.control, metrics=options.metrics, exposure=exposure)

    @classmethod
    def of_node(cls, config: Config) -> OperatingOptions:
        """Return those of a node of a group. Raises as `of`."""
        return replace(cls.of(config.pipeline), control=config.group.control, metrics=config.group.metrics)

    @classmethod
    def of_capture(cls, config: Config) -> OperatingOptions:
        """Return those of a capture alone. Raises as `of`."""
        ports = config.capture_ports
        return replace(cls.of(config.pipeline), control=ports.control, metrics=ports.metrics)

    def check(self) -> None:
        """Raise ConfigError for a port that may not be opened so, or that the files of TLS do not serve."""
        check_kinds(self)
        for option, address, _ in self.ports:
            check_exposure(option, address, self.exposure)
        if self.ports:
            self.exposure.server_context()

    @property
    def ports(self) -> list[tuple[str, str, Role]]:
        """Each port by its option, with the most that one may do there."""
        wanted = (("control", self.control, Role.OPERATE), ("metrics", self.metrics, Role.READ))
        return [(option, address, most) for option, address, most in wanted if address is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAgain:
    """What a process's configuration file says now: how its plan changes the options, and what waits for a restart."""

    change: Callable[[ApplyOptions], ApplyOptions]
    at_restart: tuple[str, ...]


class Operator:
    """The part that applies: one pipeline. Threads: any number, each with one request.

    `reread` reads the file by which the process was started; None where a program started it without one.
    """

    def __init__(
        self,
        operation: Operation,
        log_options: LogOptions,
        options: OperatingOptions | None = None,
        *,
        reread: Callable[[], ReadAgain] | None = None,
    ) -> None:
        self._operation = operation
        self._options = options or OperatingOptions()
        self._host = socket.gethostname()
        self._log_options = log_options
        self._reread = reread
        self._clock = SystemClock()
        self._tickets = itertools.count(1)
        self._one_at_a_time = threading.Lock()
        self._watched: tuple[int, Status] | None = None
        self._since: Status | None = None
        self._target = KeptTarget()

    def close(self) -> None:
        """Let go of the target."""
        self._target.close()

    @api.get("/state")
    def state(self) -> OperationState:
        """Return where it stands, and the error that took it offline."""
        found = self._operation.state()
        if found.state.resting and found.applied_seqno != NO_SEQNO:  # nobody reports meanwhile, and the log grows
            with contextlib.suppress(TranlogError):
                found = replace(found, committed_seqno=self._committed())
        return found

    @api.post("/online")
    def online(self, asked: api.GoOnline) -> OperationState:
        """Go online. Raises ConfigError where the order contradicts itself, StateError where it is not offline.

        ConfigError, too, where a seqno that is to be left out is applied already: nothing is left out then.
        """
        order = order_of(asked)
        if order.leave_out and asked.from_seqno is None and self._operation.state().state.resting:
            self._check_skipped(order.leave_out)
        before = None if asked.from_seqno is None else self._repositioning(asked.from_seqno)
        self._operation.online(order, before=before)
        return self.state()

    @api.post("/offline")
    def offline(self, asked: api.GoOffline) -> OperationState:
        """Go offline, after the target transactions under way or at once."""
        self._operation.offline(immediate=asked.immediate)
        return self.state()

    @api.post("/wait", role=Role.READ)
    def wait(self, asked: api.WaitFor) -> api.Waited:
        """Wait until a seqno is applied, or for a state. Raises StateError where it cannot come."""
        state, most = _state(asked.state), min(asked.timeout_s, WAIT_MOST_S)
        came = self._operation.wait(applied=asked.applied, state=state, timeout_s=most, gone=api.GONE.get())
        return _also(api.Waited, self.state(), reached=came)

    @api.post("/flush", role=Role.READ)
    def flush(self, asked: api.WithinTime) -> api.Flushed:
        """Wait until everything that the log holds by now is in the target. Raises as `wait`."""
        seqno = self._committed()
        came = self._operation.wait(applied=seqno, timeout_s=min(asked.timeout_s, WAIT_MOST_S), gone=api.GONE.get())
        return _also(api.Flushed, self.state(), seqno=seqno, reached=came)

    @api.post("/reload")
    def reload(self, asked: api.WithinTime) -> api.Reloaded:
        """Continue by the plan that the file has now. Raises ConfigError, EngineError, StateError; all goes on then."""
        if self._reread is None:
            raise ConfigError(option="reload", value=None, why="the process was started without a configuration file")
        found = self._reread()
        done = self._operation.replan(found.change, timeout_s=min(asked.timeout_s, WAIT_MOST_S))
        return _also(
            api.Reloaded,
            self.state(),
            plan=done.end,
            before=_plan_shown(done.before),
            after=_plan_shown(done.after),
            seqno=done.seqno,
            at_restart=found.at_restart,
        )

    @api.get("/overview")
    def overview(self) -> Overview:
        """Return all of it at this moment; what cannot be read is in its problems."""
        process, options = f"{self._host} pid {os.getpid()}", self._operation.options
        loads = tuple(map(load_text, read_requests(options.log_dir)))
        return overview_of(self._gather(), options, process=process, loads=loads)

    @api.get("/status/{name}")
    def look(self, name: views.ViewName) -> list[Mapping[str, Any]]:
        """Return a view's tables as plain values. Raises as `status`, ConfigError for no such view."""
        if name not in views.VIEW_NAMES:
            raise ConfigError(option="-name", value=name, why=f"one of {', '.join(views.VIEW_NAMES)}")
        if name == "tasks":
            status = self._read()
        else:
            status = self._gather(source_event_id=self._source_at() if name == "pipeline" else "")
        return views.json_form(views.view(name, views.pipeline_status(views.needed_for(name, status))))

    @api.get("/status")
    def status(self) -> views.PipelineStatus:
        """Return all views of this moment, with rates, for which it is watched.

        Raises TargetUnavailableError, and what opening the log raises.
        """
        return views.pipeline_status(views.needed_for(None, self._read()))

    def progress(self) -> OperationState:
        """Return where it stands."""
        return self._operation.state()

    def ready(self) -> str:
        """Say why its channels do not all run; empty where they do."""
        state = self._operation.state()
        if state.state is State.ONLINE:
            return ""
        why = [trouble_text(one) for one in state.troubles] if state.pending is None else [state.pending.message]
        return ": ".join([f"pipeline {state.pipeline} is {state.state}", *why])

    def families(self) -> Iterable[Metric]:
        """Return the pipeline's metrics, without the target's where that is away. Raises what reading the log does."""
        from tranlog.service.process.metrics import pipeline_families

        with self._in_turn():
            status = self._gather()
        if status.log is None:
            raise status.problems["log"]
        return pipeline_families(status)

    def _read(self) -> Status:
        """Return a reading with rates that began after it was asked for. Who asks before it begins shares it."""
        asked = next(self._tickets)
        with self._in_turn():
            if self._watched is not None and self._watched[0] > asked:
                return self._watched[1]
            now_s = self._clock.monotonic()
            self._since = since = self._base(now_s)
            if since is not None:
                self._clock.sleep(max(0.0, since.monotonic_s + RATE_S - now_s))
            begun, at = next(self._tickets), self._source_at()
            status = self._gather(watch_s=RATE_S if since is None else 0.0, since=since, source_event_id=at)
            self._watched = begun, status
            return status

    def _base(self, now_s: float) -> Status | None:
        """Return the earlier reading from which rates are told; None where there is none, and it has to be watched."""
        last = None if self._watched is None else self._watched[1]
        if last is None or last.pipeline is None or not last.pipeline.running or now_s - last.monotonic_s > _SINCE_S:
            return None
        near = self._since is not None and last.monotonic_s - self._since.monotonic_s < RATE_S
        return self._since if near else last

    def _committed(self) -> Seqno:
        with open_readable(self._operation.options.log_dir) as reader:
            return reader.range().committed_seqno

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Be the one who reads. Raises ControlError, for nobody, where whoever asked goes before it is their turn."""
        while not self._one_at_a_time.acquire(timeout=_TURN_S):
            if api.GONE.get()():
                raise ControlError(where=self._host, why="whoever asked has gone", remedy="Ask again")
        try:
            yield
        finally:
            self._one_at_a_time.release()

    def _source_at(self) -> str:
        try:
            return "" if self._options.source_event_id is None else self._options.source_event_id()
        except TranlogError as exc:
            logger.debug("the source does not tell where it stands: %s", exc)
            return ""

    def _gather(self, *, watch_s: float = 0.0, since: Status | None = None, source_event_id: str = "") -> Status:
        options = self._operation.options
        return gather(
            options.log_dir,
            options,
            clock=self._clock,
            watch_s=watch_s,
            since=since,
            log_options=self._log_options,
            process=self._operation.state(),
            host=self._host,
            service=self._options.service,
            source=self._options.source,
            source_event_id=source_event_id,
            kept=self._target,
        )

    def _check_skipped(self, wanted: limits.SeqnoRanges) -> None:
        options = self._operation.options

        def look(target: Target) -> limits.SeqnoRanges:
            with open_readable(options.log_dir) as reader:
                return applied_of(target, reader, wanted, pipeline=options.pipeline, plan=options.shard_plan())

        if is_there(options.target) and (found := self._target.read(options.target, look)):
            why = "applied already, so nothing is skipped; leave it out, or take back at the target what it did"
            raise ConfigError(option="--skip-seqno", value=found.text(), why=why)

    def _repositioning(self, seqno: int) -> Callable[[], None]:
        """Return what puts all channels before a seqno, the pipeline being offline."""
        options = self._operation.options

        def move() -> None:
            with contextlib.closing(open_target(options.target)) as target, open_readable(options.log_dir) as reader:
                set_position(
                    target,
                    reader,
                    pipeline=options.pipeline,
                    seqno=Seqno(seqno - 1),
                    channel=None,
                    plan=options.shard_plan(),
                    clock=self._clock,
                    watch_s=1.3,
                    take_over=False,
                    agree=lambda move: logger.warning("repositioned by its operator: %s", move.consequences()),
                )

        return move


class Capturing(LogUpkeep):
    """The part that captures into a log. `alone`: no pipeline beside it tells of the log."""

    def __init__(self, log: Log, capture: Capture, source: SourceOptions | None = None, *, alone: bool = False) -> None:
        super().__init__(log)
        self._capture = capture
        self._source = source
        self._alone = alone
        self._since_ms = round(time.time() * 1000)

    @api.get("/capture")
    def progress(self) -> api.CaptureState:
        """Return what it captures, and what only its process knows of the log's index."""
        return api.CaptureState(
            pipeline=CAPTURE_NAME,
            state="CAPTURING",
            since_ms=self._since_ms,
            in_flight=self._capture.status().in_flight,
            index=extent_of(self.log.seqno_index),
            reads=self.log.status().reads,
        )

    @api.get("/loads")
    def loads(self) -> api.LoadsNow:
        """Return the loads that are not at their end."""
        return api.LoadsNow(loads=read_requests(self.log.path))

    @api.post("/loads")
    def tell_load(self, asked: api.TellLoad) -> api.LoadsNow:
        """Tell a load to pause, to go on, to end, or how fast to be. Raises ConfigError where it is not known which."""
        give_order(
            self.log.path,
            asked.load,
            paused=asked.paused,
            given_up=asked.given_up,
            rows_per_second=asked.rows_per_second,
        )
        return self.loads()

    @api.post("/heartbeat")
    def heartbeat(self, asked: api.Beat) -> api.Beaten:
        """Have a heartbeat put into the log, and wait until it is there.

        Raises ConfigError for a name that is none, ControlError where capture ends before.
        """
        name = asked.name
        if not name or len(name.encode()) > HEARTBEAT_BYTES_MAX or not name.isprintable() or name == "*":
            why = f"a heartbeat's name is 1 to {HEARTBEAT_BYTES_MAX} bytes, printable, and not *"
            raise ConfigError(option="heartbeat", value=name, why=why)
        beat, gone, seqno = self._capture.heartbeat(name), api.GONE.get(), None
        until = time.monotonic() + min(asked.timeout_s, WAIT_MOST_S)
        while seqno is None and not gone() and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                try:
                    seqno = beat.result(min(left, _TURN_S))
                except CancelledError:
                    why, remedy = "capture has ended before the heartbeat was in the log", "Start it, and ask again"
                    raise ControlError(where=self.log.path, why=why, remedy=remedy) from None
        return api.Beaten(heartbeat=name, seqno=seqno)

    def ready(self) -> str:
        """Say why it does not capture; empty where it does."""
        return "" if self._capture.begun else "the source has not started"

    def families(self) -> Iterator[Metric]:
        """Return the metrics of capture and source, and, alone, of the log. Raises what cannot be read of the log."""
        from tranlog.service.process.metrics import capture_families, log_families

        status, standing = self._capture.status(), None
        found = gather(self.log.path, None, clock=SystemClock(), whole=True)
        log = found.log
        if log is None:
            raise found.problems["log"]
        if self._source is not None:
            try:
                standing = source_kind(self._source.kind).standing(self._source, log.last_event_id)
            except SourceError as exc:
                logger.debug("the source does not tell where it stands: %s", exc)
        yield from capture_families(status, log, standing, asked=self._source is not None, now_ms=found.now_ms)
        if self._alone:
            yield from log_families(log, {"source_id": status.source_id})


def order_of(request: api.GoOnline) -> OnlineOrder:
    """Return the order that a request stands for. Raises ConfigError where it contradicts itself."""
    for option, seqno in (("--until-seqno", request.until_seqno), ("--from-seqno", request.from_seqno)):
        if seqno is not None and seqno < 0:
            raise ConfigError(option=option, value=seqno, why="a seqno is 0 or more")
    wanted: list[tuple[Callable[[Any], limits.Limit], object]] = [
        (lambda seqno: limits.UntilSeqno(seqno=Seqno(seqno)), request.until_seqno),
        (lambda text: limits.UntilGtid(gtid=_gtid(text)), request.until_gtid),
        (lambda ms: limits.UntilTime(tstamp=ms), request.until_time_ms),
        (lambda event_id: limits.UntilEvent(event_id=event_id), request.until_event),
        (lambda name: limits.UntilHeartbeat(name=name), request.until_heartbeat),
    ]
    given = [make(value) for make, value in wanted if value is not None]
    if len(given) > 1:
        raise ConfigError(option="--until-…", value=None, why="one limit at a time; the nearest would hide the others")
    skip = limits.SeqnoRanges() if request.skip_seqno is None else limits.SeqnoRanges.parse(request.skip_seqno)
    return OnlineOrder(limit=given[0] if given else None, leave_out=skip)


def _gtid(text: str) -> Gtid:
    try:
        return Gtid.parse(text)
    except ValueError as exc:
        raise ConfigError(option="--until-gtid", value=text, why=str(exc)) from exc


def parse_time(text: str) -> int:
    """Return ms since 1970 of `2026-11-22T10:00:00`, with `_` or a blank for the T, UTC unless it says otherwise."""
    try:
        found = datetime.fromisoformat(text.strip().replace("_", "T", 1))
    except ValueError as exc:
        raise ConfigError(option="--until-time", value=text, why="a time is 2026-11-22T10:00:00, in UTC") from exc
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _state(text: str | None) -> State | None:
    if text is None:
        return None
    try:
        return State(text.upper())
    except ValueError as exc:
        why = f"one of {', '.join(State)}"
        raise ConfigError(option="--state", value=text, why=why) from exc


def _plan_shown(plan: ShardPlan) -> dict[str, Any]:
    return {"channels": plan.channels, **json.loads(plan.text())}


def _also(kind: type[StateT], state: OperationState, **more: Any) -> StateT:
    """Return a state with what else is told."""
    told: dict[str, Any] = {one.name: getattr(state, one.name) for one in fields(state)}
    return kind(**told, **more)


@contextlib.contextmanager
def _served(
    parts: Sequence[api.ServedPart],
    sockets: Sequence[tuple[str, bool]],
    log_dir: str,
    options: OperatingOptions,
    runtime: str | None,
) -> Iterator[Server]:
    """Serve parts while the block runs: at a socket for each name, with whether it is taken over, and at the ports.

    A log beside which no socket can be goes without one.
    """
    from tranlog.service.process.server import Server, open_port, open_socket, refuse_second  # for those who serve

    for name, take_over in sockets:
        if not take_over:  # who has the pipeline has its ports too, and is what to tell
            refuse_second(socket_paths(log_dir, name, runtime_dir=runtime), pipeline=name)
    with contextlib.ExitStack() as opened:
        doors: list[Door] = []
        for option, address, most in options.ports:
            doors.append(open_port(option, address, options.exposure, most=most))
            opened.callback(doors[-1].close)
        for name, take_over in sockets:
            paths = socket_paths(log_dir, name, runtime_dir=runtime)
            try:
                doors.append(open_socket(paths, pipeline=name, take_over=take_over))
            except ConfigError as exc:
                logger.warning("this process cannot be operated from outside why=%s", exc)
            else:
                opened.callback(doors[-1].close)
        for name, _ in sockets:
            forget_error(log_dir, name)
        yield opened.enter_context(Server(parts, doors))


@contextlib.contextmanager
def operated(
    operation: Operation,
    log_options: LogOptions,
    options: OperatingOptions,
    *,
    runtime_dir: str | None,
    capturing: Capturing | None = None,
    reread: Callable[[], ReadAgain] | None = None,
) -> Iterator[Operator]:
    """Serve a pipeline's process while the block runs; `capturing`: it captures too. `reread` is `Operator`'s.

    Raises LogMissingError, ConfigError where the rule forbids a port or it is taken, PipelineHeldError where another
    process has the pipeline's socket.
    """
    operator = Operator(operation, log_options, options, reread=reread)
    apply = operation.options
    if not os.path.isdir(apply.log_dir):  # the socket's folder is not what creates it
        raise LogMissingError(path=apply.log_dir, why="the directory does not exist")
    parts: list[api.ServedPart] = [operator] if capturing is None else [operator, capturing]
    sockets = [(apply.pipeline, apply.take_over)] + ([] if capturing is None else [(CAPTURE_NAME, True)])
    with contextlib.closing(operator), _served(parts, sockets, apply.log_dir, options, runtime_dir):
        yield operator


@contextlib.contextmanager
def capture_endpoint(
    capturing: Capturing, *, runtime_dir: str | None, options: OperatingOptions | None = None
) -> Iterator[Server]:
    """Serve the process of whoever captures into a log while the block runs.

    Raises ConfigError where the rule forbids a port or it is taken. The log's lock is held: whoever had the socket
    before is not writing it any more.
    """
    given = options or OperatingOptions()
    with _served([capturing], [(CAPTURE_NAME, True)], capturing.log.path, given, runtime_dir) as server:
        yield server


@contextlib.contextmanager
def node_endpoint(part: NodePart, log_dir: str, options: OperatingOptions) -> Iterator[Server]:
    """Serve the process of a group's node while the block runs. Raises as `capture_endpoint`."""
    with _served([part], [(NODE_NAME, True)], log_dir, options, runtime_dir()) as server:
        yield server


@contextlib.contextmanager
def serve_store(store: MessageStore, options: OperatingOptions | None = None) -> Iterator[Server]:
    """Serve an open message store while the block runs: at a socket in its folder, and at the ports of `options`.

    `tranlog queue` works beside its process then, and its metrics can be read. Raises ConfigError where the rule
    forbids a port or it is taken.
    """
    given = options or OperatingOptions()
    with _served([StorePart(store)], [(STORE_NAME, True)], store.path, given, runtime_dir()) as server:
        yield server

"""A pipeline's process: the operation, the endpoint that reaches it, and the numbers it shows.

Owns what `tranlog apply` and `tranlog run` have in common: opening the endpoint and the port for metrics, answering
requests, closing both. The hard idea: nothing is opened before the security rule has been checked, and nothing that
answers takes part in the work: a request that hangs costs its own thread and a connection of its own to the target.

Source: issue 7, items 5 and 6; design/replication.md, "Security".
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, assert_never

import msgspec

from tranlog.capture.capture import Capture
from tranlog.clock import SystemClock
from tranlog.codecs.opening import open_readable
from tranlog.errors import ConfigError, LogMissingError, TranlogError
from tranlog.ids import Gtid, Seqno
from tranlog.log.writing.log import Log, LogOptions
from tranlog.pipeline.driving.operation import OnlineOrder, Operation
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.limits import (
    Limit,
    SeqnoRanges,
    UntilEvent,
    UntilGtid,
    UntilHeartbeat,
    UntilSeqno,
    UntilTime,
)
from tranlog.pipeline.rules.states import OperationState, State
from tranlog.pipeline.status.gathering import gather
from tranlog.pipeline.status.status import Status
from tranlog.pipeline.status.view import (
    VIEW_NAMES,
    PipelineStatus,
    ViewName,
    json_form,
    needed_for,
    pipeline_status,
    view,
)
from tranlog.pipeline.upkeep.position import set_position
from tranlog.service.config.config import PipelineOptions
from tranlog.service.config.exposure import Exposure, check_exposure, read_secret
from tranlog.service.process.control import (
    CAPTURE_NAME,
    ControlOptions,
    ControlServer,
    open_port,
    open_socket,
    socket_paths,
)
from tranlog.service.process.log_index import tell_index
from tranlog.service.process.metrics import MetricsServer, metrics_text
from tranlog.service.process.requests import (
    AddSegment,
    Beat,
    Flush,
    GetOverview,
    GetState,
    GoOffline,
    GoOnline,
    Look,
    Reload,
    Request,
    Trim,
    WaitFor,
)
from tranlog.service.process.upkeep import carry_out
from tranlog.service.show.overview import Overview, overview_of
from tranlog.target.options import open_target

logger = logging.getLogger(__name__)

WAIT_MOST_S = 86_400.0
HEARTBEAT_BYTES_MAX = 200
_RATE_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingOptions:
    """Where a pipeline's process is reached. `metrics`: HOST:PORT for OpenMetrics over HTTP, None for none.

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
        secret = None if options.secret_file is None else read_secret(options.secret_file)
        exposure = Exposure(certificate=options.tls_certificate, key=options.tls_key, secret=secret)
        return cls(control=options.control, metrics=options.metrics, exposure=exposure)

    def check(self) -> None:
        """Raise ConfigError for what the security rule forbids."""
        ControlOptions(address=self.control, exposure=self.exposure).check()
        if self.metrics is not None:
            check_exposure("metrics", self.metrics, self.exposure)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAgain:
    """What a process's configuration file says now: how its plan changes the options, and what waits for a restart."""

    change: Callable[[ApplyOptions], ApplyOptions]
    at_restart: tuple[str, ...]


class Operator:
    """Answers the requests of one pipeline's process. Threads: any number, each with one request.

    `heartbeat` puts a heartbeat into the log; None where this process does not write it. `reread` reads the file by
    which it was started; None where a program started it without one.
    """

    def __init__(
        self,
        operation: Operation,
        log_options: LogOptions,
        options: OperatingOptions | None = None,
        *,
        heartbeat: Callable[[str], None] | None = None,
        reread: Callable[[], ReadAgain] | None = None,
    ) -> None:
        self._operation = operation
        self._options = options or OperatingOptions()
        self._host = socket.gethostname()
        self._log_options = log_options
        self._heartbeat = heartbeat
        self._reread = reread
        self._clock = SystemClock()

    def handle(self, request: Request) -> dict[str, Any]:
        """Do what is asked and return the answer; raises what stands in the way."""
        operation = self._operation
        match request:
            case GetState():
                return _shown(operation.state())
            case GoOnline():
                order = order_of(request)
                before = None if request.from_seqno is None else self._repositioning(request.from_seqno)
                operation.online(order, before=before)
                return _shown(operation.state())
            case GoOffline(immediate=immediate):
                operation.offline(immediate=immediate)
                return _shown(operation.state())
            case WaitFor(applied=applied, state=state, timeout_s=timeout_s):
                came = operation.wait(applied=applied, state=_state(state), timeout_s=min(timeout_s, WAIT_MOST_S))
                return {**_shown(operation.state()), "reached": came}
            case Flush(timeout_s=timeout_s):
                seqno = self._committed()
                came = operation.wait(applied=seqno, timeout_s=min(timeout_s, WAIT_MOST_S))
                return {**_shown(operation.state()), "seqno": seqno, "reached": came}
            case Reload(timeout_s=timeout_s):
                return self._reload(timeout_s)
            case Beat(name=name):
                return beat(name, self._heartbeat)
            case Look(name=name):
                return {"name": name, "shown": self.look(name)}
            case GetOverview():
                return _shown(self.overview())
            case AddSegment() | Trim():
                raise ConfigError(option="request", value=None, why="this process applies; ask the one that captures")
            case _:
                assert_never(request)

    def overview(self) -> Overview:
        """Return all of it at this moment; what cannot be read is in its problems."""
        return overview_of(self._gather(), self._operation.options, process=f"{self._host} pid {os.getpid()}")

    def _reload(self, timeout_s: float) -> dict[str, Any]:
        """Go on by the plan that the file has now. Raises ConfigError, EngineError, StateError; all goes on then."""
        if self._reread is None:
            raise ConfigError(option="reload", value=None, why="the process was started without a configuration file")
        found = self._reread()
        done = self._operation.replan(found.change, timeout_s=min(timeout_s, WAIT_MOST_S))
        return {
            **_shown(self._operation.state()),
            "plan": done.end.value,
            "before": _plan_shown(done.before),
            "after": _plan_shown(done.after),
            "seqno": done.seqno,
            "at_restart": list(found.at_restart),
        }

    def look(self, name: str | None) -> object:
        """Return a view's tables as plain values, or, None, all of the status. Raises ConfigError for no such view."""
        if name is None:
            return msgspec.to_builtins(self.status())
        found = next((one for one in VIEW_NAMES if one == name), None)
        if found is None:
            raise ConfigError(option="-name", value=name, why=f"one of {', '.join(VIEW_NAMES)}")
        return json_form(view(found, pipeline_status(self._read(found))))

    def status(self) -> PipelineStatus:
        """Return all views of this moment, with rates, for which it is watched.

        Raises TargetUnavailableError, and what opening the log raises.
        """
        return pipeline_status(self._read(None))

    def metrics(self) -> str:
        """Return the same numbers as OpenMetrics."""
        status = self._gather(watch_s=_RATE_S)
        for problem in status.problems.values():
            raise problem
        return metrics_text(status)

    def _read(self, name: ViewName | None) -> Status:
        """Return what a view shows, None: all of them. Raises what stands in the way of it."""
        source_at = ""
        if name in (None, "pipeline") and self._options.source_event_id is not None:
            try:
                source_at = self._options.source_event_id()
            except TranlogError as exc:
                logger.debug("the source does not tell where it stands: %s", exc)
        watch_s = _RATE_S if name in (None, "tasks") else 0.0
        return needed_for(name, self._gather(watch_s=watch_s, source_event_id=source_at))

    def _gather(self, *, watch_s: float = 0.0, source_event_id: str = "") -> Status:
        options = self._operation.options
        return gather(
            options.log_dir,
            options,
            clock=self._clock,
            watch_s=watch_s,
            log_options=self._log_options,
            process=self._operation.state(),
            host=self._host,
            service=self._options.service,
            source=self._options.source,
            source_event_id=source_event_id,
        )

    def _committed(self) -> Seqno:
        with open_readable(self._operation.options.log_dir) as reader:
            return reader.range().committed_seqno

    def _repositioning(self, seqno: int) -> Callable[[], None]:
        """Return what puts all channels in front of a seqno, the pipeline being offline."""
        options = self._operation.options

        def move() -> None:
            target = open_target(options.target)
            try:
                with open_readable(options.log_dir) as reader:
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
            finally:
                target.close()

        return move


def beat(name: str, heartbeat: Callable[[str], None] | None) -> dict[str, Any]:
    """Put a heartbeat into the log. Raises ConfigError for a name that is none, or where this process writes no log."""
    if not name or len(name.encode()) > HEARTBEAT_BYTES_MAX or not name.isprintable() or name == "*":
        why = f"a heartbeat's name is 1 to {HEARTBEAT_BYTES_MAX} bytes, printable, and not *"
        raise ConfigError(option="heartbeat", value=name, why=why)
    if heartbeat is None:
        why = "the process asked does not write the log; ask `tranlog run`, or the `tranlog capture` beside it"
        raise ConfigError(option="heartbeat", value=name, why=why)
    heartbeat(name)
    return {"heartbeat": name}


def order_of(request: GoOnline) -> OnlineOrder:
    """Return the order that a request stands for. Raises ConfigError where it contradicts itself."""
    limits: list[Limit] = []
    if request.until_seqno is not None:
        limits.append(UntilSeqno(seqno=Seqno(request.until_seqno)))
    if request.until_gtid is not None:
        try:
            limits.append(UntilGtid(gtid=Gtid.parse(request.until_gtid)))
        except ValueError as exc:
            raise ConfigError(option="--until-gtid", value=request.until_gtid, why=str(exc)) from exc
    if request.until_time_ms is not None:
        limits.append(UntilTime(tstamp=request.until_time_ms))
    if request.until_event is not None:
        limits.append(UntilEvent(event_id=request.until_event))
    if request.until_heartbeat is not None:
        limits.append(UntilHeartbeat(name=request.until_heartbeat))
    if len(limits) > 1:
        raise ConfigError(option="--until-…", value=None, why="one limit at a time; the nearest would hide the others")
    for option, seqno in (("--until-seqno", request.until_seqno), ("--from-seqno", request.from_seqno)):
        if seqno is not None and seqno < 0:
            raise ConfigError(option=option, value=seqno, why="a seqno is 0 or more")
    skip = SeqnoRanges() if request.skip_seqno is None else SeqnoRanges.parse(request.skip_seqno)
    return OnlineOrder(limit=limits[0] if limits else None, leave_out=skip)


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


def _shown(state: OperationState | Overview) -> dict[str, Any]:
    shown = msgspec.to_builtins(state)
    assert isinstance(shown, dict)
    return shown


@contextlib.contextmanager
def operated(
    operation: Operation,
    log_options: LogOptions,
    options: OperatingOptions,
    *,
    runtime_dir: str | None,
    heartbeat: Callable[[str], None] | None = None,
    reread: Callable[[], ReadAgain] | None = None,
) -> Iterator[Operator]:
    """Serve a pipeline's endpoint and metrics while the block runs; `heartbeat` and `reread` are `Operator`'s.

    Raises LogMissingError, ConfigError where the rule forbids a port or it is taken, PipelineHeldError where another
    process has the endpoint. A log beside which no socket can be only goes without one.
    """
    options.check()
    operator = Operator(operation, log_options, options, heartbeat=heartbeat, reread=reread)
    apply = operation.options
    if not os.path.isdir(apply.log_dir):  # the endpoint's folder is not what creates it
        raise LogMissingError(path=apply.log_dir, why="the directory does not exist")
    with contextlib.ExitStack() as opened:
        if options.control is None:
            paths = socket_paths(apply.log_dir, apply.pipeline, runtime_dir=runtime_dir)
            try:
                opened.enter_context(
                    open_socket(paths, operator.handle, pipeline=apply.pipeline, take_over=apply.take_over)
                )
            except ConfigError as exc:
                logger.warning("this pipeline cannot be operated from outside why=%s", exc)
        elif options.control != "off":
            control = ControlOptions(address=options.control, exposure=options.exposure)
            opened.enter_context(open_port(control, operator.handle))
        if options.metrics is not None:
            opened.enter_context(MetricsServer.open(options.metrics, options.exposure, operator.metrics))
        yield operator


@contextlib.contextmanager
def capture_endpoint(log: Log, capture: Capture, *, runtime_dir: str | None) -> Iterator[ControlServer | None]:
    """Serve the endpoint of whoever captures into a log while the block runs: state, heartbeats, the log's upkeep."""
    began = round(time.time() * 1000)

    def handle(request: Request) -> dict[str, Any]:
        match request:
            case Beat(name=name):
                return beat(name, capture.heartbeat)
            case GetState():
                part = msgspec.to_builtins(capture.status().in_flight)
                told = {"pipeline": CAPTURE_NAME, "state": "CAPTURING", "since_ms": began, "in_flight": part}
                return told | tell_index(log)
            case AddSegment() | Trim():
                return carry_out(log, request)
            case _:
                raise ConfigError(option="request", value=None, why="this process captures; ask the one that applies")

    paths = socket_paths(log.path, CAPTURE_NAME, runtime_dir=runtime_dir)
    try:
        # The log's lock is held: whoever answered here before is not writing it any more.
        server = open_socket(paths, handle, pipeline=CAPTURE_NAME, take_over=True)
    except ConfigError as exc:
        logger.warning("this capture takes no heartbeats and no orders for its log why=%s", exc)
        yield None
        return
    with server:
        yield server

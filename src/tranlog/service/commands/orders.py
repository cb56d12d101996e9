"""The commands that reach a running pipeline: state, online, offline, wait, flush, reload, heartbeat.

Owns their options and their words; what they ask for is in `api`, who answers in `operating`. The hard idea: a
command finds its pipeline by the configuration, as every other does, so an operator names no socket; --host is for one
that runs elsewhere.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Protocol

import msgspec
import typer

from tranlog.clock import SECONDS_MAX, SystemClock
from tranlog.errors import ControlError, TranlogError
from tranlog.pipeline.driving.operation import ReplanEnd
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.rules.troubles import Trouble, trouble_text
from tranlog.pipeline.status.gathering import gather
from tranlog.pipeline.status.view import (
    VIEW_NAMES,
    PipelineStatus,
    ViewName,
    json_form,
    needed_for,
    pipeline_status,
    print_form,
    view,
)
from tranlog.service.commands.status import source_text
from tranlog.service.config.config import NO_OPTIONS, Config, find_file, load
from tranlog.service.frame.command import AsJson, answer, flag, one_of, option, print_json
from tranlog.service.frame.exits import ExitCode, json_line
from tranlog.service.frame.progress import Progress
from tranlog.service.process.api import Beat, GoOffline, GoOnline, WaitFor, WithinTime
from tranlog.service.process.client import (
    GRACE_S,
    NOBODY,
    NODE_START,
    WRITER_START,
    RunningPipeline,
    node_of,
    writer_of,
)
from tranlog.service.process.operating import parse_time
from tranlog.source.kinds import source_kind

_STARTS_S: Final = 10.0  # what a process that was just started may take until it listens

Host = Annotated[str | None, option("--host", "HOST:PORT|SOCKET", "Where it listens; default: by configuration.")]
Timeout = Annotated[
    float,
    typer.Option(
        *("--timeout", "-timeout", "-limit"),
        metavar="S",
        min=0,
        max=SECONDS_MAX,
        help="How long to wait, in seconds.",
    ),
]
PipelineName = Annotated[str | None, option("--pipeline", "NAME", "Instead of the configured name.")]
Authority = Annotated[
    str | None, typer.Option("--tls-ca", metavar="FILE", help="The certificate authority to trust, in PEM.")
]
Certificate = Annotated[
    str | None, typer.Option("--tls-cert", metavar="FILE", help="Your certificate with its key, in PEM.")
]
SecretFile = Annotated[str | None, typer.Option("--secret-file", metavar="FILE", help="File with the shared secret.")]


def config_of(ctx: typer.Context, said: Mapping[str, tuple[str, Any]] = NO_OPTIONS) -> Config:
    """Return the configuration that the options before the command name; `said`: what those after it say."""
    conf, service = ctx.obj
    return load(find_file(conf=conf, service=service), environ=os.environ, options=said)


class Ask(Protocol):
    """Asks the process that is meant; raises ControlError where none runs, Told for its answer's error.

    Without a body it only looks. A terminal shows how a long operation goes on.
    """

    def __call__(self, path: str, body: object = None, *, timeout_s: float = GRACE_S) -> Any: ...


def _pipeline(
    ctx: typer.Context,
    host: Host = None,
    pipeline: PipelineName = None,
    tls_ca: Authority = None,
    tls_cert: Certificate = None,
    secret_file: SecretFile = None,
) -> RunningPipeline:
    given: dict[str, Any] = {"secret_file": secret_file, "authority": tls_ca, "certificate": tls_cert}
    if host is not None:
        return RunningPipeline.at(host, **given)
    return RunningPipeline.of_config(config_of(ctx), pipeline=pipeline, **given)


def _node(
    ctx: typer.Context,
    host: Host = None,
    tls_ca: Authority = None,
    tls_cert: Certificate = None,
    secret_file: SecretFile = None,
) -> RunningPipeline:
    addresses: tuple[str, ...] = ()
    if host is None:
        config = config_of(ctx)
        addresses, host = node_of(config.log_dir).addresses, config.group.control
        if host is not None:
            secret_file, tls_ca = secret_file or config.pipeline.secret_file, tls_ca or config.pipeline.tls_certificate
    given: dict[str, Any] = {"secret_file": secret_file, "authority": tls_ca, "certificate": tls_cert}
    found = RunningPipeline.at(host or "", **given)
    addresses += found.addresses if host is not None else ()
    return dataclasses.replace(found, addresses=addresses, start=NODE_START)


def reaching(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which pipeline is meant; it gets what asks that one, as `asks`."""
    return _reaching(command, _pipeline, _state_line)


def reaching_node(command: Callable[..., Any]) -> Callable[..., Any]:
    """As `reaching`, for the node of a group."""
    return _reaching(command, _node, _node_line)


def _node_line(now: Mapping[str, Any]) -> str:
    return f"node {now['node']} is {now['state']}" + (f", {now['restore']}" if "restore" in now else "")


def _reaching(
    command: Callable[..., Any], reach: Callable[..., RunningPipeline], line: Callable[[Mapping[str, Any]], str]
) -> Callable[..., Any]:
    """Give a command the options of `reach`, and what asks the process that it returns; `line` shows how it goes on."""
    shared = inspect.signature(reach, eval_str=True).parameters
    own = {name: one for name, one in inspect.signature(command, eval_str=True).parameters.items() if name != "asks"}

    def run(**given: Any) -> Any:
        running = reach(**{name: given[name] for name in shared})

        def asks(path: str, body: object = None, *, timeout_s: float = GRACE_S) -> Any:
            if body is None:
                return running.ask(path, timeout_s=timeout_s)
            with Progress(endless=True) as progress:
                return running.ask(path, body, timeout_s=timeout_s, watch=lambda now: progress.update(line(now)))

        return command(asks=asks, **{name: given[name] for name in own})

    ctx, *options = shared.values()
    first = [one for name, one in own.items() if name not in ("ctx", "as_json")]
    last = [one for name, one in own.items() if name == "as_json"]
    ordered = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (ctx, *first, *options, *last)]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {one.name: one.annotation for one in ordered}
    vars(run)["__signature__"] = inspect.Signature(ordered)
    return run


def _state_line(found: Mapping[str, Any]) -> str:
    limit = f", until {found['limit']}" if found.get("limit") else ""
    return (
        f"pipeline {found['pipeline']} is {found['state']}, applied up to seqno {found.get('applied_seqno', -1)} "
        f"of {found.get('committed_seqno', -1)}{limit}"
    )


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print(_state_line(found))
    if found.get("state", "").startswith("ONLINE") and found.get("slots", 0) < found.get("channels", 0):
        print(f"  {found['slots']} slots for {found['channels']} channels")
    for trouble in found.get("troubles", ()):
        print(f"  {trouble_text(msgspec.convert(trouble, Trouble))}")
    pending = found.get("pending")
    if pending:
        where = "" if pending["seqno"] < 0 else f" at seqno {pending['seqno']}, event id {pending['event_id']!r}"
        print(f"  {pending['type']}{where}: {pending['message']}")


@reaching
def state(
    asks: Ask,
    as_json: AsJson = False,
) -> None:
    """Show the state of a running pipeline, and the error that took it offline.

    \b
    Example:
      tranlog state
      tranlog -service shop state --json
    """
    _show(asks("/state"), as_json)


@reaching
def online(
    asks: Ask,
    until_seqno: Annotated[int | None, option("--until-seqno", "N", "Up to this seqno, inclusive.")] = None,
    until_gtid: Annotated[str | None, option("--until-gtid", "GTID", "Up to this GTID, inclusive.")] = None,
    until_time: Annotated[
        str | None, option("--until-time", "TIME", "Up to what was committed by this time, UTC.")
    ] = None,
    until_event: Annotated[str | None, option("--until-event", "ID", "Up to this event id, inclusive.")] = None,
    until_heartbeat: Annotated[
        str | None, option("--until-heartbeat", "NAME", "Up to the next heartbeat of this name; * is any.")
    ] = None,
    skip_seqno: Annotated[str | None, option("--skip-seqno", "LIST", "Never apply these: 12,15,20-29.")] = None,
    from_seqno: Annotated[
        int | None, option("--from-seqno", "N", "First set all channels to before this seqno.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Resume an offline pipeline.

    With a limit it goes offline there. The seqnos of --skip-seqno are recorded at the target and never applied, in this
    run or a later one. Returns at once; `tranlog wait --state ONLINE` waits.

    \b
    Example:
      tranlog online
      tranlog online --skip-seqno 1203 --until-time 2026-11-22T10:00:00
      tranlog -service shop online --until-heartbeat nightly
    """
    asked = GoOnline(
        until_seqno=until_seqno,
        until_gtid=until_gtid,
        until_time_ms=None if until_time is None else parse_time(until_time),
        until_event=until_event,
        until_heartbeat=until_heartbeat,
        skip_seqno=skip_seqno,
        from_seqno=from_seqno,
    )
    _show(asks("/online", asked, timeout_s=30 + GRACE_S), as_json)


@reaching
def offline(
    asks: Ask,
    immediate: Annotated[bool, flag("--immediate", "Roll back what is under way instead of finishing it.")] = False,
    timeout_s: Timeout = 60.0,
    as_json: AsJson = False,
) -> int:
    """Take a running pipeline offline; its process stays, and `tranlog online` resumes it.

    Waits until it is offline. A pipeline that is offline because of an error forgets the error.

    \b
    Example:
      tranlog offline
      tranlog -service shop offline --immediate
    """
    asks("/offline", GoOffline(immediate=immediate))
    waiting = WaitFor(state="OFFLINE:NORMAL", timeout_s=timeout_s)
    found = asks("/wait", waiting, timeout_s=timeout_s + GRACE_S)
    _show(found, as_json)
    return ExitCode.DONE if found["reached"] else ExitCode.CHECK_FAILED


@reaching
def wait(
    asks: Ask,
    applied: Annotated[int | None, option("--applied", "SEQNO", "Until all up to it is applied.")] = None,
    state: Annotated[
        str | None, option("--state", "ST", "Until this state, such as ONLINE.", autocompletion=one_of(*State))
    ] = None,
    timeout_s: Timeout = 60.0,
    as_json: AsJson = False,
) -> int:
    """Wait until a seqno is applied, or until the pipeline has a state.

    A process that was just started is waited for, up to 10 seconds. Exit code 1 if that did not happen in time, 4 if no
    process runs, or if it cannot happen because the pipeline is offline with an error.

    \b
    Example:
      tranlog wait --applied 1200 --timeout 30
      tranlog wait --state ONLINE
    """
    if applied is None and state is None:
        raise typer.BadParameter("nothing to wait for is given", param_hint="--applied or --state")
    clock = SystemClock()
    begun = clock.monotonic()
    while True:
        left_s = max(0.0, timeout_s - (clock.monotonic() - begun))
        waiting = WaitFor(applied=applied, state=state, timeout_s=left_s)
        try:
            found = asks("/wait", waiting, timeout_s=left_s + GRACE_S)
            break
        except ControlError as exc:
            if exc.why != NOBODY or clock.monotonic() - begun >= min(timeout_s, _STARTS_S):
                raise
            clock.sleep(0.1)
    _show(found, as_json)
    return ExitCode.DONE if found["reached"] else ExitCode.CHECK_FAILED


@reaching
def flush(
    asks: Ask,
    timeout_s: Timeout = 60.0,
    as_json: AsJson = False,
) -> int:
    """Wait until everything that the log holds now is applied.

    Transactions that the source has committed and capture has not written yet are not included. Exit code 1 if it took
    longer.

    \b
    Example:
      tranlog flush --timeout 30
    """
    found = asks("/flush", WithinTime(timeout_s=timeout_s), timeout_s=timeout_s + GRACE_S)
    how = "applied" if found["reached"] else "not applied in time"
    answer(found, f"{how}: everything up to seqno {found['seqno']}", as_json)
    return ExitCode.DONE if found["reached"] else ExitCode.CHECK_FAILED


@reaching
def reload(
    asks: Ask,
    timeout_s: Timeout = 60.0,
    as_json: AsJson = False,
) -> int:
    """Make a running pipeline use the channels and shards that its configuration file has now.

    [pipeline] channels and, of [shards], what divides them among the channels: all channels reach one seqno by the old
    plan and continue by the new one. Offline, it takes effect at the next online. Other keys that differ are named:
    they need a restart. An invalid file changes nothing. Exit code 1 if the channels did not reach one seqno in time;
    the plan then changes when they have.

    \b
    Example:
      tranlog reload
      tranlog -service shop reload --timeout 600
    """
    found = asks("/reload", WithinTime(timeout_s=timeout_s), timeout_s=timeout_s + GRACE_S)
    answer(found, _reloaded(found), as_json)
    return ExitCode.CHECK_FAILED if found["plan"] == ReplanEnd.DRAINING else ExitCode.DONE


def _reloaded(found: dict[str, Any]) -> list[str]:
    """Return how an answer to `reload` is printed."""
    before, after = _plan_text(found["before"]), _plan_text(found["after"])
    match ReplanEnd(found["plan"]):
        case ReplanEnd.UNCHANGED:
            lines = [f"plan unchanged: {after}"]
        case ReplanEnd.CHANGED:
            lines = [f"plan changed at seqno {found['seqno']}", f"  before: {before}", f"  after:  {after}"]
        case ReplanEnd.AT_ONLINE:
            lines = ["plan changes at the next online", f"  before: {before}", f"  after:  {after}"]
        case ReplanEnd.DRAINING:
            lines = ["plan changes when all channels have met; not yet", f"  before: {before}", f"  after:  {after}"]
    return lines + [f"  only at a restart: {key}" for key in found["at_restart"]]


def _plan_text(plan: dict[str, Any]) -> str:
    rest = "".join(f", {name} {json_line(value)}" for name, value in sorted(plan.items()) if name != "channels")
    return f"{plan['channels']} channels{rest}"


def heartbeat(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The name that --until-heartbeat looks for.")] = "NONE",
    timeout_s: Timeout = 60.0,
    host: Host = None,
    tls_ca: Authority = None,
    tls_cert: Certificate = None,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> int:
    """Put a heartbeat into the log: an empty transaction with a name, before which all channels meet.

    The process that writes the log appends it, `tranlog run` or `tranlog capture`; the source is not touched. Waits
    until it is there, and says its seqno. Exit code 1 if it was not in time; it may come later.

    \b
    Example:
      tranlog heartbeat nightly
      tranlog online --until-heartbeat nightly
    """
    if host is None:
        config = config_of(ctx)
        pipeline = RunningPipeline.of_config(config)
        running = dataclasses.replace(pipeline, addresses=writer_of(config.log_dir).addresses + pipeline.addresses)
    else:
        running = RunningPipeline.at(host, secret_file=secret_file, authority=tls_ca, certificate=tls_cert)
    running = dataclasses.replace(running, start=WRITER_START)
    found = running.ask("/heartbeat", Beat(name=name, timeout_s=timeout_s), timeout_s=timeout_s + GRACE_S)
    where = f"not in the log within {timeout_s:g} s" if found["seqno"] is None else f"seqno {found['seqno']} of the log"
    answer(found, f"heartbeat {name} is {where}", as_json)
    return ExitCode.CHECK_FAILED if found["seqno"] is None else ExitCode.DONE


def show_view(
    name: str, *, config: Callable[[], Config], running: RunningPipeline | None, watch_s: float, as_json: bool
) -> None:
    """Print one view of a pipeline: of the one that is named, else of the configured one, running or not."""
    wanted = next((one for one in VIEW_NAMES if one == name), None)
    if wanted is None:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(VIEW_NAMES)}", param_hint="-name")
    status = _look(config(), wanted, watch_s=watch_s) if running is None else running.status()
    shown = view(wanted, status)
    answer(json_form(shown), print_form(name, shown), as_json)


def _look(config: Config, wanted: ViewName, *, watch_s: float) -> PipelineStatus:
    """Read log and target, whether the pipeline runs or not; what only its process can tell is asked of it."""
    if wanted in ("pipeline", "watches"):
        try:
            return RunningPipeline.of_config(config).status()
        except ControlError:
            pass  # nobody runs it here, so nobody waits, and it has no state
    source_at = ""
    if wanted == "pipeline" and config.source is not None:
        try:
            source_at = source_kind(config.source.kind).event_id(config.source)
        except TranlogError:
            pass  # `tranlog status` has the error; here it is a source that does not tell
    status = gather(
        config.log_dir,
        config.apply_options(),
        clock=SystemClock(),
        watch_s=watch_s if wanted == "tasks" else 0.0,
        log_options=config.log,
        service=config.service,
        source=source_text(config.source),
        source_event_id=source_at,
    )
    return pipeline_status(needed_for(wanted, status))


def add_orders(app: typer.Typer) -> None:
    """Give a program these commands."""
    for command in (state, online, offline, wait, flush, reload, heartbeat):
        app.command(command.__name__)(command)

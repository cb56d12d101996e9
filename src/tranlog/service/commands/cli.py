"""The `tranlog` command: set up, capture, apply, look, compare, move, clear.

Owns the commands and their options, and the environment that they read; what they do is below. The hard idea: each
command is a thin frame, so that whatever it does can be done from Python as well, and every way to fail is an error
of the tree, which `exits` turns into one line and a code.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from tranlog.capture.capture import Capture, CaptureStatus
from tranlog.change import TableMap
from tranlog.clock import SystemClock
from tranlog.codecs.opening import open_readable
from tranlog.errors import TranlogError
from tranlog.ids import Gtid, Seqno
from tranlog.listing import time_text
from tranlog.log.files.holds import drop_hold, read_holds
from tranlog.log.upkeep.clearing import CAVEATS, clear_log
from tranlog.log.writing.log import Log
from tranlog.pipeline.driving.apply import ApplyResult
from tranlog.pipeline.driving.operation import OnError, Operation
from tranlog.pipeline.driving.report import ApplyStatus
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.spark.package import write_package
from tranlog.pipeline.spark.session import find_java
from tranlog.pipeline.status.view import VIEW_NAMES
from tranlog.pipeline.upkeep.position import Move, read_rows, reset_position, set_position
from tranlog.pipeline.upkeep.tables import tables_behind, tables_in_log
from tranlog.service.commands import status as status_module
from tranlog.service.commands.certifying import cert_app
from tranlog.service.commands.configuring import add_configuring
from tranlog.service.commands.copying import add_copy
from tranlog.service.commands.doctor import doctor
from tranlog.service.commands.grouping import group_app, node_app
from tranlog.service.commands.installing import source_app
from tranlog.service.commands.loading import load
from tranlog.service.commands.orders import (
    Authority,
    Certificate,
    Host,
    PipelineName,
    SecretFile,
    add_orders,
    config_of,
    show_view,
)
from tranlog.service.commands.queues import queue_app
from tranlog.service.commands.rolled_back import rollback_app
from tranlog.service.commands.top import add_top
from tranlog.service.commands.trial import trial
from tranlog.service.commands.verifying import add_verify
from tranlog.service.config.config import DEFAULT_FILE, Config
from tranlog.service.frame.command import (
    AsJson,
    Debug,
    Verbose,
    Version,
    Yes,
    answer,
    complete_file,
    complete_service,
    confirm,
    flag,
    new_app,
    one_of,
    option,
    print_json,
    require_command,
    run_app,
    say,
    stop_signals,
)
from tranlog.service.frame.diagnostics import LogFormat, LogLevel, show_diagnostics
from tranlog.service.frame.exits import ExitCode, error_line, exit_code_of
from tranlog.service.frame.progress import Progress
from tranlog.service.process.apart import check_apart
from tranlog.service.process.capturing import CaptureThread, open_capture
from tranlog.service.process.client import RunningPipeline
from tranlog.service.process.last_error import keep_error, keeping_error
from tranlog.service.process.operating import Capturing, OperatingOptions, capture_endpoint, operated
from tranlog.service.process.reloading import ConfigFile
from tranlog.service.process.sockets import CAPTURE_NAME, runtime_dir
from tranlog.service.upkeep.holds import hold_app
from tranlog.service.upkeep.parallelism import critical_path
from tranlog.service.upkeep.segments import log_app
from tranlog.source.kinds import source_kind
from tranlog.target.options import create_statements, open_target, runs_ddl_of
from tranlog.target.target import ChannelRow

logger = logging.getLogger(__name__)

LOCATING: Final = ("-service", "--service", "-conf", "--conf")
HOST_NAMES: Final = ("-host", "--host")
"""The article puts them before the command: `-host db2 status -name stores`."""
WATCH_S: Final = 1.3
"""How long a pipeline's row is watched for a sign of life: its driver moves it every second."""
REPORT_EVERY_S: Final = 1.0

app = new_app(add_completion=True)
tables_app = new_app(help="Tables at the target.\n\n\b\nExample:\n  tranlog tables create --dry-run")
position_app = new_app(help="A pipeline's position at the target.\n\n\b\nExample:\n  tranlog position get")
app.add_typer(tables_app, name="tables", invoke_without_command=True)
app.add_typer(position_app, name="position", invoke_without_command=True)
log_app.command("critical-path")(critical_path)
app.add_typer(log_app, name="log", invoke_without_command=True)
app.add_typer(hold_app, name="hold", invoke_without_command=True)
add_configuring(app)
app.add_typer(source_app, name="source", invoke_without_command=True)
app.add_typer(node_app, name="node", invoke_without_command=True)
group_app.command("trial")(trial)
app.add_typer(group_app, name="group", invoke_without_command=True)
app.add_typer(rollback_app, name="rollback", invoke_without_command=True)
app.add_typer(cert_app, name="cert", invoke_without_command=True)
app.add_typer(queue_app, name="queue", invoke_without_command=True)
add_orders(app)
add_top(app)
add_verify(app)
app.command("load")(load)
add_copy(app, lambda words: main(words))
app.command("doctor")(doctor)

TakeOver = Annotated[bool, flag("--take-over", "Even if another process seems to run the pipeline.")]
NewLog = Annotated[bool, flag("--new-log", "Start an empty log without asking the target for its position.")]
AcceptServer = Annotated[
    bool,
    flag(
        "--accept-server",
        "Continue by GTID at a MariaDB that cannot prove that it has the log's history; you know that it does.",
    ),
]
Until = Annotated[str | None, option("--until", "SEQNO|now", "End after this seqno, or after the last one now.")]
Channels = Annotated[int | None, option("--channels", "N", "How many channels.")]
Master = Annotated[str | None, option("--master", "URL", "Spark's master; default: this machine.")]
Stay = Annotated[bool, flag("--stay", "Stay in OFFLINE:ERROR when it cannot continue, until `tranlog online`.")]
WaitOffline = Annotated[bool, flag("--offline", "Start offline, until `tranlog online`.")]
Metrics = Annotated[str | None, option("--metrics", "HOST:PORT", "Serve the read-only endpoints and metrics.")]
Package = Annotated[str | None, option("--package", "FILE", "The workers' package, by `tranlog spark-package`.")]
Start = Annotated[int | None, option("--start", "SEQNO", "The first seqno to apply if the target has no position.")]


@app.callback(invoke_without_command=True)
def locate(
    ctx: typer.Context,
    conf: Annotated[
        str | None,
        option("--conf", "FILE", f"The configuration; default: {DEFAULT_FILE}.", autocompletion=complete_file),
    ] = None,
    service: Annotated[
        str | None,
        option(
            "--service", "NAME", f"The service of NAME.toml or {DEFAULT_FILE} here.", autocompletion=complete_service
        ),
    ] = None,
    debug: Debug = False,
    verbose: Verbose = False,
    log_level: LogLevel = None,
    log_format: LogFormat = "text",
    version: Version = False,
) -> None:
    """A transaction log between databases: capture a source, apply to a target, exactly once.

    \b
    Example:
      tranlog init
      tranlog run
      tranlog --conf shop.toml status

    Exit codes: 0 done; 1 a check failed; 2 bad usage or configuration; 3 damaged or inconsistent data, or a conflict at
    the target; 4 the environment prevents it (lock held, disk full, server unreachable, no Java): fix it and start
    again. `thl` shows the log itself.
    """
    show_diagnostics(debug=debug, verbose=verbose, levels=log_level, form=log_format)
    require_command(ctx)
    ctx.obj = (conf, service)


# --- capture, apply, run ---------------------------------------------------------------------------------


@app.command("capture")
def capture(
    ctx: typer.Context,
    source: Annotated[
        str | None,
        option(
            "--source",
            "thl:DIR",
            "Instead of the configured source: the log directory of a Java replicator, which is followed.",
        ),
    ] = None,
    once: Annotated[bool, flag("--once", "Capture what the source has now, and end.")] = False,
    new_log: NewLog = False,
    accept_server: AcceptServer = False,
    take_source: Annotated[bool, flag("--take-source", "Follow a source that another log has claimed.")] = False,
    metrics: Metrics = None,
    as_json: AsJson = False,
) -> None:
    """Write the source's transactions to the log.

    Runs until SIGTERM or Ctrl-C. A transaction is released at the source once it is durable in the log.

    One log follows a SQLite source: it is claimed for the log's history and directory. A copy of the log, one that was
    moved to another disk, or a new one in another directory gets it only with --take-source; a capture that still runs
    for the other log then stops.

    \b
    Example:
      tranlog capture
      tranlog --conf shop.toml capture --once
      tranlog capture --source thl:thl-of-the-replicator
    """
    config = config_of(ctx, {} if metrics is None else {"capture.metrics": ("--metrics", metrics)})
    if source is not None:
        config = config.with_source(source)
    with (
        open_capture(config, new_log=new_log, accept_server=accept_server, take_source=take_source) as (work, log),
        capture_endpoint(
            Capturing(log, work, config.source, alone=True),
            runtime_dir=runtime_dir(),
            options=OperatingOptions.of_capture(config),
        ),
    ):
        _say_begin(log)
        with (
            stop_signals(work.stop),
            Progress(endless=not once) as progress,
            keeping_error(config.log_dir, CAPTURE_NAME),
            _Reporter(lambda: progress.update(_capture_text(work))),
        ):
            done = work.catch_up(wait_s=source_kind(config.wanted_source().kind).once_wait_s) if once else work.run()
        _show_capture(done, log, as_json)


def _say_begin(log: Log) -> None:
    found = log.recovered
    begins = "a new log" if found.created else "the log"
    logger.info("Capture begins. log=%s log_dir=%s epoch=%d last_seqno=%d", begins, log.path, log.epoch, log.last_seqno)


def _capture_text(work: Capture) -> str:
    status = work.status()
    if status.in_flight is not None:
        return f"capture: {status_module.part_text(status.in_flight)}"
    if status.lag_ms is None:
        return "capture: waiting for the source's first transaction"
    return (
        f"capture: {status.transactions} transactions, up to seqno {status.last_seqno}, "
        f"{status.lag_ms} ms behind the source when the last came"
    )


def _show_capture(done: CaptureStatus, log: Log, as_json: bool) -> None:
    line = f"captured {done.transactions} transactions; the log ends at seqno {log.last_seqno}, epoch {log.epoch}"
    answer({**dataclasses.asdict(done), "log_ends_at": log.last_seqno, "epoch": log.epoch}, line, as_json)


class _Reporter:
    """Calls `report` about once a second in a thread of its own while its block runs."""

    def __init__(self, report: Any) -> None:
        self._report = report
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def _run(self) -> None:
        while not self._end.wait(REPORT_EVERY_S):
            self._report()

    def __enter__(self) -> _Reporter:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()


_KEYS: Final = {
    "channels": "pipeline.channels",
    "master": "pipeline.master",
    "start": "pipeline.start_seqno",
    "pipeline": "pipeline.name",
    "metrics": "pipeline.metrics",
    "package": "spark.package",
}
"""Options of `apply` and `run` that say what a key of the configuration says, and outrank it."""


def _said(ctx: typer.Context) -> dict[str, tuple[str, Any]]:
    """Return what a command line says of the configuration's keys: the option and its value."""
    found = {key: (f"--{name}", ctx.params[name]) for name, key in _KEYS.items() if ctx.params[name] is not None}
    return found | ({"pipeline.on_error": ("--stay", OnError.OFFLINE)} if ctx.params["stay"] else {})


def _apply_options(config: Config, *, until: str | None, take_over: bool) -> ApplyOptions:
    """Return the options of one run. Raises ConfigError."""
    check_apart(config)
    options = config.apply_options()
    options = dataclasses.replace(options, until_seqno=_until(until), take_over=take_over)
    options.check()
    return options


def _until(text: str | None) -> int | str | None:
    if text is None or text == "now":
        return text
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise typer.BadParameter(f"{text!r} is neither a seqno nor the word now", param_hint="--until")
    return int(text)


@app.command("apply")
def apply(
    ctx: typer.Context,
    until: Until = None,
    channels: Channels = None,
    master: Master = None,
    start: Start = None,
    take_over: TakeOver = False,
    pipeline: PipelineName = None,
    stay: Stay = False,
    wait_offline: WaitOffline = False,
    metrics: Metrics = None,
    package: Package = None,
    as_json: AsJson = False,
) -> None:
    """Apply the log to the target, on Spark.

    One task per channel, until --until, SIGTERM or Ctrl-C. Starts at the position that the target has recorded; a stop
    waits for the target transactions under way. While it runs, `tranlog offline`, `tranlog online` and the like control
    it.

    \b
    Example:
      tranlog apply
      tranlog apply --until now --channels 4
      tranlog --conf shop.toml apply --master spark://host:7077
    """
    config = config_of(ctx, _said(ctx))
    options = _apply_options(config, until=until, take_over=take_over)
    reread = ConfigFile(config, environ=os.environ, channels=channels).read_again
    find_java()
    with Progress(endless=options.until_seqno is None) as progress:
        operation = Operation(
            options,
            on_error=config.pipeline.on_error,
            report=lambda status: progress.update(_apply_text(status)),
        )
        with (
            operated(operation, config.log, _operating(config), runtime_dir=runtime_dir(), reread=reread),
            stop_signals(operation.end),
            keeping_error(config.log_dir, options.pipeline),
        ):
            done = operation.run(online=not wait_offline)
    _show_apply(done, as_json)


def _operating(config: Config) -> OperatingOptions:
    source = config.source
    return dataclasses.replace(
        OperatingOptions.of(config.pipeline),
        service=config.service,
        source=status_module.source_text(source),
        source_event_id=None if source is None else lambda: source_kind(source.kind).event_id(source),
    )


def _apply_text(status: ApplyStatus) -> str:
    return (
        f"apply: {status.phase}, applied up to {status.restart_seqno} of {status.committed_seqno}, "
        f"{status.transactions_per_s:.0f} transactions/s, {status.changes_per_s:.0f} changes/s, "
        f"lag {status.lag.seqnos} transactions, {status.lag.ms / 1000:.1f} s"
    )


def _show_apply(done: ApplyResult | None, as_json: bool) -> None:
    answer(msgspec.to_builtins(done), _applied_lines(done), as_json)
    for note in () if done is None or as_json else done.status.notes:
        say(f"apply: {note}")


def _applied_lines(done: ApplyResult | None) -> Iterator[str]:
    if done is None:
        yield "nothing was applied"
        return
    now = done.status
    total = now.total
    yield (
        f"applied up to seqno {now.restart_seqno} of {now.committed_seqno}; since this pipeline's first start "
        f"{total.transactions} transactions, {total.changes} changes, {total.sections} serial sections"
    )
    for one in now.channels:
        done_here = f"{one.counters.transactions} transactions, {one.counters.changes} changes"
        yield f"  channel {one.channel}: seqno {one.applied_seqno}, {done_here}"


@app.command("spark-package")
def spark_package(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file; ends in .zip.")] = "tranlog-spark.zip",
    as_json: AsJson = False,
) -> None:
    """Write what Spark's workers need to run channels into one file.

    Made of what is installed here, for workers with the same Python (minor version) and the same kind of machine.

    \b
    Example:
      tranlog spark-package tranlog-spark.zip
      tranlog apply --master spark://host:7077 --package tranlog-spark.zip
    """
    written = write_package(file)
    note = written.note
    first = f"{written.path}: {written.size / 1e6:.1f} MB; tranlog {note.tranlog}, {', '.join(note.libraries)}"
    answer(written, (first, f"for workers with {note.python} on {note.machine}"), as_json)


@app.command("run")
def run(
    ctx: typer.Context,
    channels: Channels = None,
    master: Master = None,
    start: Start = None,
    take_over: TakeOver = False,
    pipeline: PipelineName = None,
    package: Package = None,
    new_log: NewLog = False,
    accept_server: AcceptServer = False,
    stay: Stay = False,
    metrics: Metrics = None,
    as_json: AsJson = False,
) -> None:
    """Capture and apply in one process.

    Runs until SIGTERM or Ctrl-C. If one of the two ends with an error, the other is stopped.

    \b
    Example:
      tranlog run
      tranlog run --channels 4
    """
    config = config_of(ctx, _said(ctx))
    options = _apply_options(config, until=None, take_over=take_over)
    reread = ConfigFile(config, environ=os.environ, channels=channels).read_again
    # What costs little is looked at first: Spark takes seconds to start, and a writer adds to the log.
    source = config.wanted_source()
    source_kind(source.kind).open(source)
    find_java()
    if not options.target.in_file or os.path.exists(options.target.path):  # opening would make the file
        open_target(options.target).close()
    with open_capture(config, new_log=new_log, accept_server=accept_server) as (work, log):
        _say_begin(log)
        with Progress(endless=True) as progress:
            operation = Operation(
                options,
                on_error=config.pipeline.on_error,
                report=lambda status: progress.update(f"{_capture_text(work)}; {_apply_text(status)}"),
            )
            capturing = CaptureThread(work, ended=operation.end)
            endpoint = operated(
                operation,
                config.log,
                _operating(config),
                runtime_dir=runtime_dir(),
                capturing=Capturing(log, work, source),
                reread=reread,
            )
            try:
                with stop_signals(operation.end):
                    capturing.start()
                    with endpoint, keeping_error(config.log_dir, options.pipeline):
                        done = operation.run()
            except TranlogError:
                capturing.stop()
                if capturing.error is not None:
                    say(error_line(capturing.error, prog="tranlog"))
                raise
            finally:
                capturing.stop()
                if isinstance(capturing.error, TranlogError):
                    keep_error(config.log_dir, CAPTURE_NAME, capturing.error)
        if capturing.error is not None:
            raise capturing.error
        if as_json:
            print_json({"capture": dataclasses.asdict(work.status()), "apply": msgspec.to_builtins(done)})
        else:
            _show_capture(work.status(), log, False)
            _show_apply(done, False)


# --- looking ---------------------------------------------------------------------------------------------


@app.command("status")
def status(
    ctx: typer.Context,
    watch: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Watch the pipeline for a second, to see it move and how fast.")
    ] = True,
    name: Annotated[
        str | None, option("--name", "VIEW", f"One of {', '.join(VIEW_NAMES)}.", autocompletion=one_of(*VIEW_NAMES))
    ] = None,
    host: Host = None,
    tls_ca: Authority = None,
    tls_cert: Certificate = None,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> int:
    """Show positions, lag, rates, sizes, and what the pipeline waits for; with -name one view, field by field.

    A part that cannot be read is shown with its error, and the exit code is that error's. With --host the view is that
    of the running pipeline that listens there; no configuration is needed.

    \b
    Example:
      tranlog status
      tranlog status --json --no-watch
      tranlog status -name stores
      tranlog status -name tasks --host db2.example:7788 --tls-ca ca.pem --secret-file secret
    """
    if name is not None:
        running = None
        if host is not None:
            running = RunningPipeline.at(host, secret_file=secret_file, authority=tls_ca, certificate=tls_cert)
        watch_s = WATCH_S if watch else 0.0
        show_view(name, config=lambda: config_of(ctx), running=running, watch_s=watch_s, as_json=as_json)
        return ExitCode.DONE
    if host is not None:
        raise typer.BadParameter("the pipeline there has views; say which, by -name", param_hint="--host")
    config = config_of(ctx)
    found = status_module.service_status(config, clock=SystemClock(), watch_s=WATCH_S if watch else 0.0)
    answer(status_module.status_json(found), status_module.status_lines(found), as_json)
    return max((exit_code_of(error) for error in found.problems.values()), default=ExitCode.DONE)


# --- tables ----------------------------------------------------------------------------------------------


@tables_app.command("create")
def tables_create(
    ctx: typer.Context,
    from_: Annotated[
        Literal["log", "source"],
        option("--from", None, "Take the tables whose changes are in the log, or all that the source has."),
    ] = "log",
    dry_run: Annotated[bool, flag("--dry-run", "Only print the statements.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create the tables that are missing at the target.

    \b
    Example:
      tranlog tables create --dry-run
      tranlog tables create --from source
    """
    config = config_of(ctx)
    options = config.wanted_target()
    with Progress() as progress:
        tables = _tables_of_log(config, progress) if from_ == "log" else _tables_of_source(config)
    tables = tables_behind(config.pipeline.apply.filters, tables, options.kind)
    if dry_run:
        shown = {table.name: create_statements(options.kind, table) for table in tables}
    else:
        with closing(open_target(options)) as target:
            made = {table.name: target.rows.create_table(table) for table in tables}
        shown = {name: [statements] for name, statements in made.items() if statements}
    if as_json:
        print_json({"created": {} if dry_run else shown, "statements": shown, "tables": len(tables)})
        return
    for table in tables:
        if table.name not in shown:
            print(f"-- {table.name} already exists")
            continue
        if not table.primary_key:
            say(f"tables: {table.name} has no primary key; its rows are matched by all their values, which is slow")
        for statement in shown[table.name]:
            print(f"{statement};")
    if tables and options.ddl != "ignore" and config.source and config.source.kind in runs_ddl_of(options.kind):
        say('tables: apply runs the log\'s DDL itself here, and stops at an existing table; set ddl = "ignore"')
    if not tables:
        say(f"tables: the {from_} has no tables" + (", as far as its changes tell" if from_ == "log" else ""))


def _tables_of_log(config: Config, progress: Progress) -> list[TableMap]:
    with open_readable(config.log_dir) as reader:
        return tables_in_log(
            reader, report=lambda at, last: progress.update("tables: searched", at, last, "transactions")
        )


def _tables_of_source(config: Config) -> list[TableMap]:
    source = config.wanted_source()
    with closing(source_kind(source.kind).tables(source)) as reader:
        return reader.tables()


# --- position --------------------------------------------------------------------------------------------


@position_app.command("get")
def position_get(ctx: typer.Context, pipeline: PipelineName = None, as_json: AsJson = False) -> None:
    """Print the position of each channel of the pipeline.

    \b
    Example:
      tranlog position get
      tranlog position get --json
    """
    config = config_of(ctx)
    name = config.pipeline.name if pipeline is None else pipeline
    rows = read_rows(config.wanted_target(), name)
    _show_rows(name, rows, as_json)


def _show_rows(pipeline: str, rows: Sequence[ChannelRow], as_json: bool) -> None:
    lines = [f"channel {row.channel}: {_stands(row)}" for row in rows]
    shown = {"pipeline": pipeline, "channels": [dataclasses.asdict(row) for row in rows]}
    answer(shown, lines or f"pipeline {pipeline} has no position at this target", as_json)


def _stands(row: ChannelRow) -> str:
    if not row.epoch:
        return f"before seqno {row.applied_seqno + 1}"
    return f"GTID({row.epoch}, {row.applied_seqno}), event id {row.event_id!r}, {time_text(row.tstamp)} UTC"


@position_app.command("set", context_settings={"ignore_unknown_options": True})  # -1 is a seqno
def position_set(
    ctx: typer.Context,
    seqno: Annotated[int, typer.Argument(metavar="SEQNO", min=-1, help="Everything up to here counts as applied.")],
    channel: Annotated[int | None, option("--channel", "N", "Move only this channel.")] = None,
    yes: Yes = False,
    take_over: TakeOver = False,
    pipeline: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Set the pipeline's position to SEQNO.

    That transaction and all before it count as applied; the next one is applied next. Epoch and event id are taken
    from the log. One before the log's first seqno means: nothing applied yet.

    \b
    Example:
      tranlog position set 1200
      tranlog position set 1200 --channel 2 -y
    """
    config = config_of(ctx)
    name = config.pipeline.name if pipeline is None else pipeline

    def agree(move: Move) -> None:
        told = move.consequences()
        for line in told:
            say(f"position: {line}")
        if told and not yes:
            confirm(f"Put pipeline {name} at seqno {seqno}?")

    with open_readable(config.log_dir) as reader, closing(open_target(config.wanted_target())) as target:
        move = set_position(
            target,
            reader,
            pipeline=name,
            seqno=Seqno(seqno),
            channel=channel,
            plan=config.apply_options().shard_plan(),
            clock=SystemClock(),
            watch_s=WATCH_S,
            take_over=take_over,
            agree=agree,
        )
    _show_rows(name, move.after, as_json)


@position_app.command("reset")
def position_reset(
    ctx: typer.Context,
    yes: Yes = False,
    take_over: TakeOver = False,
    pipeline: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Forget the pipeline's position.

    The next start begins with the log's first transaction, or with --start. The rows at the target stay, and are
    applied again unless you empty its tables. The pipeline's hold on the log is dropped.

    \b
    Example:
      tranlog position reset -y
    """
    config = config_of(ctx)
    name = config.pipeline.name if pipeline is None else pipeline
    if not yes:
        confirm(f"Forget the position of pipeline {name} at {config.wanted_target().kind}?")
    plan = config.apply_options().shard_plan()
    with closing(open_target(config.wanted_target())) as target:
        found = reset_position(
            target, pipeline=name, plan=plan, clock=SystemClock(), watch_s=WATCH_S, take_over=take_over
        )
    drop_hold(config.log_dir, name)  # what is known of the pipeline beside its target
    line = f"pipeline {name} {'starts anew' if found else 'had no position, and starts anew'}"
    answer({"pipeline": name, "forgotten": found}, line, as_json)


# --- reset -----------------------------------------------------------------------------------------------


@app.command("reset")
def reset(
    ctx: typer.Context,
    yes: Yes = False,
    dry_run: Annotated[bool, flag("--dry-run", "Only show what would be removed.")] = False,
    after: Annotated[
        str | None, option("--after", "GTID", "The last GTID assigned, if the log is too damaged.")
    ] = None,
    forget_position: Annotated[
        bool,
        flag(
            "--forget-position",
            "Let the source start where its options say, not where the log ended: after restoring a backup of it.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Clear the log: remove all its records.

    The next log continues after the last GTID, so that no GTID is used twice. Clear it only while the source is idle:
    what was committed there and is not in the log may otherwise be captured twice, or be missed. A reader that has not
    read the log yet loses what is cleared: a target that lags cannot catch up, and a copy that is promoted later may
    lack what others need. Refuses while a process writes the log.

    \b
    Example:
      tranlog reset
      tranlog reset --dry-run
    """
    config = config_of(ctx)
    told = None if after is None else _gtid(after)
    plan = clear_log(config.log_dir, after=told, dry_run=True)
    for caveat in CAVEATS:
        say(f"reset: {caveat}")
    for one in read_holds(config.log_dir):
        if one.restart_seqno is None or one.restart_seqno < plan.mark.seqno:
            needed = max(one.restart_seqno or 0, 0)
            say(f"reset: {one.name} still needs seqno {needed} to {plan.mark.seqno} of this log")
    if not dry_run:
        if not yes:
            confirm(f"Remove {len(plan.files)} files, {plan.bytes} bytes, of the log at {config.log_dir}?")
        plan = clear_log(config.log_dir, after=told, keep_position=not forget_position)
    verb = "would remove" if dry_run else "removed"
    line = f"{verb} {len(plan.files)} files, {plan.bytes} bytes; the next log begins after {plan.mark.gtid}"
    answer({"cleared": not dry_run, "files": plan.files, "bytes": plan.bytes, "mark": plan.mark}, line, as_json)


def _gtid(text: str) -> Gtid:
    try:
        return Gtid.parse(text)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--after") from exc


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `tranlog` and return its exit code."""
    return run_app(app, arguments, prog="tranlog", hoisted=LOCATING, lowered=HOST_NAMES)

"""The `thl` command: look into a log; nothing but `purge` and `repair` changes a byte of it.

Owns the program and its smaller commands, by the ancestor's names. `thl_list` has list and tail, `thl_dump` dump; the
text forms are in `listing`, what damage means in `log.verify`. The hard idea: a script that knows the ancestor's `thl`
must not be surprised, so what it had is here under its name, and what we do not have says where to find it.

Source: thl-internals, "'thl' Utility"; docs/conformance.md, B7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Annotated, Final

import msgspec
import typer

from tranlog.codecs.opening import codec_of, open_readable
from tranlog.codecs.shown import open_log
from tranlog.codecs.upkeep import purge as remove
from tranlog.codecs.upkeep import repair as mend
from tranlog.codecs.upkeep import verify as check
from tranlog.errors import CorruptRecordError
from tranlog.log.rules.repair import Keep, NothingToRepair, RepairPlan
from tranlog.log.upkeep.diff import SHOWN
from tranlog.log.upkeep.diff import diff as diff_logs
from tranlog.log.upkeep.verify import VerifyReport
from tranlog.service.frame.command import (
    Debug,
    Verbose,
    Version,
    Yes,
    answer,
    complete_file,
    complete_service,
    confirm,
    flag,
    log_of,
    new_app,
    option,
    require_command,
    run_app,
    say,
)
from tranlog.service.frame.diagnostics import LogFormat, LogLevel, show_diagnostics
from tranlog.service.frame.exits import ExitCode
from tranlog.service.frame.progress import Progress
from tranlog.service.thl import converting, integrity, listing, thl_dump, thl_list
from tranlog.service.thl.located import FarLog, open_shown

LOCATING: Final = (
    *("-service", "--service", "-conf", "--conf", "-dir", "--dir"),
    *("-node", "--node", "-tls-ca", "--tls-ca", "-tls-cert", "--tls-cert"),
)

app = new_app(add_completion=True)


@app.callback(invoke_without_command=True)
def locate(
    ctx: typer.Context,
    service: Annotated[
        str | None,
        option("-service", "NAME", "The service of NAME.toml or tranlog.toml here.", autocompletion=complete_service),
    ] = None,
    conf: Annotated[
        str | None, option("-conf", "FILE", "The configuration; default: tranlog.toml.", autocompletion=complete_file)
    ] = None,
    directory: Annotated[str | None, option("-dir", "PATH", "The log directory itself.")] = None,
    node: Annotated[
        str | None, option("-node", "URL", "The log of a node, thl://HOST:PORT,…: for list, tail, info, index.")
    ] = None,
    tls_ca: Annotated[str | None, option("-tls-ca", "FILE", "With -node: the group's authority, in PEM.")] = None,
    tls_cert: Annotated[str | None, option("-tls-cert", "FILE", "With -node: your certificate with its key.")] = None,
    debug: Debug = False,
    verbose: Verbose = False,
    log_level: LogLevel = None,
    log_format: LogFormat = "text",
    version: Version = False,
) -> None:
    """Look into a transaction log: list what it holds, check it, compare it. Only purge and repair change it.

    \b
    Example:
      thl -service shop list -seqno 5
      thl -dir log list -low 100 -high 200 -headers
      thl -conf tranlog.toml verify
      thl -node thl://127.0.0.1:2112 info

    Exit codes: 0 done, 1 not found, 2 bad usage, 3 damaged log, 4 log missing or unreadable.
    """
    show_diagnostics(debug=debug, verbose=verbose, levels=log_level, form=log_format)
    require_command(ctx)
    located = (service, conf, directory)
    if node is not None and located != (None, None, None):
        raise typer.BadParameter("cannot be combined with -service, -conf and -dir", param_hint="-node")
    if (tls_ca is None) != (tls_cert is None) or (tls_ca is not None and node is None):
        raise typer.BadParameter("-tls-ca and -tls-cert go together, with -node", param_hint="-tls-ca")
    ctx.obj = located if node is None else FarLog(node, tls_ca, tls_cert)


app.command("list")(thl_list.list_)
app.command("tail")(thl_list.tail)
app.command("dump")(thl_dump.dump)


@app.command("index")
def index(
    ctx: typer.Context,
    as_json: Annotated[bool, flag("-json", "One line of JSON per segment.")] = False,
) -> None:
    """Print the segments, each with its first and last seqno; -1 for both in a segment without a transaction.

    \b
    Example:
      thl -service shop index
    """
    with Progress("index: reading the log"):
        log = open_shown(ctx)
        segments = log.segments()
    with closing(log):
        for one in segments:
            first, last = one.first_seqno, one.last_seqno
            shown = {"file": one.name, "first_seqno": first, "last_seqno": last, "bytes": one.bytes}
            answer(shown, listing.index_line(one.name, first, last), as_json)
        log.check_whole()


@app.command("info")
def info(
    ctx: typer.Context,
    as_json: Annotated[bool, flag("-json", "One JSON object.")] = False,
) -> None:
    """Print where the log is, how large it is and which seqnos it holds.

    \b
    Example:
      thl -dir log info
    """
    with closing(open_shown(ctx)) as log:
        first, last = log.ends()
        segments = [
            listing.SegmentShown(file=one.name, bytes=one.bytes, modified_ms=one.modified_ms) for one in log.segments()
        ]
        for note in log.notes():
            say(f"note: {note}")
        events = None
        try:
            with Progress() as progress:
                events = log.count(lambda seqno: progress.update(f"counted up to seqno {seqno} of {last}"))
        except CorruptRecordError as exc:
            say(f"note: its events are not counted: {exc}")
        shown = listing.overview(log.path, segments, first=first, last=last, events=events, history=log.history)
        answer(shown, listing.overview_lines(shown), as_json)
        log.check_whole()


@app.command("skip", hidden=True)
def skip() -> int:
    """Print what replaces it: a running pipeline skips transactions.

    \b
    Example:
      tranlog online --skip-seqno 5
    """
    say("skip is no longer supported: use `tranlog online --skip-seqno`")
    return ExitCode.USAGE


@app.command("purge")
def purge(
    ctx: typer.Context,
    seqno: Annotated[int | None, option("-seqno", "N", "Only this one: the first or the last.", min=0)] = None,
    low: Annotated[int | None, option("-low", "N", "From this seqno on.", min=0)] = None,
    high: Annotated[int | None, option("-high", "N", "Up to this seqno, inclusive.", min=0)] = None,
    yes: Yes = False,
    as_json: Annotated[bool, flag("-json", "One JSON object.")] = False,
) -> None:
    """Remove transactions from one end of the log. Needs the writer's lock: stop the process that writes it.

    From the front, whole segments are removed, as many as the range covers. From the end of a Java replicator's log,
    records are cut off; a native log is rolled back instead, so that no GTID means two things: what is abandoned stays
    in its segments, and `thl list -abandoned` shows it. A range in the middle is refused.

    \b
    Example:
      thl -service shop purge -high 50000
      thl -dir log purge -low 70000 -y
    """
    if seqno is not None and (low is not None or high is not None):
        raise typer.BadParameter("cannot be combined with -low and -high", param_hint="-seqno")
    if seqno is not None:
        low = high = seqno
    if low is not None and high is not None and low > high:
        raise typer.BadParameter(f"{low} is above -high {high}", param_hint="-low")
    path = log_of(ctx)
    codec = codec_of(path)  # a directory of both is refused before anything is asked
    if not yes:
        say(listing.PURGE_WARNING)
        confirm(f"{listing.PURGE_QUESTION}?")
    if not as_json:
        line = listing.purge_line(low, high)
        print(line if low is not None or high is not None else "Deleting all events")
    with Progress("purge: removing transactions"):
        shown, said = remove(path, codec, low=low, high=high)
    answer(shown, said or ["nothing was removed: no whole segment lies in the range"], as_json)


@app.command("verify")
def verify(
    ctx: typer.Context,
    as_json: Annotated[bool, flag("-json", "One JSON object.")] = False,
) -> int:
    """Read every record and check it: framing, checksums, the order of seqnos, fragments and segments.

    Continues after damage, to show its extent. Works while the log is written.

    \b
    Example:
      thl -service shop verify
    """
    path = log_of(ctx)
    with Progress() as progress:

        def tell(done: int, total: int) -> None:
            progress.update("checked", done, total, "bytes")

        found = check(path, progress=tell)
    answer({**msgspec.to_builtins(found), "sound": found.sound}, listing.verify_lines(found), as_json)
    if found.sound:
        return ExitCode.DONE
    say(
        f"thl: {len(found.problems)} problems in the log at {path}; nothing was changed. Restore the segments that are "
        f"named from a copy, or see by `thl repair --dry-run` what a repair would lose; {_what_is_left(path)}"
    )
    return ExitCode.DATA


def _what_is_left(path: str) -> str:
    """Say what can be read of a damaged log: where a rollback mark may be missing, what it abandoned is not known."""
    try:
        open_log(path).close()
    except CorruptRecordError as exc:
        return f"until then nothing of it is read: {exc}"
    return "what lies before the first problem can be read and applied"


@app.command("repair")
def repair(
    ctx: typer.Context,
    keep: Annotated[
        Keep,
        option(
            "-keep",
            None,
            "Where transactions are missing: keep the front, all before the first damage, or the back, all "
            "segments after the last damage.",
        ),
    ] = Keep.FRONT,
    dry_run: Annotated[bool, flag("-dry-run", "Only show what would be done.")] = False,
    yes: Yes = False,
    as_json: Annotated[bool, flag("-json", "One JSON object.")] = False,
) -> int:
    """Make a damaged log one that opens and verifies clean, and say what was lost.

    Needs the writer's lock: stop the process that writes the log. What is cut off or removed is kept in cut/, with a
    report. Headers, sync and rotate records of a native log are written again where no transaction is missing. Repair
    again to finish an interrupted repair. A copy of the damaged segment is always better: restore it, if there is one.

    \b
    Example:
      thl -service shop repair --dry-run
      thl -service shop repair
      thl -dir log repair --keep back -y
    """
    path = log_of(ctx)

    def agree(plan: RepairPlan, report: VerifyReport) -> None:
        for problem in report.problems:
            say(f"repair: {problem.segment}, offset {problem.offset}: {problem.why}")
        for line in integrity.plan_lines(plan):
            say(f"repair: {line}")
        if not yes:
            confirm(f"Repair the log at {path}?")

    with Progress() as progress:
        outcome = mend(
            path,
            keep=keep,
            dry_run=dry_run,
            agree=None if yes and as_json else agree,
            progress=lambda done, total: progress.update("checked", done, total, "bytes"),
        )
    plan = outcome.decision
    told: RepairPlan | None = None
    lines: Iterable[str] = ("nothing to repair",)
    if not isinstance(plan, NothingToRepair):
        told = plan
        lines = integrity.plan_lines(plan) if dry_run else integrity.outcome_lines(plan, outcome)
    sound = outcome.before.sound if outcome.after is None else outcome.after.sound
    shown = {"plan": told, "kept_in": outcome.kept_in, "report": outcome.report, "sound": sound}
    answer(shown, lines, as_json)
    if dry_run:
        return ExitCode.DONE if isinstance(plan, NothingToRepair) else ExitCode.CHECK_FAILED
    return ExitCode.DONE if outcome.after is None or outcome.after.sound else ExitCode.DATA


@app.command("diff")
def diff(
    ctx: typer.Context,
    one: Annotated[str, typer.Argument(metavar="A", help="A log directory of either codec.")],
    other: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    full: Annotated[
        bool, flag("-full", "Read and compare everything, instead of searching for the first one.")
    ] = False,
    shown: Annotated[int, option("-shown", "N", "How many transactions to list of each.", min=0)] = SHOWN,
    as_json: Annotated[bool, flag("-json", "One JSON object.")] = False,
) -> int:
    """Print where two logs first differ, and what only one of them has.

    A few reads find the first difference in logs of any size, since equal GTIDs mean equal history; that assumes that
    neither log was changed by hand. With --full nothing is assumed. What was purged from one of them is not compared.
    Each may be native or the Java replicator's, whose epochs rise but prove nothing: use --full there. Exit code 1 if
    they differ or have no seqno in common.

    \b
    Example:
      thl diff log copy/log
      thl diff --full --json log copy/log
    """
    with open_readable(one) as left, open_readable(other) as right, Progress() as progress:
        found = diff_logs(
            left,
            right,
            full=full,
            shown=shown,
            progress=lambda done, total: progress.update("compared", done, total, "transactions"),
        )
    answer({**msgspec.to_builtins(found), "agree": found.agree}, integrity.diff_lines(found), as_json)
    return ExitCode.DONE if found.agree else ExitCode.CHECK_FAILED


converting.add_to(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `thl` and return its exit code."""
    return run_app(app, arguments, prog="thl", hoisted=LOCATING)

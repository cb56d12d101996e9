"""`tranlog verify` and `tranlog check`: the source against the target, shown.

Owns the commands' words and their output; what is compared, and how, is `verify`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Annotated

import msgspec
import typer

from tranlog.clock import SystemClock
from tranlog.errors import ConfigError
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.rules.loading import read_stored, waiting
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.upkeep.verify import TableVerdict, select_tables, verify_tables
from tranlog.service.commands.live_verifying import print_result, verify_live
from tranlog.service.commands.orders import Ask, PipelineName, Timeout, config_of, reaching
from tranlog.service.config.config import Config
from tranlog.service.frame.command import AsJson, flag, option, print_json, say
from tranlog.service.frame.exits import ExitCode, Told
from tranlog.service.frame.progress import Progress
from tranlog.service.process.api import WithinTime
from tranlog.service.process.client import GRACE_S
from tranlog.source.kinds import source_kind
from tranlog.target.options import open_target
from tranlog.target.target import Target


def add_verify(app: typer.Typer) -> None:
    """Give a program the commands."""
    app.command("check")(check)
    app.command("verify")(verify)


def verify(
    ctx: typer.Context,
    table: Annotated[
        list[str] | None,
        typer.Option(
            *("--table", "-table", "--tables", "-tables"), metavar="SCHEMA.TABLE,...", help="Only these; repeatable."
        ),
    ] = None,
    rows: Annotated[int, option("--rows", "N", "Name the first N differing keys of each table.", min=0)] = 3,
    wait_s: Annotated[
        float, option("--wait", "S", "Compare again for up to S seconds until all is equal.", min=0)
    ] = 0.0,
    live: Annotated[bool, flag("--live", "At one position of the log, while both sides are written.")] = False,
    pipeline: PipelineName = None,
    timeout_s: Timeout = 600.0,
    repair: Annotated[bool, flag("--repair", "With --live: load tables that differ again, and verify again.")] = False,
    as_json: AsJson = False,
) -> int:
    """Compare the source with the target, row by row.

    Rows are equal when all their values are the same, type by type. Exit code 1 if a table differs, or if there is none
    to compare. Both are read as they are now: let the source rest and the target catch up first, or use --wait S.

    With --live neither has to rest. The running capture takes a snapshot of the source whose place in the log is exact,
    and channel 0 of the running pipeline takes one of the target when it gets there; both are compared while everything
    keeps running. Tables that differ are verified once more with the rows. Exit code 1 also where a table could not be
    judged, or not within --timeout. --pipeline and --repair are for --live.

    \b
    Example:
      tranlog verify
      tranlog verify --table main.orders --rows 10
      tranlog verify --wait 60
      tranlog verify --live --tables main.orders,main.items --repair
    """
    if math.isnan(wait_s) or math.isnan(timeout_s):
        raise typer.BadParameter("is no number of seconds", param_hint="--wait")
    if (repair or pipeline is not None) and not live:
        raise typer.BadParameter("goes with --live", param_hint="--repair" if repair else "--pipeline")
    config = config_of(ctx)
    clock = SystemClock()
    table = [name for names in table or () for one in names.split(",") if (name := one.strip())]
    if live:
        result = verify_live(
            config, table, pipeline=pipeline, rows=rows, timeout_s=timeout_s, repair=repair, clock=clock
        )
        if as_json:
            print_json(msgspec.to_builtins(result))
        else:
            print_result(result)
        return ExitCode.DONE if result.equal else ExitCode.CHECK_FAILED
    deadline = clock.monotonic() + wait_s
    with closing(open_target(config.wanted_target())) as target, Progress() as progress:

        def told(where: str, count: int) -> None:
            progress.update(f"verify: {where}", count, unit="rows")

        while True:
            verdicts = _compare(config, target, table, rows, told, option="--tables")
            if all(one.equal for one in verdicts) or clock.monotonic() >= deadline:
                break
            clock.sleep(min(0.5, max(0.0, deadline - clock.monotonic())))
    equal = _all_equal(verdicts)
    source = config.wanted_source()
    caveat = source_kind(source.kind).caveat(source)
    if as_json:
        print_json({"equal": equal, "note": caveat, "tables": [msgspec.to_builtins(one) for one in verdicts]})
    else:
        if caveat:
            say(f"verify: {caveat}")
        show_verdicts(verdicts)
    return ExitCode.DONE if equal else ExitCode.CHECK_FAILED


@reaching
def check(
    ctx: typer.Context,
    asks: Ask,
    table: Annotated[list[str] | None, option("--table", "SCHEMA.TABLE", "Only this one; repeatable.")] = None,
    timeout_s: Timeout = 60.0,
    as_json: AsJson = False,
) -> int:
    """Compare source and target by value, once everything that the log holds now is applied.

    Through the pipeline's filters, as `tranlog verify`. Repeats the comparison until all is equal or the time is up,
    since a source that is written to keeps changing. Exit code 1 if a table differs, if there is none to compare, or if
    the log was not applied in time.

    \b
    Example:
      tranlog check
      tranlog check --table main.orders --timeout 10
    """
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    resting, found = True, {"seqno": -1, "reached": False}
    with suppress(Told):
        resting = State(asks("/state")["state"]).resting
        most = 0.0 if resting else timeout_s  # nothing more is applied before somebody has it go online
        found = asks("/flush", WithinTime(timeout_s=most), timeout_s=most + GRACE_S)
    if resting and not found["reached"]:
        say("check: the pipeline is not online; comparing as it stands")
        deadline = 0.0
    config = config_of(ctx)
    with closing(open_target(config.wanted_target())) as target:
        while True:
            verdicts = _compare(config, target, table or (), 3, lambda *_: None)
            if all(one.equal for one in verdicts) or clock.monotonic() >= deadline:
                break
            clock.sleep(0.5)
    differing = [one.table for one in verdicts if not one.equal]
    waits = {one.table: one.waits for one in verdicts if one.waits}
    if as_json:
        print_json({"seqno": found["seqno"], "applied": found["reached"], "differing": differing, "waiting": waits})
    else:
        for name, what in waits.items():
            say(f"check: {name} {what}")
        words = (
            f"differing: {', '.join(differing)}" if differing else "all equal" if verdicts else "nothing is compared"
        )
        print(f"applied up to seqno {found['seqno']}; {len(verdicts)} tables, {words}")
    return ExitCode.DONE if found["reached"] and _all_equal(verdicts) else ExitCode.CHECK_FAILED


def _compare(
    config: Config,
    target: Target,
    tables: Sequence[str],
    differences: int,
    report: Callable[[str, int], None],
    *,
    option: str = "--table",
) -> list[TableVerdict]:
    source = config.wanted_source()
    with closing(source_kind(source.kind).tables(source)) as reader:
        wanted = select_tables(reader.tables(), tables, option=option)
        chain = Chain(config.pipeline.apply.filters)
        waits = waiting(read_stored(target.positions.read_loads(config.pipeline.name)))
        for table in wanted if tables else ():
            if chain.table(table) is None:
                raise ConfigError(option=option, value=table.name, why="the pipeline's filters leave this table out")
        verdicts = verify_tables(
            reader,
            target.rows,
            tables=wanted,
            filters=config.pipeline.apply.filters,
            differences=differences,
            report=report,
            waiting=waits,
        )
        return list(verdicts)


def _all_equal(verdicts: Sequence[TableVerdict]) -> bool:
    """Whether all tables are equal, which nobody knows where there is none."""
    return bool(verdicts) and all(one.equal for one in verdicts)


def show_verdicts(verdicts: Sequence[TableVerdict]) -> None:
    """Print what a comparison found, as `tranlog verify` does."""
    for one in verdicts:
        for note in one.notes:
            say(f"verify: {one.table}: {note}")
        if one.waits:
            say(f"verify: {one.table} {one.waits}")
        if one.equal:
            print(f"equal   {one.table}: {one.source_rows} rows, checksum {one.source_checksum}")
            continue
        counts = f"{one.source_rows} rows at the source, {one.target_rows} at the target"
        print(f"DIFFERS {one.table}: {one.problem or counts}")
        for difference in one.differences:
            print(f"        {difference.key}: {difference.what}")
    differing = sum(not one.equal for one in verdicts)
    if not verdicts:
        print("the source has no captured table")
    elif differing:
        print(f"{differing} of {len(verdicts)} tables differ")
    else:
        print("source and target are equal")

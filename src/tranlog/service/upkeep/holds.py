"""`tranlog hold`: who keeps retention from removing what is still needed, and dropping such a hold.

Owns the two commands and their text. What a hold is, and its file, are `log.positions`'s.

Source: thl-internals, "the cleaner may not delete what is being fed"; docs/format.md, "holds/NAME".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated

import typer

from tranlog.clock import SystemClock
from tranlog.errors import PipelineHeldError, TranlogError
from tranlog.log.files.holds import MAY_HAVE_ALL, Hold, drop_hold, is_running, read_hold, read_holds
from tranlog.service.config.config import find_log
from tranlog.service.frame.command import AsJson, Yes, answer, confirm, new_app, print_json, say
from tranlog.service.frame.exits import ExitCode
from tranlog.service.frame.tables import table_lines
from tranlog.service.upkeep.segments import Directory, log_of

hold_app = new_app(help="Who still needs the log, so that it is not purged.\n\n\b\nExample:\n  tranlog hold list")


def hold_json(one: Hold, *, running: bool) -> dict[str, object]:
    """Return a hold for a program; `restart_seqno` is None for a damaged one, `applied_seqno` where nobody knows it."""
    known = one.applied_seqno if one.applied_seqno != MAY_HAVE_ALL else None
    return {
        "name": one.name,
        "restart_seqno": one.restart_seqno,
        "applied_seqno": known,
        "pipeline": one.of_pipeline,
        "running": running,
        "holder": one.holder,
        "written_at": one.written_at,
    }


def hold_lines(holds: list[tuple[Hold, bool]], now: int) -> Iterator[str]:
    """Yield a table with a line for each hold, and whether its pipeline runs."""
    rows = []
    for one, running in holds:
        needs = "everything (its file is damaged)"
        if one.restart_seqno is not None:
            needs = f"seqno {max(one.restart_seqno, 0)} on"
        state = "runs" if running else f"written {(now - one.written_at) / 1000:.0f} s ago"
        rows.append((one.name, needs, "pipeline" if one.of_pipeline else "reader", state, one.holder))
    return table_lines(("hold", "needs", "kind", "state", "holder"), rows)


@hold_app.command("list")
def list_holds(ctx: typer.Context, directory: Directory = None, as_json: AsJson = False) -> None:
    """List the holds: who needs the log, and from which seqno.

    Each pipeline has one, and each reader that asked for one. What a hold needs stays, unless a hard limit overrides
    it.

    \b
    Example:
      tranlog hold list
      tranlog hold list --dir log --json
    """
    path = log_of(ctx, directory)
    found = [(one, is_running(path, one.name)) for one in read_holds(path)]
    shown = [hold_json(one, running=running) for one, running in found]
    answer({"holds": shown}, hold_lines(found, SystemClock().now_ms()), as_json)


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a hold's name; of a log that cannot be found nothing."""
    path = ctx.params.get("directory")
    front = ctx.find_root().params
    try:
        path = path or find_log(conf=front.get("conf"), service=front.get("service"), directory=None)
        return [one.name for one in read_holds(path) if one.name.startswith(incomplete)]
    except (TranlogError, OSError):
        return []


@hold_app.command("drop")
def drop(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", autocompletion=_complete, help="As `tranlog hold list` shows it.")
    ],
    yes: Yes = False,
    directory: Directory = None,
    as_json: AsJson = False,
) -> int:
    """Drop a hold, so that what it needs may be purged.

    Its holder writes it again when it returns, and may find that what it needs is gone. Refused while its pipeline
    runs. Exit code 1 if there is no such hold.

    \b
    Example:
      tranlog hold drop shop -y
    """
    path = log_of(ctx, directory)
    found = read_hold(path, name)
    if found is not None:
        if is_running(path, name):
            raise PipelineHeldError(pipeline=name, holder=found.holder or "its driver")
        if not yes:
            confirm(f"Drop the hold {name} of {os.path.abspath(path)}?")
        drop_hold(path, name)
    if as_json:
        print_json({"dropped": found is not None, "name": name})
    elif found is not None:
        print(f"dropped the hold {name}")
    else:
        say(f"there is no hold {name}")
    return ExitCode.DONE if found is not None else ExitCode.CHECK_FAILED

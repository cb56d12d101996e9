"""`tranlog top`: a running pipeline, looked at again and again. Owns the command and its options; see `watching`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tranlog.service.commands.orders import Ask, reaching
from tranlog.service.frame.command import flag, option
from tranlog.service.frame.exits import ExitCode


@reaching
def top(
    asks: Ask,
    once: Annotated[bool, flag("--once", "Print one plain screen, and end.")] = False,
    interval: Annotated[float, option("--interval", "S", "How often to look, in seconds.", min=0.2)] = 1.0,
    count: Annotated[int | None, option("--count", "N", "End after N screens.", min=1)] = None,
    as_json: Annotated[bool, flag("--json", "Print one line of JSON per interval; errors too, on stderr.")] = False,
) -> int:
    """Watch a running pipeline: its channels, positions, lag and rates, and who waits for whom.

    On a terminal: q quits, p pauses, s sorts the channels by another column, + and - change the interval. When the
    pipeline goes away, it says so and waits for it. With --once, and with --count where the output is no terminal,
    plain text; it shows what happened within one interval.

    \b
    Example:
      tranlog top
      tranlog -service shop top --once
      tranlog top --json --interval 5 | jq .transactions_per_s
    """
    from tranlog.service.commands.watching import print_readings, watch  # with it comes rich

    if once or as_json or (count is not None and not sys.stdout.isatty()):
        print_readings(asks, count=1 if once else count, interval_s=interval, as_json=as_json)
    else:
        watch(asks, count=count, interval_s=interval)
    return ExitCode.DONE


def add_top(app: typer.Typer) -> None:
    """Give a program this command."""
    app.command("top")(top)

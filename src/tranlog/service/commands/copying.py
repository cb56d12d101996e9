"""`tranlog copy`: the tables of one database into another, without a configuration.

Owns the command's words and its print; what is done is `pipeline.upkeep.copying`'s.
"""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import msgspec
import typer

from tranlog.clock import SystemClock
from tranlog.errors import ConfigError
from tranlog.pipeline.driving.lease import holder_name
from tranlog.pipeline.upkeep.copying import CopyResult, copy_tables
from tranlog.service.commands.verifying import show_verdicts
from tranlog.service.config.urls import DatabaseUrl, source_url, target_url
from tranlog.service.frame.command import AsJson, print_json
from tranlog.service.frame.exits import ExitCode
from tranlog.service.frame.progress import Progress
from tranlog.source.kinds import source_kind
from tranlog.target.options import identity, is_there, open_target


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE_URL", help="What is copied.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="TARGET_URL", help="What it is copied into.", show_default=False)],
    tables: Annotated[
        str | None, typer.Option("--tables", "-tables", metavar="SCHEMA.TABLE,...", help="Only these; default: all.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Copy the tables of one database into another, and compare both.

    All tables are read as of one moment, while writers go on, and compared with what the target has then. They are
    made where they are missing, with primary and unique keys; one that is there must be empty. SELECT is all that is
    needed at the source, and nothing is left there. A copy that did not come to its end begins again: what it had
    made is emptied first. Exit code 1 if a table differs.

    A database is sqlite:///FILE, postgresql://USER@HOST/DATABASE or mariadb://USER@HOST/DATABASE. Nothing is asked for
    a password: it stands in the URL, or for PostgreSQL in ~/.pgpass.

    \b
    Example:
      tranlog copy postgresql://shop@db1/shop sqlite:///copy.db
      tranlog copy --tables main.orders,main.items sqlite:///shop.db mariadb://root@db2/shop
    """
    names = () if tables is None else tuple(filter(None, (name.strip() for name in tables.split(","))))
    if tables is not None and not names:
        raise typer.BadParameter("a table is named schema.table", param_hint="--tables")
    result = _copied(source_url(source), target_url(target), names)
    rows = sum(one.rows for one in result.tables)
    if as_json:
        print_json({"equal": result.equal, "rows": rows, "tables": msgspec.to_builtins(result.tables)})
    else:
        for one in result.tables:
            print(f"copied  {one.table}: {one.rows} rows{', into a new table' if one.made else ''}")
        show_verdicts(result.verdicts)
        print(f"copied {len(result.tables)} tables, {rows} rows")
    return ExitCode.DONE if result.equal else ExitCode.CHECK_FAILED


def _copied(origin: DatabaseUrl, into: DatabaseUrl, names: tuple[str, ...]) -> CopyResult:
    clock, here, there = SystemClock(), origin.source(), into.target()
    kind = source_kind(here.kind)
    with Progress("copy: looking at both databases") as progress, closing(kind.at_once(here, names)) as reader:
        there.check()
        same = kind.identity(here)
        if origin.kind == into.kind and is_there(there) and identity(there) == same:
            raise ConfigError(option="TARGET_URL", value=None, why="it is the source; name another database")
        target = open_target(there)
        with closing(target):
            return copy_tables(
                reader,
                target,
                origin=same,
                wanted=names,
                holder=holder_name(clock.now_ms()),
                clock=clock,
                report=lambda what, done: progress.update(f"copy: {what}", done, None, "rows"),
            )

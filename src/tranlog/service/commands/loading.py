"""`tranlog load`: rows that are at the source already, taken into the log and to the targets.

Owns the command's words; the request is `load_requests`', which a capture takes up, now or when it next runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Annotated

import typer

from tranlog.capture.load_requests import LoadRequest, ask, give_order, read_requests
from tranlog.change import TableMap
from tranlog.clock import SystemClock
from tranlog.codecs.opening import open_readable
from tranlog.errors import ConfigError, SourceError, TargetTableError, TargetUnavailableError
from tranlog.ids import Seqno
from tranlog.loads import ANY_PIPELINE
from tranlog.log.files.holds import read_holds
from tranlog.pipeline.filters.comparison import compare_shown
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.upkeep.verify import select_tables
from tranlog.service.commands.orders import config_of
from tranlog.service.config.config import Config
from tranlog.service.config.sections import LOADABLE
from tranlog.service.frame.command import AsJson, answer, flag, option
from tranlog.service.show.loads import load_text
from tranlog.source.kinds import SourceOptions, source_kind
from tranlog.target.options import is_there, open_target


def load(
    ctx: typer.Context,
    tables: Annotated[str | None, option("--tables", "SCHEMA.TABLE,...", "The tables, or all.")] = None,
    pipeline: Annotated[str | None, option("--pipeline", "NAME", "For this pipeline alone.")] = None,
    replace: Annotated[bool, flag("--replace", "Delete the rows that the target has of these tables first.")] = False,
    which: Annotated[str | None, option("--load", "ID", "Which load to tell; the only one needs no name.")] = None,
    pause: Annotated[bool, flag("--pause", "Read no more rows until --resume.")] = False,
    resume: Annotated[bool, flag("--resume", "Go on with a load that is paused.")] = False,
    give_up: Annotated[bool, flag("--give-up", "End it; tables that are not whole are named.")] = False,
    rows_per_second: Annotated[
        int | None, option("--rows-per-second", None, "No more than that; 0: no limit.", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Have tables loaded: the rows that are at the source come into the log, and to every target that reads it.

    A running capture begins at once, another one when it next runs. Each chunk of rows stands in the log where it was
    read, so nothing is locked and writers go on; a load that is interrupted goes on by itself. Without --tables, the
    loads that are not at their end are listed. --pause, --resume, --give-up and --rows-per-second tell one of them what
    to do, and stay told when capture is started again.

    \b
    Example:
      tranlog load --tables shop.orders,shop.items
      tranlog load --tables shop.orders --pipeline shop --replace
      tranlog load --rows-per-second 5000
    """
    config = config_of(ctx)
    open_readable(config.log_dir).close()  # so that there is one
    if pause and resume:
        raise typer.BadParameter("--pause and --resume exclude each other", param_hint="--pause")
    if tables is None and (replace or pipeline is not None):
        raise typer.BadParameter("is of a new load; name its tables by --tables", param_hint="--replace, --pipeline")
    if tables is not None:
        if give_up or which is not None:
            why = "asks for a new load; tell one that is under way without it: --load ID --give-up"
            raise typer.BadParameter(why, param_hint="--tables")
        source = config.wanted_source()
        if source.kind not in LOADABLE:
            why = f"tables of this kind cannot be loaded; those of {' and '.join(LOADABLE)} can"
            raise ConfigError(option="source.kind", value=source.kind, why=why)
        names = tuple(dict.fromkeys(filter(None, (name.strip() for name in tables.split(",")))))
        wrong = [name for name in names if "." not in name and name != "all"]
        if wrong or not names:
            raise typer.BadParameter("a table is named schema.table; all means all", param_hint="--tables")
        wanted = _wanted_tables(source, () if "all" in names else names)
        _check_pipeline(config, pipeline)
        if not replace and pipeline in (None, config.pipeline.apply.pipeline):
            _check_target(config, wanted)
        now = SystemClock().now_ms()
        request = LoadRequest(
            load=str(now),
            pipeline=pipeline or ANY_PIPELINE,
            tables=() if "all" in names else names,
            replace=replace,
            asked_at=now,
        )
        ask(config.log_dir, request)
        which = request.load
    if pause or resume or give_up or rows_per_second is not None:
        paused = pause if pause or resume else None
        give_order(config.log_dir, which, paused=paused, given_up=give_up, rows_per_second=rows_per_second)
    elif which is not None and tables is None:
        raise typer.BadParameter("say what to tell it: --pause, --resume, --give-up", param_hint="--load")
    found = read_requests(config.log_dir)
    answer({"loads": found}, map(load_text, found) if found else "no load is under way", as_json)


def _wanted_tables(source: SourceOptions, names: Sequence[str]) -> list[TableMap]:
    """Return the tables of a load, all for no names; none where the source does not answer, which is capture's to say.

    Raises ConfigError for a table that the source does not have.
    """
    with suppress(SourceError), closing(source_kind(source.kind).tables(source)) as reader:
        known, beside = reader.tables(), reader.beside()
        found = select_tables(known, [name for name in names if name not in beside], option="--tables")
        return [table for table in found if not names or table.name in names]
    return []


def _check_pipeline(config: Config, name: str | None) -> None:
    """Raise ConfigError for a pipeline that nobody could mean: its load would read every row, and nobody take one."""
    own = config.pipeline.apply.pipeline
    if name in (None, own):
        return
    known = {one.name for one in read_holds(config.log_dir) if one.of_pipeline or one.restart_seqno is None}
    if name not in known:
        why = f"no pipeline of this name has read this log; {' and '.join(sorted(known | {own}))} can be named"
        raise ConfigError(option="--pipeline", value=name, why=why)


def _check_target(config: Config, tables: Sequence[TableMap]) -> None:
    """Raise ConfigError for a table that has rows at the target, where the pipeline would stop at the load."""
    if config.target is None or not is_there(config.target):
        return
    chain = Chain(config.pipeline.apply.filters)
    with suppress(TargetUnavailableError), closing(open_target(config.target)) as target:
        for table in tables:
            compared = compare_shown(chain, table)
            try:
                if compared is not None:
                    target.rows.begin_load(compared.compared, Seqno(0), replace=False)
            except TargetTableError as exc:
                why = f"the pipeline would stop at it: {exc.why}; --replace deletes rows first that are at the target"
                raise ConfigError(option="--tables", value=table.name, why=why) from exc

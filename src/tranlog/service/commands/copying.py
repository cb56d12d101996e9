"""`tranlog copy`: the tables of one database into another, without a configuration, once or followed from then on.

Owns the command's words and its print; a copy is `pipeline.upkeep.copying`'s, and what follows is `tranlog run` by a
configuration that is written here. The hard idea: that is written when all that a start would refuse is mended and the
tables are made, so that nobody's server is changed half, and an interrupted beginning is begun again.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import msgspec
import typer

from tranlog.clock import SystemClock
from tranlog.errors import ConfigError
from tranlog.findings import Severity
from tranlog.pipeline.driving.lease import holder_name
from tranlog.pipeline.upkeep.copying import CopyResult, check_copy, copy_tables, make_tables
from tranlog.service.commands.doctor import PartOfService, examine, lines
from tranlog.service.commands.verifying import show_verdicts
from tranlog.service.config.config import DEFAULT_FILE, load
from tranlog.service.config.sections import checked_service
from tranlog.service.config.urls import DatabaseUrl, following, source_url, target_url
from tranlog.service.frame.command import AsJson, flag, option, print_json, say
from tranlog.service.frame.exits import ExitCode
from tranlog.service.frame.progress import Progress
from tranlog.source.kinds import source_kind
from tranlog.source.source import TableReader
from tranlog.target.options import identity as identity_of
from tranlog.target.options import is_there, open_target


def add_copy(app: typer.Typer, run: Callable[[Sequence[str]], int]) -> None:
    """Give a program the command; `run` runs another one of its commands."""

    def copy(
        ctx: typer.Context,
        source: Annotated[str, typer.Argument(metavar="SOURCE_URL", help="What is copied.", show_default=False)],
        target: Annotated[str, typer.Argument(metavar="TARGET_URL", help="Into what.", show_default=False)],
        tables: Annotated[str | None, option("--tables", "SCHEMA.TABLE,...", "Only these; default: all.")] = None,
        follow: Annotated[bool, flag("--follow", "Go on with what is changed, until SIGTERM or Ctrl-C.")] = False,
        identity: Annotated[
            Literal["full", "key", "set"] | None,
            option("--identity", None, "With --follow: [source] identity of a PostgreSQL."),
        ] = None,
        as_json: AsJson = False,
    ) -> int:
        """Copy the tables of one database into another, and compare both; or follow them.

        All tables are read as of one moment, while writers go on, and compared with what the target has then. They are
        made where they are missing, with primary and unique keys; one that is there must be empty. SELECT is all that
        is needed at the source, and nothing is left there. A copy that did not come to its end begins again: what it
        had made is emptied first. Exit code 1 if a table differs.

        With --follow a configuration is written into the folder copy-of-NAME here, where the log goes too, and
        `tranlog run` goes on by it: the rows that are there, then each change, on Spark. What both servers lack for
        that is said first, with the statements that mend it, exit code 4, and then nothing is made. Begun again with
        the same words, it goes on where it was. From a SQLite file whoever writes it is captured, by triggers. A second
        copy of one source has a folder and a name of its own, by --service.

        A database is sqlite:///FILE, postgresql://USER@HOST/DATABASE or mariadb://USER@HOST/DATABASE. Nothing is asked
        for a password: it stands in the URL, or for PostgreSQL in ~/.pgpass.

        \b
        Example:
          tranlog copy postgresql://shop@db1/shop sqlite:///copy.db
          tranlog copy --tables main.orders,main.items sqlite:///shop.db mariadb://root@db2/shop
          tranlog copy --follow mariadb://root@db2/shop postgresql://shop@db1/shop
          tranlog --service archive copy --follow mariadb://root@db2/shop sqlite:///archive.db
        """
        names = () if tables is None else tuple(filter(None, (name.strip() for name in tables.split(","))))
        if tables is not None and not all("." in name for name in names or ("",)):
            raise typer.BadParameter("a table is named schema.table", param_hint="--tables")
        origin, into = source_url(source), target_url(target)
        if identity is not None and not (follow and origin.kind == "postgres"):
            raise typer.BadParameter("is for --follow from a PostgreSQL", param_hint="--identity")
        if not follow:
            return _show(_copied(origin, into, names), as_json)
        service = None if ctx.obj is None else ctx.obj[1]
        name = checked_service(service or origin.service)
        file = _followed(name, origin, into, names, following(origin, into, names, identity, service=name))
        return ExitCode.SURROUNDINGS if file is None else run(["--conf", file, "run", *["--json"] * as_json])

    app.command("copy")(copy)


def _show(result: CopyResult, as_json: bool) -> int:
    rows = sum(one.rows for one in result.tables)
    if as_json:
        print_json({"equal": result.equal, "rows": rows, "tables": msgspec.to_builtins(result.tables)})
    else:
        for one in result.tables:
            print(f"copied  {one.table}: {one.rows} rows{', into a new table' if one.made else ''}")
        show_verdicts(result.verdicts)
        print(f"copied {len(result.tables)} tables, {rows} rows")
    return ExitCode.DONE if result.equal else ExitCode.CHECK_FAILED


def _refuse_source(origin: DatabaseUrl, into: DatabaseUrl) -> str:
    """Return what names the source. Raises ConfigError where the target is the same."""
    here, there = origin.source(), into.target()
    found = source_kind(here.kind).identity(here)
    if origin.kind == into.kind and is_there(there) and identity_of(there) == found:
        other = "server, since tables keep their database" if origin.kind == "mariadb" else "database"
        raise ConfigError(option="TARGET_URL", value=None, why=f"it is the source; name another {other}")
    return found


def _refuse_tables(reader: TableReader, into: DatabaseUrl, names: Sequence[str]) -> None:
    """Raise what a copy of the tables raises before it changes anything; a file that is not there is not made."""
    there = into.target()
    with ExitStack() as stack:
        if not is_there(there):
            there = replace(there, path=os.path.join(stack.enter_context(TemporaryDirectory()), "target.db"))
        check_copy(reader, stack.enter_context(closing(open_target(there))), wanted=names)


def _copied(origin: DatabaseUrl, into: DatabaseUrl, names: Sequence[str]) -> CopyResult:
    clock, here = SystemClock(), origin.source()
    with (
        Progress("copy: looking at both databases") as progress,
        closing(source_kind(here.kind).at_once(here, names)) as reader,
    ):
        found = _refuse_source(origin, into)
        if not is_there(into.target()):
            _refuse_tables(reader, into, names)
        target = open_target(into.target())
        with closing(target):
            return copy_tables(
                reader,
                target,
                origin=found,
                wanted=names,
                holder=holder_name(clock.now_ms()),
                clock=clock,
                report=lambda what, done: progress.update(f"copy: {what}", done, None, "rows"),
            )


def _followed(service: str, origin: DatabaseUrl, into: DatabaseUrl, names: Sequence[str], text: str) -> str | None:
    """Return the configuration file of a copy that is followed, written where there is none yet.

    None: it could not start, and why was said. Raises ConfigError where the file is another one.
    """
    folder = Path(service)
    file = folder / DEFAULT_FILE
    if file.exists():
        if not _is_copy(file, text):
            why = (
                "it is no copy of this source into this target. Take another name, `tranlog --service NAME copy …`, or "
                f"remove {folder}, log and all, to begin another"
            )
            raise ConfigError(option=str(file), value=None, why=why)
        return str(file)
    _refuse_source(origin, into)
    with TemporaryDirectory() as scratch:
        tried = Path(scratch, DEFAULT_FILE)
        _write(tried, text)
        config = load(str(tried), environ=os.environ)
        wrong = [
            PartOfService(part.name, [one for one in part.findings if one.severity is Severity.WRONG])
            for part in examine(config)
        ]
    if any(part.findings for part in wrong):
        for line in lines(wrong):
            print(line)
        say(
            "copy: nothing was made; mend what is wrong, and begin again. An option that is named here is set in what "
            "`tranlog init --from SOURCE_URL --to TARGET_URL` writes for `tranlog run`; identity by --identity"
        )
        return None
    here = origin.source()
    with closing(source_kind(here.kind).at_once(here, names)) as reader:
        _refuse_tables(reader, into, names)
        with closing(open_target(into.target())) as target:
            make_tables(reader, target, wanted=names)
    folder.mkdir(exist_ok=True)
    _write(file, text)
    print(f"wrote {file}; `tranlog --conf {file} status` says how far it is", flush=True)
    return str(file)


def _is_copy(file: Path, text: str) -> bool:
    """Whether a configuration names source, target and tables as `text` does; its owner may have added to it.

    `ddl` may be another, as a pipeline that stops at a statement advises.
    """
    wanted = tomllib.loads(text)
    try:
        there = tomllib.loads(file.read_text(encoding="utf-8", errors="replace"))
    except tomllib.TOMLDecodeError:
        return True  # `run` names the line
    wanted["target"].pop("ddl")
    return all(one in there.get("filter", []) for one in wanted.get("filter", [])) and all(
        wanted[section].items() <= there.get(section, {}).items() for section in ("source", "target")
    )


def _write(file: Path, text: str) -> None:
    """Write a file that only its owner reads: a password may stand in it."""
    with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)

"""`tranlog init` and `tranlog config`: write a configuration, check it, show what it says and why, and its schema.

Owns the commands and their print. What a configuration is, is `service.config`'s; nothing is started here.
"""

from __future__ import annotations

import enum
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tranlog.errors import ConfigError
from tranlog.service.config.config import DEFAULT_FILE, find_file, made, reading
from tranlog.service.config.sections import checked_service
from tranlog.service.config.template import SOURCES, TARGETS, shown, template
from tranlog.service.config.urls import following, source_url, target_url
from tranlog.service.frame.command import AsJson, answer, new_app, option
from tranlog.service.process.apart import check_apart
from tranlog.service.process.operating import OperatingOptions
from tranlog.target.options import TargetKind

config_app = new_app(
    help="What the configuration says, and whether it is valid.\n\n\b\nExample:\n  tranlog config show --origin"
)

if TYPE_CHECKING:
    SourceName: TypeAlias = str
    TargetName: TypeAlias = TargetKind
else:
    SourceName = enum.StrEnum("SourceName", {one: one for one in SOURCES})
    TargetName = enum.StrEnum("TargetName", {one: one for one in TARGETS})


def init(
    ctx: typer.Context,
    source: Annotated[SourceName | None, option("--source", None, "The kind of source.", show_default="sqlite")] = None,
    target: Annotated[
        TargetName | None,
        option("--target", None, "The kind of target; null keeps only its position.", show_default="sqlite"),
    ] = None,
    from_: Annotated[str | None, option("--from", "SOURCE_URL", "The source's URL; with --to.")] = None,
    to: Annotated[str | None, option("--to", "TARGET_URL", "The target's URL; with --from.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a commented configuration to start from.

    It works as it is, for SQLite on both ends. An existing file is never overwritten.

    With --from and --to it is the configuration that `tranlog copy --follow` uses: `tranlog run` loads the existing
    tables and then follows them. URLs are as for `tranlog copy`. Only its owner may read the file, since it may contain
    a password.

    The file is tranlog.toml, or what --conf names; the service's name is --service, or that of the folder,
    or copy-of-NAME by the source's URL.

    \b
    Example:
      tranlog init
      tranlog --conf shop.toml --service shop init --source mariadb --target postgres
      tranlog init --from postgresql://shop@db1/shop --to mariadb://root@db2/shop
    """
    conf, service = ctx.obj
    file = conf or DEFAULT_FILE
    of_urls = from_ is not None and to is not None
    if (from_ is None) != (to is None) or (of_urls and (source or target)):
        raise typer.BadParameter("go together, without --source and --target", param_hint="--from and --to")
    origin = source_url(from_) if from_ is not None else None
    here = re.sub(r"[^A-Za-z0-9_.-]", "-", Path(file).absolute().parent.name).lstrip(".-") or "tranlog"
    name = checked_service(service or (here if origin is None else origin.service))
    if origin is not None and to is not None:
        text = following(origin, target_url(to), (), None, service=name)
    else:
        text = template(service=name, source=source or "sqlite", target=target or "sqlite")
    try:
        with open(file, "x", encoding="utf-8", opener=_owners if of_urls else None) as stream:
            stream.write(text)
    except FileExistsError as exc:
        raise ConfigError(option=file, value=None, why="already exists, and is not overwritten") from exc
    both = "`tranlog capture`, `tranlog apply`, or `tranlog run` for both"
    first = "`tranlog doctor`, then `tranlog run`" if of_urls else both
    answer({"file": file, "service": name}, f"wrote {file} for service {name}; next: {first}", as_json)


def _owners(path: str, flags: int) -> int:
    """Open a file that only its owner reads."""
    return os.open(path, flags, 0o600)


@config_app.command("check")
def check(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Read the configuration as the other commands do, and start nothing.

    Exit code 0, or 2 and one line that names origin, key, value and reason.

    \b
    Example:
      tranlog config check
      tranlog --conf shop.toml config check
    """
    conf, service = ctx.obj
    read = reading(find_file(conf=conf, service=service))
    config = made(read)
    check_apart(config)
    section = "pipeline"
    try:
        OperatingOptions.of(config.pipeline).check()
        section = "capture"
        OperatingOptions.of_capture(config).check()
    except ConfigError as exc:
        whose = section if exc.option in ("control", "metrics") else "pipeline"  # the files are of both
        raise read.refusal(f"{whose}.{exc.option}", exc.value, exc.why) from exc
    line = f"{config.file} is a configuration of service {config.service}"
    answer({"file": config.file, "service": config.service}, line, as_json)


@config_app.command("show")
def show(
    ctx: typer.Context,
    origin: Annotated[bool, typer.Option("--origin", help="Also show where each value comes from.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print each key with its value; passwords and the like are hidden.

    The origin is FILE:LINE, the name of a variable, the path of a secret's file, or the default.

    \b
    Example:
      tranlog config show
      tranlog config show --origin
    """
    conf, service = ctx.obj
    read = reading(find_file(conf=conf, service=service))
    config = made(read)
    rows = list(shown(read, service=config.service, source=None if config.source is None else config.source.kind))
    lines = [f"{key} = {value}  # {where}" if origin else f"{key} = {value}" for key, value, where in rows]
    answer({"values": [{"key": key, "value": value, "origin": where} for key, value, where in rows]}, lines, as_json)


@config_app.command("schema")
def schema(as_json: AsJson = False) -> None:
    """Print the JSON schema of a configuration file, for editors and other programs.

    \b
    Example:
      tranlog config schema > tranlog.schema.json
    """
    from tranlog.service.config.reading import schema as found  # with it comes pydantic

    print(json.dumps(found(), indent=None if as_json else 2))


def add_configuring(app: typer.Typer) -> None:
    """Add these commands to a program."""
    app.command("init")(init)
    app.add_typer(config_app, name="config", invoke_without_command=True)

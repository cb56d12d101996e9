"""`tranlog source`: what capture made at the source, and taking it away.

Owns the two commands and their text; what there is, and how it goes, each kind of source knows.
"""

from __future__ import annotations

import typer

from tranlog.service.commands.orders import config_of
from tranlog.service.frame.command import AsJson, Yes, answer, confirm, new_app, say
from tranlog.service.frame.tables import table_lines
from tranlog.source.kinds import SourceObject, source_kind

source_app = new_app(help="What capture installed at the source.\n\n\b\nExample:\n  tranlog source list")


def _show(found: list[SourceObject], as_json: bool) -> None:
    cells = [(one.kind, one.name, one.state, "yes" if one.configured else "no") for one in found]
    lines = table_lines(("kind", "name", "state", "of this configuration"), cells)
    answer({"installed": [one._asdict() for one in found]}, lines if found else ["nothing is installed"], as_json)


@source_app.command("list")
def list_source(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List what capture has installed at the source, and whether it is in use.

    A slot that nobody reads keeps the server's WAL until its disk is full.

    \b
    Example:
      tranlog source list
      tranlog --conf shop.toml source list --json
    """
    options = config_of(ctx).wanted_source()
    _show(source_kind(options.kind).installed(options), as_json)


@source_app.command("uninstall")
def uninstall(
    ctx: typer.Context,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove what capture installed at the configured source; the log cannot continue from it afterwards.

    Refused while a capture runs. A publication that capture did not create stays.

    \b
    Example:
      tranlog source uninstall -y
    """
    options = config_of(ctx).wanted_source()
    kind = source_kind(options.kind)
    names = ", ".join(f"{one.kind} {one.name}" for one in kind.installed(options) if one.configured)
    if names and not yes:
        confirm(f"Drop at {options.where}: {names}?")
    dropped = kind.uninstall(options) if names else []
    if not as_json:
        say(f"dropped {len(dropped)} at {options.where}")
    _show(dropped, as_json)

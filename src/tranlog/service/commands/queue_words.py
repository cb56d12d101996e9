"""The words that the commands on a message store share."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from tranlog.queues.options import QueueStoreOptions

DEFAULTS = QueueStoreOptions()
StoreDir = Annotated[str, typer.Argument(metavar="DIR", help="The store's directory.")]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
RoutingKey = Annotated[str, typer.Option("--key", "-key", metavar="KEY", help="The routing key.")]
HeadersJson = Annotated[
    str | None, typer.Option("--headers", "-headers", metavar="JSON", help='Headers to route by: {"kind": "order"}.')
]
WriteBuffers = Annotated[
    int,
    typer.Option(
        *("--max-write-buffers", "--write-buffers", "-max-write-buffers"),
        metavar="N",
        min=1,
        max=1 << 14,
        help="Write when so many buffers of 64 KiB wait, without waiting for a commit; for this command alone.",
    ),
]
ConnectUrl = Annotated[
    str | None,
    typer.Option(
        *("--connect", "-connect"),
        metavar="URL",
        help="Keep the catalogue in this PostgreSQL: postgresql://user@host:port/database. The store remembers it, "
        "without a password; that stands in PGPASSWORD or a password file. Without it: SQLite.",
    ),
]
CatalogName = Annotated[
    str | None,
    typer.Option("--catalog", "-catalog", metavar="NAME", help="The database there; it is made if it is missing."),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]


def headers_of(text: str | None) -> dict[str, object] | None:
    """Return the headers that an option names. Raises typer.BadParameter."""
    try:
        return None if text is None else msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError) as exc:
        raise typer.BadParameter(f"is no JSON object: {exc}", param_hint="--headers") from exc

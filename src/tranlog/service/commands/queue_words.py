"""The words that the commands on a message store share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
import typer

from tranlog.queues.by_hand import open_by_hand
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore
from tranlog.service.frame.command import option

DEFAULTS = QueueStoreOptions()
StoreDir = Annotated[str, typer.Argument(metavar="DIR", help="The store's directory.")]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
RoutingKey = Annotated[str, option("--key", "KEY", "The routing key.")]
HeadersJson = Annotated[str | None, option("--headers", "JSON", 'Headers to route by: {"kind": "order"}.')]
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
    option(
        "--connect",
        "URL",
        "Keep the catalogue in this PostgreSQL: postgresql://user@host:port/database. The store remembers it, "
        "without a password; that stands in PGPASSWORD or a password file. Without it: SQLite.",
    ),
]
CatalogName = Annotated[str | None, option("--catalog", "NAME", "The database there; it is made if it is missing.")]


def by_hand_or_owner(options: QueueStoreOptions, *, transient: bool) -> Callable[[str], MessageStore]:
    """Return how a command opens a store that no process holds; what is transient needs one that goes on.

    Raises typer.BadParameter.
    """

    def open_it(path: str) -> MessageStore:
        store = open_by_hand(path, options)
        if transient:
            store.close()
            why = f"no process has {path} open, and what is transient would be gone with this command"
            raise typer.BadParameter(why, param_hint="--transient")
        return store

    return open_it


def headers_of(text: str | None) -> dict[str, object] | None:
    """Return the headers that an option names. Raises typer.BadParameter."""
    try:
        return None if text is None else msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError) as exc:
        raise typer.BadParameter(f"is no JSON object: {exc}", param_hint="--headers") from exc

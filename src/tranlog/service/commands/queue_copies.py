"""`tranlog queue backup`, `restore`: log and catalogue of a message store, together.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
import typer

from tranlog.queues.backup import restore_store
from tranlog.queues.by_hand import StoreVerdict, open_by_hand
from tranlog.service.commands.queue_words import CatalogName, ConnectUrl, StoreDir
from tranlog.service.frame.command import AsJson, answer
from tranlog.service.process.api import BackUp
from tranlog.service.process.store_part import store_part


def add_copies(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("backup")(backup)
    app.command("restore")(restore)


def backup(
    directory: StoreDir,
    to: Annotated[str, typer.Argument(metavar="TO", help="The directory of the copy, which must not be there yet.")],
    as_json: AsJson = False,
) -> None:
    """Copy a store: its log and its catalogue, as of one moment; the copy is then checked.

    The copy has its catalogue in SQLite, also where the store's is in PostgreSQL. Where a process holds and serves the
    store, that process makes it.

    \b
    Example:
      tranlog queue backup mail /backup/mail-monday
    """
    with store_part(directory, open_by_hand) as store:
        found = store.back_up(BackUp(to=os.path.abspath(to)))
    _print("copied into", to, found, as_json)


def restore(
    source: Annotated[str, typer.Argument(metavar="FROM", help="What `tranlog queue backup` made.")],
    to: Annotated[str, typer.Argument(metavar="DIR", help="The store's directory, which must not be there yet.")],
    connect: ConnectUrl = None,
    catalog: CatalogName = None,
    as_json: AsJson = False,
) -> None:
    """Make a store of a backup, log and catalogue together; it is then checked.

    With --connect its catalogue is in PostgreSQL; what an earlier life of this store has there is replaced. What was
    acknowledged since the backup is there again.

    \b
    Example:
      tranlog queue restore /backup/mail-monday mail
    """
    found = restore_store(source, to, connect=connect, catalog=catalog)
    _print("restored into", to, found, as_json)


def _print(done: str, to: str, found: StoreVerdict, as_json: bool) -> None:
    answer({"directory": to, **msgspec.structs.asdict(found)}, f"{done} {to}: {store_text(found)}", as_json)


def store_text(found: StoreVerdict) -> str:
    """Return how much a store holds that was checked."""
    return (
        f"{found.containers} containers, {found.messages} messages, {found.queues} queues, "
        f"{found.in_doubt} transactions in doubt"
    )

"""`tranlog queue`: a message store on the disk, looked at and mended by hand.

Owns the commands' words and their output; what a store is belongs to `queues`, and who is asked to `store_part`.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
import typer

from tranlog.ids import Lsn
from tranlog.lsn import lsn, lsn_text
from tranlog.queues.by_hand import dump_store, list_containers, open_by_hand, verify_store
from tranlog.queues.rules.records import BODIES, record_fields, record_text, stream_of
from tranlog.queues.standing import QueueStanding, StoreStatus
from tranlog.service.commands.queue_copies import add_copies, store_text
from tranlog.service.commands.queue_messages import add_messages
from tranlog.service.commands.queue_names import add_names
from tranlog.service.commands.queue_words import StoreDir
from tranlog.service.frame.command import AsJson, Yes, answer, confirm, new_app, option
from tranlog.service.frame.exits import ExitCode, json_line
from tranlog.service.frame.tables import table_lines
from tranlog.service.process.api import ByName, Decide
from tranlog.service.process.store_part import store_looks, store_part

queue_app = new_app(help="A message store on the disk.\n\n\b\nExample:\n  tranlog queue list mail")
in_doubt_app = new_app(help="What waits for its outcome.\n\n\b\nExample:\n  tranlog queue in-doubt list mail")
producer_app = new_app(help="Who publishes once.\n\n\b\nExample:\n  tranlog queue producer list mail")
queue_app.add_typer(producer_app, name="producer", invoke_without_command=True)
queue_app.add_typer(in_doubt_app, name="in-doubt", invoke_without_command=True)
_STREAMS = sorted({stream_of(number) for number in BODIES})

Xid = Annotated[str, typer.Argument(metavar="XID", help="As `tranlog queue in-doubt list` shows it.")]
add_messages(queue_app)
add_names(queue_app)
add_copies(queue_app)


@queue_app.command("containers")
def containers(directory: StoreDir, as_json: AsJson = False) -> None:
    """List the containers: in use or free, what is written there, what of it is still needed.

    It may run beside the store's owner.

    \b
    Example:
      tranlog queue containers mail
    """
    found = list_containers(directory)
    rows = []
    for one in found:
        places = {"first_lsn": _lsn_or_none(one.first_lsn), "last_lsn": _lsn_or_none(one.last_lsn)}
        rows.append({**msgspec.structs.asdict(one), **places})
    keys = ("epoch", "first_lsn", "last_lsn", "written_bytes", "needed", "needed_bytes")
    heads = (">number", "state", ">epoch", "first", "last", ">bytes written", ">needed", ">bytes needed")
    blank = ["free", *[""] * len(keys)]
    cells = ((row["number"], *(blank if row["free"] else ["in use", *(row[key] for key in keys)])) for row in rows)
    answer({"containers": rows}, table_lines(heads, cells), as_json)


def _lsn_or_none(place: int) -> str | None:
    return lsn_text(Lsn(place)) if place else None


def _lsn_of(text: str) -> Lsn:
    number, colon, offset = text.partition(":")
    if not (colon and number.isdecimal() and offset.isdecimal() and 0 < int(number) < 1 << 32 > int(offset)):
        raise typer.BadParameter("an LSN reads CONTAINER:OFFSET, as 3:4096", param_hint="--object")
    return lsn(int(number), int(offset))


@queue_app.command("dump")
def dump(
    directory: StoreDir,
    stream: Annotated[str | None, option("--stream", "NAME", "Only control, message or transaction.")] = None,
    thing: Annotated[
        str | None, option("--object", "LSN", "Only the message or transaction that begins there.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print the records, one a line: place, epoch, what it is and of which message or transaction.

    It may run beside the store's owner. Exit code 1 if no such object is in the log. A damaged record is told after all
    that can be read, exit code 3.

    \b
    Example:
      tranlog queue dump mail --stream transaction
      tranlog queue dump mail --object 3:4153
    """
    if stream is not None and stream not in _STREAMS:
        raise typer.BadParameter(f"is none of {', '.join(_STREAMS)}", param_hint="--stream")
    found = False
    for record in dump_store(directory, stream=stream, thing=None if thing is None else _lsn_of(thing)):
        found = True
        print(json_line(record_fields(record)) if as_json else record_text(record))
    return ExitCode.DONE if found or thing is None else ExitCode.CHECK_FAILED


@queue_app.command("verify")
def verify(directory: StoreDir, as_json: AsJson = False) -> None:
    """Check every container and record, and the log against the catalogue.

    What is wrong is said with container and offset, exit code 3. It may run beside the store's owner.

    \b
    Example:
      tranlog queue verify mail
    """
    found = verify_store(directory)
    lines = [f"{store_text(found)}: all right"]
    if found.unknown_queues:
        lines.append(f"messages on {found.unknown_queues} queues that were deleted go when the store is opened")
    if found.torn:
        lines.append(f"the last write is not whole, as a crash leaves it, at {found.torn}")
    answer(found, lines, as_json)


@queue_app.command("list")
def list_queues(directory: StoreDir, as_json: AsJson = False) -> None:
    """List the queues, with how many messages wait on each.

    \b
    Example:
      tranlog queue list mail
    """
    with store_looks(directory) as store:
        found = store.status().queues
    answer({"queues": _queues(found)}, _queue_lines(found), as_json)


def _queues(found: Mapping[str, QueueStanding]) -> list[dict[str, object]]:
    return [{"name": name, "waiting": one.waiting, "transient": one.transient} for name, one in found.items()]


def _queue_lines(found: Mapping[str, QueueStanding]) -> Iterator[str]:
    rows = ((name, one.waiting, "transient" if one.transient else "durable") for name, one in found.items())
    return table_lines(("queue", ">waiting", "kind"), rows)


@queue_app.command("pinned")
def pinned(directory: StoreDir, as_json: AsJson = False) -> None:
    """Show what keeps the oldest container from being used again, and how many bytes that holds back.

    A branch is in doubt: commit it or roll it back. A message that one touches goes with it.

    \b
    Example:
      tranlog queue pinned mail
    """
    with store_looks(directory) as store:
        found = store.pinned()
    shown = [{**one._asdict(), "id": lsn_text(one.id), "xid": _text(one.xid)} for one in found]
    heads = ("what", "id", "xid", "queues", ">age", ">bytes held back")
    rows = [
        (one.what, lsn_text(one.id), _text(one.xid) or None, ", ".join(one.queues) or None)
        + (None if one.age_ms is None else f"{one.age_ms / 1000:.0f} s", one.held_bytes)
        for one in found
    ]
    answer({"pinned": shown}, table_lines(heads, rows), as_json)


def _text(xid: bytes) -> str:
    """Return an xid as people read and type it: its text, or hex with 0x where it is none."""
    try:
        text = xid.decode()
    except UnicodeDecodeError:
        return f"0x{xid.hex()}"
    return text if text.isprintable() and not text.startswith("0x") else f"0x{xid.hex()}"


def _xid(text: str) -> bytes:
    if not text.startswith("0x"):
        return os.fsencode(text)
    try:
        return bytes.fromhex(text[2:])
    except ValueError as exc:
        raise typer.BadParameter(f"{text} is no hex", param_hint="XID") from exc


@queue_app.command("status")
def status(directory: StoreDir, as_json: AsJson = False) -> None:
    """Show how the store stands: queues, containers, what is pinned and in doubt, what its recovery did.

    Of each queue: how many messages wait, how many are held by consumers, which its process alone knows, and the age
    of the first that waits. The recovery is that of the process that serves the store; where none does, what the next
    opening will find. Nothing is changed.

    \b
    Example:
      tranlog queue status mail
    """
    with store_looks(directory) as store:
        found = store.status()
    in_doubt = [_text(xid) for xid in found.in_doubt]
    queues = [{"name": name, **msgspec.to_builtins(one)} for name, one in found.queues.items()]
    shown = {**msgspec.structs.asdict(found), "queues": queues, "in_doubt": in_doubt}
    answer(shown, _status_lines(found), as_json)


def _status_lines(found: StoreStatus) -> Iterator[str]:
    yield from table_lines(
        ("queue", ">waiting", ">held", ">oldest", "kind"),
        [
            (
                *(name, one.waiting, one.held),
                None if one.oldest_ms is None else f"{one.oldest_ms / 1000:.0f} s",
                "transient" if one.transient else "durable",
            )
            for name, one in found.queues.items()
        ],
    )
    in_use, free, size = found.containers_in_use, found.containers_free, found.container_bytes
    yield f"containers: {in_use} in use, {free} free, of {size} bytes each"
    yield f"pinned: {found.pinned_bytes} bytes"
    yield f"in doubt: {len(found.in_doubt)}"
    if found.transient_messages:
        yield f"transient: {found.transient_messages} messages, which take {found.transient_bytes} bytes of memory"
    did = found.recovered
    end = "the store was made" if did.created else f"the store was {'' if did.clean else 'not '}closed cleanly"
    yield (
        f"recovery: {end}; {did.messages} messages, rolled back {did.rolled_back} transactions, "
        f"cut {did.groups_cut} groups, dropped {did.dropped} places on unknown queues, deleted {did.deleted} messages"
    )
    if did.cut is not None:
        yield f"what was cut off is kept in {did.cut}"


@in_doubt_app.command("list")
def in_doubt_list(directory: StoreDir, as_json: AsJson = False) -> None:
    """List the xids of what is prepared and not decided.

    \b
    Example:
      tranlog queue in-doubt list mail
    """
    with store_looks(directory) as store:
        found = [_text(xid) for xid in store.status().in_doubt]
    answer({"in_doubt": found}, table_lines(("xid",), [(xid,) for xid in found]), as_json)


def _decide(directory: str, xid: str, outcome: str, as_json: bool) -> None:
    raw = _xid(xid)
    with store_part(directory, open_by_hand) as store:
        store.decide(Decide(xid=raw, commit=outcome == "committed"))
    xid = _text(raw)
    answer({"xid": xid, "outcome": outcome}, f"{outcome} {xid}", as_json)


@in_doubt_app.command("commit")
def in_doubt_commit(directory: StoreDir, xid: Xid, as_json: AsJson = False) -> None:
    """Commit what is prepared under an xid.

    \b
    Example:
      tranlog queue in-doubt commit mail 'transfer 7'
    """
    _decide(directory, xid, "committed", as_json)


@in_doubt_app.command("rollback")
def in_doubt_rollback(directory: StoreDir, xid: Xid, as_json: AsJson = False) -> None:
    """Roll back what is prepared under an xid.

    \b
    Example:
      tranlog queue in-doubt rollback mail 'transfer 7'
    """
    _decide(directory, xid, "rolled back", as_json)


@producer_app.command("list")
def producer_list(directory: StoreDir, as_json: AsJson = False) -> None:
    """List the producers that publish once, with the number up to which their messages are here.

    \b
    Example:
      tranlog queue producer list mail
    """
    with store_looks(directory) as store:
        found = store.producers()
    shown = [{"name": name, "number": number} for name, number in found.items()]
    answer({"producers": shown}, table_lines(("producer", ">number"), found.items()), as_json)


@producer_app.command("remove")
def producer_remove(
    directory: StoreDir,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `tranlog queue producer list` shows it.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Forget a producer: what it publishes again is there twice. Exit code 1 if there is none, or if you decline.

    \b
    Example:
      tranlog queue producer remove mail till-3 -y
    """
    with store_part(directory, open_by_hand) as store:
        number = store.producers().get(name)
        if number is not None and not yes:
            confirm(f"Forget that the messages of {name} up to {number} are here?")
        store.forget_producer(ByName(name=name))
    answer({"removed": name, "number": number}, f"removed the producer {name}, which was at {number}", as_json)

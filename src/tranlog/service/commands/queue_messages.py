"""`tranlog queue publish`, `get`, `peek`, `purge`: the messages of a store.

Owns how a body comes in and goes out: in parts, so that its size does not matter. The hard idea: a message is
acknowledged after its body has been written, so whoever could not take it finds it again.
"""

from __future__ import annotations

import base64
import errno
import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated, BinaryIO

import msgspec
import typer

from tranlog.clock import SECONDS_MAX, SYSTEM_CLOCK
from tranlog.queues.by_hand import open_by_hand
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.rules.routing import DEFAULT_EXCHANGE
from tranlog.service.commands.queue_words import (
    DEFAULTS,
    HeadersJson,
    QueueName,
    RoutingKey,
    StoreDir,
    WriteBuffers,
    by_hand_or_owner,
    headers_of,
)
from tranlog.service.frame.command import AsJson, Yes, answer, confirm, flag, option, print_json, say
from tranlog.service.frame.exits import ExitCode
from tranlog.service.frame.tables import table_lines
from tranlog.service.process.api import AnswerMessage, ByName, MessageTold, Peek, PublishMessage, TakeMessage
from tranlog.service.process.store_part import store_looks, store_part

_PART_BYTES = 64 * 1024


def add_messages(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("publish")(publish)
    app.command("get")(get)
    app.command("peek")(peek)
    app.command("purge")(purge)


def publish(
    directory: StoreDir,
    body: Annotated[str | None, typer.Argument(metavar="[BODY]", help="The body; without it --file.")] = None,
    file: Annotated[str, option("--file", "FILE", "Read the body from there; - is the standard input.")] = "-",
    queues: Annotated[
        list[str] | None, option("--queue", "NAME", "Put it on this queue; several: on all or none.")
    ] = None,
    exchange: Annotated[str, option("--exchange", "NAME", "Route it by this exchange instead.")] = DEFAULT_EXCHANGE,
    key: RoutingKey = "",
    headers: HeadersJson = None,
    header: Annotated[str, option("--header", "TEXT", "Store this with the message, beside its body.")] = "",
    expires_s: Annotated[
        float | None, option("--expires-in", "S", "Drop it if nobody took it for so long.", min=0, max=SECONDS_MAX)
    ] = None,
    priority: Annotated[
        int, option("--priority", "N", "Passed on to whoever takes it; it changes no order.", min=0, max=255)
    ] = 0,
    transient: Annotated[
        bool, flag("--transient", "In memory alone; only on a store that a process has open.")
    ] = False,
    write_buffers: WriteBuffers = DEFAULTS.write_buffers,
    as_json: AsJson = False,
) -> int:
    """Publish a message; its id is printed once it is durable.

    The body is an argument, a file, or the standard input, and may be of any size: what comes by a pipe waits in a
    temporary file until its length is known. Exit code 1 if it leads to no queue: then it is not stored. A transient
    message has the id 0:0.

    \b
    Example:
      tranlog queue publish mail 'two teas' --queue orders --expires-in 3600
      tar c photos | tranlog queue publish mail --exchange events --key photos.new
    """
    if body is not None and file != "-":
        raise typer.BadParameter("the body is given as an argument, too", param_hint="--file")
    if not queues and not exchange and not key:
        raise typer.BadParameter("name at least one, or an exchange or a key", param_hint="--queue")
    if queues and (exchange or key or headers):
        raise typer.BadParameter("what goes to queues by name is not routed", param_hint="--queue")
    routed_by = headers_of(headers)
    given = None if body is None else os.fsencode(body)
    with _open_body(file) if given is None else nullcontext((io.BytesIO(given), len(given))) as (raw, length):
        options = QueueStoreOptions(write_buffers=write_buffers)
        with store_part(directory, by_hand_or_owner(options, transient=transient)) as store:
            asked = PublishMessage(
                length=length,
                queues=queues or None,
                exchange=exchange,
                key=key,
                headers=routed_by,
                header=os.fsencode(header),
                expires_at=0 if expires_s is None else SYSTEM_CLOCK.now_ms() + int(expires_s * 1000),
                priority=priority,
                transient=transient,
            )
            found = store.publish(asked, _parts(raw, length, file)).id
    if as_json:
        print_json({"id": found})
    elif found is None:
        say("the message leads to no queue, and was not stored")
    else:
        print(found)
    return ExitCode.CHECK_FAILED if found is None else ExitCode.DONE


@contextmanager
def _open_body(path: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a body's bytes for reading, with how many there are. Raises OSError."""
    with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_size:  # a file of /proc says 0, and has more
            yield file, max(found.st_size - file.tell(), 0)
            return
        with tempfile.TemporaryFile() as spool:
            shutil.copyfileobj(file, spool, _PART_BYTES)
            length = spool.tell()
            spool.seek(0)
            yield spool, length


def _parts(file: BinaryIO, length: int, path: str) -> Iterator[bytes]:
    """Read so many bytes in parts. Raises OSError where there are fewer."""
    while length:
        part = file.read(min(length, _PART_BYTES))
        if not part:
            raise OSError(errno.EIO, "it became shorter while it was read; nothing was published", path)
        length -= len(part)
        yield part


def get(
    directory: StoreDir,
    queue: QueueName,
    output: Annotated[str | None, option("--output", "FILE", "Write the body there, durable.")] = None,
    requeue: Annotated[bool, flag("--requeue", "Put it back where it was; that counts as an attempt.")] = False,
    as_json: AsJson = False,
) -> int:
    """Take the next message of a queue: its body goes to the standard output, as it is, or to a file.

    It is acknowledged when the body has been written, and the command returns when that is durable. With --json the
    body is in the line, unless --output is given: as text, or in base64 where it is none. Exit code 1 if none waits.

    \b
    Example:
      tranlog queue get mail orders --output order.bin
    """
    with store_part(directory, open_by_hand) as store, store.take(TakeMessage(queue=queue)) as taken:
        message = taken.head.message
        if message is not None:
            fields = _fields(message)
            if output is not None:
                _write_file(taken.content, output)
            elif as_json:
                fields |= _text("body", b"".join(taken.content))
            else:
                _write(taken.content, sys.stdout.buffer)
            if as_json:
                print_json({"message": fields})
                sys.stdout.flush()
            store.answer(AnswerMessage(delivery=taken.head.delivery, requeue=requeue))
    if message is not None:
        return ExitCode.DONE
    if as_json:
        print_json({"message": None})
    else:
        say(f"no message waits on {queue}")
    return ExitCode.CHECK_FAILED


def _write(content: Iterator[bytes], file: BinaryIO) -> None:
    for part in content:
        file.write(part)
    file.flush()


def _write_file(content: Iterator[bytes], path: str) -> None:
    with open(path, "wb") as file:
        _write(content, file)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return  # a pipe or a device takes no sync
        os.fsync(file.fileno())
    directory = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _fields(message: MessageTold) -> dict[str, object]:
    """Return a message as it is printed, its header as text where it is one."""
    fields = msgspec.structs.asdict(message)
    return fields | _text("header", fields.pop("header"))


def _text(name: str, raw: bytes) -> dict[str, object]:
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw).decode()}


def peek(
    directory: StoreDir,
    queue: QueueName,
    count: Annotated[int, option("--count", "N", "Show at most N.", min=1)] = 10,
    as_json: AsJson = False,
) -> int:
    """Show the next messages of a queue, and how each begins, and take none. Exit code 1 if none waits.

    \b
    Example:
      tranlog queue peek mail orders --count 3
    """
    with store_looks(directory) as store:
        found = store.peek(Peek(queue=queue, count=count))
    rows = [{**_fields(one), "begins": one.begins.decode(errors="replace")} for one in found]
    listed = [(one.id, one.bytes, one.attempts, str(one.begins)[2:-1]) for one in found]
    answer({"messages": rows}, table_lines(("id", ">bytes", ">attempts", "begins"), listed), as_json)
    if not found and not as_json:
        say(f"no message waits on {queue}")
    return ExitCode.DONE if found else ExitCode.CHECK_FAILED


def purge(directory: StoreDir, queue: QueueName, yes: Yes = False, as_json: AsJson = False) -> None:
    """Take off a queue what waits on it, for good. Exit code 1 if there is no such queue, or if you decline.

    \b
    Example:
      tranlog queue purge mail orders -y
    """
    with store_part(directory, open_by_hand) as store:
        found = store.status().queues.get(queue)
        if found is not None and found.waiting and not yes:
            confirm(f"Take {found.waiting} messages off the queue {queue}?")
        count = store.purge(ByName(name=queue)).messages
    answer({"purged": count, "queue": queue}, f"took {count} messages off {queue}", as_json)

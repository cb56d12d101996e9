"""`tranlog queue declare`, `delete`, `bind`, `unbind`: what a message store has by name.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated

import typer

from tranlog.queues.by_hand import open_by_hand, open_or_make
from tranlog.queues.files.catalogue import why_no_name
from tranlog.queues.options import QueueStoreOptions, whole_container
from tranlog.queues.rules.routing import EXCHANGE_TYPES
from tranlog.queues.store import MessageStore
from tranlog.service.commands.queue_words import (
    DEFAULTS,
    CatalogName,
    ConnectUrl,
    HeadersJson,
    RoutingKey,
    StoreDir,
    WriteBuffers,
    by_hand_or_owner,
    headers_of,
)
from tranlog.service.frame.command import AsJson, Yes, answer, confirm, flag, option, say
from tranlog.service.process.api import Bind, ByName, DeclareExchange, DeclareQueue
from tranlog.service.process.store_part import store_part

STORE_FOLDER = "queues"
"""Of a directory of data, where the store is unless --store-dir names another."""
ExchangeName = Annotated[str, typer.Argument(metavar="EXCHANGE", help="The exchange's name.")]
Destination = Annotated[str, typer.Argument(metavar="NAME", help="The queue, or the exchange, that it leads to.")]
ToExchange = Annotated[bool, flag("--to-exchange", "NAME is an exchange; without it, a queue.")]


def add_names(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("declare")(declare)
    app.command("delete")(delete)
    app.command("bind")(_binding_command("bound", _BIND))
    app.command("unbind")(_binding_command("unbound", _UNBIND))


def declare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[DIR] NAME",
            help="The store's directory, unless --store-dir or --data-dir names it, and the name of the queue or "
            "exchange.",
        ),
    ],
    exchange: Annotated[str | None, option("--exchange", "TYPE", f"An exchange: {', '.join(EXCHANGE_TYPES)}.")] = None,
    alternate: Annotated[str | None, option("--alternate", "NAME", "The exchange for what no binding is for.")] = None,
    transient: Annotated[
        bool, flag("--transient", "A queue in memory alone, of a store that a process has open.")
    ] = False,
    store_dir: Annotated[str | None, option("--store-dir", "DIR", "The store's directory.")] = None,
    data_dir: Annotated[
        str | None, option("--data-dir", "DIR", f"The store is the folder {STORE_FOLDER} of DIR.")
    ] = None,
    no_data_dir: Annotated[bool, flag("--no-data-dir", "There is no --data-dir: --store-dir is given.")] = False,
    connect: ConnectUrl = None,
    catalog: CatalogName = None,
    container_size: Annotated[
        int | None,
        typer.Option(
            *("--container-size", "--container-bytes", "-container-size"),
            metavar="BYTES",
            min=1,
            help="Of a new store: of each container, rounded up to 512 KiB and to 4 KiB.",
            show_default=str(DEFAULTS.container_bytes),
        ),
    ] = None,
    initial_containers: Annotated[
        int | None,
        option(
            "--initial-containers",
            "N",
            "Of a new store: how many containers it has at least.",
            min=2,
            show_default=str(DEFAULTS.initial_containers),
        ),
    ] = None,
    write_buffers: WriteBuffers = DEFAULTS.write_buffers,
    as_json: AsJson = False,
) -> None:
    """Create a queue, or an exchange, if it is missing; a store that is missing too. Its parent has to exist.

    A store that exists keeps its containers: their size and number are then said to be left aside.

    \b
    Example:
      tranlog queue declare mail orders
      tranlog queue declare --store-dir mail --container-size 4194304 --initial-containers 4 orders
      tranlog queue declare mail events --exchange topic
      tranlog queue declare mail orders --connect postgresql://mail@db/ --catalog mail
    """
    if exchange is not None and exchange not in EXCHANGE_TYPES:
        raise typer.BadParameter(f"is none of {', '.join(EXCHANGE_TYPES)}", param_hint="--exchange")
    if alternate is not None and exchange is None:
        raise typer.BadParameter("only an exchange has one: name its type by --exchange", param_hint="--alternate")
    if transient and exchange is not None:
        raise typer.BadParameter("only a queue is transient", param_hint="--transient")
    if data_dir is not None and no_data_dir:
        raise typer.BadParameter("is given, and --no-data-dir too", param_hint="--data-dir")
    named = store_dir or (None if data_dir is None else os.path.join(data_dir, STORE_FOLDER))
    if named is None and no_data_dir:
        raise typer.BadParameter("has to be given with --no-data-dir", param_hint="--store-dir")
    if len(words) != (2 if named is None else 1):
        hint = "takes DIR and NAME, or NAME alone with --store-dir or --data-dir"
        raise typer.BadParameter(hint, param_hint="[DIR] NAME")
    directory, name = words if named is None else (named, words[0])
    if (why := why_no_name("name", name)) is not None:
        raise typer.BadParameter(f"{name!r} cannot be declared: {why}", param_hint="NAME")
    options = QueueStoreOptions(
        connect=connect,
        catalog=catalog,
        container_bytes=whole_container(container_size or DEFAULTS.container_bytes),
        initial_containers=initial_containers or DEFAULTS.initial_containers,
        write_buffers=write_buffers,
    )
    created = False

    def make(path: str) -> MessageStore:
        nonlocal created
        made = open_or_make(path, options)
        created = made.recovered.created
        return made

    with store_part(directory, by_hand_or_owner(DEFAULTS, transient=True) if transient else make) as store:
        if created:
            say(f"made the store {os.path.abspath(directory)}")
        elif container_size is not None or initial_containers is not None:
            size = store.status().container_bytes
            say(f"{directory} exists and keeps its containers, of {size} bytes each, and how many it began with")
        if exchange is None:
            store.declare(DeclareQueue(queue=name, transient=transient))
        else:
            store.declare_exchange(DeclareExchange(exchange=name, kind=exchange, alternate=alternate))
    told = {"declared": name, "exchange": exchange, "transient": transient, "store_created": created}
    answer(told, f"declared the {'queue' if exchange is None else f'{exchange} exchange'} {name}", as_json)


def delete(
    directory: StoreDir,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the queue, or of the exchange.")],
    exchange: Annotated[bool, flag("--exchange", "It is an exchange.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a queue with its bindings and messages, or an exchange with its bindings.

    Exit code 1 if there is none, or if you decline.

    \b
    Example:
      tranlog queue delete mail orders -y
    """
    with store_part(directory, open_by_hand) as store:
        waiting = 0
        if not exchange:
            found = store.status().queues.get(name)
            waiting = 0 if found is None else found.waiting
            if waiting and not yes:
                confirm(f"Delete the queue {name} with {waiting} messages?")
        (store.delete_exchange if exchange else store.delete)(ByName(name=name))
    line = f"deleted the exchange {name}" if exchange else f"deleted the queue {name} with {waiting} messages"
    answer({"deleted": name, "messages": waiting}, line, as_json)


def _binding_command(done: str, told: str) -> Callable[..., None]:
    """Return `bind` or `unbind`, by what it has done and what it tells."""

    def command(
        directory: StoreDir,
        exchange: ExchangeName,
        name: Destination,
        key: RoutingKey = "",
        headers: HeadersJson = None,
        to_exchange: ToExchange = False,
        as_json: AsJson = False,
    ) -> None:
        asked = _binding(exchange, name, to_exchange, key, headers)
        with store_part(directory, open_by_hand) as store:
            (store.bind if done == "bound" else store.unbind)(asked)
        line = f"{done} {exchange} {'to' if done == 'bound' else 'from'} {name}, key {key!r}"
        answer({done: {"exchange": exchange, "to": name, "key": key}}, line, as_json)

    command.__doc__ = told
    return command


_BIND = """Bind an exchange to a queue, or to another exchange. A binding that is there stays as it is.

A headers exchange takes --headers, with "x-match" one of all, any, all-with-x, any-with-x. Exit code 1 if a name is
not there.

\b
Example:
  tranlog queue bind mail events orders --key 'orders.#'
"""
_UNBIND = """Remove a binding: the one with this very key and these headers. Exit code 1 if there is none.

\b
Example:
  tranlog queue unbind mail events orders --key 'orders.#'
"""


def _binding(exchange: str, name: str, to_exchange: bool, key: str, headers: str | None) -> Bind:
    queue, destination = (None, name) if to_exchange else (name, None)
    return Bind(exchange=exchange, queue=queue, destination=destination, key=key, arguments=headers_of(headers))

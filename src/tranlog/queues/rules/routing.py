"""Routing: from an exchange, a key and headers to the queues that a message goes to.

Owns the types of exchanges, and how bindings of each are looked up. The hard idea: few of many topic bindings concern
one key. So they stand in a tree by their words, and a look-up follows the words of the key.

Source: AMQP 0-9-1, "Exchange Types".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

DIRECT, FANOUT, TOPIC, HEADERS = "direct", "fanout", "topic", "headers"
EXCHANGE_TYPES = (DIRECT, FANOUT, TOPIC, HEADERS)
DEFAULT_EXCHANGE = ""
"""Its key is a queue's name; every queue is bound to it, by nothing that could be unbound."""
_MATCHES = {"all": (True, False), "any": (False, False), "all-with-x": (True, True), "any-with-x": (False, True)}
"""x-match: whether all have to match, and whether names that begin with x- count."""

Headers = Mapping[str, object]


class RoutedExchange(Protocol):
    """The properties of an exchange that routing needs."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def alternate(self) -> str | None: ...


class RoutedBinding(Protocol):
    """The properties of a binding that routing needs: one of the two destination ids is None."""

    @property
    def exchange_id(self) -> int: ...
    @property
    def queue_id(self) -> int | None: ...
    @property
    def destination_id(self) -> int | None: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def arguments(self) -> bytes: ...


class _Topics:
    """Topic bindings, by the words of their keys. `*` stands for one word, `#` for any number of them, none too."""

    __slots__ = ("_below", "_here")

    def __init__(self) -> None:
        self._below: dict[str, _Topics] = {}
        self._here: list[RoutedBinding] = []

    def add(self, binding: RoutedBinding) -> None:
        at = self
        for word in binding.routing_key.split("."):
            at = at._below.setdefault(word, _Topics())
        at._here.append(binding)

    def find(self, key: str) -> Iterator[RoutedBinding]:
        words = key.split(".")
        ends: dict[int, _Topics] = {}
        seen: set[tuple[int, int]] = set()
        todo: list[tuple[_Topics, int]] = [(self, 0)]
        while todo:
            at, number = todo.pop()
            if (id(at), number) in seen:
                continue
            seen.add((id(at), number))
            if number == len(words):
                ends[id(at)] = at
            else:
                for word in (words[number], "*"):
                    if word in at._below and word != "#":
                        todo.append((at._below[word], number + 1))
            below = at._below.get("#")
            if below is not None:
                todo += [(below, further) for further in range(number, len(words) + 1)]
        for end in ends.values():
            yield from end._here


def headers_match(wanted: Headers, headers: Headers) -> bool:
    """Whether a message's headers match a binding's arguments. A value of None matches any value of that header.

    true and 1 are not the same.
    """
    every, with_x = _MATCHES[str(wanted.get("x-match", "all"))]
    named = [
        name in headers and (value is None or _is_same(headers[name], value))
        for name, value in wanted.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    ]
    return all(named) if every else any(named)


def _is_same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) is isinstance(other, bool)


def check_exchange(kind: str) -> str | None:
    """Return what is wrong with an exchange's type; None if it is valid."""
    return None if kind in EXCHANGE_TYPES else f"its type {kind!r} is none of {', '.join(EXCHANGE_TYPES)}"


def check_arguments(kind: str, arguments: Headers) -> str | None:
    """Return what is wrong with a binding's arguments; None if they are valid."""
    match = arguments.get("x-match", "all")
    if kind == HEADERS and (not isinstance(match, str) or match not in _MATCHES):
        return f"its x-match {match!r} is none of {', '.join(_MATCHES)}"
    return None


class Router:
    """The bindings of one moment. `read` makes a mapping of a binding's arguments."""

    def __init__(
        self,
        queues: Mapping[str, int],
        exchanges: Iterable[RoutedExchange],
        bindings: Iterable[RoutedBinding],
        read: Callable[[bytes], Headers],
    ) -> None:
        """`queues`: their ids by name."""
        self._queues = queues
        self._by_id = {one.id: one for one in exchanges}
        self._by_name = {one.name: one for one in self._by_id.values()}
        self._direct: dict[tuple[int, str], list[RoutedBinding]] = {}
        self._all: dict[int, list[RoutedBinding]] = {}
        self._topics: dict[int, _Topics] = {}
        self._headers: dict[int, list[tuple[Headers, RoutedBinding]]] = {}
        for one in bindings:
            match self._by_id[one.exchange_id].type:
                case "direct":
                    self._direct.setdefault((one.exchange_id, one.routing_key), []).append(one)
                case "fanout":
                    self._all.setdefault(one.exchange_id, []).append(one)
                case "topic":
                    self._topics.setdefault(one.exchange_id, _Topics()).add(one)
                case _:
                    self._headers.setdefault(one.exchange_id, []).append((read(one.arguments), one))

    def route(self, exchange: str, key: str, headers: Headers) -> list[int]:
        """Return the ids of the queues, rising, each once. Raises KeyError for an unknown exchange."""
        if exchange == DEFAULT_EXCHANGE:
            return [self._queues[key]] if key in self._queues else []
        found: set[int] = set()
        start = self._by_name[exchange]
        todo, seen = [start], {start.id}
        while todo:
            at = todo.pop()
            bindings = self._matching(at, key, headers)
            found.update(one.queue_id for one in bindings if one.queue_id is not None)
            further = [self._by_id[one.destination_id] for one in bindings if one.destination_id is not None]
            if not bindings and at.alternate is not None and at.alternate in self._by_name:
                further = [self._by_name[at.alternate]]
            for one in further:
                if one.id not in seen:
                    seen.add(one.id)
                    todo.append(one)
        return sorted(found)

    def _matching(self, exchange: RoutedExchange, key: str, headers: Headers) -> list[RoutedBinding]:
        match exchange.type:
            case "direct":
                return self._direct.get((exchange.id, key), [])
            case "fanout":
                return self._all.get(exchange.id, [])
            case "topic":
                tree = self._topics.get(exchange.id)
                return [] if tree is None else list(tree.find(key))
            case _:
                row = self._headers.get(exchange.id, [])
                return [one for wanted, one in row if headers_match(wanted, headers)]

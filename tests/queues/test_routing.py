"""Routing, held against a naive one that walks over every binding; conformance A1 and the types of AMQP 0-9-1."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlog.queues.files.catalogue import Exchange, QueueBinding
from tranlog.queues.rules.routing import EXCHANGE_TYPES, Headers, Router, check_arguments, check_exchange, headers_match

WORDS = st.sampled_from(["a", "b", "", "*", "#"])
KEYS = st.lists(WORDS, max_size=5).map(".".join)
MATCHES = st.sampled_from(["all", "any", "all-with-x", "any-with-x"])
VALUES = st.sampled_from([1, "1", None, True])
TABLES = st.dictionaries(st.sampled_from(["h", "i", "x-j"]), VALUES)
NAMES = "pqrs"


def words_match(pattern: list[str], words: list[str]) -> bool:
    """Topic matching as the standard says it, by recursion."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(words_match(pattern[1:], words[start:]) for start in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and words_match(pattern[1:], words[1:])


def naive(
    exchanges: list[Exchange], bindings: list[QueueBinding], start: Exchange, key: str, headers: Headers
) -> set[int]:
    found: set[int] = set()
    seen: set[int] = set()

    def visit(at: Exchange) -> None:
        if at.id in seen:
            return
        seen.add(at.id)
        matching = []
        for one in bindings:
            if one.exchange_id != at.id:
                continue
            wanted = json.loads(one.arguments)
            by_type = {
                "direct": one.routing_key == key,
                "fanout": True,
                "topic": words_match(one.routing_key.split("."), key.split(".")),
                "headers": headers_match(wanted, headers),
            }
            if by_type[at.type]:
                matching.append(one)
        for one in matching:
            if one.queue_id is not None:
                found.add(one.queue_id)
            else:
                visit(next(other for other in exchanges if other.id == one.destination_id))
        if not matching:
            for other in exchanges:
                if other.name == at.alternate:
                    visit(other)

    visit(start)
    return found


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Exchange], list[QueueBinding]]:
    exchanges = [
        Exchange(
            number,
            name,
            draw(st.sampled_from(EXCHANGE_TYPES)),
            draw(st.sampled_from([None, *NAMES, "nowhere"])),
            b"",
        )
        for number, name in enumerate(NAMES, start=1)
    ]
    bindings = []
    for number in range(draw(st.integers(0, 12))):
        to_queue = draw(st.booleans())
        target = draw(st.integers(1, 4))
        arguments = draw(TABLES) | draw(st.sampled_from([{}, {"x-match": draw(MATCHES)}]))
        bindings.append(
            QueueBinding(
                number,
                draw(st.integers(1, 4)),
                target if to_queue else None,
                None if to_queue else target,
                draw(KEYS),
                json.dumps(arguments).encode(),
            )
        )
    return exchanges, bindings


@given(tables(), KEYS.filter(lambda key: "*" not in key and "#" not in key), TABLES)
def test_a_router_finds_what_a_walk_over_all_bindings_finds(
    given_tables: tuple[list[Exchange], list[QueueBinding]], key: str, headers: Headers
) -> None:
    exchanges, bindings = given_tables
    router = Router({}, exchanges, bindings, json.loads)
    for one in exchanges:
        assert router.route(one.name, key, headers) == sorted(naive(exchanges, bindings, one, key, headers))


@given(KEYS, KEYS)
def test_a_topic_matches_word_by_word(pattern: str, key: str) -> None:
    """A key may hold the signs too: they are words like others there."""
    binding = QueueBinding(1, 1, 5, None, pattern, b"{}")
    router = Router({}, [Exchange(1, "x", "topic", None, b"")], [binding], json.loads)
    assert bool(router.route("x", key, {})) is words_match(pattern.split("."), key.split("."))


@pytest.mark.parametrize(
    ("wanted", "headers", "matches"),
    [
        ({}, {}, True),
        ({"x-match": "any"}, {"h": 1}, False),
        ({"h": 1, "i": 2}, {"h": 1}, False),
        ({"h": 1, "i": 2, "x-match": "any"}, {"h": 1}, True),
        ({"h": None}, {"h": "whatever"}, True),
        ({"h": None}, {}, False),
        ({"h": 1, "x-j": 2}, {"h": 1}, True),
        ({"h": 1, "x-j": 2, "x-match": "all-with-x"}, {"h": 1}, False),
        ({"x-j": 2, "x-match": "any"}, {"x-j": 2}, False),
        ({"x-j": 2, "x-match": "any-with-x"}, {"x-j": 2}, True),
        ({"h": 1}, {"h": True}, False),
        ({"h": True}, {"h": 1}, False),
        ({"h": False}, {"h": False}, True),
        ({"h": 1}, {"h": 1.0}, True),
    ],
)
def test_headers_match_as_their_binding_says(wanted: Headers, headers: Headers, matches: bool) -> None:
    assert headers_match(wanted, headers) is matches


def test_the_default_exchange_leads_to_the_queue_of_that_name() -> None:
    router = Router({"q": 7}, [], [], json.loads)
    assert router.route("", "q", {}) == [7]
    assert router.route("", "r", {}) == []
    with pytest.raises(KeyError):
        router.route("x", "q", {})


def test_what_is_no_type_and_no_match_is_told() -> None:
    assert [check_exchange(kind) for kind in EXCHANGE_TYPES] == [None] * 4
    assert "'odd' is none of" in str(check_exchange("odd"))
    assert check_arguments("headers", {"x-match": "any"}) is None
    assert check_arguments("topic", {"x-match": "odd"}) is None
    odds: list[object] = ["odd", ["all"], {}, None]
    for odd in odds:
        assert f"{odd!r} is none of" in str(check_arguments("headers", {"x-match": odd}))


class CountedBinding:
    """A binding that counts how often anything of all of them is read."""

    reads = 0

    def __init__(self, binding: QueueBinding) -> None:
        self._binding = binding

    def __getattr__(self, name: str) -> Any:
        CountedBinding.reads += 1
        return getattr(self._binding, name)


def test_ten_thousand_topics_are_no_list_to_walk() -> None:
    """Of all bindings a message's way reads those that it goes by."""
    exchange = Exchange(1, "x", "topic", None, b"")
    bindings: list[Any] = [
        CountedBinding(QueueBinding(n, 1, n, None, f"a.{n}.*.{n % 7}", b"{}")) for n in range(10_000)
    ]
    router = Router({}, [exchange], bindings, json.loads)
    CountedBinding.reads = 0
    for number in range(300):
        assert router.route("x", f"a.{number}.b.{number % 7}", {}) == [number]
    assert 300 <= CountedBinding.reads <= 300 * 4

"""replication/rules/versions.py: what two releases speak to each other. docs/protocol.md, "Handshake"."""

from __future__ import annotations

import itertools

import pytest

from tranlog.replication.rules.versions import SPOKEN, Versions, versions_differ


@pytest.mark.parametrize(
    ("own", "others", "agreed"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 1), (1, 2), 1),
        ((1, 2), (1, 2), 2),
        ((2, 4), (1, 3), 3),
        ((2, 2), (1, 1), None),
        ((1, 1), (2, 3), None),
        ((1, 1), (), None),
        ((1, 2), (1,), 1),
    ],
)
def test_it_is_the_highest_that_both_speak(own: tuple[int, int], others: tuple[int, ...], agreed: int | None) -> None:
    assert Versions(*own).agreed(others) == agreed


def test_both_ends_come_to_the_same() -> None:
    """Against the plain definition: the greatest of what both sets hold."""
    all_of = [Versions(low, high) for low, high in itertools.product(range(1, 6), repeat=2) if low <= high]
    for one, other in itertools.product(all_of, repeat=2):
        both = set(range(one.lowest, one.highest + 1)) & set(range(other.lowest, other.highest + 1))
        assert one.agreed(other) == other.agreed(one) == max(both, default=None)


def test_what_is_said_names_both() -> None:
    assert versions_differ("node a", SPOKEN, "shop", (3, 4)) == (
        "node a speaks protocol versions 1 to 2, and shop protocol versions 3 to 4; update the older one"
    )
    assert "and it no version" in versions_differ("node a", SPOKEN, "it", ())

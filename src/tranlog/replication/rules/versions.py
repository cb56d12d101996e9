"""The version of the protocol between two ends: the highest that both know.

Owns the agreement, and the error if there is none. Each end names the lowest and the highest version that it speaks. A
release that adds a version also speaks the one before it, so a group can be upgraded a node at a time.

Source: docs/protocol.md, "Handshake".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tranlog.replication.rules.packets import PROTOCOL_LOWEST, PROTOCOL_VERSION


class Versions(NamedTuple):
    """The versions that one end speaks, both limits inclusive."""

    lowest: int
    highest: int

    def agreed(self, others: Sequence[int]) -> int | None:
        """Return the version for a connection to an end that speaks `others`, from the least to the greatest.

        None if there is none.
        """
        if not others:
            return None
        version = min(self.highest, max(others))
        return version if version >= max(self.lowest, min(others)) else None


SPOKEN: Final = Versions(PROTOCOL_LOWEST, PROTOCOL_VERSION)
"""What this release speaks."""


def versions_differ(one: str, ones: Sequence[int], other: str, others: Sequence[int]) -> str:
    """Return the error if there is no agreement; `one` and `other` name the ends."""
    return f"{one} speaks {_text(ones)}, and {other} {_text(others)}; update the older one"


def _text(versions: Sequence[int]) -> str:
    if not versions:
        return "no version of the protocol"
    lowest, highest = min(versions), max(versions)
    return f"protocol version {lowest}" if lowest == highest else f"protocol versions {lowest} to {highest}"

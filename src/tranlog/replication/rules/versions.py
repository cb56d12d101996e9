"""Which version of the protocol two ends speak: the highest that both know.

Owns the agreement, and what is said where there is none. Each end names the lowest and the highest version that it
speaks; a release that adds a version goes on speaking the one before it, so a group is upgraded a node at a time.

Source: docs/protocol.md, "Handshake".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tranlog.replication.rules.packets import PROTOCOL_LOWEST, PROTOCOL_VERSION


class Versions(NamedTuple):
    """What one end speaks; both ends inclusive."""

    lowest: int
    highest: int

    def agreed(self, others: Sequence[int]) -> int | None:
        """Return the version for a connection to whoever speaks from the least of `others` to the greatest.

        None where there is none.
        """
        if not others:
            return None
        version = min(self.highest, max(others))
        return version if version >= max(self.lowest, min(others)) else None


SPOKEN: Final = Versions(PROTOCOL_LOWEST, PROTOCOL_VERSION)
"""What this release speaks."""


def versions_differ(one: str, ones: Sequence[int], other: str, others: Sequence[int]) -> str:
    """Return what to say where nothing is agreed; `one` and `other` name the ends."""
    return f"{one} speaks {_text(ones)}, and {other} {_text(others)}; update the older one"


def _text(versions: Sequence[int]) -> str:
    if not versions:
        return "no version of the protocol"
    lowest, highest = min(versions), max(versions)
    return f"protocol version {lowest}" if lowest == highest else f"protocol versions {lowest} to {highest}"

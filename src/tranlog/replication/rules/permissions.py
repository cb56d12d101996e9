"""The permissions of a client at a node, by the name in its certificate.

Owns the permissions, and which purpose needs which. Plain TCP is allowed on loopback only; there clients have no names,
and all have every permission.

Source: docs/replication.md, "TLS and permissions".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

Permission = Literal["read", "write", "operate"]
NEEDED: Final[Mapping[str, Permission]] = {"commit": "write", "read": "read", "administer": "operate"}
"""By purpose of a client's connection."""
Clients = Mapping[str, Sequence[Permission]]
"""What each client may do, by name."""


def permission_refused(clients: Clients, name: str, purpose: str) -> str:
    """Return why the client of that name may not connect for a purpose; empty if it may."""
    needed = NEEDED[purpose]
    if needed in clients.get(name, ()):
        return ""
    told = ", ".join(f'"{one}"' for one in (*clients.get(name, ()), needed))
    return (
        f"the client {name or 'without a name'} has no permission to {needed} here: "
        f"`clients` in [group] of each node has to say {name or 'NAME'} = [{told}]"
    )

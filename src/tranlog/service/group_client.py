"""A group of nodes from Python: what `tranlog.connect("thl://…")` returns.

Owns what a program's changes are as a transaction; the primary and its answers are `replication/acting/client`'s.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping

from tranlog.clock import SYSTEM_CLOCK
from tranlog.replication.acting.client import FIND_S, AsyncGroup, Pack, RemoteGroup
from tranlog.source.packer import ChangePacker


def connect_async(
    url: str,
    *,
    name: str = "",
    tls: ssl.SSLContext | None = None,
    via: Mapping[str, str] | None = None,
    find_s: float = FIND_S,
) -> AsyncGroup:
    """Return a group for programs of asyncio. `url`: `thl://HOST:PORT,HOST:PORT`, some of its nodes.

    `name`: the source id of what is committed, by default the host's name. `via`: by a node's name, at which address
    to reach it. `find_s`: how long a primary is looked for. Nothing is connected yet. Raises ConfigError.
    """
    return AsyncGroup(url, _packing(name), name=name, tls=tls, via=via, find_s=find_s)


def connect_group(
    url: str,
    *,
    name: str = "",
    tls: ssl.SSLContext | None = None,
    via: Mapping[str, str] | None = None,
    find_s: float = FIND_S,
) -> RemoteGroup:
    """As `connect_async`, for other programs."""
    return RemoteGroup(url, _packing(name), name=name, tls=tls, via=via, find_s=find_s)


def _packing(name: str) -> Pack:
    source_id = name or socket.gethostname()

    def begin(event_id: str) -> ChangePacker:
        return ChangePacker(source_id=source_id, event_id=event_id, tstamp=SYSTEM_CLOCK.now_ms())

    return begin

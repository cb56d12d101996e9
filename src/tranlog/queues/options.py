"""How a message store is set up.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid, "Plugin Options".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tranlog.errors import ConfigError
from tranlog.option_kinds import Bounds, check_bounds, check_kinds
from tranlog.queues.rules.records import CONTAINER_BYTES_LEAST, CONTAINER_BYTES_MOST, PAGE_BYTES

OPTION_CONTAINER_BYTES_LEAST = 512 * 1024
"""What a size of containers that people name is rounded up to. Tests make smaller ones."""


def whole_container(size: int) -> int:
    """Return a size of containers, in bytes, rounded up to 512 KiB and to pages, which are whole sectors."""
    return -(-max(size, OPTION_CONTAINER_BYTES_LEAST) // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStoreOptions:
    """Sizes of a store. Those of containers only matter for a new one: a store that exists keeps its own.

    `container_bytes`: of each container, a multiple of 4,096. `initial_containers`: how many a new store has, and
    below how many it never goes. `write_buffers`: so many pending buffers of 64 KiB are written without waiting for a
    commit. `content_bytes`: how much content of waiting messages is kept in memory; the rest is read back.
    `transient_bytes`: how much memory transient messages take at most, 400 bytes each beside their content; more are
    refused.
    `ack_sync_s`: acknowledgements that nobody waits for are durable after so many seconds, 0.001 to 3600; None: with
    the next sync.
    `connect`: the PostgreSQL that has the catalogue, a connection string of libpq's; the store's directory keeps it,
    without a password. None: what it keeps, else SQLite in the directory. `catalog`: the database there, which is made
    if it is missing; None: the one that `connect` names.
    """

    container_bytes: int = 1 << 20
    initial_containers: int = 2
    write_buffers: int = 10
    content_bytes: int = 128 << 20
    transient_bytes: int = 64 << 20
    ack_sync_s: float | None = 0.05
    connect: str | None = field(default=None, repr=False)
    catalog: str | None = None

    def check(self) -> None:
        """Raise ConfigError for an invalid value."""
        check_kinds(self)
        check_bounds(self, _BOUNDS)
        if self.container_bytes % PAGE_BYTES:
            why = f"it has to be a multiple of {PAGE_BYTES}"
            raise ConfigError(option="container_bytes", value=self.container_bytes, why=why)


_SIZES = f"it has to be {CONTAINER_BYTES_LEAST} to {CONTAINER_BYTES_MOST}"
_BOUNDS: Bounds = (
    ("container_bytes", CONTAINER_BYTES_LEAST, CONTAINER_BYTES_MOST, _SIZES),
    ("initial_containers", 2, 1 << 20, f"it has to be 2 to {1 << 20}"),
    ("write_buffers", 1, 1 << 14, f"it has to be 1 to {1 << 14}"),
    ("content_bytes transient_bytes", 0, 1 << 50, f"it has to be 0 to {1 << 50}"),
    ("ack_sync_s", 0.001, 3_600, "it has to be 0.001 to 3600 seconds, or None"),
)

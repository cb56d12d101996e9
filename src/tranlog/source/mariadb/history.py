"""Whether a server has the history that the log has: its last transaction, looked at in the server's own binlog.

Owns reading that one transaction. Where to look for it is `server_binlog`'s. The hard idea: GTIDs, files and offsets
are given out again by a server that was reset, restored or replaced; the same transaction is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from tranlog.errors import SourceUnavailableError
from tranlog.source.mariadb.connection import MariadbSourceOptions
from tranlog.source.mariadb.groups import EventGroup, EventStore, GroupAssembler
from tranlog.source.mariadb.position import BinlogPosition, DomainGtid
from tranlog.source.mariadb.server_binlog import ServerBinlog
from tranlog.source.mariadb.stream import BinlogStream


def continue_from(
    binlog: ServerBinlog, options: MariadbSourceOptions, position: BinlogPosition, *, accepted: bool
) -> BinlogPosition:
    """Return the position as this server has it, once it is proven to have the same history, or `accepted`.

    Raises: PositionLostError, SourceUnavailableError, SourceSetupError.
    """
    on = binlog.resume(position, accepted=accepted)
    last = on.position.last
    if on.look is None or last is None:
        return on.position
    wanted = on.position.by_domain()[last.domain]
    found = _transaction(options, on.position, on.look, wanted)
    if found is None:
        raise binlog.lost(position, f"it does not hold {wanted} at {on.look[0]}:{on.look[1]} or after it")
    there = found.position.last
    assert there is not None
    if there.checksum != last.checksum:
        when = datetime.fromtimestamp(found.timestamp, UTC)
        raise binlog.lost(
            position,
            f"what it holds as {wanted} was committed at {when:%Y-%m-%d %H:%M:%S} UTC and ends at "
            f"{found.position.file}:{found.position.offset}, checksum {there.checksum:08x}; the log's, checksum "
            f"{last.checksum:08x}, is another transaction (`thl list -event '{position}'`)",
        )
    return on.position


def _transaction(
    options: MariadbSourceOptions, position: BinlogPosition, place: tuple[str, int], wanted: DomainGtid
) -> EventGroup | None:
    """Return a transaction of the server's binlog, its events dropped, looked for from `place` on; None: not there."""
    stream = BinlogStream(options, position, place=place)
    try:
        assembler = GroupAssembler(
            BinlogPosition(file=place[0]),
            new_store=_NoStore,
            transaction_bytes_max=options.transaction_bytes_max,
            captures=lambda _: False,
        )
        while True:
            try:
                events = stream.take(options.connect_timeout_s)
            except SourceUnavailableError:
                if stream.ended:
                    return None
                raise
            for event in events:
                group = assembler.feed(event)
                if group is not None and group.gtid.gtid.domain == wanted.domain:
                    if group.gtid.gtid == wanted:
                        return group
                    if group.gtid.gtid.sequence > wanted.sequence:
                        return None
    finally:
        stream.close()


class _NoStore(EventStore):
    """Keeps no event."""

    def append(self, event: bytes) -> None:
        pass

    def __iter__(self) -> Iterator[bytes]:
        return iter(())

    def close(self) -> None:
        pass

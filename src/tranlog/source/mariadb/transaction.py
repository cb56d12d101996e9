"""A transaction of the binlog while it is made into fragments: its events, where it stands, and its refusal."""

from __future__ import annotations

from dataclasses import dataclass

from tranlog.errors import UnsupportedEventError
from tranlog.source.mariadb.groups import START_ANEW, EventGroup
from tranlog.source.mariadb.position import BinlogPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTransaction:
    """One committed transaction. `held` is the group with its changes: that of the PREPARE for a committed XA one."""

    group: EventGroup
    held: EventGroup
    before: BinlogPosition
    after: BinlogPosition

    @property
    def _place(self) -> str:
        return f"{self.group.position.file}, up to offset {self.group.position.offset}"

    def refused(self, what: str, remedy: str = "") -> UnsupportedEventError:
        """Return the error for something in it that cannot be captured."""
        return UnsupportedEventError(
            what=f"{what} cannot be captured (transaction {self.group.gtid.gtid}, {self._place})",
            event_id=str(self.before),
            remedy=remedy + START_ANEW,
        )

    def broken(self, why: str) -> UnsupportedEventError:
        """Return the error for events that are damaged."""
        return UnsupportedEventError(
            what=f"transaction {self.group.gtid.gtid} ({self._place}) is damaged or of a form that is not known: {why}",
            event_id=str(self.before),
            remedy=CHECK_FILE,
        )


CHECK_FILE = "Check the file with `mariadb-binlog --verify-binlog-checksum`; if it is whole, start capture again"
"""What to do about a damaged event."""

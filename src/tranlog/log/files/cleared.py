"""The mark that a cleared log leaves, and where a log without records begins.

Owns the file `cleared`; clearing is `log.upkeep.clearing`'s. The hard idea: a target remembers how far it is by seqno
and epoch; a log that began again at 0 would make it skip what it has never seen. So whoever opens a log without records
for writing begins after the mark, and has the history and the source's position that the log had.

Source: docs/format.md; docs/decisions/0005.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from tranlog.disk import Disk
from tranlog.errors import LogUnreadableError
from tranlog.ids import HISTORY_BYTES, NO_SEQNO, Epoch, Gtid, Seqno

MARK_NAME: Final = "cleared"
_NUMBER_MAX: Final = (1 << 63) - 1


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What a cleared log leaves: the last GTID that it had assigned, the source's position there, and its history.

    `history` is in hex; empty where no segment told it any more.
    """

    epoch: Annotated[int, msgspec.Meta(ge=0, le=_NUMBER_MAX)]
    seqno: Annotated[int, msgspec.Meta(ge=NO_SEQNO, le=_NUMBER_MAX)]
    event_id: str
    cleared_at: int
    history: Annotated[str, msgspec.Meta(pattern=rf"^([0-9a-f]{{{2 * HISTORY_BYTES}}})?$")] = ""

    @property
    def gtid(self) -> Gtid:
        """The last GTID that was assigned."""
        return Gtid(Epoch(self.epoch), Seqno(self.seqno))


def behind_all(known: list[Gtid]) -> Gtid | None:
    """Return the position after which a log without records begins, so that it is after each known one. Pure.

    None: at seqno 0, epoch 1.
    """
    epoch = max((gtid.epoch for gtid in known), default=Epoch(0))
    seqno = max((gtid.seqno for gtid in known), default=NO_SEQNO)
    return None if (epoch, seqno) == (0, NO_SEQNO) else Gtid(epoch, seqno)


def read_mark(path: str, *, disk: Disk) -> Mark | None:
    """Return the mark of the log at `path`; None where it was never cleared. Raises LogUnreadableError."""
    name = f"{path.rstrip('/')}/{MARK_NAME}"
    try:
        file = disk.open(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise LogUnreadableError(path=name, why=exc.strerror or str(exc)) from exc
    try:
        return msgspec.json.decode(file.pread(file.size(), 0), type=Mark)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as exc:
        why = f"the mark of the last clearing is damaged ({exc}); it says which GTIDs were assigned"
        raise LogUnreadableError(path=name, why=why, remedy="Restore the file from a copy") from exc
    finally:
        file.close()

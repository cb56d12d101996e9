"""A native log that takes over the transactions of another one, with their identities.

Owns the one difference to `Log`: seqno and epoch come with each transaction and are not given out, so opening it
begins no epoch and leaves no no-op. The hard idea: what is copied must be the same history, so a transaction that
does not follow the last one is refused.

Source: design/architecture.md, decision 2 (equal GTIDs mean equal history).
"""

from __future__ import annotations

from threading import get_ident

from tranlog.change import Fragment
from tranlog.errors import AppendOrderError
from tranlog.ids import NO_EPOCH, Gtid
from tranlog.log.writing.log import Log


class CopiedLog(Log):
    """A log opened to copy into it. `append_copy` stands in the place of `append`. Threads: one."""

    def _begin_epoch(self) -> None:
        """Stay in the epoch of what is there; there is no no-op."""
        last = self.last()
        self._pending.epoch = NO_EPOCH if last is None else last.epoch
        with self._lock:
            self._sync_now()
            self._tell()

    def append_copy(self, fragment: Fragment, gtid: Gtid) -> None:
        """Put a fragment of the transaction `gtid` behind the last one; nothing is visible before `commit`.

        Raises AppendOrderError for one that does not follow, and what `append` raises.
        """
        me = get_ident()
        pending = self._pending
        with self._lock:
            if gtid.seqno == pending.last + 1 and gtid.epoch == pending.epoch and pending.add(fragment, me):
                return
            self._await_turn(me)
            if gtid.seqno != pending.last + 1 or gtid.epoch < pending.epoch:
                last = Gtid(pending.epoch, pending.last)
                raise AppendOrderError(path=self._path, why=f"{gtid} behind {last}")
            pending.epoch = gtid.epoch
            self._append(fragment, me)

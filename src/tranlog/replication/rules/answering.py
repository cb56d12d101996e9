"""The answers to the question whether a write concern is met, for commits and for GTIDs.

Owns the open questions of a primary, and when each is answered. The hard idea: a lax question never waits for a strict
one, and no transaction is reported as lost before a record of this reign is committed.

Source: docs/protocol.md, "Write concern".
"""

from __future__ import annotations

from tranlog.errors import ConfigError
from tranlog.ids import Gtid
from tranlog.replication.rules import acks as ack_rules
from tranlog.replication.rules import concern
from tranlog.replication.rules.concern import OpenQuestion
from tranlog.replication.rules.config import GroupConfig, check_w
from tranlog.replication.rules.effects import ReplicatedLog
from tranlog.replication.rules.packets import PRIMARY
from tranlog.replication.rules.reign import Reigning
from tranlog.replication.rules.syncup import holds


class Answering(Reigning):
    """A node that answers questions while it is primary."""

    def ask(
        self,
        number: int,
        gtid: Gtid,
        w: int | str | None = None,
        wtimeout_ms: int | None = None,
        *,
        later: bool = False,
    ) -> None:
        """Ask whether `w` is met for a GTID; the answer is a `Tell`. Raises ConfigError for a `w` that cannot be met.

        `wtimeout_ms` 0: no limit. None: the group's default. `later`: handle it with the next event.
        """
        mind, config = self.mind, self.config
        w = config.w if w is None else w
        timeout = config.wtimeout_ms if wtimeout_ms is None else wtimeout_ms
        check_w(config, w)
        waiting = OpenQuestion(number, gtid, w, mind.now, mind.now + timeout if timeout else None)
        if mind.state != PRIMARY:
            self._tell(waiting, concern.NOT_PRIMARY)
            return
        mind.waiting.append(waiting)
        if not later:
            self._answer()

    def _install(self, config: GroupConfig) -> None:
        """Install a configuration. What can never be met by it is not waited for."""
        super()._install(config)
        for one in self.mind.waiting[:]:
            try:
                check_w(config, one.w)
            except ConfigError:
                self.mind.waiting.remove(one)
                self._tell(one, concern.TIMED_OUT, self._having(one))

    def has_lost(self, gtid: Gtid) -> bool:
        """Whether a transaction that readers here would see by now is none of this log: it was rolled back.

        Of one that was purged and cannot be told from another one it is not said.
        """
        return gtid.seqno >= 0 and _held(self.log, gtid) is False

    def _having(self, waiting: OpenQuestion) -> tuple[str, ...]:
        """Return who has it durable. Of a transaction that this log does not hold, acks of later ones say nothing."""
        if not _held(self.log, waiting.gtid):
            return ()
        durable = ack_rules.durable_at(self.mind.acks, self.node, self.log.durable)
        return concern.named(self.config, concern.written_to(self.config, durable, waiting.gtid))

    def _answer(self) -> None:
        """Answer each question whose time has come, whatever others wait for."""
        mind, log, config = self.mind, self.log, self.config
        if not mind.waiting:
            return
        durable = ack_rules.durable_at(mind.acks, self.node, log.durable)
        furthest, still = max(durable.values()), []
        for one in mind.waiting:
            gtid = one.gtid
            if gtid > furthest and one.w != 0:
                still.append(one)  # most of them, most of the time
                continue
            held = _held(log, gtid)
            if held is None:
                self._tell(one, concern.PURGED)
            elif held and concern.is_met(config, one, durable, mind.committed, mind.epoch):
                self._tell(one, concern.SATISFIED, concern.named(config, concern.written_to(config, durable, gtid)))
            elif not held and gtid.epoch < mind.epoch == mind.committed.epoch:
                self._tell(one, concern.ROLLED_BACK)
            else:
                still.append(one)
        mind.waiting = still


def _held(log: ReplicatedLog, gtid: Gtid) -> bool | None:
    """Whether a log holds a transaction, or purged it as committed; None where what is purged cannot say.

    Epochs do not fall, so nothing of a later epoch than the first transaction's was purged. Each epoch has one primary:
    what has the first transaction's epoch and lies before it was in this log. With an earlier epoch, the transaction
    that was purged at that seqno may have been another one. What has no seqno never was.
    """
    if not 0 <= gtid.seqno < log.first:
        return gtid.seqno >= 0 and holds(log, gtid)
    if holds(log, gtid):
        return True
    first = log.gtid(log.first)
    if first is None or gtid.epoch < first.epoch:
        return None
    return gtid.epoch == first.epoch

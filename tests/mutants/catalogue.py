"""The mutants: each takes away one rule on which "nothing lost, nothing doubled" rests.

Owns their texts alone. What catches which, and within how many rounds, is said by the tests that do it. A mutant may
widen its own window (a pause where a kill would do harm), and never does more harm than the missing rule itself.
"""

from __future__ import annotations

from mutants.queue_rules import QUEUES
from mutants.replication_rules import REPLICATION
from mutants.rewriting import Edit, Mutant
from mutants.write_set_rules import TOUCHES, WRITE_SETS

_PAUSE_S = "float(__import__('os').environ.get('TRANLOG_MUTANT_PAUSE', '0.02'))"
_PAUSE = f"__import__('time').sleep({_PAUSE_S})"
"""Widens the window of a mutant, by so many seconds."""

_MOVE = """\
        task, walk, clock, target, writes = self._task, self._walk, self._clock, self._claim.target, self._writes
"""

POSITION_AFTER_COMMIT = Mutant(
    name="position-after-commit",
    what="the position is written in a transaction of its own, after the COMMIT of the rows",
    edits=(
        Edit(
            module="tranlog.target.position",
            old="""\
            session.begin()
            self.guard(advance)
            applied = write()
            self._store_plan(advance)
            committing = time.perf_counter()
            session.commit()
""",
            new=f"""\
            session.begin()
            applied = write()
            committing = time.perf_counter()
            session.commit()
            {_PAUSE}
            self.publish(advance)
""",
        ),
    ),
)

NO_GUARD = Mutant(
    name="no-guard",
    what="the update of the position compares neither the old position nor the token",
    edits=(
        Edit(
            module="tranlog.target.position",
            old="AND channel = $8 AND applied_seqno = $9 AND token = $10",
            new="AND channel = $8 AND $9 IS NOT NULL AND $10 IS NOT NULL",
        ),
        # Whoever is stopped or replaced has a group in hand, and a successor does not apply it at once.
        Edit(
            module="tranlog.pipeline.applying.channel",
            old=_MOVE,
            new=f"""\
{_MOVE}\
        if task is not self.__dict__.get("paused_for"):
            self.__dict__["paused_for"] = task
            {_PAUSE}
        elif group:
            __import__('time').sleep({_PAUSE_S} / 80)
""",
        ),
    ),
)

NO_TOKEN = Mutant(
    name="no-token",
    what="the update of the position compares the old position, and not the token",
    edits=(
        Edit(
            module="tranlog.target.position",
            old="AND channel = $8 AND applied_seqno = $9 AND token = $10",
            new="AND channel = $8 AND applied_seqno = $9 AND $10 IS NOT NULL",
        ),
    ),
)

CHANNEL_0_DOES_NOT_WAIT = Mutant(
    name="channel-0-does-not-wait",
    what="channel 0 applies the first transaction of a serial section without waiting for the others",
    edits=(
        Edit(
            module="tranlog.pipeline.rules.channels",
            old="behind = tuple(other for other in self._others if applied.get(other, -2) < seqno - 1)",
            new="behind = tuple(other for other in () if applied.get(other, -2) < seqno - 1)",
        ),
        Edit(
            module="tranlog.pipeline.applying.channel",
            old=_MOVE,
            new=f"{_MOVE}        if self._task.channel:\n            {_PAUSE}\n",
        ),
    ),
)

OTHERS_DO_NOT_WAIT = Mutant(
    name="others-do-not-wait",
    what="channels but 0 pass a serial transaction that channel 0 has not applied",
    edits=(
        Edit(
            module="tranlog.pipeline.rules.channels",
            old="            return self._meet_channel_0(seqno)\n",
            new="            return _SKIP\n",
        ),
        Edit(
            module="tranlog.pipeline.applying.channel",
            old=_MOVE,
            new=f"{_MOVE}        if not self._task.channel:\n            {_PAUSE}\n",
        ),
    ),
)

POSITION_AHEAD_OF_ROWS = Mutant(
    name="position-ahead-of-rows",
    what="the position is written in a transaction of its own, before the rows",
    edits=(
        Edit(
            module="tranlog.target.position",
            old="""\
            session.begin()
            self.guard(advance)
            applied = write()
            self._store_plan(advance)
            committing = time.perf_counter()
            session.commit()
""",
            new=f"""\
            self.publish(advance)
            {_PAUSE}
            session.begin()
            applied = write()
            committing = time.perf_counter()
            session.commit()
""",
        ),
    ),
)

SHARDS_BY_TURNS = Mutant(
    name="shards-by-turns",
    what="a transaction's channel is its seqno modulo the channels: turns by transaction break the order of shards",
    edits=(
        Edit(
            module="tranlog.pipeline.applying.channel",
            old="            if hops and (foreign or passes is not None) and not walk.run:\n",
            new="            if False:\n",
        ),
        Edit(
            module="tranlog.pipeline.applying.channel",
            old="            owner, why = (whose,",
            new="            if whose != SERIAL:\n                whose = seqno % self._task.plan.channels\n"
            "            owner, why = (whose,",
        ),
    ),
)

NO_DRAIN = Mutant(
    name="no-drain",
    what="another plan begins where one of the channels stands, and not where all of them do",
    edits=(
        Edit(
            module="tranlog.pipeline.rules.progress",
            old="    if len(positions) > 1:\n",
            new="    if not positions:\n",
        ),
    ),
)

OUTBOX_FREED_BEFORE_SYNC = Mutant(
    name="outbox-freed-before-sync",
    what="the source forgets a batch before the log has made it durable",
    edits=(
        Edit(
            module="tranlog.capture.capture",
            old="        seqno = self._log.commit()\n",
            new=f"""\
        assert self._batch_last is not None
        self._source.release(self._batch_last.event_id)
        {_PAUSE}
        seqno = self._log.commit()
""",
        ),
    ),
)

ACKNOWLEDGED_BEFORE_SYNC = Mutant(
    name="acknowledged-before-sync",
    what="the log's commit returns when the bytes are written; they are synced before the next ones",
    edits=(
        Edit(
            module="tranlog.log.writing.log_end",
            old="""\
        self.flush(zeros=True)
        if self.publishing.look_due():
""",
            new="""\
        self.journal.file.sync()
        self.flush(zeros=True)
        if self.publishing.look_due():
""",
        ),
        Edit(
            module="tranlog.group_commit",
            old="""\
                    with self._at_sync:
                        turn.run()
""",
            new="""\
                    pass
""",
        ),
    ),
)

MUTANTS = {
    mutant.name: mutant
    for mutant in (
        POSITION_AFTER_COMMIT,
        NO_GUARD,
        NO_TOKEN,
        CHANNEL_0_DOES_NOT_WAIT,
        OTHERS_DO_NOT_WAIT,
        POSITION_AHEAD_OF_ROWS,
        SHARDS_BY_TURNS,
        NO_DRAIN,
        OUTBOX_FREED_BEFORE_SYNC,
        ACKNOWLEDGED_BEFORE_SYNC,
        *REPLICATION,
        *QUEUES,
        *WRITE_SETS,
        *TOUCHES,
    )
}
"""By the name that `TRANLOG_MUTANT` takes."""

"""Syncup: the search, the verdicts, what a rollback keeps, the handshake.

Proves docs/protocol.md, "Syncup"; conformance/vlsn-index.md I38, S1; conformance/tokumx.md A10.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_group import A, Alone, B, group, gtid, log_of, of, sent
from sim.model_log import ModelLog
from tranlog.ids import Gtid
from tranlog.replication.rules.effects import Fatal, RollBack
from tranlog.replication.rules.packets import NO_GTID, PRIMARY, ROLLBACK, Here, Where
from tranlog.replication.rules.syncup import (
    Limits,
    SyncupFinding,
    Verdict,
    answer,
    first_question,
    handshake_refused,
    holds,
    judge,
    next_question,
    rollback_id,
    saved_rows,
)

NO_LIMITS = Limits(limit_s=1 << 40, allow_ddl=True)


def searched(
    mine: ModelLog, source: ModelLog, committed: Gtid = NO_GTID, limits: Limits = NO_LIMITS
) -> tuple[SyncupFinding, int]:
    """Search as two nodes do; return the finding and the number of rounds."""
    where, rounds = first_question(mine, 1), 0
    while True:
        rounds += 1
        here = answer(source, where, 9)
        further = next_question(mine, here)
        if further is None:
            return judge(mine, here, committed, limits), rounds
        assert further.gtid < where.gtid
        where = further


def emptied(begin: int) -> ModelLog:
    """Return a log that was purged up to `begin`, and lost what it still had."""
    log = ModelLog()
    log.begin = begin
    return log


def histories(prefix: list[int], one: list[int], other: list[int]) -> tuple[ModelLog, ModelLog]:
    """Return two logs with a common prefix; what follows it are epochs that only one of them has, as reigns go."""
    own = prefix + [2 * epoch for epoch in one]
    others = prefix + [2 * epoch + 1 for epoch in other]
    return log_of(*own), log_of(*others)


epochs = st.lists(st.integers(1, 4), max_size=6).map(sorted)


@given(prefix=epochs, one=epochs, other=epochs, purged=st.integers(0, 6), source_purged=st.integers(0, 6))
def test_the_greatest_common_gtid_is_found(
    prefix: list[int], one: list[int], other: list[int], purged: int, source_purged: int
) -> None:
    """Of what both still hold; in no more rounds than epochs differ, and one."""
    base = [1] + [1 + epoch for epoch in prefix]
    ahead = [epoch + 5 for epoch in one], [epoch + 5 for epoch in other]
    mine, source = histories(base, *ahead)
    mine.purge(purged - 1)
    source.purge(source_purged - 1)
    common = [g for s in range(20) if (g := mine.gtid(s)) is not None and source.gtid(s) == g]
    if not common and mine.first == source.first == 0:
        common = [NO_GTID]
    finding, rounds = searched(mine, source)
    assert rounds <= len({*ahead[0]} | {*ahead[1]}) + 2
    if not common:
        assert finding.verdict in (Verdict.RESTORE, Verdict.WAIT)
    else:
        assert finding.matchpoint == max(common)
        if finding.matchpoint == mine.last:
            assert finding.verdict is Verdict.STREAM
        else:
            assert finding.verdict is (Verdict.WAIT if source.last < mine.last else Verdict.ROLL_BACK)


@given(one=epochs, other=epochs)
def test_histories_without_anything_in_common_meet_before_everything(one: list[int], other: list[int]) -> None:
    mine, source = histories([], one, other)
    finding, _ = searched(mine, source)
    assert finding.matchpoint == NO_GTID


def test_equal_gtids_with_another_hash_are_fatal_and_never_merged() -> None:
    """vlsn-index S1: a copy that was opened on both sides hands out equal numbers."""
    mine, source = log_of(1, 1, text="x"), log_of(1, 1, text="y")
    finding, _ = searched(mine, source)
    assert finding.verdict is Verdict.FATAL and "two histories with one name" in finding.why


@pytest.mark.parametrize(
    ("mine", "source", "committed", "verdict"),
    [
        (log_of(1, 1), log_of(1, 1, 1), gtid(1, 1), Verdict.STREAM),
        (log_of(1, 1, 1), log_of(1, 1, 2), gtid(1, 1), Verdict.ROLL_BACK),
        (log_of(1, 1, 1), log_of(1, 1, 2), gtid(1, 2), Verdict.FATAL),
        (log_of(1, 1, 3), log_of(1, 1, 2, 2), gtid(1, 1), Verdict.WAIT),
        (log_of(1, 1, 1), log_of(1, 1), gtid(1, 2), Verdict.WAIT),  # it only lags: no history differs
        (log_of(1, 1), log_of(1, 1, 1, 1, begin=3), gtid(1, 1), Verdict.RESTORE),
        (log_of(1, 1, 2, 2, begin=3), log_of(1, 1, 3), gtid(1, 1), Verdict.RESTORE),
        (ModelLog(), log_of(1, 1, begin=1), NO_GTID, Verdict.RESTORE),
        (ModelLog(), log_of(1, 1), NO_GTID, Verdict.STREAM),
        (emptied(2), log_of(1, 1, 1), NO_GTID, Verdict.RESTORE),
        (emptied(2), log_of(1, 1, 1, begin=1), NO_GTID, Verdict.RESTORE),
        (log_of(1, 1, 1), emptied(2), NO_GTID, Verdict.WAIT),
    ],
)
def test_the_verdicts(mine: ModelLog, source: ModelLog, committed: Gtid, verdict: Verdict) -> None:
    assert searched(mine, source, committed)[0].verdict is verdict


@pytest.mark.parametrize(("apart_ms", "verdict"), [(1_800_000, Verdict.ROLL_BACK), (1_800_001, Verdict.FATAL)])
def test_the_30_minutes_are_between_what_was_logged_here(apart_ms: int, verdict: Verdict) -> None:
    """From the matchpoint to this node's last; an idle hour before, and the source's clock, decide nothing."""
    mine, source = log_of(1, 1, 1, 1), log_of(1, 1, 2)
    mine.times = [0, 7_200_000, 7_200_000 + 5, 7_200_000 + apart_ms]
    source.times = [0, 1, 10**12]
    finding, _ = searched(mine, source, limits=Limits())
    assert finding.verdict is verdict
    assert ("rollback_limit_s" in finding.why) == (verdict is Verdict.FATAL)


def test_ddl_in_what_goes_is_fatal_unless_allowed() -> None:
    mine, source = log_of(1, 1), log_of(1, 1, 2)
    mine.append("DDL drop", 5000)
    assert searched(mine, source, limits=Limits())[0].verdict is Verdict.FATAL
    assert searched(mine, source, limits=Limits(allow_ddl=True))[0].verdict is Verdict.ROLL_BACK
    before = log_of(1)
    before.append("DDL create", 10)
    after = log_of(1)
    after.append("DDL create", 10)
    before.append("x", 20)
    after.begin_reign(2, 20)
    before.sync()
    after.sync()
    assert searched(before, after, limits=Limits())[0].verdict is Verdict.ROLL_BACK  # it lies before the matchpoint


def searching(mine: ModelLog) -> Alone:
    node = Alone(A, group(A, B), mine)
    node.beat(B, state=PRIMARY, epoch=9, last=gtid(9, 9))
    node.wait(1)
    return node


def here_of(node: Alone, source: ModelLog, epoch: int = 9) -> Here:
    """Answer the node's last question."""
    where = of(Where, sent(node.done))[-1]
    assert isinstance(where, Where)
    return answer(source, where, epoch)


def test_a_rollback_saves_before_it_marks_and_serves_nothing_meanwhile() -> None:
    node, source = searching(log_of(1, 1, 1)), log_of(1, 1, 2)
    for _ in range(2):  # its last, then the source's last of that epoch
        node.get(B, here_of(node, source))
    plans = [one for one in node.done if isinstance(one, RollBack)]
    assert plans == [RollBack(gtid(1, 1), gtid(1, 2), ("save", "mark"))]
    assert node.core.mind.state == ROLLBACK and not node.core.serves_reads


def test_a_source_of_an_older_epoch_decides_nothing() -> None:
    node = searching(log_of(1, 1, 1))
    node.get(B, here_of(node, log_of(1, 2, 2, 2), epoch=8))
    assert not [one for one in node.done if isinstance(one, RollBack | Fatal)]
    assert node.core.intake.source == ""


def test_a_late_answer_of_another_search_is_passed_over() -> None:
    node = searching(log_of(1, 1))
    here = here_of(node, log_of(1, 1, 1))
    node.core.intake.stop()
    node.get(B, here)
    assert not node.core.intake.streaming


def test_rid_begins_at_0_rises_and_is_kept_for_a_rollback_that_was_cut_off() -> None:
    assert rollback_id({}, gtid(1, 1), gtid(1, 5)) == 0
    saved = {0: (gtid(1, 1), gtid(1, 5)), 3: (gtid(1, 1), gtid(2, 5))}
    assert rollback_id(saved, gtid(1, 2), gtid(1, 5)) == 4
    assert rollback_id(saved, gtid(1, 1), gtid(1, 5)) == 0


def test_rows_are_numbered_from_the_newest_operation() -> None:
    """As the document's example: an update at 15, three inserts at 14."""
    three: list[tuple[object, bytes]] = [("i1", b"1"), ("i2", b"2"), ("i3", b"3")]
    rows = list(saved_rows([(gtid(1, 15), "e15", [("u", b"u")]), (gtid(1, 14), "e14", three)], 0, 77))
    assert [(row.seq, row.gtid_string, row.op, row.event_id, row.payload) for row in rows] == [
        (0, "GTID(1, 15)", "u", "e15", b"u"),
        (1, "GTID(1, 14)", "i3", "e14", b"3"),
        (2, "GTID(1, 14)", "i2", "e14", b"2"),
        (3, "GTID(1, 14)", "i1", "e14", b"1"),
    ]
    assert {(row.rid, row.time) for row in rows} == {(0, 77)}


def refused(
    log: ModelLog, last: Gtid, *, rolls: bool = False, force: bool = False, heartbeat_ms: int = 250
) -> str | None:
    return handshake_refused(
        log, source="west-db2", last=last, may_roll_back=rolls, force=force, heartbeat_ms=heartbeat_ms
    )


def test_the_handshake_confirms_the_epoch_with_the_documents_text() -> None:
    log = log_of(1, 1, 2, 2, begin=1)
    assert refused(log, gtid(2, 3)) is None
    assert refused(log, gtid(2, 9)) is None  # ahead: waits
    assert refused(log, gtid(1, 0)) is None  # the one before the first, of which the log knows nothing
    assert refused(log, gtid(1, 3)) == (
        "Client handshake failure: Client response validation failed: Log epoch numbers do not match: "
        "client source ID=west-db2 seqno=3 server epoch number=2 client epoch number=1"
    )
    assert refused(log, gtid(1, 3), force=True) is None
    assert refused(log, gtid(1, 3), rolls=True) is None
    assert "holds 1 to 3" in str(refused(log, NO_GTID))
    assert refused(ModelLog(), gtid(1, 3)) is None
    assert "Heartbeat interval" in str(refused(log, gtid(2, 3), heartbeat_ms=0))


def test_before_everything_is_held_from_the_beginning_only() -> None:
    assert holds(log_of(1, 1), NO_GTID) and not holds(log_of(1, 1, begin=1), NO_GTID) and holds(ModelLog(), NO_GTID)

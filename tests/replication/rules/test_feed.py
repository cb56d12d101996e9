"""Feeding: docs/protocol.md, "The order of things"; conformance/tokumx.md A5."""

from __future__ import annotations

import msgspec
import pytest

from fix_group import HEARTBEAT, A, Alone, B, C, group, gtid, log_of, of, plain, sent, vote_for
from sim.model_log import ModelLog
from tranlog.log.records.spill import RawChunk
from tranlog.replication.rules.config import NO_NODE, ConfigId, GroupConfig, NodeId
from tranlog.replication.rules.effects import DropParts, Effect, KeepAlive, KeepFrom, Put, Restore, Send
from tranlog.replication.rules.feed import CHUNKS_SHARE, CREDIT, SET_BACK_MS, Candidate, Feeder, Intake, choose_source
from tranlog.replication.rules.packets import (
    NO_GTID,
    PRIMARY,
    REPLICA,
    RESTORING,
    ROLLBACK,
    Ack,
    ChunksGone,
    Follow,
    Here,
    PreVote,
    Records,
    SpillChunk,
    Where,
)


def follow(after: tuple[int, int], credit: int = 1 << 20, number: int = 1, delay_ms: int = 0) -> Follow:
    return Follow(number=number, after=gtid(*after), credit=credit, delay_ms=delay_ms)


def pumped(feeder: Feeder, log: ModelLog, wall: int = 0) -> list[Records | SpillChunk]:
    effects = [one for one in feeder.pump(log, gtid(1, 1), 1, wall) if isinstance(one, Send)]
    return [one.packet for one in effects if isinstance(one.packet, Records | SpillChunk)]


def test_records_come_under_credit_and_go_on_with_acks() -> None:
    log, feeder = log_of(*[1] * 50), Feeder()
    feeder.begin(B, follow((1, 4), credit=100), log)
    first = pumped(feeder, log)
    assert first[0].after == gtid(1, 4) and first[-1].last < gtid(1, 49)  # type: ignore[union-attr]
    assert not pumped(feeder, log)
    feeder.acked(B, gtid(1, 4), 1 << 20)
    (rest,) = pumped(feeder, log)
    assert isinstance(rest, Records) and rest.after == first[-1].last and rest.last == gtid(1, 49)  # type: ignore[union-attr]


def test_a_batch_names_only_what_it_holds_as_committed() -> None:
    log, feeder = log_of(1, 1, 1, 1), Feeder()
    feeder.begin(B, follow((1, 0), credit=1), log)
    assert [one.committed for one in pumped(feeder, log)] == [gtid(1, 1)]  # type: ignore[union-attr]


def test_chunks_come_before_the_record_that_refers_to_them() -> None:
    log, feeder = log_of(1), Feeder()
    log.append("large", 0, chunks=(b"1", b"2"))
    feeder.begin(B, follow((1, 0)), log)
    assert [type(one) for one in pumped(feeder, log)] == [SpillChunk, SpillChunk, Records]
    assert not pumped(feeder, log)


def test_chunks_of_what_is_still_open_come_at_once_and_are_said_to_be_gone() -> None:
    log, feeder = log_of(1), Feeder()
    feeder.begin(B, follow((1, 0), credit=40), log)
    log.spilled[b"o"] = [RawChunk(b"o", seq, 0, 4, b"abcd") for seq in range(3)]
    assert [one.seq for one in pumped(feeder, log)] == [0, 1]  # type: ignore[union-attr]
    feeder.acked(B, gtid(1, 0), 100)
    assert [one.seq for one in pumped(feeder, log)] == [2]  # type: ignore[union-attr]
    del log.spilled[b"o"]
    (gone,) = feeder.pump(log, gtid(1, 0), 1, 0)
    assert gone == Send(B, ChunksGone(number=1, oid=b"o"))
    assert not list(feeder.pump(log, gtid(1, 0), 1, 0))


def test_a_record_waits_for_credit_after_its_chunks() -> None:
    log, feeder = log_of(1), Feeder()
    log.append("large", 0, chunks=(b"12345",))
    feeder.begin(B, follow((1, 0), credit=5), log)
    assert [type(one) for one in pumped(feeder, log)] == [SpillChunk]
    feeder.acked(B, gtid(1, 0), 5)
    assert [type(one) for one in pumped(feeder, log)] == [Records]


def test_records_without_their_chunks_are_asked_for_again() -> None:
    """conformance/tokumx.md 13, 33: a referring record is only there with all its chunks."""
    log = log_of(1)
    source = log_of(1)
    source.append("large", 0, chunks=(b"1",))
    raw, last = source.outgoing(0, 1, 1000).raw, gtid(1, 1)
    with pytest.raises(ValueError, match="refers to chunks"):
        log.put(raw, 0)
    node = Alone(A, group(A, B))
    node.beat(B, state=PRIMARY, epoch=1, last=last)
    node.wait(1)
    node.core.intake.streaming = True
    node.core.unusable()
    assert not node.core.intake.streaming and of(
        Where, [(one.to, one.packet) for one in node.carry_out() if isinstance(one, Send)]
    )


def test_a_delayed_follower_gets_what_is_old_enough() -> None:
    log, feeder = log_of(1, 1, 1), Feeder()
    log.times = [0, 1000, 2000]
    feeder.begin(B, follow((0, -1), delay_ms=1500), log)
    assert not pumped(feeder, log, wall=1499)
    assert [one.last for one in pumped(feeder, log, wall=2500)] == [gtid(1, 1)]  # type: ignore[union-attr]
    assert not pumped(feeder, log, wall=1999), "it was logged after the time was looked at"
    assert [one.last for one in pumped(feeder, log, wall=2000 - SET_BACK_MS)] == [gtid(1, 2)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changed", "stays"),
    [
        (group(A, B, C), True),
        (group(A, B, C, w=2), True),
        (group(A, B, C, chaining=False), False),
        (group(plain(A, priority=0, delay_ms=1000), B, C), False),
        (group(A, plain(B, priority=0, delay_ms=1000), C), False),
        (group(A, plain(B, priority=0, hidden=True), C), False),
        (group(A, B, plain(C, priority=0, hidden=True)), True),
    ],
)
def test_a_stream_ends_where_the_configuration_is_another_for_it(changed: GroupConfig, stays: bool) -> None:
    """docs/replication.md, "Changing the configuration": whom it follows and how late is said when it begins."""
    node = Alone(A, group(A, B, C), log_of(1))
    node.beat(C, state=PRIMARY, epoch=1, last=gtid(1, 5))
    node.core.intake.source, node.core.intake.streaming = B, True
    node.beat(C, state=PRIMARY, epoch=1, full=msgspec.structs.replace(changed, id=ConfigId(1, 2)))
    assert node.core.config.id == ConfigId(1, 2)
    assert node.core.intake.streaming is stays


def test_what_was_lost_on_the_way_is_noticed() -> None:
    node = Alone(A, group(A, B), log_of(1))
    node.beat(B, state=PRIMARY, epoch=1, last=gtid(1, 5))
    node.wait(1)
    intake = node.core.intake
    intake.streaming = True

    def records(after: int) -> Records:
        log = log_of(*[1] * 6)
        out = log.outgoing(after, after + 1, 1)
        return Records(
            number=intake.number, after=gtid(1, after), last=out.last, committed=NO_GTID, epoch=1, part=0, raw=out.raw
        )

    first = records(0)
    node.get(B, first)
    assert node.log.last == gtid(1, 1)
    node.get(B, first)  # twice
    assert node.log.last == gtid(1, 1) and intake.streaming
    assert of(Where, node.get(B, records(3)))
    assert node.log.last == gtid(1, 1) and node.core.intake == Intake(B, intake.number, False, 1, None, gtid(1, 1))
    node.get(B, records(1))  # of the stream that was given up: another number
    intake.number -= 1
    node.get(B, records(1))
    assert node.log.last == gtid(1, 1)


def test_a_part_that_was_lost_is_noticed_and_the_others_are_dropped() -> None:
    """A transaction that comes in parts: each in its turn, once; when the line breaks none of them is kept."""
    node = Alone(A, group(A, B), log_of(1))
    node.beat(B, state=PRIMARY, epoch=1, last=gtid(1, 5))
    node.wait(1)
    intake = node.core.intake
    intake.streaming = True

    def part(number: int, last: int = 0) -> list[Effect]:
        packet = Records(
            number=intake.number,
            after=gtid(1, 0),
            last=gtid(1, last),
            committed=NO_GTID,
            epoch=1,
            part=number,
            raw=b"piece",
        )
        node.core.step(B, packet, node.now)
        return node.core.ready()

    assert part(0) == [Put(b"piece", 0, whole=False)]
    assert part(0) == [] and intake.streaming  # twice
    assert part(1) == [Put(b"piece", 1, whole=False)]
    assert [type(one) for one in part(3)] == [Send, DropParts]
    assert node.core.intake.part == 0 and not node.core.intake.streaming
    intake.streaming = True
    assert part(0) == [Put(b"piece", 0, whole=False)]
    assert part(1, last=1) == [Put(b"piece", 1, whole=True)] and intake.part == 0
    part(0)
    node.core.sync_from(C)
    node.core.tick(node.now + 1, 0, 0)
    assert DropParts() in node.core.ready()


def test_credit_for_chunks_comes_without_a_sync() -> None:
    """Else a spilled transaction would come at the pace of heartbeats."""
    node = Alone(A, group(A, B), log_of(1))
    node.beat(B, state=PRIMARY, epoch=1, last=gtid(1, 5))
    node.wait(1)
    intake = node.core.intake
    intake.streaming = True
    raw = bytes(CREDIT // CHUNKS_SHARE // 4)
    credits = []
    for seq in range(4):
        packet = SpillChunk(
            number=intake.number,
            oid=b"o",
            seq=seq,
            codec=0,
            raw_length=len(raw),
            offset=0,
            size=len(raw),
            raw=raw,
        )
        node.core.step(B, packet, node.now)
        credits += [one.credit for _, one in sent(node.core.ready()) if isinstance(one, Ack)]
    assert credits == [2 * len(raw)] * 2


def test_chunks_keep_a_stream_going() -> None:
    """Else a transaction that takes longer than a node's patience is sent from its beginning again, for ever."""
    node = Alone(A, group(A, B), log_of(1))
    node.beat(B, state=PRIMARY, epoch=1, last=gtid(1, 5))
    node.wait(1)
    node.core.intake.streaming = True
    number = node.core.intake.number
    for seq in range(40):
        node.beat(B, state=PRIMARY, epoch=1, last=gtid(1, 5))
        chunk = SpillChunk(number=number, oid=b"o", seq=seq, codec=0, raw_length=1, offset=0, size=1, raw=b"x")
        node.get(B, chunk)
        assert not of(Where, node.wait(HEARTBEAT)), "it is not asked anew"
    assert node.core.intake.number == number


def test_a_stream_is_a_sign_of_life() -> None:
    """Heartbeats wait behind it on a slow line: whoever gets it neither stands, nor votes for whoever does."""
    node = Alone(A, group(A, B, C), log_of(1))
    node.beat(B, state=PRIMARY, epoch=1, last=gtid(1, 50))
    node.wait(1)
    node.core.intake.streaming = True
    number = node.core.intake.number
    for seq in range(1, 40):
        if seq % 2:
            chunk = SpillChunk(number=number, oid=b"o", seq=seq, codec=0, raw_length=1, offset=0, size=1, raw=b"x")
            node.get(B, chunk)
        else:
            at = node.log.last
            piece = Records(
                number=number, after=at, last=at, committed=gtid(1, 0), epoch=1, part=node.core.intake.part, raw=b"r"
            )
            node.core.step(B, piece, node.now)
            assert Put(b"r", node.core.intake.part - 1, whole=False) in node.core.ready()
        assert not of(PreVote, node.wait(HEARTBEAT))
        assert vote_for(node, C, 2) == "I hear a primary"
    assert of(PreVote, node.wait())


def test_what_is_committed_goes_past_the_chunks_of_open_transactions() -> None:
    log, feeder = log_of(1), Feeder()
    log.spilled[b"o"] = [RawChunk(b"o", seq, 0, 100, b"c" * 100) for seq in range(50)]
    feeder.begin(B, follow((1, 0), credit=8000), log)
    read = list[int]()
    every = log.open_chunks
    log.open_chunks = lambda have: (read.append(one.seq) or one for one in every(have))  # type: ignore[func-returns-value,method-assign]
    chunks = pumped(feeder, log)
    assert sum(len(one.raw) for one in chunks) == 1000
    assert read == list(range(10)), "none is read that there is no credit for"
    log.append("small", 0)
    (records,) = pumped(feeder, log)
    assert isinstance(records, Records), "there is credit for it, and none for more chunks"
    feeder.acked(B, gtid(1, 0), 300)
    assert [type(one) for one in pumped(feeder, log)] == [SpillChunk] * 3


def test_a_stream_that_stands_still_is_begun_again() -> None:
    node = Alone(A, group(A, B), log_of(1))
    node.beat(B, state=PRIMARY, epoch=1, last=gtid(1, 5))
    asked = [of(Where, node.beat(B, state=PRIMARY, last=gtid(1, 5)) + node.wait(HEARTBEAT)) for _ in range(9)]
    assert sum(map(len, asked)) == 2


def test_a_follower_that_a_purge_has_passed_restores() -> None:
    source, node = log_of(*[1] * 9, begin=5), Alone(A, group(A, B), log_of(1, 1))
    feeder = Feeder()
    feeder.begin(B, follow((1, 6)), source)
    source.purge(8)
    effects = list(feeder.pump(source, NO_GTID, 1, 0))
    assert effects == [KeepFrom("node.b", None)] and not feeder.streams
    node.beat(B, state=PRIMARY, epoch=1, last=source.last)
    node.wait(1)
    number = node.core.intake.number
    node.get(B, Here(number=number, asked=gtid(1, 1), found=NO_GTID, h=0, first=5, last=source.last, epoch=1))
    assert [one for one in node.done if isinstance(one, Restore)] == [Restore(B, node.core.mind.committed)]
    assert node.core.mind.state == RESTORING and node.disk.owing and node.disk.had == gtid(1, 1)
    vars(node.log).update(vars(source))
    node.core.rolled_back()
    node.wait(1)
    assert node.core.mind.state == REPLICA and not node.disk.owing  # it ends no earlier than it did


def test_a_search_holds_the_log_until_the_followers_hold_has_begun() -> None:
    """vlsn-index I37, and the document's question whether deletion is to be off."""
    node = Alone(A, group(A, B), log_of(*[1] * 9, begin=3))
    node.core.step(B, Where(number=4, gtid=gtid(1, 5), h=0), 0)
    first = node.carry_out()
    assert first[0] == KeepFrom("restore.b", 3) and isinstance(first[1], Send)  # before the answer leaves
    node.core.step(B, follow((1, 5), number=4), 0)
    assert [one for one in node.carry_out() if isinstance(one, KeepFrom)] == [
        KeepFrom("node.b", 6),
        KeepFrom("restore.b", None),
    ]


def test_the_hold_of_a_search_that_leads_to_nothing_ends() -> None:
    node = Alone(A, group(A, B), log_of(1, 1))
    node.get(B, Where(number=4, gtid=gtid(1, 5), h=0))
    for _ in range(30):
        node.wait(HEARTBEAT)
    assert KeepFrom("restore.b", None) in node.done


def test_only_primaries_and_replicas_feed() -> None:
    node = Alone(A, group(A, B), log_of(1, 1))
    for state in (ROLLBACK, RESTORING):
        node.core.mind.state = state
        assert not node.get(B, Where(number=1, gtid=gtid(1, 0), h=0)) and not node.get(B, follow((1, 0)))


CHAIN = group(A, B, C, plain(NodeId("h"), hidden=True, priority=0), plain(NodeId("d"), delay_ms=9, priority=0))


def source_of(
    *alive: tuple[str, int, int, int], primary: str = "", wish: str = "", chaining: bool = True, own: str = "a"
) -> str:
    config = group(*CHAIN.members, chaining=chaining)
    told = [Candidate(NodeId(node), state, epoch, gtid(1, seqno)) for node, state, epoch, seqno in alive]
    return choose_source(config, NodeId(own), gtid(1, 5), 3, told, NodeId(primary), NodeId(wish))


def test_whom_a_node_follows() -> None:
    b, c, h, d = ("b", REPLICA, 3, 9), ("c", PRIMARY, 3, 9), ("h", REPLICA, 3, 9), ("d", REPLICA, 3, 9)
    assert source_of(b, c, primary="c") == "c"
    assert source_of(b, c, primary="c", wish="b") == "b"
    assert source_of(b, c, primary="c", wish="b", chaining=False) == "b"  # a wish outranks it
    assert source_of(("b", REPLICA, 3, 5), c, primary="c", wish="b") == "c"  # not ahead
    assert source_of(("b", REPLICA, 2, 9), c, primary="c", wish="b") == "c"  # of an older epoch
    assert source_of(("b", ROLLBACK, 3, 9), c, primary="c", wish="b") == "c"
    assert source_of(d, c, primary="c", wish="d") == "c"  # more delayed
    assert source_of(b, primary="c") == "b"  # the primary cannot be reached
    assert source_of(b, primary="c", chaining=False) == NO_NODE
    assert source_of(h, d, primary="c") == NO_NODE


def test_without_a_primary_any_node_ahead_will_do() -> None:
    """Else the only one that can be elected might never catch up with the one that has everything."""
    for node in ("h", "d", "b"):
        assert source_of((node, REPLICA, 3, 9), chaining=False) == node


def test_a_source_is_left_when_another_is_30_s_ahead() -> None:
    node = Alone(A, group(A, B, C), log_of(1))
    node.core.sync_from(B)

    def beats(times: int) -> None:
        for _ in range(times):
            node.beat(B, last=gtid(1, 5), epoch=1)
            node.beat(C, last=gtid(1, 9), epoch=1, state=PRIMARY)
            node.wait(1000)

    beats(20)
    assert node.core.intake.source == B
    beats(20)
    assert node.core.intake.source == C


def test_an_idle_primary_writes_a_no_op() -> None:
    """conformance/tokumx.md A5.10: every keep_alive_s, and not while it writes anyway."""
    node = Alone(A, group(A, keep_alive_s=10))
    node.wait()
    for _ in range(3):
        node.wait(9000)
        node.write()
    assert not [one for one in node.done if isinstance(one, KeepAlive)]
    node.wait(10_000)
    assert [one for one in node.done if isinstance(one, KeepAlive)] == [KeepAlive()]


def test_bytes_are_passed_on_as_they_came() -> None:
    """vlsn-index I46: a log that is fed on gives the same stream."""
    first = log_of(1, 1, 2)
    raw = first.outgoing(-1, 2, 1 << 20).raw
    second = ModelLog()
    second.put(raw, 99)
    assert second.outgoing(-1, 2, 1 << 20).raw == raw and second.hashes == first.hashes
    node = Alone(A, group(A, B))
    node.core.intake.streaming = True
    node.core.intake.source = B
    node.get(B, Records(number=0, after=NO_GTID, last=gtid(2, 2), committed=NO_GTID, epoch=2, part=0, raw=raw))
    assert Put(raw) in node.done

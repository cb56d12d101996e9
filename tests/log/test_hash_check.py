"""`thl verify` recomputes the running hash, and a repair leaves a log in which it is right."""

from __future__ import annotations

import pytest

from fix_log import PATH, append_large, fill, flip, make_fragment, open_log, segment_path
from tranlog.checksum import crc32
from tranlog.ids import Seqno
from tranlog.log.records.format import (
    CRC,
    FIRST_SYNC_BYTES,
    HEADER,
    SYNC,
    SyncRecord,
    encode_event,
    parse_event,
    parse_record,
)
from tranlog.log.rules.damage import Damage
from tranlog.log.rules.repair import Keep
from tranlog.log.upkeep.repairing import repair
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log
from tranlog.testing.disk import SimDisk


def grown(checksum: bool = True) -> tuple[SimDisk, dict[int, int]]:
    """Return a log of several segments, and its hashes."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=2_000, checksum=checksum) as log:
        for number in range(40):
            fill(log, 1, start=number)
            if number % 7 == 3:
                append_large(log, "parts", [b"1", b"2", b"3"])
                log.commit()
        log.transact([make_fragment("large", bytes(2_000), last=last) for last in (False, False, True)])
        return disk, hashes(log)


def hashes(log: Log) -> dict[int, int]:
    return {seqno: log.h(Seqno(seqno)) for seqno in range(log.first_seqno - 1, log.visible_seqno + 1)}


def forge(disk: SimDisk, number: int, nth: int) -> tuple[int, int]:
    """Replace the nth event of a segment by another one with a right checksum; return its place and seqno."""
    raw, at = bytearray(disk.content(segment_path(number))), HEADER.size
    while True:
        header = parse_event(bytes(raw), at, number << 32 | at)
        if header is not None:
            if not nth:
                break
            nth -= 1
        outcome = parse_record(bytes(raw), at, number << 32 | at)
        at += outcome.record_length  # type: ignore[union-attr]
    end = at + header.record_length
    payload = bytes(reversed(raw[end - 5 - header.data_length : end - 5]))
    head, trailer = encode_event(
        seqno=header.seqno,
        fragno=header.fragno,
        last_frag=header.last_frag,
        epoch=header.epoch,
        source_id=header.source_id,
        event_id=header.event_id[::-1],
        shard_id=header.shard_id,
        tstamp=header.tstamp,
        tables=header.tables,
        payload=payload,
        checksum=header.crc_method != 0,
    )
    raw[at:end] = head + payload + trailer
    disk.set_content(segment_path(number), bytes(raw))
    return at, header.seqno


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("number", [1, 3])
def test_another_record_with_a_right_checksum_is_found(number: int, checksum: bool) -> None:
    """format.md, "The running hash": the place that is named is that of the sync record behind it."""
    disk, known = grown(checksum)
    assert verify(PATH, disk=disk).sound
    at, seqno = forge(disk, number, 3)
    (problem,) = verify(PATH, disk=disk).problems
    assert (problem.segment, problem.seqno, problem.kind) == (segment_path(number)[5:], seqno, Damage.HASH)
    told = parse_record(disk.content(segment_path(number)), problem.offset, number << 32 | problem.offset)
    assert isinstance(told, SyncRecord) and told.seqno == seqno and problem.offset > at
    assert f"the running hash up to seqno {seqno} is " in problem.why and f"{known[seqno]:016x}" in problem.why


@pytest.mark.parametrize("keep", list(Keep))
def test_a_repair_leaves_one_history(keep: Keep) -> None:
    disk, known = grown()
    _, seqno = forge(disk, 3, 2)
    repaired = repair(PATH, keep=keep, disk=disk)
    assert repaired.after is not None and repaired.after.sound
    with open_log(disk) as log:
        found = hashes(log)
        if keep is Keep.FRONT:
            assert log.header(Seqno(seqno)) is not None and log.header(Seqno(seqno + 1)) is not None
            assert {one: found[one] for one in range(seqno)} == {one: known[one] for one in range(seqno)}
        else:
            assert (
                log.first_seqno > seqno
                and found.items() >= {one: known[one] for one in range(log.first_seqno, 40)}.items()
            )


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("front", [True, False])
def test_a_sync_record_that_is_written_again_says_the_hash(number: int, front: bool) -> None:
    """It is known from the segment before or, without one, from a later sync record."""
    disk, known = grown()
    if not front:
        for one in range(1, number):
            disk.unlink(segment_path(one))
    at = HEADER.size + SYNC.size - 1
    flip(disk, segment_path(number), at)
    assert verify(PATH, disk=disk).problems
    repaired = repair(PATH, disk=disk)
    assert repaired.after is not None and repaired.after.sound
    with open_log(disk) as log:
        found = hashes(log)
        del found[log.visible_seqno]
        assert found == {seqno: known[seqno] for seqno in found}
    assert verify(PATH, disk=disk).sound


def test_a_wrong_hash_in_a_sync_record_is_named() -> None:
    disk, _ = grown()
    raw = bytearray(disk.content(segment_path(2)))
    raw[HEADER.size + SYNC.size - 1] ^= 1
    end = HEADER.size + FIRST_SYNC_BYTES - CRC.size
    place = (2 << 32 | HEADER.size).to_bytes(8, "big")
    raw[end : end + 4] = CRC.pack(crc32(place, crc32(bytes(raw[HEADER.size : end]))))
    disk.set_content(segment_path(2), bytes(raw))
    problems = verify(PATH, disk=disk).problems
    assert [problem.kind for problem in problems] == [Damage.HASH] * 2
    assert (problems[0].segment, problems[0].offset) == ("thl.data.0000000002", HEADER.size)

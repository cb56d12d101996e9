"""The vote and the configuration on the disk: a crash at every call, and every kind of harm.

Proves docs/protocol.md, "Elections" 2: one vote an epoch, durable before it is told.
"""

from __future__ import annotations

import random

import pytest

from fix_effort import Effort
from fix_group import A, B, C, group
from fix_mutation import Fuzz
from tranlog.errors import GroupFileError
from tranlog.replication.acting.state import StateFile
from tranlog.replication.rules.stored import SLOT_BYTES, Stored, read_slots, slot_bytes
from tranlog.testing.disk import PowerCut, SimDisk

VOTES = [
    Stored(group="g", node=A, epoch=epoch, candidate=(B, C)[epoch % 2], config=group(A, B, C)) for epoch in (1, 2, 7)
]


def played(disk: SimDisk) -> int:
    """Store one vote after the other; return how many were stored before the power went."""
    told = 0
    try:
        disk.make_dir("/group")
        disk.sync_dir("/")
        file = StateFile(disk, "/group")
        assert file.load("g") is None
        for vote in VOTES:
            file.store(vote)
            told += 1
    except PowerCut:
        pass
    return told


def test_what_was_told_survives_a_crash_at_every_call(effort: Effort) -> None:
    whole = SimDisk()
    assert played(whole) == len(VOTES)
    for call in range(1, whole.calls + 1):
        for seed in range(effort(5, 50, 500)):
            disk = SimDisk()
            disk.cut_at = call
            told = played(disk)
            after = disk.after_crash(random.Random(seed))
            found = StateFile(after, "/group").load("g") if after.exists("/group") else None
            expected = [None, *VOTES]
            assert found in expected[told : told + 2], f"cut at call {call}, seed {seed}: {told} were told, {found}"
            if found is not None:  # opening mended both slots
                assert read_slots(after.content("/group/node"), path="", group="g")[2]


def harmed(change: int) -> bytes:
    disk = SimDisk()
    played(disk)
    raw = bytearray(disk.content("/group/node"))
    raw[change] ^= 0x10
    return bytes(raw)


@pytest.mark.parametrize("at", [0, 7, 12, 19, 25, SLOT_BYTES, SLOT_BYTES + 40])
def test_a_flipped_bit_loses_no_vote(at: int) -> None:
    stored, _, equal = read_slots(harmed(at), path="p", group="g")
    assert stored == VOTES[-1] and not equal


@pytest.mark.parametrize("size", [0, 5, 100])
def test_a_file_without_a_whole_slot_is_refused(size: int) -> None:
    with pytest.raises(GroupFileError, match=r"p cannot be used: neither of its two slots is whole"):
        read_slots(harmed(0)[:size], path="p", group="g")


def test_a_cut_file_has_its_first_slot() -> None:
    raw = slot_bytes(VOTES[0], 1)
    assert read_slots(raw, path="p", group="g") == (VOTES[0], 1, False)


def test_another_groups_file_is_refused() -> None:
    with pytest.raises(GroupFileError, match="it is of the group g, not of h"):
        read_slots(slot_bytes(VOTES[0], 1), path="p", group="h")


def test_rubbish_is_a_value_or_one_error(fuzz: Fuzz) -> None:
    def read(raw: bytes) -> object:
        try:
            return read_slots(raw, path="p", group="g")
        except GroupFileError as exc:
            return exc

    fuzz.samples([slot_bytes(vote, number) for number, vote in enumerate(VOTES)], read)

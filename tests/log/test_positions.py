"""log/files/positions.py: the block that readers in other processes go by, and the holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_log import PATH, fill, open_log, open_reader
from tranlog.errors import ConfigError, HoldError
from tranlog.ids import Epoch, Lsn, Seqno
from tranlog.log.files.positions import (
    HOLD_BYTES,
    POSITIONS,
    POSITIONS_BYTES,
    POSITIONS_FIELDS,
    Hold,
    Positions,
    PositionsFile,
    PositionsReader,
    decode_positions,
    drop_hold,
    encode_positions,
    fit_holder,
    hold,
    read_hold,
    read_holds,
    read_positions,
)
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

SOME = Positions(
    boot_id="5c4b1f6e-0000-4000-8000-123456789abc",
    identity=77,
    epoch=Epoch(3),
    mark=2,
    first_seqno=Seqno(5),
    visible_seqno=Seqno(9),
    durable_seqno=Seqno(8),
    committed_seqno=Seqno(8),
    visible_lsn=Lsn(1 << 32 | 600),
)


def log_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dir(PATH)
    return disk


def test_a_block_reads_back() -> None:
    raw = encode_positions(SOME)
    assert len(raw) == POSITIONS_BYTES == sum(size for _, size in POSITIONS_FIELDS)
    assert decode_positions(raw) == SOME
    assert decode_positions(raw + b"more") == SOME


def test_every_flipped_bit_and_every_cut_is_found() -> None:
    raw = encode_positions(SOME)
    for bit in range(len(raw) * 8):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        assert decode_positions(bytes(changed)) is None
    for length in range(len(raw)):
        assert decode_positions(raw[:length]) is None


@given(st.binary(max_size=2 * POSITIONS_BYTES))
def test_any_bytes_are_no_positions(raw: bytes) -> None:
    assert decode_positions(raw) is None


def test_the_block_is_one_write_in_place() -> None:
    """log-format.md: one pwrite of a fixed-size block."""
    disk = log_disk()
    file = PositionsFile(PATH, disk)
    before = disk.counts["pwrite"]
    file.write(SOME)
    file.write(SOME)
    assert disk.counts["pwrite"] == before + 2
    assert len(disk.content(f"{PATH}/positions")) == POSITIONS_BYTES
    assert read_positions(PATH, disk) == SOME


def test_no_file_is_no_positions() -> None:
    disk = log_disk()
    assert read_positions(PATH, disk) is None
    assert PositionsReader(PATH, disk).read() is None


def published(disk: SimDisk) -> Positions:
    file = PositionsFile(PATH, disk)
    positions = Positions(boot_id=file.boot_id, identity=file.identity, first_seqno=Seqno(0), visible_seqno=Seqno(4))
    file.write(positions)
    return positions


def test_a_reader_trusts_this_boots_own_file_only() -> None:
    """log-format.md, "Who may see what": missing, damaged, of another boot, or a copy."""
    disk = log_disk()
    positions = published(disk)
    reader = PositionsReader(PATH, disk)
    assert reader.read() == positions
    disk.copy_files(PATH, "/copy")
    assert PositionsReader("/copy", disk).read() is None, "a copy is another file"
    file = PositionsFile(PATH, disk)
    file.write(Positions(boot_id="of another boot", identity=file.identity, first_seqno=Seqno(0)))
    assert reader.read() is None
    disk.set_content(f"{PATH}/positions", b"damage")
    assert reader.read() is None


def test_a_reader_finds_a_file_that_was_replaced() -> None:
    disk = log_disk()
    published(disk)
    reader = PositionsReader(PATH, disk)
    assert reader.read() is not None
    disk.unlink(f"{PATH}/positions")
    positions = published(disk)
    reader.look_again()
    assert reader.read() == positions
    reader.close()


def test_the_writer_restores_a_file_that_was_removed() -> None:
    disk = log_disk()
    file = PositionsFile(PATH, disk)
    assert not file.restore()
    disk.unlink(f"{PATH}/positions")
    assert file.restore()
    file.write(SOME)
    assert read_positions(PATH, disk) == SOME


def test_a_reader_that_polls_finds_a_file_that_was_made_anew() -> None:
    """It asks `range` again and again, and waits for nothing: no wait is there in which it would look."""
    disk = SimDisk()
    with open_log(disk) as log, open_reader(disk) as reader:
        fill(log, 2)
        assert reader.range().last_seqno == 2
        disk.unlink(f"{PATH}/positions")
        fill(log, 3, start=2)
        assert [reader.range().last_seqno for _ in range(2)][-1] == 5


def test_the_packing_has_a_place_for_a_boot_id() -> None:
    assert len(SOME.boot_id) == 36
    assert POSITIONS.size == POSITIONS_BYTES - 4


# --- holds -----------------------------------------------------------------------------------------------


def test_holds_are_written_read_and_dropped() -> None:
    disk, clock = log_disk(), ManualClock(5_000)
    assert read_holds(PATH, disk=disk) == []
    hold(PATH, "b", Seqno(7), disk=disk, clock=clock)
    hold(PATH, "a", Seqno(-1), disk=disk, clock=clock)
    clock.advance(1)
    hold(PATH, "b", Seqno(8), disk=disk, clock=clock)
    assert read_holds(PATH, disk=disk) == [
        Hold(name="a", restart_seqno=Seqno(-1), written_at=5_000),
        Hold(name="b", restart_seqno=Seqno(8), written_at=6_000),
    ]
    assert len(disk.content(f"{PATH}/holds/b")) == HOLD_BYTES
    drop_hold(PATH, "b", disk=disk)
    drop_hold(PATH, "b", disk=disk)
    assert [one.name for one in read_holds(PATH, disk=disk)] == ["a"]


@pytest.mark.parametrize(
    "words", ["", "postgresql://u@h:5432/shop", "sqlite /srv/a b/100 %/crc=1 ä 🛒 \udcff.db", "null /" + "y" * 300]
)
def test_a_holder_says_who_it_is(words: str) -> None:
    disk = log_disk()
    hold(PATH, "a", Seqno(7), holder=words, disk=disk, clock=ManualClock(5_000))
    assert read_hold(PATH, "a", disk=disk) == Hold(name="a", restart_seqno=Seqno(7), written_at=5_000, holder=words)
    assert read_hold(PATH, "b", disk=disk) is None
    assert len(disk.content(f"{PATH}/holds/a")) == HOLD_BYTES


@pytest.mark.parametrize("letter", ["y", " ", "ä", "🛒"])
def test_of_long_words_the_end_is_kept(letter: str) -> None:
    disk = log_disk()
    words = letter * 5_000 + "/the end"
    hold(PATH, "a", Seqno(2**63 - 1), holder=words, disk=disk, clock=ManualClock(10**15))
    found = read_hold(PATH, "a", disk=disk)
    assert found is not None and found.restart_seqno == 2**63 - 1
    assert found.holder == fit_holder(words) == fit_holder(found.holder)
    assert found.holder.startswith("…") and words.endswith(found.holder[1:]) and len(found.holder) > 30
    assert len(disk.content(f"{PATH}/holds/a")) == HOLD_BYTES


def test_a_damaged_hold_holds_everything() -> None:
    disk = log_disk()
    hold(PATH, "a", Seqno(7), disk=disk, clock=ManualClock())
    for damaged in (b"", b"restart_seqno=9 written_at=1 crc=00000000", b"\xff" * 128, b"nonsense"):
        disk.set_content(f"{PATH}/holds/a", damaged)
        assert [one.restart_seqno for one in read_holds(PATH, disk=disk)] == [None]


def test_only_a_new_hold_is_synced() -> None:
    disk = log_disk()
    hold(PATH, "a", Seqno(7), disk=disk, clock=ManualClock())
    synced = disk.counts["sync"]
    assert synced == 1
    hold(PATH, "a", Seqno(8), disk=disk, clock=ManualClock())
    assert disk.counts["sync"] == synced
    hold(PATH, "a", Seqno(8), sync=True, disk=disk, clock=ManualClock())
    assert disk.counts["sync"] == synced + 1


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", ".hidden", "x" * 201, "a\0"])
def test_a_hold_has_a_plain_name(name: str) -> None:
    with pytest.raises(ConfigError, match="plain file name"):
        hold(PATH, name, Seqno(1), disk=log_disk(), clock=ManualClock())


@pytest.mark.parametrize(("name", "follower"), [("node.b", False), ("restore.b", False), ("pipe", True)])
def test_followers_and_pipelines_share_no_name(name: str, follower: bool) -> None:
    with pytest.raises(ConfigError, match="names of followers alone"):
        hold(PATH, name, Seqno(1), follower=follower, disk=log_disk(), clock=ManualClock())


def test_a_hold_that_cannot_be_written_says_so() -> None:
    """log-format.md: a pipeline that cannot write its hold says that retention will not wait for it."""
    disk = log_disk()
    disk.read_only = True
    with pytest.raises(HoldError, match="Retention does not keep"):
        hold(PATH, "a", Seqno(1), disk=disk, clock=ManualClock())
    disk.read_only = False
    hold(PATH, "a", Seqno(1), disk=disk, clock=ManualClock())
    disk.denied.add(f"{PATH}/holds/a")
    with pytest.raises(HoldError, match="Permission denied"):
        read_holds(PATH, disk=disk)

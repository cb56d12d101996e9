"""log/files/positions.py: the block that readers in other processes go by."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from fix_log import PATH, fill, open_log, open_reader
from tranlog.ids import Epoch, Lsn, Seqno
from tranlog.log.files.positions import (
    POSITIONS,
    POSITIONS_BYTES,
    POSITIONS_FIELDS,
    Positions,
    PositionsFile,
    PositionsReader,
    decode_positions,
    encode_positions,
    read_positions,
)
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


def of_this_file(positions: Positions, disk: SimDisk) -> Positions:
    """Return them as a writer publishes them."""
    with contextlib.closing(disk.open(f"{PATH}/positions")) as file:
        return positions._replace(boot_id=disk.boot_id(), identity=file.identity())


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
    file.write(SOME[2:])
    file.write(SOME[2:])
    assert disk.counts["pwrite"] == before + 2
    assert len(disk.content(f"{PATH}/positions")) == POSITIONS_BYTES
    assert read_positions(PATH, disk) == of_this_file(SOME, disk)


def test_no_file_is_no_positions() -> None:
    disk = log_disk()
    assert read_positions(PATH, disk) is None
    assert PositionsReader(PATH, disk).read() is None


def published(disk: SimDisk) -> Positions:
    positions = Positions("", 0, first_seqno=Seqno(0), visible_seqno=Seqno(4))
    PositionsFile(PATH, disk).write(positions[2:])
    return of_this_file(positions, disk)


def test_a_reader_trusts_this_boots_own_file_only() -> None:
    """log-format.md, "Who may see what": missing, damaged, of another boot, or a copy."""
    disk = log_disk()
    positions = published(disk)
    reader = PositionsReader(PATH, disk)
    assert reader.read() == positions
    disk.copy_files(PATH, "/copy")
    assert PositionsReader("/copy", disk).read() is None, "a copy is another file"
    disk.set_content(f"{PATH}/positions", encode_positions(positions._replace(boot_id="of another boot")))
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
    file.write(SOME[2:])
    assert read_positions(PATH, disk) == of_this_file(SOME, disk)


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

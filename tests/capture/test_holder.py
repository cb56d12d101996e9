"""The identity of a log's directory: kept by the directory, also renamed, and by no copy of it.

Proves: docs/decisions/0022, "One log".
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tranlog.capture.holder import HOLDER_NAME, holder_of
from tranlog.disk import OsDisk
from tranlog.errors import DiskFailedError
from tranlog.testing.disk import SimDisk


def test_a_directory_keeps_it_and_a_copy_has_its_own(tmp_path: Path) -> None:
    first, copy, moved = tmp_path / "first", tmp_path / "copy", tmp_path / "moved"
    first.mkdir()
    holder = holder_of(str(first))
    assert len(holder) == 32 and holder_of(str(first)) == holder
    shutil.copytree(first, copy)
    assert (copy / HOLDER_NAME).read_bytes() == (first / HOLDER_NAME).read_bytes()
    assert holder_of(str(copy)) not in (holder, "") and holder_of(str(copy)) == holder_of(str(copy))
    first.rename(moved)
    assert holder_of(str(moved)) == holder


def test_another_machine_has_its_own(tmp_path: Path) -> None:
    here = holder_of(str(tmp_path), machine="here")
    assert holder_of(str(tmp_path), machine="here") == here
    there = holder_of(str(tmp_path), machine="there")
    assert there != here and holder_of(str(tmp_path), machine="there") == there


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"id": 5}', b'{"id": "x", "inode": 1}'])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    before = holder_of(str(tmp_path))
    (tmp_path / HOLDER_NAME).write_bytes(damage)
    after = holder_of(str(tmp_path))
    assert after != before and holder_of(str(tmp_path)) == after


def test_it_outlives_a_loss_of_power() -> None:
    disk = SimDisk()
    disk.make_dir("/log")
    disk.sync_dir("/")
    holder = holder_of("/log", disk=disk, machine="m")
    for _ in range(3):
        disk = disk.after_crash(random.Random(1))
        assert holder_of("/log", disk=disk, machine="m") == holder


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiskFailedError, match="holder"):
        holder_of(str(tmp_path / "missing"))


def test_what_an_earlier_attempt_left_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / f"{HOLDER_NAME}.new").write_bytes(b"x" * 1000)
    assert holder_of(str(tmp_path), disk=OsDisk()) == holder_of(str(tmp_path))

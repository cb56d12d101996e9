"""The error that ended a process is there afterwards, with its time and remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tranlog.errors import DiskFullError, LogLockedError
from tranlog.service.process.last_error import forget_error, keep_error, keeping_error, last_error


def test_it_is_kept_until_another_begins(tmp_path: Path) -> None:
    log = str(tmp_path)
    assert last_error(log, "shop") is None
    with pytest.raises(DiskFullError), keeping_error(log, "shop"):
        raise DiskFullError(path="log")
    found = last_error(log, "shop")
    assert found is not None and found.at_ms > 0
    assert (found.type, found.message) == ("DiskFullError", str(DiskFullError(path="log")))
    assert last_error(log, "other") is None
    assert os.listdir(tmp_path / "control") == [".error-shop"]
    forget_error(log, "shop")
    assert last_error(log, "shop") is None
    forget_error(log, "shop")


def test_the_error_that_another_is_at_work_is_not_its_own(tmp_path: Path) -> None:
    keep_error(str(tmp_path), "shop", DiskFullError(path="log"))
    locked = LogLockedError(path="log", holder="pid 1")
    with pytest.raises(LogLockedError), keeping_error(str(tmp_path), "shop"):
        raise locked
    found = last_error(str(tmp_path), "shop")
    assert found is not None and found.type == "DiskFullError"


def test_it_is_never_in_the_way(tmp_path: Path) -> None:
    """No folder is made for a log that is not there; what stands in the place of folder or file is let be."""
    keep_error(str(tmp_path / "nowhere"), "shop", DiskFullError(path="log"))
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "control").write_text("a file")
    keep_error(str(tmp_path), "shop", DiskFullError(path="log"))
    forget_error(str(tmp_path), "shop")
    (tmp_path / "control").unlink()
    (tmp_path / "control").mkdir()
    for rubbish in (b"", b"{", b"[]", b"\xff"):
        (tmp_path / "control" / ".error-shop").write_bytes(rubbish)
        assert last_error(str(tmp_path), "shop") is None

"""log/files/holds.py: what pipelines and readers still need of a log."""

from __future__ import annotations

import pytest

from fix_log import PATH
from tranlog.errors import ConfigError, HoldError
from tranlog.ids import Seqno
from tranlog.log.files.holds import HOLD_BYTES, Hold, drop_hold, fit_holder, hold, read_hold, read_holds
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk


def log_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dir(PATH)
    return disk


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

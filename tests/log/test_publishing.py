"""What a log tells its readers: never a position beyond the one that it rests on."""

from __future__ import annotations

import pytest

from fix_log import PATH, fill, make_fragment, open_log
from tranlog.ids import Seqno
from tranlog.log.files.positions import read_positions
from tranlog.testing.disk import SimDisk


@pytest.mark.parametrize("name", ["visible", "durable", "committed"])
def test_no_position_is_published_beyond_the_one_it_rests_on(name: str) -> None:
    """ARCHITECTURE.md, "The ladder of positions": first <= committed <= visible <= last, and durable <= last."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 3)
    before = read_positions(PATH, disk)
    setattr(log._end.publishing, name, Seqno(log.last_seqno + 1))
    with pytest.raises(AssertionError):
        log._end.publishing.publish()
    assert read_positions(PATH, disk) == before and log.gate().wait(Seqno(4), 0) == 3
    setattr(log._end.publishing, name, log.last_seqno)
    log.close()


def test_committed_follows_the_sync() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 1)
        log.append(make_fragment())
        log.commit(sync=False)
        shown = read_positions(PATH, disk)
        assert shown is not None and (shown.committed_seqno, shown.durable_seqno, shown.visible_seqno) == (1, 1, 2)
        assert log.status().committed_seqno == 1 and log.gate(committed_only=True).wait(Seqno(2), 0) == 1
        log.commit()
        shown = read_positions(PATH, disk)
        assert shown is not None and (shown.committed_seqno, shown.durable_seqno) == (2, 2)

"""source/postgres/position: the text of an event id, and which servers have the log's history."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tranlog.source.postgres.position import (
    ServerHistory,
    SlotState,
    WalPosition,
    lsn_text,
    parse_history,
    parse_lsn,
    why_lost,
)

HERE = WalPosition(lsn=0x16_B374_D848, system="7298342934123412341", timeline=2, slot="tranlog_shop", xid=743)
SERVER = ServerHistory(system=HERE.system, timeline=2, end_lsn=HERE.lsn + 10, switches={1: 0x5000060})
SLOT = SlotState(confirmed_lsn=HERE.lsn, wal_status="reserved", active_pid=None)


def test_the_text_of_a_position() -> None:
    assert str(HERE) == "16/B374D848;7298342934123412341;2;tranlog_shop;xid=743"
    assert WalPosition.parse(str(HERE)) == HERE
    assert WalPosition.parse(str(replace(HERE, xid=0))).xid == 0
    assert lsn_text(parse_lsn("0/1924FA8")) == "0/1924FA8"
    for text in ("", "0-1-42", "16/B374D848", "16/B374D848;1;1;Slot", "x/1;1;1;s"):
        with pytest.raises(ValueError, match="it reads"):
            WalPosition.parse(text)


@pytest.mark.parametrize(
    ("server", "slot"),
    [
        (SERVER, SLOT),
        (SERVER, replace(SLOT, confirmed_lsn=HERE.lsn - 50)),
        (replace(SERVER, timeline=3, switches={1: 0x5000060, 2: HERE.lsn}), SLOT),
    ],
)
def test_servers_that_have_the_history(server: ServerHistory, slot: SlotState) -> None:
    assert why_lost(HERE, server, slot) is None


@pytest.mark.parametrize(
    ("server", "slot", "why"),
    [
        (replace(SERVER, system="1"), SLOT, "system identifier is 1"),
        (SERVER, None, "it was dropped"),
        (SERVER, replace(SLOT, wal_status="lost"), "max_slot_wal_keep_size"),
        (SERVER, replace(SLOT, confirmed_lsn=HERE.lsn + 1), "dropped and made anew"),
        (replace(SERVER, end_lsn=HERE.lsn - 1), replace(SLOT, confirmed_lsn=HERE.lsn - 5), "restored from a backup"),
        (replace(SERVER, timeline=1, switches={}), SLOT, "timeline 1, whose history does not come from timeline 2"),
        (replace(SERVER, timeline=4, switches={1: 5, 3: 9}), SLOT, "does not come from timeline 2"),
        (
            replace(SERVER, timeline=3, switches={2: HERE.lsn - 1}),
            SLOT,
            "left timeline 2 at 16/B374D847, the log ends at 16/B374D848 of timeline 2, and the slot has confirmed "
            "16/B374D848",
        ),
        (replace(SERVER, timeline=3, switches={2: HERE.lsn}), None, "did not come along with a promotion"),
        (
            replace(SERVER, timeline=3, switches={2: HERE.lsn}),
            replace(SLOT, confirmed_lsn=HERE.lsn + 9),
            "more than the log holds",
        ),
    ],
)
def test_servers_that_have_not(server: ServerHistory, slot: SlotState | None, why: str) -> None:
    assert why in (why_lost(HERE, server, slot) or "")


def test_a_timeline_history() -> None:
    text = '1\t0/5000060\tno recovery target specified\n\n2\t16/B374D848\tat restore point "x"\n# a comment\n'
    assert parse_history(text) == {1: 0x5000060, 2: HERE.lsn}

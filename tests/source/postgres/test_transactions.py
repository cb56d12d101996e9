"""source/postgres/transactions: commits in order, savepoints taken back, memory that stays bounded."""

from __future__ import annotations

import itertools
import random
import struct

import pytest

from fix_pgoutput import messages
from tranlog.errors import UnsupportedEventError
from tranlog.source.postgres.messages import LogicalMessage, MessageFormatError
from tranlog.source.postgres.small import SmallTransaction
from tranlog.source.postgres.transactions import Assembled, TransactionAssembler, WholeTransaction
from tranlog.source.waiting import WaitingEvents


def assembler(
    *,
    memory_bytes: int = 1 << 20,
    most: int = 1 << 30,
    names_beyond: bool = False,
    stores: list[WaitingEvents] | None = None,
) -> TransactionAssembler:
    made = [] if stores is None else stores

    def new_store() -> WaitingEvents:
        made.append(WaitingEvents(memory_bytes, None))
        return made[-1]

    return TransactionAssembler(
        new_store=new_store, memory_bytes=memory_bytes, transaction_bytes_max=most, names_beyond=names_beyond
    )


def fed(name: str, into: TransactionAssembler) -> list[WholeTransaction | LogicalMessage]:
    return [found for raw in messages(name) if (found := into.feed(raw)) is not None]


def test_transactions_in_one_piece() -> None:
    found = fed("plain", assembler())
    assert [type(one).__name__ for one in found] == [*["WholeTransaction"] * 5, "LogicalMessage", "WholeTransaction"]
    whole = [one for one in found if isinstance(one, WholeTransaction)]
    assert [one.end_lsn for one in whole] == sorted({one.end_lsn for one in whole})
    assert "".join(chr(raw[0]) for raw in whole[1]) == "RIIUUDD"
    assert [one.announces for one in whole] == [True, True, True, True, True, False]


@pytest.mark.parametrize("memory_bytes", [1 << 20, 20_000])
def test_a_savepoint_of_a_streamed_transaction_is_taken_back(memory_bytes: int) -> None:
    """The rows inside the savepoint are left out, what they defined is not; a whole rollback leaves nothing."""
    stores: list[WaitingEvents] = []
    one = assembler(memory_bytes=memory_bytes, stores=stores)
    peak = 0
    found: list[tuple[WholeTransaction, list[bytes]]] = []
    for raw in messages("streamed"):
        whole = one.feed(raw)
        peak = max(peak, sum(store.memory for store in stores))
        if isinstance(whole, WholeTransaction):
            found.append((whole, list(whole)))
            whole.messages.close()
    (large, kept), (small, _) = found
    rows = [raw for raw in kept if raw[:1] == b"I"]
    assert len(rows) == 81 + 81 and not any(b"yyyy" in raw for raw in rows)
    assert sum(raw[:1] == b"R" for raw in kept) >= 2
    assert large.streamed and large.taken_back and not small.streamed
    assert one.open_streamed == 0
    assert peak <= memory_bytes + 1000


def test_a_transaction_that_is_too_large_is_refused() -> None:
    with pytest.raises(UnsupportedEventError, match="transaction_bytes_max allows 30000"):
        fed("streamed", assembler(most=30_000))


def test_of_a_transaction_that_is_too_large_the_tables_are_kept() -> None:
    """One head of a row for each definition and subtransaction that counts, and every other message as it was."""
    stores: list[WaitingEvents] = []
    one = assembler(most=20_000, names_beyond=True, stores=stores)
    (whole, _), (large, small) = (
        [found for found in fed("streamed", each) if isinstance(found, WholeTransaction)] for each in (assembler(), one)
    )
    assert large.beyond and large.size == whole.size and large.taken_back == whole.taken_back
    assert not small.beyond and [raw[:1] for raw in small].count(b"I") == 1
    rows = [raw for raw in large if raw[:1] == b"I"]
    assert {raw[5:] for raw in rows} == {raw[5:9] for raw in whole if raw[:1] == b"I"}
    assert all(len(raw) == 9 for raw in rows) and len(rows) < 5
    assert [raw for raw in large if raw[:1] != b"I"] == [raw for raw in whole if raw[:1] != b"I"]
    # What is kept counts against the limit and the memory; the rest is gone.
    left = sum(len(raw) for found in (large, small) for raw in found.messages)
    assert sum(store.memory for store in stores) == left < 5000


def test_beyond_its_limit_without_its_rows_a_transaction_is_refused() -> None:
    one = assembler(most=1000, names_beyond=True)
    message = b"M" + struct.pack(">BQ", 1, 5) + b"p\0" + struct.pack(">I", 600) + b"x" * 600
    one.feed(BEGIN)
    one.feed(message)
    one.put([ROW] * 20)
    assert one.take() is None
    one.feed(ROW + b"y" * 600)
    with pytest.raises(UnsupportedEventError, match="transaction_bytes_max allows 1000"):
        one.feed(message)
    one.close()


def test_two_phase_steps_are_refused() -> None:
    with pytest.raises(MessageFormatError, match="two-phase"):
        fed("prepared", assembler())


BEGIN = b"B" + struct.pack(">QqI", 9, 0, 1)
COMMIT = b"C" + struct.pack(">BQQq", 0, 9, 10, 0)
START = b"S" + struct.pack(">IB", 5, 1)
ROW = b"I\0\0\0\1N\0\0"


@pytest.mark.parametrize(
    "raws",
    [
        [COMMIT],
        [ROW],
        [b"E"],
        [BEGIN, BEGIN],
        [BEGIN, START],
        [START, COMMIT],
        [START, b"E", START],
        [b"S" + struct.pack(">IB", 5, 0)],
        [b"c" + struct.pack(">IBQQq", 5, 0, 9, 10, 0)],
        [START, b"A" + struct.pack(">II", 5, 5)],
    ],
)
def test_what_does_not_follow_is_refused(raws: list[bytes]) -> None:
    one = assembler()
    for raw in raws[:-1]:
        one.feed(raw)
    with pytest.raises(MessageFormatError):
        one.feed(raws[-1])
    one.close()


@pytest.mark.parametrize("name", ["plain", "streamed"])
def test_many_messages_at_once_are_the_same_transactions(name: str) -> None:
    """Wherever a batch is cut; the short way of small transactions is `small`'s."""
    raws = messages(name)
    rng = random.Random(random.randrange(1 << 32))
    for cuts in ([], sorted(rng.sample(range(len(raws)), 5)), range(len(raws))):
        one, found = assembler(most=1 << 20), []
        for start, end in itertools.pairwise([0, *cuts, len(raws)]):
            one.put(raws[start:end])
            while (whole := one.take()) is not None:
                found.append(told(whole))
        assert found == [told(whole) for whole in fed(name, assembler(most=1 << 20))]
    for one, kind in (
        (assembler(), SmallTransaction),
        (assembler(most=len(ROW) - 1, names_beyond=True), WholeTransaction),
    ):
        one.put([BEGIN, ROW, COMMIT])
        assert isinstance(one.take(), kind) and one.take() is None


def told(one: Assembled) -> tuple[object, ...]:
    """What there is of a transaction, whichever way it came."""
    if isinstance(one, LogicalMessage):
        return one.lsn, one.prefix
    rows = one.rows if isinstance(one, SmallTransaction) else list(one)
    return one.xid, one.end_lsn, one.timestamp, one.size, rows


def test_an_abort_of_what_was_not_sent_is_nothing() -> None:
    """The server tells of each rollback of a transaction of which it sent a part, also after a part that was empty."""
    one = assembler()
    assert one.feed(b"A" + struct.pack(">II", 5, 5)) is None and one.feed(b"A" + struct.pack(">II", 5, 6)) is None

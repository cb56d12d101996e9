"""source/postgres/messages, on what a real server sent (tests/golden/postgres) and on what only newer ones send."""

from __future__ import annotations

import struct
from collections import Counter

import pytest

from fix_pgoutput import messages, with_streaming
from tranlog.source.postgres.messages import (
    EPOCH_2000_MICROS,
    BeginMessage,
    CommitMessage,
    Keepalive,
    LogicalMessage,
    MessageFormatError,
    OriginMessage,
    RelationColumn,
    RelationMessage,
    RowMessage,
    StreamAbort,
    StreamStart,
    StreamStop,
    TruncateMessage,
    TwoPhaseMessage,
    TypeMessage,
    feedback,
    parse_keepalive,
    parse_message,
)


def parsed(name: str) -> list[object]:
    return [parse_message(raw, streamed=inside) for raw, inside in with_streaming(messages(name))]


def test_a_transaction_in_one_piece() -> None:
    found = parsed("plain")
    begin, commit = found[0], next(one for one in found if isinstance(one, CommitMessage))
    assert isinstance(begin, BeginMessage)
    assert commit.kind == "C" and begin.xid > 0 < commit.end_lsn
    assert commit.timestamp > EPOCH_2000_MICROS


def test_a_table_and_its_types() -> None:
    found = parsed("plain")
    tables = [one for one in found if isinstance(one, RelationMessage)]
    assert [(one.table, one.identity, len(one.columns)) for one in tables[:3]] == [
        ("types", "f", 29),
        ("by_key", "d", 3),
        ("wide", "f", 3),
    ]
    assert [(one.name, one.key) for one in tables[1].columns] == [("id", True), ("part", True), ("note", False)]
    assert tables[0].columns[12] == RelationColumn(True, "d", 1082, -1)
    types = [one for one in found if isinstance(one, TypeMessage)]
    assert [(one.schema, one.name) for one in types[:3]] == [
        ("public", "mood"),
        ("pg_catalog", "numeric"),  # a domain comes with the name of its base
        ("public", "pair"),
    ]
    changed = [one for one in tables if one.table == "wide"][-1]
    assert [one.name for one in changed.columns] == ["id", "big", "more"]


def test_truncate_and_messages() -> None:
    found = parsed("plain")
    (truncate,) = (one for one in found if isinstance(one, TruncateMessage))
    assert len(truncate.relations) == 2 and truncate.cascade and truncate.restart_identity
    said = [one for one in found if isinstance(one, LogicalMessage)]
    assert [(one.transactional, one.prefix, one.content) for one in said] == [
        (False, "free", b"\x00\xff"),
        (True, "mine", b"hello"),
    ]


def test_a_streamed_transaction_names_the_subtransaction_of_each_change() -> None:
    found = parsed("streamed")
    kinds = Counter(type(one) for one in found)
    assert kinds[StreamStart] == kinds[StreamStop] > 2
    (commit,) = (one for one in found if isinstance(one, CommitMessage) and one.kind == "c")
    aborts = [one for one in found if isinstance(one, StreamAbort)]
    assert any(one.xid == commit.xid != one.subxid for one in aborts) and any(one.xid == one.subxid for one in aborts)
    xids = {one.xid for one in found if isinstance(one, RowMessage)}
    assert commit.xid in xids and len(xids) >= 3


def test_a_step_of_a_two_phase_commit_is_told_as_one() -> None:
    raws = [raw for raw, _ in with_streaming(messages("prepared"))]
    kinds = [chr(raw[0]) for raw, one in zip(raws, parsed("prepared"), strict=True) if isinstance(one, TwoPhaseMessage)]
    assert kinds == ["b", "P", "K", "b", "P", "r", "p", "K"]


def test_what_the_recordings_do_not_hold() -> None:
    assert parse_message(b"O" + struct.pack(">Q", 7) + b"far away\0") == OriginMessage("far away")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"?",
        b"B",
        b"B" + bytes(21),
        b"R\0\0\0\1public",
        b"E\0",
        b"T\0\0\0\2\0\0\0\0\1",
        b"M\1" + bytes(8) + b"a\0\0\0\0\2x",
    ],
)
def test_what_is_no_message_is_one_error(raw: bytes) -> None:
    with pytest.raises(MessageFormatError):
        parse_message(raw)


def test_keepalive_and_feedback() -> None:
    assert parse_keepalive(struct.pack(">cQqB", b"k", 99, 0, 1)) == Keepalive(99, True)
    with pytest.raises(MessageFormatError):
        parse_keepalive(b"k")
    answer = feedback(received=9, durable=7, now_micros=EPOCH_2000_MICROS + 5, reply=True)
    assert struct.unpack(">cQQQqB", answer) == (b"r", 9, 7, 7, 5, 1)

"""source/postgres/kind: what status tells of a slot beside its numbers."""

from __future__ import annotations

import pytest

from tranlog.source.postgres.checks import slot_note
from tranlog.source.postgres.connection import PostgresSourceOptions
from tranlog.source.postgres.kind import KIND

OPTIONS = PostgresSourceOptions(source_id="shop", retained_warn_bytes=1000)


@pytest.mark.parametrize(
    ("wal_status", "kept", "note"),
    [
        ("reserved", 999, ""),
        ("extended", 999, ""),
        ("reserved", 1000, "The slot fills the source's disk: capture must run and reach its log."),
        ("lost", 1000, "The slot's WAL is lost: it passed max_slot_wal_keep_size."),
        ("lost", None, "The slot's WAL is lost: it passed max_slot_wal_keep_size."),
        ("", None, "There is no slot tranlog_shop."),
    ],
)
def test_notes_of_a_slot(wal_status: str, kept: int | None, note: str) -> None:
    assert slot_note(OPTIONS, wal_status, kept) == note


def test_status_says_that_there_are_no_before_images() -> None:
    by_key = PostgresSourceOptions(source_id="shop", identity="key")
    assert KIND.caveat(by_key).startswith('identity = "key": there are no before images')

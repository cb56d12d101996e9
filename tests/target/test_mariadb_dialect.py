"""MariaDB's literals, labels and statements, without a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlog.servers.mariadb_values import catalog_labels
from tranlog.target.mariadb_dialect import bytes_literal, literal
from tranlog.target.mariadb_statements import skip_statement


def read(text: bytes) -> bytes:
    """What the server makes of a quoted literal, by its manual's rules for the escapes that we write."""
    assert text[:1] == text[-1:] == b"'"
    out, at, inside = bytearray(), 0, text[1:-1]
    while at < len(inside):
        assert inside[at] != ord("'"), "the literal would end here"
        at += inside[at] == ord("\\")
        out.append(inside[at])
        at += 1
    return bytes(out)


@given(st.text())
def test_a_text_s_literal(text: str) -> None:
    assert read(literal(text).encode()) == text.encode()


@given(st.binary())
def test_the_literal_of_bytes(value: bytes) -> None:
    """Whatever the bytes are: they travel among UTF-8, and come out as they went in."""
    raw = bytes_literal(value).encode("utf-8", "surrogateescape")
    assert raw.startswith(b"_binary")
    assert read(raw.removeprefix(b"_binary")) == value


@pytest.mark.parametrize(
    ("declared", "labels"),
    [
        ("enum('a','b,c','')", ("a", "b,c", "")),
        ("set('it''s','a\\\\b','\\n','é')", ("it's", "a\\b", "\n", "é")),
        ("varchar(20)", ()),
    ],
)
def test_labels_as_the_catalogue_spells_them(declared: str, labels: tuple[str, ...]) -> None:
    assert catalog_labels(declared) == labels


@pytest.mark.parametrize(
    ("statement", "skipped"),
    [
        ("create trigger t before insert on a for each row set new.b = 1", True),
        ("-- why\nCREATE OR REPLACE DEFINER = 'a'@'%' EVENT e ON SCHEDULE EVERY 1 DAY DO SELECT 1", True),
        ("# x\n/* y */ DROP TRIGGER IF EXISTS t", True),
        ("GRANT ALL ON *.* TO a", True),
        ("create user a identified by 'b'", True),
        ("SET PASSWORD FOR a = 'x'", True),
        ("SET STATEMENT max_statement_time = 1 FOR DROP TABLE a", False),
        ("ANALYZE TABLE a", True),
        ("CREATE TABLE trigger_happy (a int)", False),
        ("ALTER TABLE users ADD role int", False),
        ("create database shop", False),
        ("/* y */ DROP SCHEMA IF EXISTS shop", False),
        ("CREATE OR REPLACE DATABASE shop", False),
        ("", False),
    ],
)
def test_kinds_of_statements(statement: str, skipped: bool) -> None:
    assert bool(skip_statement(statement)) == skipped

"""charsets: text as the server reads it. The integration tests hold every code against a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlog.charsets import CHARSET_NAMES, bytes_per_character, text_decoder
from tranlog.types import CharsetBytes


@pytest.mark.parametrize(
    ("charset", "raw", "text"),
    [
        ("utf8mb4", "日本😀é".encode(), "日本😀é"),
        ("utf8mb3", "日本é".encode(), "日本é"),
        ("latin1", b"\x80\x81\x8d\x9d\xe9\xff", "€\x81\x8d\x9déÿ"),
        ("ascii", b"abc\x00\x7f", "abc\x00\x7f"),
        ("sjis", b"\x81\x5f\x93\xfa", "\\日"),
        ("ujis", b"\\\xa4\xa2", "\\あ"),
        ("eucjpms", b"\xa1\xc1", "～"),
        ("euckr", b"\x81\x41", "갂"),
        ("cp866", b"\xfc\xfd", "ⁿ²"),
        ("hebrew", b"\xaf\xe0", "‾א"),
        ("greek", b"\xa1\xa2\xe1", "ʽʼα"),
        ("koi8u", b"\x95\xa4", "•є"),
        ("ucs2", "é日".encode("utf-16-be"), "é日"),
        ("utf16", "é日😀".encode("utf-16-be"), "é日😀"),
        ("utf16le", "é日😀".encode("utf-16-le"), "é日😀"),
        ("utf32", "é日😀".encode("utf-32-be"), "é日😀"),
        ("dec8", b"plain", "plain"),
        ("cp1251", "Жя".encode("cp1251"), "Жя"),
        ("cp932", "日ﾊ".encode("cp932"), "日ﾊ"),
        ("cp932", b"\xfa\x5c\x81\xe0", "纊≒"),
    ],
)
def test_text(charset: str, raw: bytes, text: str) -> None:
    assert text_decoder(charset)(raw) == text


@pytest.mark.parametrize(
    ("charset", "raw"),
    [
        ("utf8mb4", b"\xff"),
        ("utf8mb4", b"\xed\xa0\x80"),
        ("ascii", b"\x80"),
        ("cp1257", b"\xa5"),
        ("ucs2", "😀".encode("utf-16-be")),
        ("ucs2", b"\xd8\x00\x00a"),
        ("ucs2", b"a"),
        ("utf16", b"\xd8\x00"),
        ("utf32", b"\x00\x11\x00\x00"),
        ("dec8", b"\xc4"),
        ("swe7", b"[A"),
        ("cp932", b"\x80"),
        ("cp932", b"a\xfd"),
        ("sjis", b"\x81"),
        ("sjis", b"C:\\tmp"),
        ("ujis", b"\xa1\xc0"),
        ("cp932", b"\x87\x90"),
        ("cp932", b"\xed\x40"),
        ("big5", b"\xa1\x5a"),
        ("cp1256", b"\x8a"),
        ("greek", b"\xa4"),
        ("collation 9999", b"abc"),
    ],
)
def test_bytes_that_do_not_decode(charset: str, raw: bytes) -> None:
    """data-model.md: they "travel as bytes with the charset's name"."""
    assert text_decoder(charset)(raw) == CharsetBytes(charset, raw)


@given(st.sampled_from(sorted(CHARSET_NAMES)), st.binary(max_size=20))
def test_any_bytes_end_in_a_value(charset: str, raw: bytes) -> None:
    value = text_decoder(charset)(raw)
    if isinstance(value, str):
        value.encode()  # a payload's text is UTF-8
    else:
        assert value == CharsetBytes(charset, raw)
    assert 1 <= bytes_per_character(charset) <= 4

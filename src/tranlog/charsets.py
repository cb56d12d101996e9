"""Text in MariaDB's charsets: which bytes are which text, as the server itself converts them.

Owns the table of charsets. Pure. The hard idea: a charset of the same name in Python and in MariaDB often differs in
a few characters, and some charsets have several codes for one character. Text must mean at a target what it means at
the source, and be the same bytes there where the charset is the same. So a text is decoded only as far as Python and
the server agree and the server would make the same bytes of it again, which a test holds against a real server;
everything else travels as bytes with the charset's name.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tranlog.types import CharsetBytes

Text = str | CharsetBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Charset:
    """How a charset is read.

    `codec` is Python's, None for none that agrees. `width` is the most bytes that a character takes. Of one byte:
    `patch` are bytes that the server reads in another way than Python; of more: what to put for Python's characters.
    `without` are characters of Python's codec that the server does not have, or makes other bytes of; they stand as
    Python has them, before `patch`. `ascii` says that bytes below 128 are
    ASCII, for charsets without a codec.
    """

    codec: str | None
    width: int = 1
    patch: tuple[tuple[int, int], ...] = ()
    without: str = ""
    ascii: bool = True


_CHARSETS: Final = {
    "ascii": _Charset(codec="ascii"),
    "armscii8": _Charset(codec=None),
    "big5": _Charset(codec="big5", width=2, without="\u2574\uffe3\u02cd\u2571\u2572\u5140\u5341"),
    "cp1250": _Charset(codec="cp1250"),
    "cp1251": _Charset(codec="cp1251"),
    "cp1256": _Charset(codec="cp1256", without="\u0679\u0688\u06a9\u0691\u06ba\u06be\u06c1\u06d2"),
    "cp1257": _Charset(codec="cp1257"),
    "cp850": _Charset(codec="cp850"),
    "cp852": _Charset(codec="cp852"),
    "cp866": _Charset(codec="cp866", patch=((0xFC, 0x207F), (0xFD, 0x00B2))),
    "cp932": _Charset(codec="cp932", width=2, without="\x80\xa0\uf8f0\uf8f1\uf8f2\uf8f3"),
    "dec8": _Charset(codec=None),
    "eucjpms": _Charset(
        codec="euc_jp",
        width=3,
        without="\xa6\u2116",
        patch=(
            (0x301C, 0xFF5E),
            (0x2016, 0x2225),
            (0x2212, 0xFF0D),
            (0x00A2, 0xFFE0),
            (0x00A3, 0xFFE1),
            (0x00AC, 0xFFE2),
        ),
    ),
    "euckr": _Charset(codec="cp949", width=2),
    "gb2312": _Charset(codec="gb2312", width=2),
    "gbk": _Charset(codec="gbk", width=2),
    "geostd8": _Charset(codec=None),
    "greek": _Charset(codec="iso8859_7", patch=((0xA1, 0x02BD), (0xA2, 0x02BC)), without="\u20ac\u20af\u037a"),
    "hebrew": _Charset(codec="iso8859_8", patch=((0xAF, 0x203E),)),
    "hp8": _Charset(codec="hp_roman8"),
    "keybcs2": _Charset(codec=None),
    "koi8r": _Charset(codec="koi8_r"),
    "koi8u": _Charset(codec="koi8_u", patch=((0x95, 0x2022),)),
    # MariaDB's latin1 is Windows-1252 with its five holes filled.
    "latin1": _Charset(codec="cp1252", patch=tuple((hole, hole) for hole in (0x81, 0x8D, 0x8F, 0x90, 0x9D))),
    "latin2": _Charset(codec="iso8859_2"),
    "latin5": _Charset(codec="iso8859_9"),
    "latin7": _Charset(codec="iso8859_13"),
    "macce": _Charset(codec="mac_latin2"),
    "macroman": _Charset(codec="mac_roman"),
    "sjis": _Charset(codec="shift_jis", width=2, patch=((0xFF3C, 0x5C),), without="\\"),
    "swe7": _Charset(codec=None, ascii=False),
    "tis620": _Charset(codec="tis_620"),
    "ucs2": _Charset(codec="utf_16_be", width=2),
    "ujis": _Charset(codec="euc_jp", width=3, without="\uff3c"),
    "utf16": _Charset(codec="utf_16_be", width=4),
    "utf16le": _Charset(codec="utf_16_le", width=4),
    "utf32": _Charset(codec="utf_32_be", width=4),
    "utf8mb3": _Charset(codec="utf_8", width=3),
    "utf8mb4": _Charset(codec="utf_8", width=4),
}

CHARSET_NAMES: Final = frozenset(_CHARSETS)
BINARY: Final = "binary"
"""The charset of what is no text."""


def bytes_per_character(charset: str) -> int:
    """Return the most bytes that a character of `charset` takes; 1 for a charset that we do not know."""
    known = _CHARSETS.get(charset)
    return 1 if known is None else known.width


def is_utf8(charset: str) -> bool:
    """Whether Python's own UTF-8 decoding serves for `charset`."""
    return charset in ("utf8mb4", "utf8mb3")


def text_decoder(charset: str) -> Callable[[bytes], Text]:
    """Return the function that reads bytes in `charset`: text, or CharsetBytes for what does not decode."""
    known = _CHARSETS.get(charset, _Charset(codec=None, ascii=False))
    if known.codec is None:
        return _ascii_or_bytes(charset) if known.ascii else lambda raw: CharsetBytes(charset, raw)
    if charset == "ucs2":
        return _ucs2
    if known.width == 1:
        return _one_byte(charset, known.codec, dict(known.patch), known.without)
    return _many_bytes(charset, known.codec, dict(known.patch), frozenset(known.without))


def statement_text(charset: str, raw: bytes) -> str | bytes:
    """Return a statement as text, or the bytes where they are none, or none that goes back to the same bytes."""
    if charset == BINARY:
        return raw.decode("ascii") if raw.isascii() else raw
    text = text_decoder(charset)(raw)
    return text if isinstance(text, str) else raw


def _ascii_or_bytes(charset: str) -> Callable[[bytes], Text]:
    def decode(raw: bytes) -> Text:
        return raw.decode("ascii") if raw.isascii() else CharsetBytes(charset, raw)

    return decode


def _ucs2(raw: bytes) -> Text:
    # UCS-2 has no surrogate pairs: what looks like one is two characters that Unicode does not have.
    try:
        text = raw.decode("utf_16_be")
    except UnicodeDecodeError:
        return CharsetBytes("ucs2", raw)
    return text if len(text) * 2 == len(raw) else CharsetBytes("ucs2", raw)


def _one_byte(charset: str, codec: str, patch: dict[int, int], without: str) -> Callable[[bytes], Text]:
    # U+FFFE in the table makes charmap_decode raise: the hole of a charset.
    table = "".join(
        chr(patch[byte]) if byte in patch else bytes([byte]).decode(codec, "ignore") or "\ufffe" for byte in range(256)
    ).translate(dict.fromkeys(map(ord, without), "\ufffe"))
    charmap_decode = codecs.charmap_decode

    def decode(raw: bytes) -> Text:
        try:
            return charmap_decode(raw, "strict", table)[0]
        except UnicodeDecodeError:
            return CharsetBytes(charset, raw)

    return decode


_NEC_LEADS: Final = (0xED, 0xEE)
_IBM: Final = [
    (high, low) for high in (0xFA, 0xFB, 0xFC) for low in range(0x40, 0x4C if high == 0xFC else 0xFD) if low != 0x7F
]


def _many_bytes(charset: str, codec: str, patch: dict[int, int], without: frozenset[str]) -> Callable[[bytes], Text]:
    unicode = codec.startswith("utf")
    # Python prefers NEC's codes for IBM's characters, the server IBM's.
    others = {bytes((high, low)).decode(codec): bytes((high, low)) for high, low in _IBM} if codec == "cp932" else {}

    def encoded(char: str) -> bytes:
        raw = char.encode(codec)
        return others.get(char, raw) if raw[0] in _NEC_LEADS else raw

    def decode(raw: bytes) -> Text:
        try:
            text = raw.decode(codec)
        except UnicodeDecodeError:
            return CharsetBytes(charset, raw)
        # Of several codes for a character one comes back.
        if not unicode and not raw.isascii() and b"".join([encoded(char) for char in text]) != raw:
            return CharsetBytes(charset, raw)
        if without and not without.isdisjoint(text):
            return CharsetBytes(charset, raw)
        return text.translate(patch) if patch else text

    return decode

"""Gaps: what a transaction changed in some tables is not in the log, and all others of its rows are.

Owns the metadata of such a transaction, which is serial. The hard idea: which tables it changed is known for certain,
so a gap costs these tables a load and the others nothing. Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tranlog.change import Options, TableName
from tranlog.errors import PayloadError

GAP: Final = "gap"
"""Metadata name; its value is JSON."""


class TableGap(msgspec.Struct, frozen=True, kw_only=True):
    """Tables of which a transaction's changes are missing, in order, and why."""

    tables: tuple[TableName, ...]
    reason: str

    def metadata(self) -> Options:
        """Return what the transaction's metadata says of it."""
        return ((GAP, msgspec.json.encode(self).decode()),)


_DECODER: Final = msgspec.json.Decoder(TableGap)


def gap_of(metadata: Options) -> TableGap | None:
    """Return what `TableGap.metadata` wrote; None for a transaction without a gap. Raises PayloadError."""
    text = next((value for name, value in metadata if name == GAP), None)
    try:
        return None if text is None else _DECODER.decode(text)
    except msgspec.DecodeError as exc:
        raise PayloadError(why=f"the metadata of a gap cannot be read: {exc}") from exc


def beyond_limit(size: int, allowed: int) -> str:
    """Return the reason of a gap that is a transaction of too many bytes."""
    return f"a transaction of {size} bytes, and transaction_bytes_max allows {allowed}"


def load_again(tables: tuple[str, ...]) -> str:
    """Return the command that has tables, `schema.table` each, loaded again."""
    return f"tranlog load --replace --tables {','.join(tables)}"

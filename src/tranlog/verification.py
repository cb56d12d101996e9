"""Verification at a position: what one leaves in the log.

Owns the metadata of its transactions. The hard idea: the first of them stands in the log exactly where a snapshot of
the source was taken, so the target holds the same rows when a channel has applied all before it and nothing after it.
The sums of the source's rows in that snapshot follow when they are computed, each table in a transaction of its own,
so neither side stops for them. All of them are serial.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from tranlog.change import NOOP, Options, TableMap, TableName
from tranlog.errors import PayloadError

VERIFY: Final = "verify"
"""Metadata name; its value is the verification's id."""
_PIPELINE: Final = "for"
_STEP: Final = "verify_step"


class VerifyBegin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """The position of the snapshot. `tables` as the source has them; `filters` is the hash of the pipeline's.

    `buckets`: of which buckets of which table the rows are to be compared one by one, by `schema.table`.
    """

    tables: tuple[TableMap, ...]
    filters: str
    buckets: dict[str, tuple[int, ...]] = {}


class VerifySum(msgspec.Struct, frozen=True, kw_only=True, tag="sum"):
    """What a table held in the snapshot, as the rows leave the filters: `sums` is a packed `TableSum`.

    `rows`: those of the buckets that were asked for, a payload of inserts; None where none were, or where they are too
    many to show. `why`: why the table could not be read; then the rest says nothing.
    """

    table: TableName
    sums: bytes = b""
    rows: bytes | None = None
    why: str = ""


VerifyStep: TypeAlias = VerifyBegin | VerifySum
_DECODER: Final = msgspec.json.Decoder(VerifyStep)


class VerifyMark(msgspec.Struct, frozen=True, kw_only=True):
    """Which step of which verification a transaction is, and for which pipeline."""

    verify: str
    pipeline: str
    step: VerifyStep

    def metadata(self) -> Options:
        """Return the transaction's metadata."""
        step = msgspec.json.encode(self.step).decode()
        return ((NOOP, VERIFY), (VERIFY, self.verify), (_PIPELINE, self.pipeline), (_STEP, step))


def verify_mark_of(metadata: Options) -> VerifyMark | None:
    """Return what `VerifyMark.metadata` wrote; None for a transaction of no verification. Raises PayloadError."""
    named = dict(reversed(metadata))
    if _STEP not in named or VERIFY not in named:
        return None
    try:
        step = _DECODER.decode(named[_STEP])
    except msgspec.DecodeError as exc:
        raise PayloadError(why=f"the metadata of the verification {named[VERIFY]} cannot be read: {exc}") from exc
    return VerifyMark(verify=named[VERIFY], pipeline=named.get(_PIPELINE, ""), step=step)

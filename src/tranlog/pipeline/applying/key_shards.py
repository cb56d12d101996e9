"""Warnings about shards by key, from the last transactions of the log: their cost, and possible conflicts.

Owns the two warnings; `channels` decides which channel applies a transaction. The hard idea: a transaction of several
keys is applied alone. And a row whose own key does not contain the shard's column may move from one shard to another,
and their order is not kept. Neither is an error, but the user should know before the first lag or conflict.

Source: docs/operations.md, "Parallel queues".
"""

from __future__ import annotations

from typing import Final

from tranlog.change import RowChange
from tranlog.errors import LogError, PayloadError
from tranlog.ids import Seqno
from tranlog.log.reading.readable import ReadableLog
from tranlog.pipeline.rules.channels import SERIAL, ShardBy, ShardPlan

SAMPLE: Final = 500
"""How many transactions at the log's end are looked at."""
_FEW: Final = 20
_MANY: Final = 0.3
"""From this part of serial transactions on it is said."""


def key_notes(plan: ShardPlan, reader: ReadableLog) -> list[str]:
    """Return the warnings about shards by key; none with another rule, or if the log's end cannot be read."""
    if plan.by is not ShardBy.KEY:
        return []
    try:
        return _notes(plan, reader)
    except (LogError, PayloadError):  # it is said where it stands in the way
        return []


def _notes(plan: ShardPlan, reader: ReadableLog) -> list[str]:
    columns = dict(plan.keys)
    seen = serial = 0
    loose: dict[str, str] = {}
    held = reader.range()
    with reader.cursor(committed_only=True) as cursor:
        cursor.seek(Seqno(max(held.first_seqno, held.committed_seqno - SAMPLE + 1, 0)))
        while (header := cursor.next_header(0.0)) is not None and seen < SAMPLE:
            if header.tables is None or not {f"{schema}.{table}" for schema, table in header.tables} & columns.keys():
                continue
            seen += 1
            small = not header.fragno and not header.spilled
            changes = cursor.current().payload().changes if small else ()
            serial += plan.owner(plan.shard(header, lambda changes=changes: changes), {}) == SERIAL  # type: ignore[misc]
            for change in changes:
                if isinstance(change, RowChange) and (column := columns.get(change.table.name)) is not None:
                    key = [change.table.columns[index].name for index in change.table.primary_key]
                    if column not in key:
                        loose[change.table.name] = f"its key ({', '.join(key)})" if key else "it has no key, which"
    notes = [
        f"shards by key: {name} is divided by {columns[name]}, and {key} does not hold that: where a key, or another "
        f"unique value, leaves one {columns[name]} for another, order is not kept, and apply may stop at a conflict"
        for name, key in sorted(loose.items())
    ]
    if seen >= _FEW and serial >= seen * _MANY:
        notes.append(
            f"shards by key: {serial} of the last {seen} transactions span keys, or have none, and are applied alone; "
            'by = "schema" or "table" is faster for these'
        )
    return notes

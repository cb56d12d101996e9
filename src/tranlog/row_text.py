"""Values and rows as JSON, for whoever reads the log as a table or by a script: Spark's `thl` source, `thl list -json`.

Owns that text form. The hard idea: a column of a table holds one kind of value, so the text need not carry the tag
again; what JSON has no form for is a string where a reader of that column expects one, and an object where a plain
string could be taken for something else.

| value | JSON |
|---|---|
| NULL | `null` |
| not sent by the source | `{"unchanged": true}` |
| boolean | `true`, `false` |
| integer | a number, however large |
| float | the shortest number that reads back alike; `"NaN"`, `"Infinity"`, `"-Infinity"` |
| decimal | a string, its scale kept |
| text, enum, JSON, UUID | a string; JSON is the source's own text, not unfolded |
| set | a list of strings |
| bytes | `{"bytes": "<base64>"}`, with `"charset"` where it is text that does not decode |
| dates and times of all kinds | a string: `2024-02-29`, `-838:59:59`, `infinity`; instants end in `+00` |
| bit | a string of 0 and 1 |
| other | `{"type": "<the source's name>", "text": "…"}` |

Pure.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from tranlog.types import (
    F32,
    Bit,
    CharsetBytes,
    Date,
    Datetime,
    EnumLabel,
    InfiniteDate,
    Instant,
    Json,
    Other,
    SetLabels,
    Time,
    Unchanged,
    Value,
    ZeroDate,
    float_text,
    value_text,
)

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def value_json(value: Value) -> str:
    """Return one value as JSON text: what stands after its column's name in a row."""
    return _encode(json_form(value))


def pairs_text(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return ordered pairs as a map; of equal names the first counts."""
    return dict(reversed(pairs))


def json_form(value: Value) -> Any:
    """Return a value as the JSON encoder takes it, in the form that the table above has."""
    match value:
        case None | bool() | int() | str():
            return value
        case Unchanged():
            return {"unchanged": True}
        case float():
            return _float(value)
        case F32(value=number):
            return _float(number)
        case bytes():
            return {"bytes": b64encode(value).decode()}
        case CharsetBytes(charset=charset, raw=raw):
            return {"bytes": b64encode(raw).decode(), "charset": charset}
        case Bit(width=width, value=bits):
            return f"{bits:0{width}b}" if width else ""
        case SetLabels(labels=labels):
            return list(labels)
        case Other(type_name=type_name, text=text):
            return {"type": type_name, "text": text}
        case (
            Decimal()
            | Date()
            | Time()
            | Datetime()
            | Instant()
            | ZeroDate()
            | InfiniteDate()
            | EnumLabel()
            | Json()
            | UUID()
        ):
            return value_text(value)


def _float(value: float) -> float | str:
    text = float_text(value)
    return text if text[-1] in "Ny" else value

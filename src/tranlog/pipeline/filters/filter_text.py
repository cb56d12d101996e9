"""A pipeline's filters as text: in a request, and as a hash that says whether two are the same.

Pure. A delay is left out, since it changes no row. The text does not contain what a function does.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from tranlog.errors import ConfigError
from tranlog.pipeline.filters.filters import KINDS, Delay, EachBatch, EachTransaction, Filter

_NAMES: Final = {kind: name for name, kind in KINDS.items()}


def filters_text(filters: Sequence[Filter]) -> str:
    """Return filters as text, for `parse_filters`; of a function its name."""
    return msgspec.json.encode([_plain(one) for one in filters if not isinstance(one, Delay)]).decode()


def _plain(one: Filter) -> tuple[str, dict[str, object]]:
    fields = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
    if isinstance(one, EachTransaction | EachBatch) and not isinstance(one.function, str):
        fields["function"] = f"{one.function.__module__}:{getattr(one.function, '__qualname__', '')}"
    return _NAMES[type(one)], fields


def parse_filters(text: str) -> list[Filter]:
    """Read what `filters_text` wrote. Raises ConfigError for other text, and for a function."""
    try:
        found: list[Filter] = []
        for name, fields in msgspec.json.decode(text, type=list[tuple[str, dict[str, object]]]):
            kind = KINDS[name]
            if kind in (EachTransaction, EachBatch):
                raise ConfigError(option="filters", value=name, why="a function cannot run over a snapshot")
            found.append(msgspec.convert(fields, kind))
        return found
    except (msgspec.MsgspecError, KeyError) as exc:
        raise ConfigError(option="filters", value=text, why=f"they cannot be read: {exc}") from exc


def filters_hash(filters: Sequence[Filter]) -> str:
    """Return 32 hex digits, the same for filters that leave the same of every row."""
    return hashlib.blake2b(filters_text(filters).encode(), digest_size=16).hexdigest()

"""`status -name …`: one view of a pipeline's status, and printing it as the ancestor does.

Owns the names of the views and the two forms of print. What the fields are is `view`'s, reading for them
`viewing`'s.

Source: on-disk-parallel-queues, the printed status; conformance/tungsten.md A9; issue 7, item 6.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

from tranlog.pipeline.rules.states import OperationState
from tranlog.pipeline.status.view import AppliedWatch, ErrorFacts, PipelineStatus, ProcessFacts

ViewName: TypeAlias = Literal["pipeline", "stores", "tasks", "shards", "stages", "channels", "watches"]
VIEW_NAMES: Final = get_args(ViewName)
NEEDS_LOG: Final = ("pipeline", "stores")
"""Views that say nothing true without the log; tasks tell less."""
_DIGITS: Final = re.compile(r"(\d+)")


def process_facts(state: OperationState, *, host: str) -> ProcessFacts:
    """Return what the process that runs a pipeline tells: how it stands, its limit, and who waits at its endpoint."""
    error = state.pending
    return ProcessFacts(
        host=host,
        state=state.state.value,
        began_ms=state.began_ms,
        since_ms=state.since_ms,
        limit=f"until {state.limit}" if state.limit else "",
        error=None
        if error is None
        else ErrorFacts(type=error.type, message=error.message, seqno=error.seqno, event_id=error.event_id),
        watches=tuple(watches_of(state)),
        troubles=state.troubles,
        slots=state.slots,
    )


def watches_of(state: OperationState) -> list[AppliedWatch]:
    """Return what a running process waits for: its limit, and who waits at its endpoint."""
    watches = [
        AppliedWatch(
            action="wait",
            predicate=" and ".join(
                told
                for told in (
                    "" if one.applied is None else f"applied seqno >= {one.applied}",
                    "" if one.state is None else f"state is {one.state}",
                )
                if told
            ),
            seqno=one.applied,
        )
        for one in state.waits
    ]
    if state.limit:
        number = re.fullmatch(r"seqno (\d+)", state.limit)
        watches.append(
            AppliedWatch(
                action="offline",
                predicate=f"until {state.limit}",
                seqno=None if number is None else int(number[1]),
            )
        )
    return watches


def view(name: ViewName, status: PipelineStatus) -> list[Any]:
    """Return a view's dataclasses, one per table of the print; `stores` without the log where that was not read."""
    match name:
        case "pipeline":
            return [status.pipeline]
        case "stores":
            return [*([] if status.log is None else [status.log]), status.queue]
        case "tasks":
            return list(status.tasks)
        case "shards":
            return list(status.shards)
        case "stages":
            return list(status.stages)
        case "channels":
            return list(status.channels)
        case "watches":
            return list(status.watches)


# --- print -----------------------------------------------------------------------------------------------


def rows_of(one: object) -> dict[str, str]:
    """Return a view's dataclass as names and texts, sorted with numbers as numbers.

    Shape: `store.N` for each channel of the queue, `filter.N.name` and `filter.N.class` for each filter of a stage.
    """
    found: dict[str, str] = {}
    assert dataclasses.is_dataclass(one) and not isinstance(one, type)
    for field in dataclasses.fields(one):
        value = getattr(one, field.name)
        if field.name == "stores":
            found |= {f"store.{task.task_id}": str(task) for task in value}
        elif field.name == "filters":
            for number, filter_ in enumerate(value):
                found |= {f"filter.{number}.name": filter_.name, f"filter.{number}.class": filter_.class_name}
        else:
            found[re.sub(r"^(applier|extractor)_", r"\1.", field.name)] = _text(value)
    return dict(sorted(found.items(), key=lambda item: _in_order(item[0])))


def _in_order(name: str) -> list[tuple[int, int, str]]:
    return [(1, 0, part) if not part.isdigit() else (0, int(part), "") for part in _DIGITS.split(name) if part]


def _text(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.3f}"
        case _:
            return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def print_form(name: str, shown: Sequence[object]) -> Iterator[str]:
    """Yield the ancestor's form: a table of sorted `key : value` lines for each, all of one width."""
    yield f"Processing status command ({name})..."
    tables = [rows_of(one) for one in shown]
    width = max((len(key) for rows in tables for key in rows), default=0)
    for rows in tables:
        yield f"{'NAME':<{width + 2}}VALUE"
        yield f"{'----':<{width + 2}}-----"
        for key, value in rows.items():
            yield f"{key:<{width}}: {value}"
    yield f"Finished status command ({name})..."


def json_form(shown: Sequence[object]) -> list[Mapping[str, object]]:
    """Return the views as plain values."""
    found: list[Mapping[str, object]] = []
    for one in shown:
        assert dataclasses.is_dataclass(one) and not isinstance(one, type)
        found.append(dataclasses.asdict(one))
    return found

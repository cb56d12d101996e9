"""What `thl repair` and `thl diff` say, and what `thl list` says of a lookup. Decides, does not act.

Owns the words. The hard idea: what an operator has to know before a yes is what goes, and for how long it can still
be had; so every sentence about a loss names seqnos, GTIDs, bytes and the folder that keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tranlog.ids import segment_name
from tranlog.listing import printable, time_text
from tranlog.log.rules.repair import CutOff, Lost, Remove, RepairPlan, Rewrite, Step
from tranlog.log.upkeep.diff import Alone, Listed, LogDiff
from tranlog.log.upkeep.repairing import RepairOutcome

SPANS_SHOWN = 20
"""Runs of GTIDs named one by one; the rest is counted."""


def plan_lines(plan: RepairPlan) -> Iterator[str]:
    """Yield what a repair will do, and what that loses."""
    for step in plan.steps:
        yield _step_line(step)
    if not plan.steps:
        yield "no record is changed: the stored index and the positions are discarded, and rebuilt"
    yield from lost_lines(plan.lost)
    if plan.last_seqno < plan.first_seqno:
        yield f"the log then holds nothing and continues at seqno {plan.first_seqno}"
    else:
        yield f"the log then holds seqno {plan.first_seqno} to {plan.last_seqno}"
    for name in plan.ahead:
        yield f"{name} is after that: it will refuse to continue, since it has applied what is lost"


def _step_line(step: Step) -> str:
    name = segment_name(step.segment)
    match step:
        case Rewrite(offset=offset, why=why):
            return f"write again: {why}, offset {offset}; this loses nothing"
        case CutOff(offset=offset, size=size):
            return f"cut off: {size} bytes of {name}, from offset {offset} on"
        case Remove(size=size):
            return f"remove: {name}, {size} bytes"


def lost_lines(lost: Lost) -> Iterator[str]:
    """Yield what a repair loses; everything that is whole stays in cut/."""
    if not lost.seqnos and not lost.unread_bytes:
        yield f"lost = nothing; {lost.bytes} bytes go to cut/" if lost.bytes else "lost = nothing"
        return
    yield f"lost = {lost.seqnos} transactions, {lost.bytes} bytes; the bytes are kept in cut/"
    for span in lost.gtids[:SPANS_SHOWN]:
        ends = "" if span.first == span.last else f" to GTID({span.epoch}, {span.last})"
        yield f"LOST GTID({span.epoch}, {span.first}){ends}"
    if len(lost.gtids) > SPANS_SHOWN:
        yield f"LOST and {len(lost.gtids) - SPANS_SHOWN} more runs of GTIDs; the report in cut/ lists all"
    for first, last in lost.unreadable[:SPANS_SHOWN]:
        yield f"LOST seqno {first}{'' if first == last else f' to {last}'}, unreadable: damaged, or missing"
    if len(lost.unreadable) > SPANS_SHOWN:
        yield f"LOST and {len(lost.unreadable) - SPANS_SHOWN} more runs of unreadable seqnos"
    if lost.unread_bytes:
        yield f"LOST perhaps more: it is unknown what {lost.unread_bytes} bytes held"


def outcome_lines(plan: RepairPlan, outcome: RepairOutcome) -> Iterator[str]:
    """Yield how a repair went."""
    assert outcome.after is not None
    yield from lost_lines(plan.lost)
    for path in outcome.kept_in:
        yield f"kept in {path}"
    yield f"report = {outcome.report}"
    yield f"sound = {'yes' if outcome.after.sound else 'no'}"


def diff_lines(found: LogDiff) -> Iterator[str]:
    """Yield what `thl diff A B` prints."""
    for label, side in (("A", found.one), ("B", found.other)):
        yield f"{label} = {side.path} (seqno {side.first_seqno} to {side.last_seqno})"
    if found.common_first < 0:
        yield "common = none: no seqno is in both, so nothing was compared"
    else:
        yield f"common = seqno {found.common_first} to {found.common_last}"
        how = "each, its content included" if found.full else "assuming that equal GTIDs mean equal history before them"
        yield f"compared = {found.compared} transactions, {how}"
    if found.first is None:
        yield "first difference = none"
    else:
        yield f"first difference = seqno {found.first.seqno}, by {found.first.kind}"
        yield f"A holds {_listed_text(found.first.one)}"
        yield f"B holds {_listed_text(found.first.other)}"
    if found.full and found.differing:
        yield f"differing = {found.differing} of the common seqnos"
    yield from _alone_lines("A", found.only_one)
    yield from _alone_lines("B", found.only_other)
    yield f"agree = {'yes' if found.agree else 'no'}"


def _alone_lines(label: str, alone: Alone) -> Iterator[str]:
    yield f"only {label} has = {alone.count} transactions"
    for one in alone.listed:
        yield f"ONLY {label} {_listed_text(one)}"
    if alone.count > len(alone.listed):
        yield f"ONLY {label} and {alone.count - len(alone.listed)} more"


def _listed_text(one: Listed) -> str:
    return f"{one.gtid}, event id {one.event_id!r}, shard {printable(one.shard_id)}, {time_text(one.tstamp)}"

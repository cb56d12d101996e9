"""What a look at a source, a log or a target found: all is well, something to know, or what is wrong and what fixes it.

Owns the shape of a finding, and how an error becomes one. The hard idea: a start refuses with an error what cannot
work, and `tranlog doctor` lists it; so both run the same checks, which raise errors, and only the list is made here.
Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from tranlog.errors import TranlogError

if TYPE_CHECKING:
    from tranlog.clock import Clock

CLOCKS_MAY_DIFFER_MS: Final = 5_000
NAMED_MOST: Final = 10
"""So many tables are named in one finding."""


class Severity(enum.StrEnum):
    """How bad a finding is."""

    FINE = "fine"
    WARNING = "warning"
    """It works, and costs something that an operator should know of."""
    WRONG = "wrong"
    """A start is refused, or ends by it."""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found. `remedy`: the statements or commands that fix it, empty if there is nothing to fix."""

    subject: str
    severity: Severity
    text: str
    remedy: str = ""


def fine(subject: str, text: str) -> CheckResult:
    """Return that nothing is wrong."""
    return CheckResult(subject=subject, severity=Severity.FINE, text=text)


def warning(subject: str, text: str, remedy: str) -> CheckResult:
    """Return what an operator should know."""
    return CheckResult(subject=subject, severity=Severity.WARNING, text=text, remedy=remedy)


def wrong(subject: str, text: str, remedy: str) -> CheckResult:
    """Return what a start would not survive."""
    return CheckResult(subject=subject, severity=Severity.WRONG, text=text, remedy=remedy)


def refused(subject: str, error: TranlogError) -> CheckResult:
    """Return what an error says; its remedy, where it has one by itself, apart from the rest."""
    remedy = getattr(error, "remedy", "")
    return wrong(subject, str(error).removesuffix(remedy).rstrip(" ."), remedy)


def tried(subject: str, look: Callable[[], CheckResult | str]) -> CheckResult:
    """Return what a check found: a finding, or in words what is fine; an error of ours is what is wrong."""
    try:
        found = look()
    except TranlogError as exc:
        return refused(subject, exc)
    return fine(subject, found) if isinstance(found, str) else found


def listed(subject: str, problems: Iterable[TranlogError], *, otherwise: str) -> Iterator[CheckResult]:
    """Yield each problem as a finding; where there is none, what is fine. One that is raised is the last."""
    found = False
    try:
        for problem in problems:
            found = True
            yield refused(subject, problem)
    except TranlogError as exc:
        found = True
        yield refused(subject, exc)
    if not found:
        yield fine(subject, otherwise)


def compare_clocks(clock: Clock, ask: Callable[[], int]) -> CheckResult:
    """Return how far a server's clock, which `ask` returns in ms, is from ours. The time of an answer is neither's."""
    before = clock.now_ms()
    theirs = ask()
    apart = max(before - theirs, theirs - clock.now_ms(), 0)
    if apart <= CLOCKS_MAY_DIFFER_MS:
        return fine("clock", "the server's clock agrees with this machine's")
    text = f"the server's clock and this machine's are {apart / 1000:.0f} s apart: each lag shown is wrong by that"
    return warning("clock", text, "Set both by NTP: timedatectl set-ntp true")


def names_of(names: Iterable[str]) -> str:
    """Return names in one text, the first of them where they are many."""
    found = list(names)
    more = f" and {len(found) - NAMED_MOST} more" if len(found) > NAMED_MOST else ""
    return ", ".join(found[:NAMED_MOST]) + more

"""Which recorded statements of a MariaDB's are not run at a MariaDB target.

Owns telling them by their first words. Pure.
"""

from __future__ import annotations

import re
from typing import Final

_COMMENTS: Final = re.compile(r"\s+|--[^\n]*(\n|$)|#[^\n]*(\n|$)|/\*(?!M?!).*?(\*/|$)", re.DOTALL)
_TRIGGER: Final = re.compile(
    r"(create|alter|drop)\s+(or\s+replace\s+)?(definer\s*=\s*\S+(\s*@\s*\S+)?\s+)?(trigger|event)\b", re.IGNORECASE
)
_ADMINISTRATION: Final = re.compile(
    r"(grant|revoke|set(?!\s+statement)|analyze|optimize|repair|check|flush|reset|purge|cache|install|uninstall)\b|"
    r"(create|alter|drop|rename)\s+(or\s+replace\s+)?(user|role)\b",
    re.IGNORECASE,
)


def _behind_comments(statement: str) -> int:
    start = 0
    while (gap := _COMMENTS.match(statement, start)) is not None and gap.end() > start:
        start = gap.end()
    return start


def skip_statement(statement: str) -> str:
    """Say why a statement is not to be run here: it is about a trigger, an event, or the server it ran at."""
    start = _behind_comments(statement)
    if _TRIGGER.match(statement, start):
        return "the rows that a trigger or an event writes at the source arrive as rows; here it would write them twice"
    if _ADMINISTRATION.match(statement, start):
        return "users, rights and upkeep are each server's own"
    return ""

"""What a user may do at a MariaDB server, from the text of SHOW GRANTS. Pure.

Source: MariaDB's manual, "SHOW GRANTS", "GRANT".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_GRANT: Final = re.compile(r"GRANT (.+?) ON (\*|`(?:[^`]|``)+`)\.\* TO ")


def has_right(grants: Iterable[str], rights: Iterable[str], database: str | None = None) -> bool:
    """Whether one of some rights is granted on everything, or, where a database is given, on all of that."""
    wanted = {"ALL PRIVILEGES", *rights}
    for grant in grants:
        found = _GRANT.match(grant)
        if found is None or not wanted & {right.strip() for right in found[1].split(",")}:
            continue
        if found[2] == "*" or (database is not None and _matches(found[2][1:-1].replace("``", "`"), database)):
            return True
    return False


def account(user: str) -> str:
    """Quote what CURRENT_USER() returns, for a GRANT."""
    name, _, host = user.rpartition("@")
    return "@".join(["'" + part.replace("'", "''") + "'" for part in (name, host)])


def _matches(pattern: str, database: str) -> bool:
    """Whether a database's name fits the one in a GRANT, where `_` and `%` stand for others unless escaped."""
    parts = re.findall(r"\\[_%\\]|.", pattern, re.DOTALL)
    wild = {"_": ".", "%": ".*"}
    return bool(re.fullmatch("".join([wild.get(one) or re.escape(one[-1]) for one in parts]), database, re.DOTALL))

"""What foreign keys at a target see of the order in which rows of several tables change.

Owns how a table stands to the others by them. What may pass what then is `batches`'s. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tranlog.change import TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class Related:
    """A table from which foreign keys lead to others, or to which they lead.

    A row that comes is to find those that it refers to, and one that goes must not be referred to any more.
    """

    depth: int
    """To how many other tables its foreign keys lead, over others too: to more than those of any of these do."""
    circle: bool
    """Whether they lead back to this table over others: then no order of tables is right."""
    referred: bool
    """Whether there is a foreign key to this table."""
    own: bool
    """Whether there is one from this table to itself."""


def related(table: TableName, references: Iterable[tuple[TableName, TableName]]) -> Related | None:
    """Return how a table stands to others by all foreign keys, each from a table to a table; None: by none.

    Names that differ in case alone are taken for one, as they may be: no order is lost by that.
    """
    name = _folded(table)
    parents: dict[TableName, set[TableName]] = {}
    referred = own = False
    for child, parent in references:
        refers, to = _folded(child), _folded(parent)
        referred = referred or to == name
        own = own or refers == to == name
        if refers != to:
            parents.setdefault(refers, set()).add(to)
    if not referred and name not in parents:
        return None
    above: set[TableName] = set()
    ahead = list(parents.get(name, ()))
    while ahead:
        one = ahead.pop()
        if one not in above:
            above.add(one)
            ahead += parents.get(one, ())
    return Related(depth=len(above), circle=name in above, referred=referred, own=own)


def _folded(table: TableName) -> TableName:
    return table[0].lower(), table[1].lower()

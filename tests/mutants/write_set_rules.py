"""Mutants of the assignment by write sets: each takes one rule out. `tests/pipeline/test_by_writes.py` finds them.

Source: docs/decisions/0033-transactions-meet-by-their-write-sets.md.
"""

from __future__ import annotations

from mutants.rewriting import Edit, Mutant

_RULES = "tranlog.pipeline.rules.by_writes"
_ORDER = "tranlog.pipeline.rules.write_order"


def _mutant(name: str, what: str, old: str, new: str, module: str = _RULES) -> Mutant:
    return Mutant(name=f"writes-{name}", what=what, edits=(Edit(module=module, old=old, new=new),))


WRITE_SETS = {
    _mutant(
        "key-ignored",
        "nothing waits for a row that came or went",
        "                slots[slot + 1] = mark\n",
        "                pass\n",
        module=_ORDER,
    ): "wrong order|held back",
    _mutant(
        "row-ignored",
        "nothing waits for an update of a row",
        "                slots[slot + 2] = mark\n",
        "                pass\n",
        module=_ORDER,
    ): "wrong order|held back",
    _mutant(
        "reference-ignored",
        "a row comes or goes without waiting for references to it",
        "                    self._count(self._references[begin + channel])\n",
        "                    pass\n",
        module=_ORDER,
    ): "wrong order|held back",
    _mutant(
        "one-reference",
        "of the references to a value one is remembered, not one on each channel",
        "                self._references[begin + channel] = mark\n",
        "                for other in range(len(self._loads)):\n"
        "                    self._references[begin + other] = mark if other == channel else 0\n",
        module=_ORDER,
    ): "wrong order|held back",
    _mutant(
        "point-not-serial",
        "a plan point is channel 0's, and not alone",
        'return Assigned(owner=SERIAL, point=True, why=why or "a plan begins")',
        'return Assigned(owner=0, point=True, why=why or "a plan begins")',
    ): "wrong order|no plan|held back",
    _mutant(
        "group-not-ended",
        "a channel keeps in its open group what another waits for",
        "if any(channel == self.channel and self.published < one for",
        "if any(channel == -1 for",
    ): "held back",
    _mutant(
        "wait-less-one",
        "a wait ends one transaction too early",
        "if self._applied.get(channel, -2) < one:",
        "if self._applied.get(channel, -2) < one - 1:",
    ): "wrong order|held back",
    _mutant(
        "begun-at-the-position",
        "a restart assigns from its position on, and not from the plan",
        "    for seqno in range(plan.from_seqno + 1, position + 1):\n",
        "    for seqno in range(position, position + 1):\n",
    ): "wrong order|double|loss|deadlock|held back",
    _mutant(
        "tables-of-today",
        "a restart goes by the target's tables as they are, and not by the plan's",
        "        return self.number(plan), position\n",
        "        return self.number(plan and replace(plan, tables=self.tables[today].tables)), position\n",
        module="mutants.writes_model",
    ): "wrong order|double|loss|deadlock|no plan|held back",
    _mutant(
        "conflict-believed-at-once",
        "a conflict ends a channel while others have not applied what comes before",
        "        return Await(channels=behind, seqno=Seqno(seqno - 1)) if behind else None\n",
        "        return None\n",
    ): "in vain",
}
"""By mutant what it ends in, several after a `|`."""

_TOUCHES = "tranlog.row_touches"

TOUCHES = (
    _mutant(
        "old-key-ignored",
        "of a row's changed key the new value alone is hashed",
        "            for start in (0, middle):\n                value = self._hash(main",
        "            for start in (middle,):\n                value = self._hash(main",
        module=_TOUCHES,
    ),
    _mutant(
        "old-unique-ignored",
        "of another changed key of a row the new value alone is hashed",
        "                done = _REKEY\n                for start in (0, middle):\n",
        "                done = _REKEY\n                for start in (middle,):\n",
        module=_TOUCHES,
    ),
    _mutant(
        "old-reference-ignored",
        "of a changed reference the new value alone is hashed",
        "            if not _same(key, image, before, after):\n                for start in (0, middle):\n",
        "            if not _same(key, image, before, after):\n                for start in (middle,):\n",
        module=_TOUCHES,
    ),
    _mutant(
        "reference-not-told",
        "a row that comes or goes does not tell what it refers to",
        "        for key in known.references:\n            value = self._hash(key, image, start, True)\n",
        "        for key in known.references[:0]:\n            value = self._hash(key, image, start, True)\n",
        module=_TOUCHES,
    ),
    _mutant(
        "row-not-told",
        "an update that keeps all keys tells nothing",
        "        if image.startswith(image[:reach], middle):  # no key changes\n",
        "        if image.startswith(image[:reach], middle):\n            return done\n        if False:\n",
        module=_TOUCHES,
    ),
)
"""Mutants of what counts as touched, which `touches_rounds` finds."""

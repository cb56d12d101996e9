"""A mutant: the product with one known text in it replaced by another, in any process that is told so.

Owns the import hook. The product has no hooks for it: a module's source is changed while it is imported, before it is
compiled, and no compiled form of it is kept. The hard idea: a mutant that rots must not pass for one that is caught.
Each text to replace must stand in its module's source exactly once, or the process ends at that import, with exit code
70 and the reason; and a test that switches a mutant on asks `switched_on` whether the module was really imported so.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

EXIT_ROTTEN = 70
"""The exit code of a process whose mutant does not fit the source any more (EX_SOFTWARE)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replace `old`, which stands once in the source of `module`, by `new`."""

    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """Edits that together take one rule away. `what` says which."""

    name: str
    what: str
    edits: tuple[Edit, ...]


class RottenMutantError(Exception):
    """The text that a mutant replaces is not, or not only once, in the source."""


_imported: set[str] = set()


def rewritten(source: str, edits: Sequence[Edit]) -> str:
    """Return a module's source with the edits done. Raises RottenMutantError."""
    for edit in edits:
        count = source.count(edit.old)
        if count != 1:
            raise RottenMutantError(f"{edit.module} holds this text {count} times, not once:\n{edit.old}")
        source = source.replace(edit.old, edit.new)
    return source


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the changed source; never reads or writes a .pyc."""

    def __init__(self, name: str, path: str, edits: Sequence[Edit]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        try:
            source = rewritten(self.get_data(self.path).decode(), self._edits)
        except RottenMutantError as exc:
            # Not an exception: whoever imports might take it for a library that is missing, and go on.
            sys.stderr.write(f"the mutant does not fit: {exc}\n")
            sys.stderr.flush()
            os._exit(EXIT_ROTTEN)
        _imported.add(fullname)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        edits = [edit for edit in self._mutant.edits if edit.module == fullname]
        if not edits:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, edits)
        return spec


def switch_on(mutant: Mutant) -> None:
    """Let this process import the mutant in the product's place. Nothing of what it changes may be imported yet."""
    early = sorted({edit.module for edit in mutant.edits} & sys.modules.keys())
    if early:
        sys.stderr.write(f"too late for the mutant {mutant.name}: {', '.join(early)}\n")
        os._exit(EXIT_ROTTEN)
    sys.meta_path.insert(0, _Finder(mutant))


def switched_on(mutant: Mutant) -> bool:
    """Whether everything that the mutant changes was imported in its changed form, in this process."""
    return {edit.module for edit in mutant.edits} <= _imported

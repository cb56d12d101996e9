"""How an exception of ours is made: typed fields, set by keyword, and a message that is built from them.

Owns the root of the tree in `errors`. All survive pickling, since Spark carries them from a task to the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, dataclass_transform

BEGIN_ANEW: Final = (
    "Start anew: `tranlog reset --forget-position`, `tranlog position reset`, empty the captured tables at the target, "
    "then start capture and apply"
)
"""What an error advises where a log cannot go on from where it ends; docs/operations.md, "Starting anew"."""


def _rebuild(kind: type[TranlogError], args: tuple[Any, ...], fields: dict[str, Any]) -> TranlogError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
class TranlogError(Exception):
    """Whatever tranlog raises on purpose.

    A class below it that has fields is a dataclass, whose fields are given by name. `template` is its message, with the
    fields' names in braces; one that says more than its fields has a `__str__` of its own.
    """

    template: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        if cls.template or "__str__" in vars(cls):
            dataclass(eq=False, kw_only=True)(cls)

    def __str__(self) -> str:
        return self.template.format_map(vars(self)) if self.template else super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))

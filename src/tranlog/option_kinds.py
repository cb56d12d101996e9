"""Whether options are of the types that their classes name: Python without a type checker is asked here, first of all.

Owns that check, and the one whether numbers are within their bounds. Which bounds those are, and what else must be,
each class of options says by itself.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, Final, get_args

from tranlog.errors import ConfigError

_PLAIN: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number of seconds"),
    "str": ((str,), "a text"),
    "bool": ((bool,), "true or false"),
    "tuple[str, ...]": ((tuple, list), "a list of texts"),
    "dict[str, str]": ((Mapping,), "a table of texts"),
    "Mapping[str, str]": ((Mapping,), "a table of texts"),
    "dict[str, int]": ((Mapping,), "a table of whole numbers"),
}
"""By annotation: which types serve, and what an error calls them."""
_WORD: Final = re.compile(r"""["'](.*?)["']""")  # `ast` may raise SystemError where threads use it at the same time
ABOVE_0: Final = math.ulp(0.0)
"""The least number that is above 0."""
Bounds = Sequence[tuple[str, float, float, str]]
"""Names of options, parted by spaces, their least and their greatest value, and what is wrong with any other."""


def check_kinds(options: Any, *, prefix: str = "") -> None:
    """Raise ConfigError for the first value of another type than its option's; `prefix` stands before its name.

    An annotation that is neither plain nor the name of a class is left alone.
    """
    for one in fields(options):
        words = _words_of(str(one.type), type(options))
        if words and getattr(options, one.name) not in words:
            why = f"one of {', '.join(words)}"
            raise ConfigError(option=prefix + one.name, value=getattr(options, one.name), why=why)
        names = str(one.type).split(" | ")
        found = [_PLAIN.get(name) or _of_class(name, type(options)) for name in names if name != "None"]
        known = [of for of in found if of is not None]
        value: Any = getattr(options, one.name)
        if len(known) < len(found) or (value is None and "None" in names):
            continue
        kinds = [kind for of, _ in known for kind in of]
        told = " or ".join(words for _, words in known) + (", or left out" if "None" in names else "")
        wrong = not isinstance(value, tuple(kinds)) or (isinstance(value, bool) and bool not in kinds)
        if (
            not wrong
            and isinstance(value, tuple | list)
            and (strange := [of for of in value if not isinstance(of, str)])
        ):
            value, wrong = strange[0], True
        if wrong or value != value:
            raise ConfigError(option=prefix + one.name, value=value if one.repr else None, why=f"it is {told}")


def check_bounds(options: object, bounds: Bounds, *, prefix: str = "") -> None:
    """Raise ConfigError for the first value outside its bounds; None is no number. `prefix` as in `check_kinds`."""
    for names, least, most, why in bounds:
        for name in names.split():
            value = getattr(options, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(option=prefix + name, value=value, why=why)


def _words_of(annotation: str, owner: type) -> Sequence[str]:
    """Return the texts of an annotation that is a Literal, or names one; none of another."""
    if annotation.startswith("Literal["):
        return _WORD.findall(annotation)
    return get_args(vars(sys.modules[owner.__module__]).get(annotation))


def _of_class(name: str, owner: type) -> tuple[tuple[type, ...], str] | None:
    """Return what an option is whose annotation names a class that the module of its options knows."""
    found = vars(sys.modules[owner.__module__]).get(name)
    if not isinstance(found, type) or getattr(found, "_is_protocol", False):
        return None
    return (found,), f"a {name}: {', '.join(one.name for one in found)}" if issubclass(found, Enum) else f"a {name}"


def check_options(options: object, kind: type) -> None:
    """Raise TypeError for what is no instance of a class of options, such as a dict of them."""
    if not isinstance(options, kind):
        raise TypeError(f"options are a {kind.__name__}, not {options!r}")

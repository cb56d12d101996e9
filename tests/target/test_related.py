"""How a table stands to others by foreign keys: pure."""

from __future__ import annotations

import pytest

from tranlog.target.related import Related, related


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        ("", None),
        ("a-b b-a", None),
        ("t-a", Related(depth=1, circle=False, referred=False, own=False)),
        ("a-t", Related(depth=0, circle=False, referred=True, own=False)),
        ("t-a a-b t-b b-c x-t", Related(depth=3, circle=False, referred=True, own=False)),
        ("t-t", Related(depth=0, circle=False, referred=True, own=True)),
        ("t-t t-a", Related(depth=1, circle=False, referred=True, own=True)),
        ("t-a a-t", Related(depth=2, circle=True, referred=True, own=False)),
        ("t-a a-b b-a", Related(depth=2, circle=False, referred=False, own=False)),
        ("T-A", Related(depth=1, circle=False, referred=False, own=False)),
    ],
)
def test_how_a_table_stands(references: str, expected: Related | None) -> None:
    pairs = [tuple(("s", name) for name in one.split("-")) for one in references.split()]
    assert related(("s", "t"), pairs) == expected  # type: ignore[arg-type]


def test_a_table_is_deeper_than_what_it_refers_to() -> None:
    """Whichever way leads there: so it comes after all of these."""
    names = ["a", "b", "c", "d", "e"]
    pairs = [(("s", child), ("s", parent)) for at, child in enumerate(names) for parent in names[:at]]
    found = [related(("s", name), pairs) for name in names]
    assert [one.depth for one in found if one is not None] == [0, 1, 2, 3, 4]


def test_tables_of_one_name_in_two_schemas_are_two() -> None:
    assert related(("s", "t"), [(("other", "t"), ("s", "a"))]) is None

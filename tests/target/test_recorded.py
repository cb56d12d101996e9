"""recorded: what becomes of a TRUNCATE, by where it comes from."""

from __future__ import annotations

import pytest

from fix_target import unit_of
from tranlog.change import Statement
from tranlog.errors import DdlStopError
from tranlog.target.recorded import Ruling, rule

KINDS = ("mariadb", "postgres", "sqlite")
ITEMS = ("shop", "items")


def ruled(kind: str, source: str, *, by: str = "follow", **more: object) -> Ruling:
    fields: dict[str, object] = {"schema": "shop", "sql": "TRUNCATE items", "ddl": False, **more}
    statement = Statement(**fields)  # type: ignore[arg-type]
    unit = unit_of(7, [statement], metadata=(("dbms_type", source),))
    runs = frozenset({kind}) - {"postgres"}
    return rule(unit, statement, ddl=by, kind=kind, runs_ddl_of=runs, has_sequences=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_a_truncate_empties_tables_at_another_kind(kind: str, source: str) -> None:
    """It runs at its own kind."""
    found = ruled(kind, source)
    assert found == (Ruling() if kind == source else Ruling(truncated=(ITEMS,)))


@pytest.mark.parametrize(
    ("source", "more"),
    [
        ("mariadb", {"by": "stop"}),
        ("mariadb", {"error_code": 1317}),
        ("mariadb", {"sql": b"TRUNCATE caf\xe9"}),
        ("mariadb", {"sql": "TRUNCATE items; DELETE FROM more"}),
        ("postgres", {"ddl": True}),
        ("mysql", {}),
        ("", {}),
    ],
)
def test_a_truncate_stops_where_it_is_not_certain_what_it_emptied(source: str, more: dict[str, object]) -> None:
    """What a PostgreSQL records as DDL is what a session sent, and may hold more than that."""
    whose = f"it is from {source or 'a database that it does not name'}, and this target is sqlite"
    with pytest.raises(DdlStopError, match=rf"seqno 7, statement 'TRUNCATE .*{whose}.*Do at the target what it did"):
        ruled("sqlite", source, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("ddl", ["stop", "ignore", "follow"])
def test_a_truncate_of_a_temporary_table_is_passed_over(ddl: str) -> None:
    """At its own kind it runs, among its session's other statements."""
    options = (("temporary", "1"),)
    assert ruled("sqlite", "mariadb", by=ddl, options=options).passed_over
    assert ruled("mariadb", "mariadb", by=ddl, options=options) == Ruling()


def test_names_that_the_source_folds() -> None:
    options = (("lower_case_table_names", "1"),)
    assert ruled("sqlite", "mariadb", sql="TRUNCATE Shop.Items", options=options).truncated == (ITEMS,)
    altered = ruled("sqlite", "mariadb", sql="ALTER TABLE Items DROP n", ddl=True, options=options)
    assert altered.edits[0].table == ITEMS

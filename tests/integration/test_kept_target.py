"""pipeline/status/gathering.py at real servers: a process that is looked at again and again opens one connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fix_target import session_of
from tranlog.errors import TransientTargetError
from tranlog.pipeline.status.gathering import KeptTarget
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import Target

pytestmark = pytest.mark.integration

KILL = {"postgres": "SELECT pg_terminate_backend({0}, 5000)", "mariadb": "KILL {0}"}


@pytest.fixture(params=["postgres", "mariadb"])
def options(request: pytest.FixtureRequest) -> TargetOptions:
    names = ("mariadb_target", "mariadb_target_database")
    if request.param == "postgres":
        names = ("postgres", "postgres_database")
    server, database = (request.getfixturevalue(name) for name in names)
    return TargetOptions(kind=request.param, dsn=server.dsn(database))


@pytest.fixture
def kept() -> Iterator[KeptTarget]:
    found = KeptTarget()
    yield found
    found.close()


def look(target: Target) -> str:
    assert target.positions.read_pipeline("nobody's") is None
    return session_of(target).identity


def test_one_connection_serves_all_looks_that_come_one_by_one(options: TargetOptions, kept: KeptTarget) -> None:
    first = kept.read(options, look)
    assert [kept.read(options, look) for _ in range(3)] == [first] * 3
    other = kept.read(options, lambda target: (look(target), kept.read(options, look)))
    assert other[0] == first != other[1], "who comes meanwhile has one of its own"
    kept.close()
    assert kept.read(options, look) not in (first, other[1])


def test_one_that_was_lost_is_made_anew_once(options: TargetOptions, kept: KeptTarget) -> None:
    first = kept.read(options, look)
    stranger = open_target(options)
    session_of(stranger).fetch(KILL[options.kind].format(first.partition(" ")[0]))
    stranger.close()
    assert kept.read(options, look) != first

    def lose(target: Target) -> str:
        seen.append(session_of(target).identity)
        raise TransientTargetError(why="lost")

    seen: list[str] = []
    with pytest.raises(TransientTargetError):
        kept.read(options, lose)
    assert len(set(seen)) == 2
    assert kept.read(options, look) not in seen

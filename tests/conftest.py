"""What every test may use: the servers, Spark, and how much of a random test to run.

Fixtures live in `fix_<thing>.py`. A test that needs a server or Java carries the marker for it (`integration`,
`spark`), so that `make unit` can leave it out; where the server is missing such a test fails, it is never skipped.
"""

from __future__ import annotations

import functools
import sys

import pytest
from hypothesis import HealthCheck, settings

from fix_conformance import RanCheck

pytest_plugins = ["fix_mariadb", "fix_postgres", "fix_spark", "fix_spark_cluster", "fix_target"]

# Which markers a test must carry to use a fixture. Without this rule a test could reach a server in `make unit`.
MARKER_OF_FIXTURE = {
    "mariadb": "integration",
    "mariadb_database": "integration",
    "mariadb_target": "integration",
    "mariadb_target_database": "integration",
    "start_mariadb": "integration",
    "postgres": "integration",
    "postgres_database": "integration",
    "start_postgres": "integration",
    "spark": "spark",
    "spark_cluster": "spark",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options by which `make soak` and `make kill` ask for more."""
    group = parser.getgroup("tranlog")
    group.addoption("--soak", action="store_true", help="run exhaustively what a push runs in part")
    group.addoption("--examples", type=int, default=100, help="examples per Hypothesis test")
    group.addoption("--rounds", type=int, default=3, help="rounds of a test that kills processes at random")


def pytest_configure(config: pytest.Config) -> None:
    """Give Hypothesis its number of examples; a failing one prints the blob that replays it.

    And have the end of a whole tier held against docs/conformance.md.
    """
    config.pluginmanager.register(RanCheck(), "conformance")
    settings.register_profile(
        "tranlog",
        max_examples=config.getoption("--examples"),
        deadline=None,  # the machine is shared; how long an example takes proves nothing
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tranlog")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test that uses a server or Spark without saying so."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            marker = MARKER_OF_FIXTURE.get(fixture)
            if marker is not None and item.get_closest_marker(marker) is None:
                raise pytest.UsageError(f"{item.nodeid} uses the fixture {fixture}: mark it with @pytest.mark.{marker}")


@pytest.fixture(scope="session", autouse=True)
def _parsers_are_built_once() -> None:
    """Build a program's parser at its first call, as a process does: it takes 25 ms."""
    if typer := sys.modules.get("typer"):
        typer.main.get_command = functools.cache(typer.main.get_command)


@pytest.fixture(scope="session")
def soaking(pytestconfig: pytest.Config) -> bool:
    """Whether this run is exhaustive (`make soak`) rather than a push's."""
    return bool(pytestconfig.getoption("--soak"))


@pytest.fixture(scope="session")
def rounds(pytestconfig: pytest.Config) -> int:
    """How many rounds a test that kills processes at random is to run."""
    return int(pytestconfig.getoption("--rounds"))

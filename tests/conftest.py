"""What every test may use: the servers, Spark, and how much of a random test to run.

Fixtures live in `fix_<thing>.py`. A test that needs a server or Java carries the marker for it (`integration`,
`spark`), so that `make unit` can leave it out; where the server is missing such a test fails, it is never skipped.
"""

from __future__ import annotations

import functools
import socket
import sys

import pytest
from hypothesis import HealthCheck, settings

from fix_conformance import RanCheck
from fix_effort import EXAMPLES, FEW_EXAMPLES, Effort, explores
from fix_mutation import Fuzz

pytest_plugins = [
    "fix_durations",
    "fix_mariadb",
    "fix_postgres",
    "fix_postgres_source",
    "fix_spark",
    "fix_spark_cluster",
    "fix_target",
]

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
    "postgres_source": "integration",
    "postgres_source_database": "integration",
    "spark": "spark",
    "spark_cluster": "spark",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options by which `make unit` asks for less, `make soak` and `make kill` for more."""
    group = parser.getgroup("tranlog")
    group.addoption("--few", action="store_true", help="run few cases of what explores")
    group.addoption("--twice", action="store_true", help="repeat a test that failed, unless it explores")
    group.addoption("--soak", action="store_true", help="run exhaustively what a push runs in part")
    group.addoption("--examples", type=int, help="examples per Hypothesis test")
    group.addoption("--rounds", type=int, default=3, help="rounds of a test that kills processes at random")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give Hypothesis its number of examples; a failing one prints the blob that replays it.

    And have the end of a whole tier held against docs/conformance.md, and the processes of a run ask at once what was
    repeated: where what they send waits for an answer to what they sent before, each test takes 40 ms more.
    """
    asks = getattr(getattr(config, "failures_db", None), "sock", None)
    if asks is not None:
        asks.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config.pluginmanager.register(RanCheck(), "conformance")
    if config.option.examples is None:
        config.option.examples = FEW_EXAMPLES if config.option.few else EXAMPLES
    settings.register_profile(
        "tranlog",
        max_examples=config.option.examples,
        deadline=None,  # the machine is shared; how long an example takes proves nothing
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tranlog")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a test that uses a server or Spark without saying so; mark what explores where it is not run in short.

    What explores is never repeated: another draw could hide what the first one found.
    """
    for item in items:
        if not explores(item):
            if config.option.twice:
                item.add_marker(pytest.mark.flaky(reruns=1))
        elif not config.option.few:
            item.add_marker("long")
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
def effort(pytestconfig: pytest.Config) -> Effort:
    """How much of a test that explores to run: `effort(few, more, most)` returns one of the three."""
    return Effort(pytestconfig)


@pytest.fixture
def fuzz(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Fuzz:
    """Mutated input by the thousand: a hundred cases for each of `--examples`."""
    return Fuzz(test=request.node.nodeid, examples=int(pytestconfig.getoption("--examples")))


@pytest.fixture(scope="session")
def rounds(pytestconfig: pytest.Config) -> int:
    """How many rounds a test that kills processes at random is to run."""
    return int(pytestconfig.getoption("--rounds"))

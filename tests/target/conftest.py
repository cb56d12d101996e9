"""Every kind of target for the tests of what they have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from tranlog.target.options import TargetOptions

KINDS = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.integration),
    pytest.param("mariadb", marks=pytest.mark.integration),
]


@pytest.fixture(params=KINDS)
def options(request: pytest.FixtureRequest, tmp_path: Path) -> TargetOptions:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return TargetOptions(kind="sqlite", path=str(tmp_path / "target.db"), lock_timeout_s=5)
    if request.param == "mariadb":
        server, database = (request.getfixturevalue(name) for name in ("mariadb_target", "mariadb_target_database"))
        return TargetOptions(kind="mariadb", dsn=server.dsn(database), lock_timeout_s=5)
    server, database = (request.getfixturevalue(name) for name in ("postgres", "postgres_database"))
    return TargetOptions(kind="postgres", dsn=server.dsn(database), lock_timeout_s=5)

"""Every kind of target for the tests of what they have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_folder import folder_options
from fix_target import DATABASES
from tranlog.target.options import TargetOptions


@pytest.fixture(params=[*DATABASES, "folder"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> TargetOptions:
    """An empty target of each kind, of which one is no database."""
    if request.param == "folder":
        return folder_options(tmp_path / "target")
    if request.param == "sqlite":
        return TargetOptions(kind="sqlite", path=str(tmp_path / "target.db"), lock_timeout_s=5)
    if request.param == "mariadb":
        server, database = (request.getfixturevalue(name) for name in ("mariadb_target", "mariadb_target_database"))
        return TargetOptions(kind="mariadb", dsn=server.dsn(database), lock_timeout_s=5)
    server, database = (request.getfixturevalue(name) for name in ("postgres", "postgres_database"))
    return TargetOptions(kind="postgres", dsn=server.dsn(database), lock_timeout_s=5)

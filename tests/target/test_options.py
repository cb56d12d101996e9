"""How a target is given: what is refused, and what does not show. Issue, "Bad input"."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from tranlog.errors import ConfigError
from tranlog.target.options import TargetOptions, open_target

GOOD = {
    "sqlite": {"kind": "sqlite", "path": "x.db"},
    "postgres": {"kind": "postgres", "dsn": "postgresql://u:secret@h/d"},
    "mariadb": {"kind": "mariadb", "dsn": "mariadb://u:secret@h/d"},
}


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"kind": "oracle"}, "kind"),
        ({"kind": "sqlite"}, "path"),
        ({"kind": "sqlite", "path": ":memory:"}, "path"),
        ({"kind": "sqlite", "path": "x", "dsn": "y"}, "dsn"),
        ({"kind": "null"}, "path"),
        ({"kind": "null", "path": "x", "dsn": "y"}, "dsn"),
        ({"kind": "postgres"}, "dsn"),
        ({"kind": "postgres", "dsn": "x", "path": "y"}, "path"),
        ({"kind": "mariadb"}, "dsn"),
        ({"kind": "mariadb", "dsn": "postgresql://u:secret@h/d"}, "dsn"),
        ({"kind": "mariadb", "dsn": "mariadb://u:secret@h"}, "dsn"),
        ({"kind": "mariadb", "dsn": "mariadb://u:secret@h:port/d"}, "dsn"),
        ({"kind": "mariadb", "dsn": "mariadb://u:secret@h/d?speed=9"}, "dsn"),
        ({**GOOD["mariadb"], "triggers": "off"}, "triggers"),
        ({**GOOD["mariadb"], "path": "y"}, "path"),
        ({**GOOD["sqlite"], "ddl": "map"}, "ddl"),
        ({**GOOD["sqlite"], "triggers": "on"}, "triggers"),
        ({**GOOD["sqlite"], "lock_timeout_s": 0}, "lock_timeout_s"),
        ({**GOOD["sqlite"], "lock_timeout_s": float("nan")}, "lock_timeout_s"),
        ({**GOOD["postgres"], "connect_timeout_s": -1}, "connect_timeout_s"),
        ({**GOOD["postgres"], "idle_timeout_s": 100_000}, "idle_timeout_s"),
    ],
)
def test_an_impossible_option_is_named(given: dict[str, object], option: str) -> None:
    options = TargetOptions(**given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        open_target(options)
    assert caught.value.option == f"target.{option}"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", GOOD)
def test_options_travel_and_keep_their_secret(kind: str) -> None:
    options = TargetOptions(**GOOD[kind])  # type: ignore[arg-type]
    options.check()
    assert pickle.loads(pickle.dumps(options)) == options
    assert "secret" not in repr(options)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "module", "library"), [("postgres", "psycopg", "psycopg"), ("mariadb", "pymysql", "PyMySQL")]
)
def test_a_missing_library_is_named_with_its_remedy(kind: str, module: str, library: str) -> None:
    """Another target needs none of it."""
    script = f"""
import sys, tempfile
sys.modules["{module}"] = None
from tranlog.servers.mariadb_address import read_url
from tranlog.target.options import TargetOptions, open_target
open_target(TargetOptions(kind="sqlite", path=tempfile.mkdtemp() + "/x.db")).close()
try:
    open_target(TargetOptions(kind="{kind}", dsn="{GOOD[kind]["dsn"]}"))
except Exception as exc:
    print(type(exc).__name__, exc)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(
        f"ConfigError configuration: target.kind = '{kind}': the library {library} is missing"
    )
    assert f"pip install 'tranlog[{kind}]'" in done.stdout

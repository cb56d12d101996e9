"""What a URL says of a source and a target, and the configuration that is made of two."""

from __future__ import annotations

from pathlib import Path

import pytest

from tranlog.service.config.config import load
from tranlog.service.config.urls import following, source_url, target_url
from tranlog.source.mariadb.connection import MariadbSourceOptions
from tranlog.source.postgres.connection import PostgresSourceOptions
from tranlog.source.sqlite.source import SqliteSourceOptions

MARIADB = "mariadb://us%40er:p%22w@db2:3307/shop"
POSTGRES = "postgresql://user:pw@db1/shop?sslmode=require"


def test_a_configuration_of_two_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind as source and as target, as a configuration reads it back."""
    monkeypatch.chdir(tmp_path)
    found = []
    for source, target, tables, identity in (
        ("sqlite:///a/s hop.db", MARIADB, (), None),
        (MARIADB, POSTGRES, ("shop.a", "shop.b"), None),
        (POSTGRES, "sqlite:////srv/b.db", ("public.a",), "set"),
    ):
        origin = source_url(source)
        text = following(origin, target_url(target), tables, identity, service=origin.service)
        (tmp_path / "tranlog.toml").write_text(text)
        config = load(str(tmp_path / "tranlog.toml"), environ={})
        assert config.load == tables and config.wanted_target().ddl == "follow"
        assert [one.tables for one in config.pipeline.apply.filters] == ([tables] if tables else [])  # type: ignore[union-attr]
        found.append((config.service, config.source, config.target))
    names, (sqlite, mariadb, postgres), targets = zip(*found, strict=True)
    assert isinstance(sqlite, SqliteSourceOptions) and sqlite.by_trigger
    assert sqlite.path == str(tmp_path / "a" / "s hop.db")
    assert isinstance(mariadb, MariadbSourceOptions)
    assert (mariadb.host, mariadb.port, mariadb.user, mariadb.password) == ("db2", 3307, "us@er", 'p"w')
    assert mariadb.databases == ("shop",)
    assert isinstance(postgres, PostgresSourceOptions)
    assert (postgres.dsn, postgres.identity, postgres.tables) == (POSTGRES, "set", ("public.a",))
    assert [target.dsn or target.path for target in targets] == [MARIADB, POSTGRES, "/srv/b.db"]
    assert names == ("copy-of-s-hop", "copy-of-shop", "copy-of-shop")

"""Databases named by URL: `sqlite:///shop.db`, `postgresql://user@host/shop`, `mariadb://user@host/shop`.

Owns what a URL says of a source and of a target. No message repeats one, since a password may stand in it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from tranlog.errors import ConfigError
from tranlog.servers.mariadb_address import read_url
from tranlog.source.kinds import SourceOptions, source_kind
from tranlog.target.options import TargetKind, TargetOptions

_KINDS: Final[dict[str, TargetKind]] = {
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "postgres": "postgres",
    "mariadb": "mariadb",
}
FORMS: Final = "sqlite:///FILE, postgresql://USER@HOST/DATABASE or mariadb://USER@HOST/DATABASE"


class DatabaseUrl(NamedTuple):
    """A kind and the keys of a section [source] or [target] that name the database."""

    kind: TargetKind
    keys: dict[str, Any]

    def target(self) -> TargetOptions:
        """Return a target in which tables are made."""
        return TargetOptions(kind=self.kind, ddl="follow", **self.keys)

    def source(self) -> SourceOptions:
        """Return the source. Raises SourceSetupError where a library is missing."""
        options: SourceOptions = source_kind(self.kind).options(source_id="copy", **self.keys)
        return options


def source_url(url: str) -> DatabaseUrl:
    """Read the URL of a source. Raises ConfigError."""
    kind = _kind(url, "SOURCE_URL")
    if kind != "mariadb":
        return DatabaseUrl(kind, _keys(url, kind, "SOURCE_URL"))
    address = dataclasses.asdict(_address(url, "SOURCE_URL"))
    databases = (address.pop("database"),)
    if other := [name for name in ("ssl_ca", "unix_socket") if address.pop(name)]:
        raise ConfigError(option="SOURCE_URL", value=None, why=f"a MariaDB source has no {other[0]}")
    return DatabaseUrl(kind, {**{name: value for name, value in address.items() if value}, "databases": databases})


def target_url(url: str) -> DatabaseUrl:
    """Read the URL of a target. Raises ConfigError."""
    kind = _kind(url, "TARGET_URL")
    if kind == "mariadb":
        _address(url, "TARGET_URL")
    return DatabaseUrl(kind, _keys(url, kind, "TARGET_URL"))


def _kind(url: str, option: str) -> TargetKind:
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme not in _KINDS:
        raise ConfigError(option=option, value=scheme or None, why=f"a database is named by {FORMS}")
    return _KINDS[scheme]


def _keys(url: str, kind: TargetKind, option: str) -> dict[str, Any]:
    if kind != "sqlite":
        return {"dsn": url}
    parts = urlsplit(url)
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or parts.query or parts.fragment or not path:
        why = "reads sqlite:///shop.db for a file of this folder, sqlite:////srv/shop.db for one of another"
        raise ConfigError(option=option, value=None, why=why)
    return {"path": path}


def _address(url: str, option: str) -> Any:
    try:
        return read_url(url)
    except ConfigError as exc:
        raise ConfigError(option=option, value=None, why=exc.why) from exc

"""Databases named by URL: `sqlite:///shop.db`, `postgresql://user@host/shop`, `mariadb://user@host/shop`.

Owns what a URL says of a source and of a target. No message repeats one, since it may contain a password.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from tranlog.errors import ConfigError
from tranlog.servers.mariadb_address import read_url
from tranlog.service.config.template import toml
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

    name: str
    """The database, as a part of other names."""

    @property
    def service(self) -> str:
        """The name of the service that follows this source, unless it is given another."""
        return f"copy-of-{self.name}"

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
        return DatabaseUrl(kind, _keys(url, kind, "SOURCE_URL"), _name(url))
    address = dataclasses.asdict(_address(url, "SOURCE_URL"))
    databases = (address.pop("database"),)
    if other := [name for name in ("ssl_ca", "unix_socket") if address.pop(name)]:
        raise ConfigError(option="SOURCE_URL", value=None, why=f"a MariaDB source has no {other[0]}")
    keys = {name: value for name, value in address.items() if value}
    return DatabaseUrl(kind, keys | {"databases": databases}, _name(url))


def target_url(url: str) -> DatabaseUrl:
    """Read the URL of a target. Raises ConfigError."""
    kind = _kind(url, "TARGET_URL")
    if kind == "mariadb":
        _address(url, "TARGET_URL")
    return DatabaseUrl(kind, _keys(url, kind, "TARGET_URL"), _name(url))


_HEAD: Final = """\
# Written by `tranlog copy --follow`, which uses it, or by `tranlog init`. Every key: docs/configuration.md.
"""


def following(
    origin: DatabaseUrl, into: DatabaseUrl, tables: Sequence[str], identity: str | None, *, service: str
) -> str:
    """Return the configuration that loads the tables of a source, all or some, and follows them.

    `service` is its name. `identity` as in the section [source] of a PostgreSQL, None for its default. Relative paths
    count from the working directory, and are written as absolute ones.
    """
    source = {"kind": origin.kind, **_absolute(origin.keys), "load": tuple(tables) or "all"}
    match origin.kind:
        case "sqlite":
            source["foreign_writes"] = "capture_by_trigger"
        case "postgres":
            source |= {"via_partition_root": True} | ({"tables": tuple(tables)} if tables else {})
            source |= {"identity": identity} if identity else {}
    target = {"kind": into.kind, **_absolute(into.keys), "ddl": "follow"}
    sections: list[tuple[str, dict[str, Any]]] = [
        ("[service]", {"name": service}),
        ("[log]", {"dir": "log"}),
        ("[source]", source),
        ("[target]", target),
    ]
    if tables:
        sections.append(("[[filter]]", {"kind": "include", "tables": tuple(tables), "statements": "pass"}))
    lines = [
        "\n".join([head, *[f"{name} = {toml(name, value)}" for name, value in keys.items()]]) for head, keys in sections
    ]
    return _HEAD + "\n" + "\n\n".join(lines) + "\n"


def _absolute(keys: dict[str, Any]) -> dict[str, Any]:
    return keys | {"path": os.path.abspath(keys["path"])} if "path" in keys else keys


def _name(url: str) -> str:
    last = unquote(urlsplit(url).path).rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9_-]", "-", last.removesuffix(".db"))[:40].strip("-") or "database"


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

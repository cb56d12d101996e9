"""Where a MariaDB server is and who logs in, and the form `mariadb://user:password@host:port/database` of that.

Owns reading, changing and describing that URL; the one place that knows it, with a password that no message shows.
Without the driver, so that a configuration can be read where it is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tranlog.errors import ConfigError

DEFAULT_PORT: Final = 3306
_FORM: Final = "it reads mariadb://user:password@host:port/database, and may end in ?ssl_ca=FILE or ?unix_socket=PATH"
_ESCAPES: Final = "; / and @ in a password are written %2F and %40"


@dataclass(frozen=True, slots=True, kw_only=True)
class MariadbAddress:
    """A server, a login, and at a target the database of tranlog's own tables. `ssl_ca` asks for TLS, checked by it."""

    host: str
    port: int
    user: str
    database: str = ""
    password: str = field(default="", repr=False)
    ssl_ca: str = ""
    unix_socket: str = ""

    def describe(self) -> str:
        """Return the URL without its password."""
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        place = f"?unix_socket={quote(self.unix_socket)}" if self.unix_socket else ""
        return f"mariadb://{user}{host}:{self.port}/{quote(self.database, safe='')}{place}"

    def url(self) -> str:
        """Return the URL with everything in it."""
        login = quote(self.user, safe="") + (":" + quote(self.password, safe="") if self.password else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        more = "&".join(
            f"{name}={quote(value, safe='/')}"
            for name, value in (("ssl_ca", self.ssl_ca), ("unix_socket", self.unix_socket))
            if value
        )
        return f"mariadb://{login}@{host}:{self.port}/{quote(self.database, safe='')}" + ("?" + more if more else "")


def read_url(dsn: str) -> MariadbAddress:
    """Read the URL. Raises ConfigError, which does not repeat it."""
    try:
        parts = urlsplit(dsn)
        port = parts.port or DEFAULT_PORT
        more = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query), keep_blank_values=True))
    except ValueError:  # which repeats some of it
        raise _refuse(f"not a MariaDB URL; {_FORM}{_ESCAPES}") from None
    if parts.scheme != "mariadb" or not parts.hostname or "@" in parts.path:
        raise _refuse(f"not a MariaDB URL; {_FORM}{_ESCAPES}")
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database:
        raise _refuse(f"names no database, which is to hold tranlog's own tables; {_FORM}")
    unknown = sorted(set(more) - {"ssl_ca", "unix_socket"})
    if unknown or parts.fragment:
        raise _refuse(f"has {unknown[0] if unknown else '#'}, which is not known; {_FORM}")
    return MariadbAddress(
        host=parts.hostname,
        port=port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=database,
        ssl_ca=more.get("ssl_ca", ""),
        unix_socket=more.get("unix_socket", ""),
    )


def _refuse(why: str) -> ConfigError:
    return ConfigError(option="target.dsn", value=None, why=why)

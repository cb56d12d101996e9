"""What a source and a target at a PostgreSQL both know of it: its connection strings, and the settings of a session.

Source: PostgreSQL's manual, "Connection Strings", "Client Connection Defaults".
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tranlog.errors import ConfigError

TEXT_SETTINGS: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}
"""What decides how the server writes a value, however the server, the database or the role is set up."""
_OF_PORTS: Final = frozenset("0123456789,")
KEEPALIVE: Final = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


def read_dsn(dsn: str, *, option: str) -> dict[str, Any]:
    """Return a connection string's parts. Raises ConfigError, which names the option and does not repeat the string."""
    parts: dict[str, Any] | None
    try:
        parts = dict(conninfo_to_dict(dsn))
    except psycopg.Error:  # which repeats some of it
        parts = None
    if parts is None or _is_cut(dsn) or set(str(parts.get("port") or "")) - _OF_PORTS:
        why = (
            "not a connection string of PostgreSQL's; it reads postgresql://user:password@host:port/database, and "
            "/ and @ in a password are written %2F and %40"
        )
        raise ConfigError(option=option, value=None, why=why)
    return parts


def _is_cut(dsn: str) -> bool:
    """Whether the login of a URL is not what stands before its last @, so that a password would pass for a database."""
    scheme, _, rest = dsn.partition("://")
    if scheme not in ("postgresql", "postgres"):
        return False
    login, at, after = rest.partition("@")
    return "@" in (after if at and "/" not in login else rest).partition("?")[0]


def describe_dsn(dsn: str, *, option: str) -> str:
    """Return where a connection string leads, without its password."""
    parts = read_dsn(dsn, option=option)
    if parts.get("service") and not parts.get("host"):
        return f"postgresql://?service={parts['service']}"
    user = f"{parts['user']}@" if parts.get("user") else ""
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{user}{parts.get('host') or 'localhost'}{port}/{parts.get('dbname') or ''}"

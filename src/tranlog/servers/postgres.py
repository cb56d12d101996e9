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
KEEPALIVE: Final = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


def read_dsn(dsn: str, *, option: str) -> dict[str, Any]:
    """Return a connection string's parts. Raises ConfigError, which names the option and does not repeat the string."""
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.Error as exc:
        why = "not a connection string of PostgreSQL's; it reads postgresql://user:password@host:port/database"
        raise ConfigError(option=option, value=None, why=why) from exc


def describe_dsn(dsn: str, *, option: str) -> str:
    """Return where a connection string leads, without its password."""
    parts = read_dsn(dsn, option=option)
    if parts.get("service") and not parts.get("host"):
        return f"postgresql://?service={parts['service']}"
    user = f"{parts['user']}@" if parts.get("user") else ""
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{user}{parts.get('host') or 'localhost'}{port}/{parts.get('dbname') or ''}"

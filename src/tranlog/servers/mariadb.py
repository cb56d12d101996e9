"""Sessions at a MariaDB server, by PyMySQL, as a source and a target both open them.

Owns opening and closing a session and reading the driver's errors. A session runs in UTC, outlives idle days, and
notices by TCP keepalive that the server's machine is gone.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

import pymysql

from tranlog.servers.mariadb_address import MariadbAddress

_WEEK_S: Final = 7 * 24 * 3600
SESSION: Final = {"time_zone": "'+00:00'", "wait_timeout": f"{_WEEK_S}", "net_write_timeout": f"{_WEEK_S}"}
"""Settings of each session: TIMESTAMP columns and the log are in UTC; whoever reads a table's rows may be slow."""
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


class _Connection(pymysql.Connection):
    """Where no certificate is to be proven, TLS by one context for all: PyMySQL reads the system's for each session."""

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        if sslp:
            context: ssl.SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]
            return context
        return _unproven()


@cache
def _unproven() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def connect(address: MariadbAddress, *, connect_timeout_s: float, **settings: Any) -> pymysql.Connection[Any]:
    """Open a session; `settings` are the driver's. Raises the driver's errors, OSError, RuntimeError."""
    if address.unix_socket:
        settings["unix_socket"] = address.unix_socket
    if address.ssl_ca:
        settings |= {"ssl_ca": address.ssl_ca, "ssl_verify_cert": True, "ssl_verify_identity": True}
    connection: pymysql.Connection[Any] = _Connection(
        **{
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "password": address.password,
            "database": address.database,
            "charset": "utf8mb4",
            "autocommit": True,
            "connect_timeout": max(1, round(connect_timeout_s)),
            "program_name": "tranlog",
            **settings,
        }
    )
    sock = getattr(connection, "_sock", None)
    if sock is not None and sock.family != socket.AF_UNIX:
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection


def set_session(settings: Mapping[str, str]) -> str:
    """Return the statement that sets variables of a session."""
    return "SET SESSION " + ", ".join([f"{name} = {value}" for name, value in settings.items()])


def close(connection: pymysql.Connection[Any]) -> None:
    """Close a session, whatever state it is in."""
    with suppress(pymysql.err.MySQLError, OSError):
        connection.close()


def close_query(connection: pymysql.Connection[Any], cursor: Any) -> None:
    """Close a cursor that does not buffer: PyMySQL reads what is left, and fails at that where the connection is lost.

    Raises what PyMySQL raises.
    """
    result = cursor._result
    if not connection.open and result is not None:
        result.unbuffered_active = False
    cursor.close()


def error_number(error: BaseException) -> int:
    """Return the server's or the driver's number of an error; 0 where it has none."""
    number = error.args[0] if isinstance(error, pymysql.err.MySQLError) and error.args else 0
    return number if isinstance(number, int) else 0


def message(error: BaseException) -> str:
    """Return the server's or the driver's message in one line."""
    text = str(error.args[1]) if isinstance(error, pymysql.err.MySQLError) and len(error.args) > 1 else str(error)
    return " ".join(text.split())

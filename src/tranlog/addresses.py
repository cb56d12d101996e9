"""HOST:PORT as people write it, and whether others reach it.

Owns the form alone: nothing here asks a resolver.
"""

from __future__ import annotations

import ipaddress

from tranlog.errors import ConfigError


def split_address(option: str, text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[ADDRESS]:PORT` for IPv6. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigError(option=option, value=text, why="must be HOST:PORT")
    try:
        host.encode("idna")
    except UnicodeError as exc:
        raise ConfigError(option=option, value=text, why="its host is no name that a host can have") from exc
    return host, int(port)


def check_reachable(option: str, text: str) -> None:
    """Refuse an address to which nobody can connect. Raises ConfigError."""
    host, port = split_address(option, text)
    if is_literal(host) and ipaddress.ip_address(host).is_unspecified:
        raise ConfigError(option=option, value=text, why="others cannot connect to it: name the host as they reach it")
    if not port:
        raise ConfigError(option=option, value=text, why="others cannot connect to port 0")


def is_loopback(host: str) -> bool:
    """Whether nobody outside this machine reaches an address. A name other than localhost might be anything."""
    return host == "localhost" or (is_literal(host) and ipaddress.ip_address(host).is_loopback)


def is_literal(host: str) -> bool:
    """Whether a host is an address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

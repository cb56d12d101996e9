"""Which address a port of ours may have, and what it must ask for there.

Owns the one security rule for every port: loopback needs no credentials; any other address needs TLS and a shared
secret, and without them nothing is opened. The hard idea: the rule is checked before a socket is made, and by the
address that was asked for, not by a name that resolves to something else later.

Source: design/replication.md, "Security".
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from tranlog.errors import ConfigError

SECRET_BYTES_MIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What protects a port: a certificate with its key for TLS, and a shared secret; each None where there is none."""

    certificate: str | None = None
    key: str | None = None
    secret: str | None = None

    def admits(self, given: str | None) -> bool:
        """Whether what a peer gave is the secret; always where there is none."""
        if self.secret is None:
            return True
        return given is not None and hmac.compare_digest(given.encode(), self.secret.encode())

    def server_context(self) -> ssl.SSLContext | None:
        """Return the server's side of TLS, None for plain. Raises ConfigError for files that are no pair."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as exc:
            why = f"is no certificate with its key in PEM: {exc}"
            raise ConfigError(option="tls_certificate", value=self.certificate, why=why) from exc
        return context


def split_address(option: str, text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[ADDRESS]:PORT` for IPv6. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigError(option=option, value=text, why="must be HOST:PORT")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether nobody outside this machine reaches an address. A name other than localhost might be anything."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(option: str, address: str, exposure: Exposure) -> tuple[str, int]:
    """Return host and port if they may be opened so. Raises ConfigError where the rule forbids it."""
    host, port = split_address(option, address)
    if exposure.key is not None and exposure.certificate is None:
        raise ConfigError(option="tls_key", value=exposure.key, why="stands without a tls_certificate")
    if exposure.secret is not None and len(exposure.secret.encode()) < SECRET_BYTES_MIN:
        raise ConfigError(option="secret_file", value=None, why=f"holds fewer than {SECRET_BYTES_MIN} bytes of secret")
    if not is_loopback(host) and (exposure.certificate is None or exposure.secret is None):
        why = (
            "others reach this address, so it needs TLS and a shared secret: set tls_certificate and secret_file, "
            "or use 127.0.0.1"
        )
        raise ConfigError(option=option, value=address, why=why)
    return host, port


def read_secret(path: str) -> str:
    """Return what a secret's file holds. Raises ConfigError where it cannot be read or others can read it."""
    try:
        mode = os.stat(path).st_mode
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(option="secret_file", value=path, why=f"cannot be read: {exc}") from exc
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(option="secret_file", value=path, why="others may read it; use `chmod 600` on it")
    return text


def client_context(authority: str | None) -> ssl.SSLContext:
    """Return a client's side of TLS: it believes certificates of `authority`, a PEM file, or of the system's."""
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(option="--tls-ca", value=authority, why=f"holds no certificates in PEM: {exc}") from exc

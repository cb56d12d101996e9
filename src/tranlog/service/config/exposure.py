"""Which address a port of ours may have, what it must ask for there, and what a peer may do.

Owns the one security rule for every port but a group's, which is `replication/acting/entrance.py`'s: loopback needs no
credentials; any other address needs TLS, and a token or a client's certificate, and without them nothing is opened. The
hard idea: the rule is checked before a socket is made, and by the address that was asked for, not by a name that
resolves to something else later.
"""

from __future__ import annotations

import enum
import hmac
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tranlog.addresses import is_loopback, split_address
from tranlog.errors import ConfigError
from tranlog.tls import load_authority, load_pair

SECRET_BYTES_MIN: Final = 16
_READ: Final = "read "
"""In front of a token of a secret's file that only reads."""


class Role(enum.IntEnum):
    """What a peer may do; each includes those before it."""

    READ = 1
    OPERATE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What protects a port: a certificate with its key for TLS, and tokens; each None where there is none.

    `secret` operates, `read_secret` only reads; a client with a certificate that `authority`, a PEM file, has signed
    operates without a token.
    """

    certificate: str | None = None
    key: str | None = None
    secret: str | None = None
    read_secret: str | None = None
    authority: str | None = None

    def role_of(self, given: str, *, certified: bool) -> Role | None:
        """Return what a peer may do by its token and whether its certificate was proven; None for nothing."""
        if certified or not (self.secret or self.read_secret or self.authority):
            return Role.OPERATE
        for secret, role in ((self.secret, Role.OPERATE), (self.read_secret, Role.READ)):
            if secret is not None and hmac.compare_digest(given.encode(), secret.encode()):
                return role
        return None

    def server_context(self) -> ssl.SSLContext | None:
        """Return the server's side of TLS, None for plain. Raises ConfigError for files that are no pair."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        load_pair(context, "tls_certificate", self.certificate, self.key)
        if self.authority is not None:
            load_authority(context, "tls_client_ca", self.authority)
            context.verify_mode = ssl.CERT_OPTIONAL if self.secret or self.read_secret else ssl.CERT_REQUIRED
        return context


def check_exposure(option: str, address: str, exposure: Exposure) -> tuple[str, int]:
    """Return host and port if they may be opened so. Raises ConfigError where the rule forbids it."""
    host, port = split_address(option, address)
    if exposure.certificate is None:
        for name, file in (("tls_key", exposure.key), ("tls_client_ca", exposure.authority)):
            if file is not None:
                raise ConfigError(option=name, value=file, why="needs a tls_certificate too")
    for secret in (exposure.secret, exposure.read_secret):
        if secret is not None and len(secret.encode()) < SECRET_BYTES_MIN:
            why = f"holds fewer than {SECRET_BYTES_MIN} bytes of secret"
            raise ConfigError(option="secret_file", value=None, why=why)
    guarded = exposure.secret or exposure.read_secret or exposure.authority
    if not is_loopback(host) and (exposure.certificate is None or not guarded):
        why = (
            "others reach this address, so it needs TLS and a shared secret or clients' certificates: set "
            "tls_certificate, and secret_file or tls_client_ca, or use 127.0.0.1"
        )
        raise ConfigError(option=option, value=address, why=why)
    return host, port


def read_secrets(path: str) -> tuple[str | None, str | None]:
    """Return the tokens of a secret's file: the one that operates, and the one that only reads, after `read `.

    Raises ConfigError where it cannot be read, where others can read it, and for any other line.
    """
    try:
        mode = os.stat(path).st_mode
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(option="secret_file", value=path, why=f"cannot be read: {exc}") from exc
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(option="secret_file", value=path, why="others can read it; use `chmod 600` on it")
    lines = [line.strip() for line in lines if line.strip()]
    reads = [line.removeprefix(_READ).strip() for line in lines if line.startswith(_READ)]
    operates = [line for line in lines if not line.startswith(_READ)]
    if not lines or len(reads) > 1 or len(operates) > 1:
        why = "must hold one token, or two: one that operates, and in a line of its own `read ` and one that only reads"
        raise ConfigError(option="secret_file", value=path, why=why)
    if not all(line.isascii() and line.isprintable() for line in lines):  # which a header cannot carry
        raise ConfigError(option="secret_file", value=path, why="a token has printable ASCII characters alone")
    return operates[0] if operates else None, reads[0] if reads else None


def client_context(authority: str | None, certificate: str | None = None) -> ssl.SSLContext:
    """Return a client's side of TLS: it believes certificates of `authority`, a PEM file, or of the system's.

    `certificate`: its own with its key, a PEM file. Raises ConfigError for files that hold something else.
    """
    context = ssl.create_default_context()
    if authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_authority(context, "--tls-ca", authority)
    if certificate is not None:
        load_pair(context, "--tls-cert", certificate, None)
    return context

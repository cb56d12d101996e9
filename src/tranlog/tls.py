"""TLS between the nodes and clients of a group, and the PEM files of any TLS of ours.

Owns how certificates, keys and authorities are read. In a group both sides show a certificate that its authority has
signed; whose it is, nodes look at themselves.
"""

from __future__ import annotations

import ssl

from tranlog.errors import ConfigError


def load_pair(context: ssl.SSLContext, option: str, certificate: str, key: str | None) -> None:
    """Have a side show a certificate; without `key` the file has both. Raises ConfigError."""
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as exc:
        why = f"is no certificate with its key in PEM: {exc}"
        raise ConfigError(option=option, value=certificate, why=why) from exc


def load_authority(context: ssl.SSLContext, option: str, authority: str) -> None:
    """Have a side believe what an authority has signed. Raises ConfigError."""
    try:
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(option=option, value=authority, why=f"holds no certificates in PEM: {exc}") from exc


def group_side(authority: str, certificate: str, key: str | None = None, *, server: bool = False) -> ssl.SSLContext:
    """Return a side of TLS in a group, a client's or a server's; all three are PEM files. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    if not server:
        context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    load_pair(context, "tls_certificate", certificate, key)
    load_authority(context, "tls_ca", authority)
    return context

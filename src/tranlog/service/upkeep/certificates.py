"""A private authority for the certificates of a group, and what it signs: for a trial, or where there is no other one.

Owns the files of these and what stands in a certificate; signing is the library's. The hard idea: a name is an
identity. A node's certificate may be shown by a server and by a client, a client's by a client alone; its
organizational unit says so too, so that no client passes for the node of its name.

Imported by the commands that need it alone: `cryptography` comes with an extra.

Source: docs/replication.md, "TLS and permissions".
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tranlog.addresses import is_literal
from tranlog.errors import ConfigError
from tranlog.tls import CLIENT_UNIT

AUTHORITY: Final = "group"
"""The name of the authority's two files."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BEFORE: Final = timedelta(days=1)
"""A certificate is valid from so long before it was made on: the clocks of other machines may be behind."""


class MadeCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """What was made: PEM files. `key` is `certificate` where one file has both; `valid_until`: ISO 8601."""

    name: str
    certificate: str
    key: str
    valid_until: str


def make_authority(folder: str, *, days: int, now_ms: int) -> MadeCertificate:
    """Make an authority in a folder, which is made where it is missing. Raises ConfigError."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as exc:
        raise _refused("--dir", folder, f"cannot be made: {exc.strerror}") from exc
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tranlog group authority")])
    builder = _builder(name, name, key, days, now_ms)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _written(folder, AUTHORITY, builder.sign(key, hashes.SHA256()), key, together=False)


def make_node(folder: str, name: str, hosts: Sequence[str], *, days: int, now_ms: int) -> MadeCertificate:
    """Make the certificate of a node of that name, and its key. `hosts`: where it is reached, beside loopback.

    Raises ConfigError where the folder holds no authority, or those files already.
    """
    return _issue(folder, name, ("localhost", "127.0.0.1", "::1", *hosts), days, now_ms)


def make_client(folder: str, name: str, *, days: int, now_ms: int) -> MadeCertificate:
    """Make the certificate of a client of that name, with its key in the same file. As `make_node` else."""
    return _issue(folder, name, (), days, now_ms)


def _issue(folder: str, name: str, hosts: Sequence[str], days: int, now_ms: int) -> MadeCertificate:
    """Make what the authority signs; a client has no `hosts`."""
    if not _NAME.fullmatch(name) or name == AUTHORITY:
        raise _refused("NAME", name, f"must be up to 64 letters, digits, '.', '_' or '-', and not {AUTHORITY!r}")
    authority, signing = _authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    parts, usage = [x509.NameAttribute(NameOID.COMMON_NAME, name)], [ExtendedKeyUsageOID.CLIENT_AUTH]
    if hosts:
        usage.append(ExtendedKeyUsageOID.SERVER_AUTH)
    else:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, CLIENT_UNIT))
    builder = _builder(x509.Name(parts), authority.subject, key, days, now_ms, authority.not_valid_after_utc)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), critical=False)
    return _written(folder, name, builder.sign(signing, hashes.SHA256()), key, together=not hosts)


def _authority(folder: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        with open(os.path.join(folder, f"{AUTHORITY}.pem"), "rb") as file:
            certificate = x509.load_pem_x509_certificate(file.read())
        with open(os.path.join(folder, f"{AUTHORITY}.key"), "rb") as file:
            key = serialization.load_pem_private_key(file.read(), None)
    except (OSError, ValueError, TypeError) as exc:
        raise _refused("--dir", folder, f"holds no authority: {exc}; `tranlog cert init` makes one") from exc
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return certificate, key


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text)) if is_literal(text) else x509.DNSName(text)
    except ValueError as exc:
        raise _refused("HOST", text, f"is neither a host's name nor an address: {exc}") from exc


def _builder(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    now_ms: int,
    latest: datetime | None = None,
) -> x509.CertificateBuilder:
    """Return a certificate to be signed, valid for so many days, not beyond `latest`. Raises ConfigError."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    try:
        until = now + timedelta(days=days)
        return x509.CertificateBuilder(
            issuer_name=issuer,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - _BEFORE,
            not_valid_after=until if latest is None else min(until, latest),
        )
    except (ValueError, OverflowError) as exc:
        raise _refused("--days", days, str(exc)) from exc


def _written(
    folder: str, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, *, together: bool
) -> MadeCertificate:
    """Write both, the key for its owner alone, over nothing that is there; `together`: into one file."""
    shown = certificate.public_bytes(serialization.Encoding.PEM)
    hidden = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    at, key_at = (os.path.join(folder, f"{name}.{end}") for end in ("pem", "key"))
    files = [(at, shown + hidden, 0o600)] if together else [(key_at, hidden, 0o600), (at, shown, 0o644)]
    for path, _, _ in files:
        if os.path.lexists(path):
            raise _refused(
                "NAME", name, f"{path} already exists, and is not overwritten; remove it, or choose another name"
            )
    try:
        for path, raw, mode in files:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(raw)
    except OSError as exc:
        raise _refused("--dir", folder, f"cannot be written: {exc}") from exc
    until = certificate.not_valid_after_utc.isoformat()
    return MadeCertificate(name=name, certificate=at, key=files[0][0], valid_until=until)


def _refused(option: str, value: object, why: str) -> ConfigError:
    return ConfigError(option=option, value=value, why=why)

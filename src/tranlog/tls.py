"""TLS between the nodes and clients of a group, and the PEM files of any TLS of ours.

Owns how certificates, keys and authorities are read, and what a failed handshake says in one sentence. In a group both
sides show a certificate that its authority has signed; whose it is, nodes look at themselves. The hard idea: asyncio
closes a connection at once when its handshake fails, and the other end would never hear why; so the failing side waits
until the other one has read the alert and closed.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from tranlog.errors import ConfigError

CLIENT_UNIT: Final = "client"
"""The organizational unit in a certificate that is no node's, whatever its name."""
_FAILED: ContextVar[list[ssl.SSLError]] = ContextVar("failed")


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
    """Return a side of TLS in a group, a client's or a server's; all three are PEM files. Raises ConfigError.

    Without `key` the file of the certificate has both.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    if not server:
        context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.sslobject_class = _Heard
    load_pair(context, "tls_certificate", certificate, key)
    load_authority(context, "tls_ca", authority)
    return context


class _Heard(ssl.SSLObject):
    """A handshake whose failure the other end hears of; see `explained`."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as exc:
            failed = _FAILED.get(None)
            if failed is None or failed or "ALERT" in (exc.reason or ""):
                raise
            failed.append(exc)
            raise ssl.SSLWantReadError from exc  # what is to be sent is sent, and the other end closes


@contextmanager
def explained() -> Iterator[None]:
    """Raise why a handshake in the block failed, whatever ended the connection in the end. Raises OSError."""
    failed: list[ssl.SSLError] = []
    token = _FAILED.set(failed)
    try:
        yield
    except (OSError, TimeoutError):
        if failed:
            raise failed[0] from None
        raise
    finally:
        _FAILED.reset(token)


_OF_VERIFYING: Final[Mapping[int, str]] = {
    9: "it is not valid yet; look at both clocks",
    10: "it has expired; make another one",
    **dict.fromkeys((7, 18, 19, 20, 21), "another authority than the group's has signed it"),
    26: "it is not meant for this; a client's certificate is none of a node",
}
"""By OpenSSL's number of what is wrong with a certificate."""
_OF_ALERT: Final[Mapping[str, str]] = {
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has expired, or is not valid yet there",
    "TLSV1_ALERT_UNKNOWN_CA": "another authority than the other end's has signed it",
    "TLSV1_ALERT_DECRYPT_ERROR": "another authority than the other end's has signed it",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it is not meant for this",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it is damaged, or not meant for this",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "none was shown, or there is no common cipher",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "none was shown",
}
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL")


def why_ended(exc: BaseException) -> str:
    """Return in words of ours what a connection ended of."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {_OF_VERIFYING.get(exc.verify_code, exc.verify_message)}"
    if isinstance(exc, ssl.SSLError):
        reason = exc.reason or str(exc)
        if reason in _OF_ALERT:
            return f"it refused the certificate of this end: {_OF_ALERT[reason]}"
        if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return "it showed no certificate, and the group's authority must have signed one"
        return "it does not speak TLS" if reason in _NO_TLS else f"TLS failed: {reason}"
    return str(exc) or type(exc).__name__

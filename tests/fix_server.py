"""A server in this process: at a port, and a part of it that does nothing of its own."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tranlog.service.config.exposure import Exposure
from tranlog.service.process.api import ServedPart
from tranlog.service.process.server import Server, open_port


class Idle:
    """A part without operations."""

    def progress(self) -> dict[str, str]:
        return {"state": "idle"}

    def ready(self) -> str:
        return ""

    def families(self) -> tuple[()]:
        return ()


@contextmanager
def at_port(*parts: ServedPart, exposure: Exposure | None = None) -> Iterator[str]:
    """Serve parts at a port of loopback while the block runs; give its address."""
    with Server(parts, [open_port("control", "127.0.0.1:0", exposure or Exposure())]) as server:
        yield server.doors[0].address


def connect(address: str) -> socket.socket:
    """Connect to a path, or to HOST:PORT, as whoever speaks no HTTP does."""
    if "/" in address:
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(address)
    else:
        host, _, port = address.rpartition(":")
        peer = socket.create_connection((host, int(port)))
    peer.settimeout(20)
    return peer


def make_certificate(folder: Path, name: str, *, signed_by: str | None = None) -> tuple[str, str]:
    """Make a certificate for loopback and its key; return both files. `signed_by`: another one's name, else itself."""
    pem, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "30", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    if signed_by is not None:
        command += ["-CA", str(folder / f"{signed_by}.pem"), "-CAkey", str(folder / f"{signed_by}.key")]
    subprocess.run([*command, "-keyout", str(key), "-out", str(pem)], check=True, capture_output=True)
    return str(pem), str(key)

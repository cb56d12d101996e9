"""`tranlog cert`: a private authority for a group, and certificates for its nodes and clients.

Owns the commands' words and their output; what is made is `upkeep/certificates.py`'s.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from tranlog.clock import SYSTEM_CLOCK
from tranlog.errors import LibraryMissingError
from tranlog.service.frame.command import AsJson, answer, new_app

if TYPE_CHECKING:
    from tranlog.service.upkeep.certificates import MadeCertificate

cert_app = new_app(help="Certificates of a group's own authority.\n\n\b\nExample:\n  tranlog cert init --dir certs")
Folder = Annotated[str, typer.Option("--dir", metavar="DIR", help="Where the authority's files are.")]
Days = Annotated[int, typer.Option("--days", metavar="N", min=1, help="Valid for so long.")]
Whose = Annotated[str, typer.Argument(metavar="NAME", help="The name in the certificate.")]


def _certificates() -> ModuleType:
    try:
        from tranlog.service.upkeep import certificates
    except ImportError as exc:
        raise LibraryMissingError(library="cryptography", what="certificates") from exc
    return certificates


def _print(made: MadeCertificate, as_json: bool) -> None:
    key = "its key is in the same file" if made.key == made.certificate else f"its key is {made.key}"
    answer(made, f"{made.certificate} is valid until {made.valid_until}; {key}, which nobody else may have", as_json)


@cert_app.command("init")
def init(folder: Folder = ".", days: Days = 3650, as_json: AsJson = False) -> None:
    """Make an authority: `group.pem`, which every node and client gets, and `group.key`, which stays here.

    Whoever has the key can be anybody in the group. Nothing that is there is overwritten.

    \b
    Example:
      tranlog cert init --dir certs
    """
    _print(_certificates().make_authority(folder, days=days, now_ms=SYSTEM_CLOCK.now_ms()), as_json)


@cert_app.command("node")
def node(
    name: Whose,
    hosts: Annotated[
        list[str] | None, typer.Argument(metavar="[HOST]...", help="Where it is reached, beside loopback.")
    ] = None,
    folder: Folder = ".",
    days: Days = 365,
    as_json: AsJson = False,
) -> None:
    """Make the certificate of a node, `NAME.pem`, and its key, `NAME.key`. NAME is `node` in its [group].

    \b
    Example:
      tranlog cert node a a.example --dir certs
    """
    made = _certificates().make_node(folder, name, hosts or (), days=days, now_ms=SYSTEM_CLOCK.now_ms())
    _print(made, as_json)


@cert_app.command("client")
def client(name: Whose, folder: Folder = ".", days: Days = 365, as_json: AsJson = False) -> None:
    """Make the certificate of a client with its key in one file, `NAME.pem`. `clients` in [group] says what it may do.

    \b
    Example:
      tranlog cert client shop --dir certs
    """
    _print(_certificates().make_client(folder, name, days=days, now_ms=SYSTEM_CLOCK.now_ms()), as_json)

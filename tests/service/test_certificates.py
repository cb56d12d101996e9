"""service/upkeep/certificates.py: keys that nobody else reads and nothing overwrites. docs/replication.md, "TLS and
permissions"; that nodes and clients take them is proven by tests/replication/acting/test_entrance.py."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

import msgspec
import pytest

from tranlog.service.commands.cli import main
from tranlog.service.upkeep.certificates import MadeCertificate, make_authority, make_client, make_node
from tranlog.tls import group_side

NOW_MS = 1_790_000_000_000
DAY_MS = 86_400_000


def test_an_authority_signs_for_nodes_and_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "certs"

    def made(*words: str) -> MadeCertificate:
        assert main(["cert", *words, "--dir", str(folder), "--json"]) == 0
        return msgspec.json.decode(capsys.readouterr().out, type=MadeCertificate)

    group, a, shop = made("init"), made("node", "a", "a.example", "192.0.2.7"), made("client", "shop", "--days", "7")
    assert [one.key.rpartition("/")[2] for one in (group, a, shop)] == ["group.key", "a.key", "shop.pem"]
    for one in (group, a, shop):
        assert stat.S_IMODE(os.stat(one.key).st_mode) == 0o600
        assert one.valid_until.endswith("+00:00")
    for one in (a, shop):
        for server in (True, False):
            group_side(group.certificate, one.certificate, one.key, server=server)
    names = ssl._ssl._test_decode_cert(a.certificate)["subjectAltName"]  # type: ignore[attr-defined]
    assert {value for _, value in names} >= {"a.example", "192.0.2.7", "127.0.0.1", "localhost"}
    assert main(["cert", "node", "b", "--dir", str(folder)]) == 0
    assert "its key is" in capsys.readouterr().out


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path)
    for words in (("init",), ("node", "a"), ("client", "shop")):
        command = ["cert", *words, "--dir", folder]
        assert main(command) == 0
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        assert main(command) == 2
        assert "already exists, and is not overwritten" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert main(["cert", "client", "a", "--dir", folder]) == 2, "a name is one node's or one client's"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("node", "a"), "holds no authority"),
        (("client", "../a"), "must be up to 64 letters"),
        (("node", "group"), "must be up to 64 letters"),
        (("node", "a" * 65), "must be up to 64 letters"),
        (("init", "--days", "99999999"), "--days"),
    ],
)
def test_bad_words_are_refused(
    words: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cert", *words, "--dir", str(tmp_path)]) == 2
    assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_is_none_and_a_folder_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_authority(str(tmp_path), days=10, now_ms=NOW_MS)
    assert main(["cert", "node", "a", "Ångström", "--dir", str(tmp_path)]) == 2
    assert "neither a host's name nor an address" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["cert", "init", "--dir", str(tmp_path / "file" / "x")]) == 2
    assert "cannot be made" in capsys.readouterr().err


def test_nothing_outlives_its_authority(tmp_path: Path) -> None:
    authority = make_authority(str(tmp_path), days=10, now_ms=NOW_MS)
    assert make_node(str(tmp_path), "a", (), days=365, now_ms=NOW_MS).valid_until == authority.valid_until
    assert make_client(str(tmp_path), "b", days=5, now_ms=NOW_MS + DAY_MS).valid_until < authority.valid_until

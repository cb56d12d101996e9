"""The form of a MariaDB server's address: what it reads, and what does not show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tranlog.errors import ConfigError
from tranlog.servers.mariadb_address import read_url


@pytest.mark.parametrize(
    "dsn",
    [
        "mariadb://u:secret@h/d",
        "mariadb://u@h:3307/d",
        "mariadb://a%40b:p%2Fw%3A@[::1]:3307/d%20x?ssl_ca=/etc/ca.pem",
        "mariadb://u@localhost:3306/d?unix_socket=/run/x.sock",
    ],
)
def test_a_mariadb_url_and_back(dsn: str) -> None:
    read = read_url(dsn)
    assert read_url(read.url()) == read
    assert read_url(read.describe()) == replace(read, password="", ssl_ca="")
    assert "secret" not in read.describe() + repr(read)


@pytest.mark.parametrize("login", ["shop:S3cret/Pw", "shop:33/Pw", "shop:33/P@w", "sh/op:Pw", "shop:Pw/33/x"])
def test_a_password_that_would_pass_for_a_database_is_refused_and_not_shown(login: str) -> None:
    for rest in ("127.0.0.1:5432/sw", "127.0.0.1"):
        with pytest.raises(ConfigError, match="/ and @ in a password are written %2F and %40") as caught:
            read_url(f"mariadb://{login}@{rest}")
        assert "S3cret" not in str(caught.value) and "Pw" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or "Pw" not in str(caught.value.__context__)
    assert read_url("mariadb://shop:P@w@h/d").password == "P@w"
    assert read_url("mariadb://shop:P@h/a%40b").database == "a@b"

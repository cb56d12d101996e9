"""The form of a MariaDB server's address: what it reads, and what does not show."""

from __future__ import annotations

from dataclasses import replace

import pytest

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

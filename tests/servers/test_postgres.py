"""The form of a PostgreSQL's connection string: what it reads, and what does not show."""

from __future__ import annotations

import pytest

from tranlog.errors import ConfigError
from tranlog.servers.postgres import describe_dsn, read_dsn


@pytest.mark.parametrize(
    ("dsn", "described"),
    [
        ("postgresql://u:secret@h:5432/d", "postgresql://u@h:5432/d"),
        ("postgres://u:se%2Fcr%40et@h/d", "postgresql://u@h/d"),
        ("postgresql://u:se?cret@h:1,:2/d", "postgresql://u@h,:1,2/d"),
        ("postgresql:///d?host=/run/a@b&user=u&password=secret", "postgresql://u@/run/a@b/d"),
        ("postgresql://h/a%40b", "postgresql://h/a@b"),
        ("host=h dbname='a@b' password='s/e@cret'", "postgresql://h/a@b"),
        ("service=shop password=secret", "postgresql://?service=shop"),
        ("", "postgresql://localhost/"),
    ],
)
def test_a_connection_string_is_described_without_its_password(dsn: str, described: str) -> None:
    assert describe_dsn(dsn, option="dsn") == described


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://shop:S3cret/Pw@127.0.0.1:5432/sw",
        "postgresql://shop:33/Pw@127.0.0.1:5432/sw",
        "postgres://shop:33/Pw@127.0.0.1",
        "postgresql://shop:S3@cret/Pw@127.0.0.1:5432/sw",
        "postgresql://shop:33@Pw@127.0.0.1:5432/sw",
        "postgresql://sh/op:Pw@127.0.0.1/sw",
        "postgresql://shop:33/cr?Pw@127.0.0.1/sw",
        "postgresql://shop:S3cret/sw",
        "no Pw",
    ],
)
def test_a_password_that_would_pass_for_something_else_is_refused_and_not_shown(dsn: str) -> None:
    with pytest.raises(ConfigError, match="/ and @ in a password are written %2F and %40") as caught:
        read_dsn(dsn, option="dsn")
    assert "S3" not in str(caught.value) and "Pw" not in str(caught.value)
    assert caught.value.__cause__ is None and "Pw" not in str(caught.value.__context__)

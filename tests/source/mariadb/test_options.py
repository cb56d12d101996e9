"""source/mariadb/connection: options that make no sense are refused in a sentence."""

from __future__ import annotations

import pytest

from tranlog.errors import ConfigError
from tranlog.source.mariadb import MariadbSource
from tranlog.source.mariadb.connection import MariadbSourceOptions


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("host", ""),
        ("user", ""),
        ("source_id", ""),
        ("port", 0),
        ("port", 65536),
        ("server_id", 0),
        ("server_id", 1 << 32),
        ("start", "yesterday"),
        ("databases", ()),
        ("statements", "ignore"),
        ("cascades", "maybe"),
        ("fragment_bytes", 0),
        ("queue_bytes", -1),
        ("memory_bytes", 0),
        ("read_bytes", 0),
        ("transaction_bytes_max", 0),
        ("heartbeat_s", 0),
        ("connect_timeout_s", 0),
        ("reconnect_s", -1),
        ("position_interval_s", -0.1),
    ],
)
def test_impossible_values(option: str, value: object) -> None:
    options = MariadbSourceOptions(**{option: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        options.check()
    assert caught.value.option == option
    with pytest.raises(ConfigError):
        MariadbSource(options)


def test_defaults_are_possible() -> None:
    options = MariadbSourceOptions()
    options.check()
    assert options.where == "127.0.0.1:3306"
    assert options.captures("shop") and not options.captures("mysql")
    only = MariadbSourceOptions(databases=("shop", "mysql"))
    assert only.captures("mysql") and not only.captures("other")


def test_the_replica_id_follows_the_source_id() -> None:
    """A server id of our own for every source, the same at each start, far from the small ones that people give."""
    one, two = MariadbSourceOptions(source_id="one"), MariadbSourceOptions(source_id="two")
    assert one.replica_id == MariadbSourceOptions(source_id="one").replica_id != two.replica_id
    assert 1 << 30 <= one.replica_id < 1 << 31
    assert MariadbSourceOptions(server_id=7).replica_id == 7


def test_the_password_is_not_printed() -> None:
    assert "secret" not in repr(MariadbSourceOptions(password="secret"))

"""source/postgres/connection: options that make no sense are refused in a sentence; names; no password is shown."""

from __future__ import annotations

import psycopg
import pytest

from tranlog.errors import ConfigError
from tranlog.source.postgres import PostgresSource, PostgresSourceOptions
from tranlog.source.postgres.connection import translated


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("dsn", "postgresql://[::1"),
        ("source_id", ""),
        ("slot", "Shop"),
        ("slot", ""),
        ("slot", "x" * 64),
        ("publication", ""),
        ("tables", ()),
        ("tables", ("orders",)),
        ("identity", "some"),
        ("unlogged", "maybe"),
        ("ddl_capture", "on"),
        ("fragment_bytes", 0),
        ("queue_bytes", -1),
        ("memory_bytes", 0),
        ("read_bytes", 0),
        ("transaction_bytes_max", 0),
        ("feedback_s", 0),
        ("heartbeat_s", 0),
        ("connect_timeout_s", 0),
        ("reconnect_s", -1),
        ("heartbeat_bytes", -1),
        ("retained_warn_bytes", -1),
    ],
)
def test_impossible_values(option: str, value: object) -> None:
    options = PostgresSourceOptions(**{option: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        options.check()
    assert caught.value.option == option
    with pytest.raises(ConfigError):
        PostgresSource(options)


def test_names_are_made_of_the_source_id() -> None:
    """Two ids never share a slot by accident."""
    assert PostgresSourceOptions(source_id="shop").slot_name == "tranlog_shop"
    assert PostgresSourceOptions(source_id="shop").publication_name == "tranlog_shop"
    names = {PostgresSourceOptions(source_id=one).slot_name for one in ("shop", "Shop", "sh.op", "sh-op", "ö" * 200)}
    assert len(names) == 5
    for name in names:
        PostgresSourceOptions(slot=name).check()
    assert PostgresSourceOptions(slot="mine").publication_name == "mine"


def test_no_password_is_shown() -> None:
    options = PostgresSourceOptions(
        dsn="postgresql://user:secret@db.example:5433/shop?sslmode=require", password="hush"
    )
    assert options.where == "postgresql://user@db.example:5433/shop"
    assert "secret" not in repr(options) and "hush" not in repr(options)
    assert PostgresSourceOptions(dsn="service=shop").where == "postgresql://?service=shop"
    with pytest.raises(ConfigError) as caught:
        PostgresSourceOptions(dsn="postgresql://user:secret@[::1").check()
    assert "secret" not in str(caught.value)


def test_what_the_library_says_is_a_part_of_a_sentence() -> None:
    lost = psycopg.OperationalError("server closed the connection unexpectedly\n\tThis probably means it terminated.\n")
    told = str(translated(lost, PostgresSourceOptions()))
    assert "server closed the connection unexpectedly This probably means it terminated. Start it" in told

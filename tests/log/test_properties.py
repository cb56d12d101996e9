"""log/properties.py: each property of the THL document under its own name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tranlog.errors import ConfigError
from tranlog.log.options import LogOptions
from tranlog.log.properties import EXPIRE, PROPERTIES, SERIALIZER, log_options, read_interval_ms

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
DOCUMENT = (
    *("bufferSize", "doCheckSum", "eventSerializer", "flushIntervalMillis", "fsyncOnFlush", "logConnectionTimeout"),
    *("logDir", "logFileRetention", "logFileSize", "password", "resetPeriod", "URL", "user"),
)


def test_each_property_of_the_documents_table_is_known() -> None:
    """thl-internals, "Configuration"."""
    assert {one.name for one in PROPERTIES} == set(DOCUMENT)
    fields = set(LogOptions.__dataclass_fields__) | {"dir", ""}
    for one in PROPERTIES:
        assert (one.read is None) == bool(one.refused) and one.ours in fields


@pytest.mark.parametrize(
    ("name", "value", "ours", "means"),
    [
        ("bufferSize", 131_072, "buffer_bytes", 131_072),
        ("doCheckSum", False, "checksum", False),
        ("doCheckSum", "true", "checksum", True),
        ("logFileRetention", "7d", "retention_s", 604_800.0),
        ("logFileRetention", "12h", "retention_s", 43_200.0),
        ("logFileRetention", "1d12h", "retention_s", 129_600.0),
        ("logFileRetention", 1_500, "retention_s", 1.5),
        ("logFileRetention", "0", "retention_s", None),
        ("logFileSize", 50_000_000, "segment_bytes", 50_000_000),
        ("flushIntervalMillis", 500, "flush_interval_s", 0.5),
        ("fsyncOnFlush", True, "sync_on_flush", True),
        ("expireOplogDays", 14, "retention_s", 1_209_600.0),
        ("expireOplogHours", 5, "retention_s", 18_000.0),
        ("expireOplogDays", 0, "retention_s", None),
    ],
)
def test_it_is_another_name_of_ours(name: str, value: object, ours: str, means: object) -> None:
    given = log_options(**{name: value})
    assert given == log_options(**{ours: means})
    assert getattr(given, ours) == means
    assert log_options(**{name: value, ours: means}) == given, "both, and the same"
    other = {"checksum": not means, "sync_on_flush": not means}.get(ours, 77_777)
    with pytest.raises(ConfigError, match=f"{ours} = {other!r} is given too and differs"):
        log_options(**{name: value, ours: other})


def test_days_and_hours_add_up() -> None:
    """A8.3: retention = expireOplogDays*24 + expireOplogHours."""
    assert log_options(expireOplogDays=1, expireOplogHours=12).retention_s == 129_600
    assert log_options(expireOplogDays=0, expireOplogHours=0).retention_s is None
    assert log_options(expireOplogDays=1, expireOplogHours=12, logFileRetention="36h").retention_s == 129_600
    with pytest.raises(ConfigError, match="logFileRetention differs"):
        log_options(expireOplogDays=1, logFileRetention="36h")


def test_flushing_without_a_sync_is_never_a_durable_commit() -> None:
    """Item 7 and "refuse to run without durability": fsyncOnFlush = false alone would be commits without a sync."""
    with pytest.raises(ConfigError, match="acknowledges nothing which is not durable"):
        log_options(fsyncOnFlush=False)
    with pytest.raises(ConfigError):
        log_options(fsyncOnFlush="false", flushIntervalMillis=0)
    given = log_options(fsyncOnFlush=False, flushIntervalMillis=100)
    assert (given.sync_on_flush, given.flush_interval_s) == (False, 0.1)


def test_the_serializer_is_protobuf() -> None:
    assert log_options(eventSerializer=SERIALIZER) == log_options(eventSerializer="protobuf") == LogOptions()
    with pytest.raises(ConfigError, match="events are protobuf messages"):
        log_options(eventSerializer="com.continuent.tungsten.replicator.thl.serializer.JavaSerializer")


@pytest.mark.parametrize("name", ["logConnectionTimeout", "resetPeriod", "URL", "user", "password"])
def test_what_is_replaced_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"configuration: {name} = .*(leave it out|Leave it out|\[target\])"
    ) as raised:
        log_options(**{name: "secret"})
    assert name not in ("URL", "password") or "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("bufferSize", -1, "a whole number, 0 or more"),
        ("bufferSize", True, "a whole number, 0 or more"),
        ("bufferSize", 0, "never less than the page size"),
        ("bufferSize", 1, "never less than the page size"),
        ("bufferSize", 4_095, "never less than the page size"),
        ("logFileSize", "100 MB", "a whole number, 0 or more"),
        ("doCheckSum", 1, "it is true or false"),
        ("logFileRetention", "a week", "an interval is written 7d, 12h"),
        ("logFileRetention", -5, "an interval is written 7d, 12h"),
        ("logFileRetention", None, "an interval is written 7d, 12h"),
        ("flushIntervalMillis", 10**9, "it is 0 to 3600 seconds"),
        ("logDir", "/logs", "the first argument of Log.open"),
        ("logDir", 5, "it is a text"),
        ("logFileSzie", 5, "there is no such option"),
    ],
)
def test_a_value_that_cannot_be_is_named(name: str, value: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        log_options(**{name: value})


def test_intervals_are_read_as_the_ancestor_reads_them() -> None:
    """conformance/tungsten.md: `NNN` + d/h/m/s, no suffix = milliseconds."""
    texts = {"7d": 604_800_000, "12h": 43_200_000, "30m": 1_800_000, "45s": 45_000, "500": 500, "1h30m": 5_400_000}
    assert {text: read_interval_ms(text) for text in texts} == texts
    for text in ("", "d", "7 d", "7w", "-1d", "1.5h", "7d!"):
        with pytest.raises(ValueError, match="an interval is written"):
            read_interval_ms(text)


def test_the_table_for_people_has_each_of_them() -> None:
    """docs/operations.md: ancestor's name, ours, what it does, default, unit."""
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", OPERATIONS.read_text(), re.MULTILINE))
    for one in PROPERTIES:
        assert one.name in rows
        assert f"`{one.ours}`" in rows[one.name] if one.ours else True
        assert not one.refused or "refused" in rows[one.name] or "[target]" in rows[one.name]
    assert EXPIRE.keys() <= rows.keys()

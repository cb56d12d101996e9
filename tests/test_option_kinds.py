"""Options of a wrong type: one error with option, value and what is expected, in every class of options."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tranlog.capture.capture import CaptureOptions
from tranlog.errors import ConfigError
from tranlog.log.options import LogOptions
from tranlog.log.writing.log import Log
from tranlog.option_kinds import check_kinds
from tranlog.pipeline.filters.filters import Include, check_filters
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.spark.cluster import EngineOptions
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore
from tranlog.service.process.operating import OperatingOptions
from tranlog.source.mariadb.connection import MariadbSourceOptions
from tranlog.source.postgres.connection import PostgresSourceOptions
from tranlog.source.sqlite.source import SqliteSourceOptions
from tranlog.target.options import TargetOptions
from tranlog.tungsten.source import ThlSourceOptions

TARGET = TargetOptions(kind="sqlite", path="t.db")
WHOLE: dict[type[Any], dict[str, Any]] = {
    LogOptions: {},
    QueueStoreOptions: {},
    SqliteSourceOptions: {"path": "s.db", "source_id": "s"},
    MariadbSourceOptions: {},
    PostgresSourceOptions: {},
    ThlSourceOptions: {"path": "thl", "source_id": "s"},
    CaptureOptions: {},
    TargetOptions: {"kind": "sqlite", "path": "t.db"},
    ApplyOptions: {"pipeline": "p", "log_dir": "log", "target": TARGET},
    EngineOptions: {},
    OperatingOptions: {},
}
"""Each class of options, with what it cannot be without."""
LEFT_ALONE = {"limit", "filters", "source_event_id"}
"""What is no plain value, nor of one class."""


@pytest.mark.parametrize("kind", WHOLE, ids=lambda kind: kind.__name__)
def test_every_option_of_another_type_is_refused_by_its_name(kind: type[Any]) -> None:
    kind(**WHOLE[kind]).check()
    for one in fields(kind):
        for value in (object(), b"x", {7}) if one.name not in LEFT_ALONE else ():
            with pytest.raises(ConfigError) as refused:
                kind(**WHOLE[kind] | {one.name: value}).check()
            assert refused.value.option.rpartition(".")[2] == one.name, refused.value


def test_the_words_of_an_option_are_read_without_a_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels open their targets at the same time, and Python 3.11's own may raise SystemError in threads then."""
    refused: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", None)
        for engine in ("refuse", "innodb", "aria"):
            try:
                check_kinds(TargetOptions(kind="sqlite", path="t.db", engine=engine))  # type: ignore[arg-type]
            except ConfigError as exc:
                refused.append(str(exc))
    (one,) = refused
    assert "engine = 'aria': one of refuse, innodb" in one


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (SqliteSourceOptions(path=Path("s.db"), source_id="s"), "path = PosixPath('s.db'): it is a text."),  # type: ignore[arg-type]
        (SqliteSourceOptions(path="s.db", source_id=7), "source_id = 7: it is a text."),  # type: ignore[arg-type]
        (SqliteSourceOptions(path="s.db", source_id="s", poll_s="1"), "poll_s = '1': it is a number of seconds."),  # type: ignore[arg-type]
        (
            SqliteSourceOptions(path="s.db", source_id="s", shard_rule="map"),  # type: ignore[arg-type]
            "shard_rule = 'map': it is a ShardRuleKind: ",
        ),
        (MariadbSourceOptions(statements="perhaps"), "statements = 'perhaps': one of stop, record."),  # type: ignore[arg-type]
        (TargetOptions(kind="oracle"), "target.kind = 'oracle': one of sqlite, postgres, mariadb, null."),  # type: ignore[arg-type]
        (MariadbSourceOptions(heartbeat_s=0.0), "heartbeat_s = 0.0: must be more than 0 seconds."),
        (
            TargetOptions(kind="sqlite", path="t", lock_timeout_s=86_401),
            "target.lock_timeout_s = 86401: seconds, above 0",
        ),
        (MariadbSourceOptions(databases="shop"), "databases = 'shop': it is a list of texts, or left out."),  # type: ignore[arg-type]
        (MariadbSourceOptions(databases=("a", 3)), "databases = 3: it is a list of texts, or left out."),  # type: ignore[arg-type]
        (MariadbSourceOptions(databases=(None,)), "databases: it is a list of texts, or left out."),  # type: ignore[arg-type]
        (MariadbSourceOptions(password=7), "password: it is a text."),  # type: ignore[arg-type]
        (QueueStoreOptions(connect=7), "connect: it is a text, or left out."),  # type: ignore[arg-type]
        (QueueStoreOptions(ack_sync_s=True), "ack_sync_s = True: it is a number of seconds, or left out."),
        (TargetOptions(kind="sqlite", path=None), "target.path: it is a text."),  # type: ignore[arg-type]
        (ApplyOptions(pipeline="p", log_dir="l", target="t.db"), "target = 't.db': it is a TargetOptions."),  # type: ignore[arg-type]
        (EngineOptions(settings=[]), "spark.settings: it is a table of texts."),  # type: ignore[arg-type]
    ],
)
def test_what_an_error_says(options: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        options.check()
    assert str(refused.value).startswith(f"configuration: {said}")


@pytest.mark.parametrize("given", [{"segment_bytes": 1}, 7, QueueStoreOptions, TARGET])
def test_what_is_no_options_at_all_is_named_before_anything_is_made(tmp_path: Path, given: Any) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("LogOptions", lambda: Log.open(tmp_path / "log", source_id="x", options=given)),
        ("QueueStoreOptions", lambda: MessageStore.open(tmp_path / "mail", options=given)),
    ]
    for name, call in calls:
        with pytest.raises(TypeError, match=f"options are a {name}, not "):
            call()
    assert not [*tmp_path.iterdir()]


def test_what_is_no_filter_is_named() -> None:
    with pytest.raises(ConfigError, match="filter 2 = 'shop': it is one of Include, Exclude, "):
        check_filters([Include(tables=("a.b",)), "shop"])  # type: ignore[list-item]

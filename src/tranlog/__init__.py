"""tranlog: a transaction history log for Python and Spark.

Committed transactions leave a source database, land whole and in order in a durable log, and a pipeline on
Spark applies them in parallel to a target database, exactly once. ARCHITECTURE.md follows one transaction
through the folders; docs/programming.md shows the names of `__all__` in use. They are looked up when first used, so
that importing one module does not load the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if not __debug__:
    raise ImportError("tranlog relies on its assertions: start Python without -O and without PYTHONOPTIMIZE")

__version__ = "0.1.0"

# Before any module that has a compiled form is imported.
import tranlog.compiled  # noqa: F401

if TYPE_CHECKING:
    from tranlog.capture.capture import Capture
    from tranlog.change import Column, Op, RowChange, Statement, TableMap
    from tranlog.errors import TranlogError
    from tranlog.ids import Gtid, Seqno
    from tranlog.log.options import LogOptions
    from tranlog.log.reading.arrow import Selection, Unit
    from tranlog.log.reading.cursor import Cursor, StoredTransaction
    from tranlog.log.reading.reader import LogReader
    from tranlog.log.writing.log import Log
    from tranlog.payload import decode
    from tranlog.pipeline.driving.apply import run_apply
    from tranlog.pipeline.filters.filter_chain import Chain
    from tranlog.pipeline.filters.filters import (
        Delay,
        DropColumns,
        EachBatch,
        EachTransaction,
        Exclude,
        Include,
        MaskBy,
        MaskColumns,
        OnStatement,
        PresentRows,
        Rename,
    )
    from tranlog.pipeline.options import ApplyOptions
    from tranlog.pipeline.pipeline import Pipeline
    from tranlog.pipeline.spark.session import build_session
    from tranlog.pipeline.status.view import PipelineStatus
    from tranlog.queues.aio import AsyncStore
    from tranlog.queues.core import Delivery
    from tranlog.queues.options import QueueStoreOptions
    from tranlog.queues.reader import StoreReader
    from tranlog.queues.store import MessageStore
    from tranlog.replication.acting.client import (
        AsyncGroup,
        EventFound,
        EventNotFound,
        FailedOver,
        NotPrimary,
        Purged,
        RemoteGroup,
        RolledBack,
        Satisfied,
        TimedOut,
    )
    from tranlog.replication.acting.remote_log import RemoteLog, open_remote
    from tranlog.service.group_client import connect_async
    from tranlog.service.process.client import RunningPipeline
    from tranlog.service.process.operating import OperatingOptions, serve_store
    from tranlog.source.packer import pack
    from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions
    from tranlog.target.options import TargetOptions, open_target
    from tranlog.tls import group_side
    from tranlog.types import LogicalType, value_text

__all__ = [
    "ApplyOptions",
    "AsyncGroup",
    "AsyncStore",
    "Capture",
    "Chain",
    "Column",
    "Cursor",
    "Delay",
    "Delivery",
    "DropColumns",
    "EachBatch",
    "EachTransaction",
    "EventFound",
    "EventNotFound",
    "Exclude",
    "FailedOver",
    "Gtid",
    "Include",
    "Log",
    "LogOptions",
    "LogReader",
    "LogicalType",
    "MaskBy",
    "MaskColumns",
    "MessageStore",
    "NotPrimary",
    "OnStatement",
    "Op",
    "OperatingOptions",
    "Pipeline",
    "PipelineStatus",
    "PresentRows",
    "Purged",
    "QueueStoreOptions",
    "RemoteGroup",
    "RemoteLog",
    "Rename",
    "RolledBack",
    "RowChange",
    "RunningPipeline",
    "Satisfied",
    "Selection",
    "Seqno",
    "SqliteSource",
    "SqliteSourceOptions",
    "Statement",
    "StoreReader",
    "StoredTransaction",
    "TableMap",
    "TargetOptions",
    "TimedOut",
    "TranlogError",
    "Unit",
    "build_session",
    "connect",
    "connect_async",
    "decode",
    "group_side",
    "open_remote",
    "open_target",
    "pack",
    "run_apply",
    "serve_store",
    "value_text",
]
_HOMES = {
    "capture.capture": "Capture",
    "change": "Column Op RowChange Statement TableMap",
    "errors": "TranlogError",
    "ids": "Gtid Seqno",
    "log.options": "LogOptions",
    "log.reading.arrow": "Selection Unit",
    "log.reading.cursor": "Cursor StoredTransaction",
    "log.reading.reader": "LogReader",
    "log.writing.log": "Log",
    "payload": "decode",
    "pipeline.driving.apply": "run_apply",
    "pipeline.filters.filter_chain": "Chain",
    "pipeline.filters.filters": (
        "Delay DropColumns EachBatch EachTransaction Exclude Include MaskBy MaskColumns OnStatement PresentRows Rename"
    ),
    "pipeline.options": "ApplyOptions",
    "pipeline.pipeline": "Pipeline",
    "pipeline.spark.session": "build_session",
    "pipeline.status.view": "PipelineStatus",
    "queues.aio": "AsyncStore",
    "queues.core": "Delivery",
    "queues.options": "QueueStoreOptions",
    "queues.reader": "StoreReader",
    "queues.store": "MessageStore",
    "replication.acting.client": (
        "AsyncGroup EventFound EventNotFound FailedOver NotPrimary Purged RemoteGroup RolledBack Satisfied TimedOut"
    ),
    "replication.acting.remote_log": "RemoteLog open_remote",
    "service.group_client": "connect_async",
    "service.process.client": "RunningPipeline",
    "service.process.operating": "OperatingOptions serve_store",
    "source.packer": "pack",
    "source.sqlite": "SqliteSource SqliteSourceOptions",
    "target.options": "TargetOptions open_target",
    "tls": "group_side",
    "types": "LogicalType value_text",
}
"""The names that each module gives, looked up when first used."""


def connect(where: Any, **options: Any) -> Any:
    """Return a connection that writes: to a group of nodes, for `thl://HOST:PORT,…`, else to a SQLite database.

    See `tranlog.service.group_client.connect_group`, which gives a `RemoteGroup`, and `tranlog.source.sqlite.connect`.
    Raises ConfigError for an address of another form.
    """
    if isinstance(where, str) and where.startswith("thl://"):
        from tranlog.service.group_client import connect_group

        return connect_group(where, **options)
    if isinstance(where, str) and (where.startswith("thl:") or "://" in where):
        from tranlog.errors import ConfigError

        why = "not the path of a SQLite database, nor a group's address, which is thl://HOST:PORT,HOST:PORT"
        raise ConfigError(option="where", value=where.partition(":")[0] + ":…", why=why)
    from tranlog.source.sqlite import connect

    return connect(where, **options)


def __getattr__(name: str) -> object:
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names.split():
            found: object = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

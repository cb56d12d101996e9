"""tranlog: a transaction history log for Python and Spark.

Committed transactions leave a source database, land whole and in order in a durable log, and a pipeline on
Spark applies them in parallel to a target database, exactly once. ARCHITECTURE.md follows one transaction
through the folders; docs/programming.md shows the names of `__all__` in use. They are looked up when first used, so
that importing one module does not load the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if not __debug__:
    raise ImportError("tranlog relies on its assertions: start Python without -O and without PYTHONOPTIMIZE")

__version__ = "0.1.0"

# Before any module that has a compiled form is imported.
import tranlog.compiled  # noqa: F401

if TYPE_CHECKING:
    from tranlog.change import Column, Op, RowChange, Statement, TableMap
    from tranlog.errors import TranlogError
    from tranlog.ids import Gtid, Seqno
    from tranlog.log.options import LogOptions
    from tranlog.log.reading.cursor import Cursor, StoredTransaction
    from tranlog.log.reading.reader import LogReader
    from tranlog.log.writing.log import Log
    from tranlog.pipeline.pipeline import Pipeline
    from tranlog.pipeline.status.view import PipelineStatus
    from tranlog.service.process.client import RunningPipeline
    from tranlog.source.packer import pack
    from tranlog.types import LogicalType

__all__ = [
    "Column",
    "Cursor",
    "Gtid",
    "Log",
    "LogOptions",
    "LogReader",
    "LogicalType",
    "Op",
    "Pipeline",
    "PipelineStatus",
    "RowChange",
    "RunningPipeline",
    "Seqno",
    "Statement",
    "StoredTransaction",
    "TableMap",
    "TranlogError",
    "pack",
]
_HOMES = {
    "change": ("Column", "Op", "RowChange", "Statement", "TableMap"),
    "errors": ("TranlogError",),
    "ids": ("Gtid", "Seqno"),
    "log.options": ("LogOptions",),
    "log.reading.cursor": ("Cursor", "StoredTransaction"),
    "log.reading.reader": ("LogReader",),
    "log.writing.log": ("Log",),
    "pipeline.pipeline": ("Pipeline",),
    "pipeline.status.view": ("PipelineStatus",),
    "service.process.client": ("RunningPipeline",),
    "source.packer": ("pack",),
    "types": ("LogicalType",),
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            found: object = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

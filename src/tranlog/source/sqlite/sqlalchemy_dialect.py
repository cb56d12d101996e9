"""SQLAlchemy's dialect over a captured SQLite database: `create_engine("sqlite+tranlog:///shop.db")`.

Owns what differs from SQLAlchemy's own for `sqlite3`: the module, and the pool. A connection belongs to the thread that
opened it, so none is kept for another.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import pool
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine.url import URL

from tranlog.source.sqlite import dbapi


class TranlogDialect(SQLiteDialect_pysqlite):
    """The dialect `sqlite+tranlog`."""

    driver = "tranlog"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        """Return the DB-API module."""
        return dbapi

    @classmethod
    def get_pool_class(cls, url: URL) -> type[pool.Pool]:
        """Return the pool that keeps nothing."""
        return pool.NullPool

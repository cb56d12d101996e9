"""PostgreSQL as a source: a logical replication slot, followed from an LSN.

Bytes come from `connection` and `stream`; `messages` says what they are, `transactions` puts them together to
transactions, `relations` knows the tables and makes an encoder for each from `values` and `rows`. `source` hands
transactions out and knows where it is (`position`); `catalog` and `tables` ask the server by SQL.
"""

from tranlog.errors import SourceSetupError

try:
    from tranlog.source.postgres.connection import PostgresSourceOptions
except ImportError as exc:
    raise SourceSetupError(
        why="the library psycopg is not installed", remedy="Install it: `pip install 'tranlog[postgres]'`"
    ) from exc
from tranlog.source.postgres.source import PostgresSource
from tranlog.source.postgres.tables import PostgresTables

__all__ = ["PostgresSource", "PostgresSourceOptions", "PostgresTables"]

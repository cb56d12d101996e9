"""MariaDB as a source: its binlog, followed from a GTID position.

Bytes come from `connection` and `stream` and are cut by `wire`; `events` says what they are, `groups` puts events
together to transactions, `rows` makes a decoder per table from `types`, `values` and `tranlog.charsets`. `source` hands
transactions out and knows where it is (`position`); `catalog` and `tables` ask the server by SQL.
"""

from tranlog.errors import SourceSetupError

try:
    from tranlog.source.mariadb.connection import MariadbSourceOptions
except ImportError as exc:
    raise SourceSetupError(
        why="the library PyMySQL is not installed", remedy="Install it: `pip install 'tranlog[mariadb]'`"
    ) from exc
from tranlog.source.mariadb.source import MariadbSource
from tranlog.source.mariadb.tables import MariadbTables

__all__ = ["MariadbSource", "MariadbSourceOptions", "MariadbTables"]

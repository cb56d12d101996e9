"""MariaDB as a kind of source: its options in the configuration, and where its binlog ends without a capture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, ClassVar, Final

from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.kinds import Settings, SourceKind, take_shard_rule
from tranlog.source.mariadb.connection import Control, MariadbSourceOptions
from tranlog.source.mariadb.source import MariadbSource
from tranlog.source.mariadb.tables import MariadbTables


class MariadbKind(SourceKind[MariadbSourceOptions]):
    """A MariaDB server whose binlog is followed; see SourceKind for what its methods do."""

    options = MariadbSourceOptions
    paths = ("spool_directory",)
    template = """\
[source]
kind = "mariadb"  # needs binlog_format=ROW, binlog_row_image=FULL, binlog_row_metadata=FULL
host = "127.0.0.1"
port = 3306
user = "root"
#: password_file = "source.password"  # or password_env = "NAME", or password = "..."; default: none
start = "now"  # for a log without events: "now", "earliest", a GTID list, or "binlog.000003:12345"
#: source_id = "{service}"  # names this source in every record; keep it
#: server_id = 4711  # unlike every other replica's; default: made from source_id
#: databases = ["shop"]  # default: all but ignored_databases
#: ignored_databases = @
#: statements = @  # statements in the place of rows; "record" logs their text
#: cascades = @  # foreign keys whose cascades the binlog does not hold; "allow" if the target has them too
#: annotate = @  # statements behind the rows as metadata
#: fragment_bytes = @
#: queue_bytes = @
#: memory_bytes = @
#: spool_directory = "spool"  # for what memory_bytes does not hold; default: the system's for temporary files
#: transaction_bytes_max = @
#: read_bytes = @
#: heartbeat_s = @
#: reconnect_s = @
#: connect_timeout_s = @
#: position_interval_s = @

"""
    examples: ClassVar = {"rule": "schema", "serial": "ledger", "pinned": "shop"}
    once_wait_s = 2.0  # a server sends when it likes

    def given(self, shards: Settings, password: Callable[[], str]) -> dict[str, Any]:
        rule, mapping = take_shard_rule(shards, ShardRuleKind.SCHEMA)
        return {"shard_rule": ShardRule(kind=rule, mapping=mapping), "password": password()}

    def open(self, options: MariadbSourceOptions) -> MariadbSource:
        source = MariadbSource(options)
        source.check()
        return source

    def tables(self, options: MariadbSourceOptions) -> MariadbTables:
        return MariadbTables(options)

    def event_id(self, options: MariadbSourceOptions) -> str:
        with closing(Control(options)) as control:
            ((position,),) = control.rows("SELECT @@GLOBAL.gtid_binlog_pos")
        return str(position)


KIND: Final = MariadbKind()

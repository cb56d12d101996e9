"""MariaDB as a kind of source: its options in the configuration, and where its binlog ends without a capture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from tranlog.clock import Clock
from tranlog.findings import CheckResult
from tranlog.servers.identity import IDENTITY
from tranlog.shard import ShardRuleKind
from tranlog.source.kinds import CapturedUpTo, SourceKind
from tranlog.source.mariadb.checks import examine
from tranlog.source.mariadb.connection import Control, MariadbSourceOptions
from tranlog.source.mariadb.snapshot import MariadbAtOnce
from tranlog.source.mariadb.source import MariadbSource
from tranlog.source.mariadb.tables import MariadbTables


class MariadbKind(SourceKind[MariadbSourceOptions]):
    """A MariaDB server whose binlog is followed; see SourceKind for what its methods do."""

    options = MariadbSourceOptions
    default_rule = ShardRuleKind.SCHEMA
    cascades_come = False  # such tables are refused, or the option `cascades` says that the target acts as well
    once_wait_s = 2.0  # a server sends when it likes

    def open(self, options: MariadbSourceOptions) -> MariadbSource:
        source = MariadbSource(options)
        source.check()
        return source

    def tables(self, options: MariadbSourceOptions) -> MariadbTables:
        return MariadbTables(options)

    def at_once(self, options: MariadbSourceOptions, only: Sequence[str]) -> MariadbAtOnce:
        return MariadbAtOnce(options, only)

    def identity(self, options: MariadbSourceOptions) -> str:
        with closing(Control(options)) as control:
            return str(control.rows(IDENTITY["mariadb"])[0][0])

    def examine(
        self, options: MariadbSourceOptions, clock: Clock, captured: CapturedUpTo | None
    ) -> Iterator[CheckResult]:
        return examine(options, clock, captured)

    def event_id(self, options: MariadbSourceOptions) -> str:
        with closing(Control(options)) as control:
            ((position,),) = control.rows("SELECT @@GLOBAL.gtid_binlog_pos")
        return str(position)


KIND: Final = MariadbKind()

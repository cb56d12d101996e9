"""PostgreSQL as a kind of source: its options in the configuration, and where it stands without a capture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from tranlog.clock import Clock
from tranlog.findings import CheckResult
from tranlog.servers.identity import IDENTITY
from tranlog.shard import ShardRuleKind
from tranlog.source.kinds import CapturedUpTo, SourceKind, SourceObject, SourceStanding
from tranlog.source.postgres.catalog import PostgresCatalog
from tranlog.source.postgres.checks import examine, slot_note
from tranlog.source.postgres.connection import PostgresControl, PostgresSourceOptions
from tranlog.source.postgres.installed import list_installed, uninstall
from tranlog.source.postgres.snapshot import PostgresAtOnce
from tranlog.source.postgres.source import PostgresSource
from tranlog.source.postgres.tables import PostgresTables


class PostgresKind(SourceKind[PostgresSourceOptions]):
    """A PostgreSQL database whose replication slot is followed; see SourceKind for what its methods do."""

    options = PostgresSourceOptions
    default_rule = ShardRuleKind.SCHEMA
    once_wait_s = 2.0  # it commits without a sync, too

    def open(self, options: PostgresSourceOptions) -> PostgresSource:
        source = PostgresSource(options)
        source.check()
        return source

    def tables(self, options: PostgresSourceOptions) -> PostgresTables:
        return PostgresTables(options)

    def at_once(self, options: PostgresSourceOptions, only: Sequence[str]) -> PostgresAtOnce:
        return PostgresAtOnce(options, only)

    def identity(self, options: PostgresSourceOptions) -> str:
        with closing(PostgresControl(options)) as control:
            return str(control.rows(IDENTITY["postgres"])[0][0])

    def examine(
        self, options: PostgresSourceOptions, clock: Clock, captured: CapturedUpTo | None
    ) -> Iterator[CheckResult]:
        return examine(options, clock, captured)

    def event_id(self, options: PostgresSourceOptions) -> str:
        with closing(PostgresControl(options)) as control:
            return PostgresCatalog(options, control).current_lsn()

    def standing(self, options: PostgresSourceOptions, captured: str) -> SourceStanding:
        with closing(PostgresControl(options)) as control:
            catalog = PostgresCatalog(options, control)
            slot, kept = catalog.slot(), catalog.retained_bytes()
            note = slot_note(options, "" if slot is None else slot.wal_status, kept)
            note = " ".join(filter(None, [note, self.caveat(options)]))
            return SourceStanding(now_at=catalog.current_lsn(), retained_bytes=kept, note=note)

    def caveat(self, options: PostgresSourceOptions) -> str:
        if options.identity != "key":
            return ""
        return 'identity = "key": there are no before images, and conflicts are judged by key alone.'

    def installed(self, options: PostgresSourceOptions) -> list[SourceObject]:
        return list_installed(options)

    def uninstall(self, options: PostgresSourceOptions) -> list[SourceObject]:
        return uninstall(options)


KIND: Final = PostgresKind()

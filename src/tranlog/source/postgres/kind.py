"""PostgreSQL as a kind of source: its options in the configuration, and where it stands without a capture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, ClassVar, Final

from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.kinds import Settings, SourceKind, SourceObject, SourceStanding, take_shard_rule
from tranlog.source.postgres.catalog import PostgresCatalog
from tranlog.source.postgres.connection import PostgresControl, PostgresSourceOptions
from tranlog.source.postgres.installed import list_installed, uninstall
from tranlog.source.postgres.source import PostgresSource
from tranlog.source.postgres.tables import PostgresTables


class PostgresKind(SourceKind[PostgresSourceOptions]):
    """A PostgreSQL database whose replication slot is followed; see SourceKind for what its methods do."""

    options = PostgresSourceOptions
    paths = ("spool_directory",)
    template = """\
[source]
kind = "postgres"  # needs wal_level = logical
dsn = "postgresql://postgres@127.0.0.1:5432/postgres"  # also with sslmode and its kin, or service=NAME
#: password_file = "source.password"  # or password_env = "NAME"; default: the dsn's, or libpq's own
identity = "full"  # "full" demands REPLICA IDENTITY FULL of each table, "set" sets it, "key" goes without before images
#: source_id = "{service}"  # names this source in every record; keep it
#: slot = "tranlog_shop"  # made if it is missing; default: made from source_id
#: publication = "tranlog_shop"  # made if it is missing; default: named as the slot
#: tables = ["shop.*", "public.stock"]  # of a publication that is made; default: all tables
#: via_partition_root = @  # a publication that is made shows a partitioned table as one
#: unlogged = @  # unlogged tables write no WAL; "ignore" passes them over
#: failover = @  # a slot that is made is synchronised to standbys (PostgreSQL 17)
#: ddl_capture = @  # "event_trigger": records the text of DDL; for superusers
#: fragment_bytes = @
#: queue_bytes = @
#: memory_bytes = @
#: spool_directory = "spool"  # for what memory_bytes does not hold; default: the system's for temporary files
#: transaction_bytes_max = @
#: read_bytes = @
#: feedback_s = @
#: heartbeat_s = @
#: heartbeat_bytes = @
#: retained_warn_bytes = @
#: reconnect_s = @
#: connect_timeout_s = @

"""
    examples: ClassVar = {"rule": "schema", "serial": "ledger", "pinned": "shop"}
    once_wait_s = 2.0  # a server sends when it likes

    def given(self, shards: Settings, password: Callable[[], str]) -> dict[str, Any]:
        rule, mapping = take_shard_rule(shards, ShardRuleKind.SCHEMA)
        return {"shard_rule": ShardRule(kind=rule, mapping=mapping), "password": password()}

    def open(self, options: PostgresSourceOptions) -> PostgresSource:
        source = PostgresSource(options)
        source.check()
        return source

    def tables(self, options: PostgresSourceOptions) -> PostgresTables:
        return PostgresTables(options)

    def event_id(self, options: PostgresSourceOptions) -> str:
        with closing(PostgresControl(options)) as control:
            return PostgresCatalog(options, control).current_lsn()

    def standing(self, options: PostgresSourceOptions, captured: str) -> SourceStanding:
        with closing(PostgresControl(options)) as control:
            catalog = PostgresCatalog(options, control)
            slot, kept = catalog.slot(), catalog.retained_bytes()
            note = slot_note(options, "" if slot is None else slot.wal_status, kept)
            return SourceStanding(now_at=catalog.current_lsn(), retained_bytes=kept, note=note)

    def installed(self, options: PostgresSourceOptions) -> list[SourceObject]:
        return list_installed(options)

    def uninstall(self, options: PostgresSourceOptions) -> list[SourceObject]:
        return uninstall(options)


KIND: Final = PostgresKind()


def slot_note(options: PostgresSourceOptions, wal_status: str, kept: int | None) -> str:
    """Return what an operator should know; `wal_status` as pg_replication_slots has it, `kept` None: no slot."""
    notes = []
    if kept is None:
        notes.append(f"There is no slot {options.slot_name}.")
    elif wal_status in ("unreserved", "lost"):
        notes.append(f"The slot's WAL is {wal_status}: it passed max_slot_wal_keep_size.")
    elif kept >= options.retained_warn_bytes:
        notes.append("The slot fills the source's disk: capture must run and reach its log.")
    if options.identity == "key":
        notes.append('identity = "key": there are no before images, and conflicts are judged by key alone.')
    return " ".join(notes)

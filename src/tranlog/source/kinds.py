"""The kinds of sources, and what the program asks of each.

Owns the table of kinds and what each offers: its options and what the configuration gives for them, how it is
opened for capture, how its tables are read, where it stands, and what is wrong with it. A kind is imported when it is
first asked for, since its driver may be missing, so the table names modules. One of them stands in a layer above: a log
that is a source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from tranlog.clock import Clock
from tranlog.errors import ConfigError
from tranlog.findings import CheckResult, tried
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.source import Source, TableReader

KINDS: Final = {
    "sqlite": "tranlog.source.sqlite.kind",
    "mariadb": "tranlog.source.mariadb.kind",
    "postgres": "tranlog.source.postgres.kind",
    "thl": "tranlog.tungsten.source",
}
"""Kind, as the configuration names it, to the module whose `KIND` it is."""


class SourceOptions(Protocol):
    """How one source is reached and captured; each kind has more in it."""

    kind: ClassVar[str]

    @property
    def source_id(self) -> str:
        """The name of this source in every record."""

    @property
    def where(self) -> str:
        """The file, directory or server, for messages."""


OptionsT = TypeVar("OptionsT", bound=SourceOptions)


class SourceStanding(NamedTuple):
    """Where a source stands, for `status`; what it does not tell is empty or None.

    `waiting` counts what is not captured, in `waiting_unit`: rows where the source does not tell which of them are one
    transaction. `retained_bytes` is what the source keeps for us. `note`: what an operator should know of it, in
    sentences.
    """

    now_at: str = ""
    waiting: int | None = None
    retained_bytes: int | None = None
    note: str = ""
    waiting_unit: str = "transactions"


class SourceObject(NamedTuple):
    """Something that stands at a source for capture: `configured`, whether the configuration at hand means it."""

    kind: str
    name: str
    configured: bool
    state: str


class CapturedUpTo(NamedTuple):
    """The last event that a log has of a source. `tstamp`: when it was committed there, ms since 1970."""

    event_id: str
    tstamp: int


class SourceKind(Protocol[OptionsT]):
    """What the program asks of a kind of source."""

    options: type[OptionsT]
    default_rule: ShardRuleKind = ShardRuleKind.TABLE
    """How tables are grouped into shards where the configuration does not say it."""
    shard_examples: ClassVar[Mapping[str, Any]] = {
        "serial": ["ledger"],
        "channels": {"shop": 1},
        "keys": {"shop.orders": "customer"},
    }
    """What `tranlog init` shows in the section [shards] for such a source, by key."""
    cascades_come: bool = True
    """Whether rows that a foreign key's action changes at the source come as changes, too."""
    once_wait_s: float = 0.0
    """Seconds that a capture of what is there by now waits for what a server has not made durable yet."""

    def shard_fields(self, rule: ShardRuleKind | None, mapping: Mapping[str, str]) -> dict[str, Any]:
        """Return the fields of the options that the section [shards] gives. Raises ConfigError."""
        return {"shard_rule": ShardRule(kind=checked_rule(rule or self.default_rule, mapping), mapping=mapping)}

    def open(self, options: OptionsT) -> Source:
        """Return the source, not started, but known to be there. Raises SourceSetupError, SourceUnavailableError."""

    def tables(self, options: OptionsT) -> TableReader:
        """Return a reader of the source's tables.

        Raises SourceSetupError, SourceUnavailableError; ConfigError for a kind without tables.
        """

    def at_once(self, options: OptionsT, only: Sequence[str]) -> TableReader:
        """Return a reader of all tables as of one moment, or `only` of these, `schema.table`.

        It needs SELECT on them, and nothing that a capture needs; it changes nothing and leaves nothing at the source.
        Raises SourceSetupError, also for a table that cannot be read so; SourceUnavailableError; ConfigError for a kind
        without tables.
        """
        raise ConfigError(option="source.kind", value=options.kind, why="it is no database, and cannot be copied")

    def identity(self, options: OptionsT) -> str:
        """Return what names the source's database, or its server; compared with `target.options.identity`.

        Raises SourceError.
        """
        return options.where

    def event_id(self, options: OptionsT) -> str:
        """Return where the source stands by now, as an event id; empty where nothing is committed that is captured.

        Raises SourceError.
        """

    def standing(self, options: OptionsT, captured: str) -> SourceStanding:
        """Return where the source stands; `captured` is the last event id in the log. Raises SourceError."""
        return SourceStanding(now_at=self.event_id(options))

    def examine(self, options: OptionsT, clock: Clock, captured: CapturedUpTo | None) -> Iterator[CheckResult]:
        """Yield what a look at a source finds, and change nothing; what a start refuses is among it.

        `captured` None: the log has no event of it. Nothing is yielded after a source that does not answer.
        """
        yield tried("connection", lambda: f"it stands at {self.event_id(options) or 'its beginning'}")

    def follower(self, options: OptionsT) -> str | None:
        """Return the identity of the log's directory that may follow this source; empty: any may, as none does yet.

        None of a kind that keeps none. Raises SourceError.
        """
        return None

    def caveat(self, options: OptionsT) -> str:
        """Return what these options leave out of what the log promises, in a sentence; mostly empty."""
        return ""

    def installed(self, options: OptionsT) -> list[SourceObject]:
        """Return what stands at the source for capture. Raises SourceError; ConfigError for a kind that tells none."""
        raise ConfigError(option="source.kind", value=options.kind, why="`tranlog source` does not serve this kind")

    def uninstall(self, options: OptionsT) -> list[SourceObject]:
        """Take away what capture made, and return it. Raises as `installed`."""
        return self.installed(options)


def source_kind(name: str) -> SourceKind[Any]:
    """Return a kind by its name in `KINDS`. Raises SourceSetupError where a library is missing."""
    found: SourceKind[Any] = import_module(KINDS[name]).KIND
    return found


def checked_rule(rule: ShardRuleKind, mapping: Mapping[str, str]) -> ShardRuleKind:
    """Return the rule. Raises ConfigError where rule and map do not belong together."""
    if rule is ShardRuleKind.MAP and not mapping:
        raise ConfigError(option="shards.map", value=None, why='is missing, and the rule "map" needs it')
    if rule is not ShardRuleKind.MAP and mapping:
        why = 'the map of [shards] only serves the rule "map"'
        raise ConfigError(option="shards.rule", value=rule.value, why=why)
    return rule

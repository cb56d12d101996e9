"""The model of the configuration: its sections, and each key with its type, default, meaning and example.

Owns which fields of the components' options are keys of which section, and the few keys that serve the file alone. What
an option means, and which values are possible, is said beside its component, in the options' docstrings and checks.
The hard idea: everything that knows keys (reading, `tranlog init`, the schema, the reference page) walks these
sections, so a key that one of them lacks cannot be. No pydantic here: `reading` makes its models of this.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from itertools import pairwise
from typing import Any, Final, Literal

from tranlog.capture.capture import CaptureOptions
from tranlog.errors import ConfigError
from tranlog.log.options import LogOptions
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.driving.operation import OnError
from tranlog.pipeline.filters.filters import KINDS as FILTERS
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import PlanOptions
from tranlog.pipeline.spark.cluster import EngineOptions
from tranlog.replication.rules.config import LAG_LIMIT_BYTES
from tranlog.replication.rules.permissions import Permission
from tranlog.shard import ShardRuleKind
from tranlog.source.kinds import KINDS, source_kind
from tranlog.target.options import TargetOptions

LOADABLE: Final = ("sqlite", "mariadb", "postgres")
"""The kinds of source whose tables can be loaded."""
DEFAULT_SERVICE: Final = "tranlog"
_SERVICE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")


def checked_service(name: str) -> str:
    """Return the name of a service that is to be made. Raises ConfigError for what is none."""
    if not _SERVICE_NAME.fullmatch(name):
        why = "a service's name is 1 to 63 letters, digits, dots, dashes and underscores"
        raise ConfigError(option="--service", value=name, why=why)
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKeys:
    """The keys of [service]."""

    name: str = DEFAULT_SERVICE
    """How `thl -service NAME` finds this file; also the default of `source_id` and of the pipeline's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKeys:
    """The keys of [log] beside the options of a log."""

    dir: str = field(metadata={"path": True, "example": "log"})
    """The log's directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKeys:
    """The keys of [source] beside the options of a kind whose tables can be loaded."""

    load: Literal["all", "none"] | tuple[str, ...] = field(default="all", metadata={"example": ["shop.orders"]})
    """The tables whose rows are loaded into the log when capture starts a new one: `all`, `none`, or a list of
    `schema.table`."""

    def check(self) -> None:
        """Raise ConfigError for an invalid name."""
        if isinstance(self.load, str):
            return
        for name in self.load:
            if "." not in name:
                raise ConfigError(option="load", value=name, why="a table is named schema.table")
        if not self.load:
            raise ConfigError(option="load", value=[], why='an empty list loads nothing; "none" says so')

    @property
    def wanted(self) -> tuple[str, ...] | None:
        """The tables, () for all; None for no load."""
        if isinstance(self.load, str):
            return () if self.load == "all" else None
        return self.load


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureKeys:
    """The keys of [capture] beside the options of a capture; what protects its ports is in [pipeline]."""

    control: str | None = field(default=None, metadata={"example": "127.0.0.1:4714"})
    """The address of the control endpoint of `tranlog capture`, besides the socket in the log's folder."""
    metrics: str | None = field(default=None, metadata={"example": "127.0.0.1:4715"})
    """The same for Prometheus and other read-only clients. `tranlog run` uses the addresses in [pipeline]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardKeys:
    """The keys of [shards] beside the plan of a pipeline."""

    rule: ShardRuleKind | None = field(
        default=None, metadata={"default": "by the kind of source", "only": ("sqlite", "mariadb", "postgres")}
    )
    """How capture groups tables into shards: `schema`, `table` (joined by foreign keys), or `map` by the key `map`."""
    map: dict[str, str] = field(
        default_factory=dict,
        metadata={"example": {"*": "main"}, "only": ("sqlite", "mariadb", "postgres"), "needs": 'rule = "map"'},
    )
    """From `schema.table` or `schema` to a shard; `*` is the default."""
    list: str | None = field(default=None, metadata={"path": True, "example": "shard.list", "instead": "those below"})
    """A file in the form of the ancestor's `shard.list`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginKeys:
    """The keys of [target] beside the options of a target."""

    user: str | None = field(default=None, metadata={"only": ("postgres", "mariadb")})
    """The user, where the dsn names none."""
    password: str | None = field(
        default=None, repr=False, metadata={"only": ("postgres", "mariadb"), "example": "a password"}
    )
    """The password, where the dsn has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineKeys:
    """The keys of [pipeline] beside what is applied and how."""

    name: str = field(default="", metadata={"default": "the service's name"})
    """The name under which its positions are recorded at the target."""
    control: str | None = field(default=None, metadata={"example": "127.0.0.1:4712"})
    """The address of its control endpoint, besides the socket in the log's folder."""
    metrics: str | None = field(default=None, metadata={"example": "127.0.0.1:4713"})
    """The same for Prometheus and other read-only clients."""
    tls_certificate: str | None = field(default=None, metadata={"path": True, "example": "tranlog.pem"})
    """With `tls_key`, and `secret_file` or `tls_client_ca`: for addresses beyond loopback."""
    tls_key: str | None = field(default=None, metadata={"path": True, "example": "tranlog.key"})
    """The key of `tls_certificate`."""
    tls_client_ca: str | None = field(default=None, metadata={"path": True, "example": "operators.pem"})
    """The authority whose clients may operate it without a token."""
    secret_file: str | None = field(default=None, metadata={"path": True, "example": "control.secret"})
    """The tokens of clients beyond loopback; only its owner may read this file."""
    on_error: OnError = OnError.END
    """`offline`: the process stays, in OFFLINE:ERROR, until `tranlog online`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKeys:
    """The keys of [group]: this node of a group that replicates the log."""

    name: str = field(default="", metadata={"default": "the service's name"})
    """The group's name, the same at all its nodes."""
    node: str = field(default="", metadata={"default": "the host's name", "example": "a"})
    """This node's name, which no other node of the group has."""
    listen: str = "127.0.0.1:2112"
    """Where other nodes and clients reach it, HOST:PORT; beyond loopback only with the three `tls_` keys."""
    address: str = field(default="", metadata={"default": "what `listen` says", "example": "a.example:2112"})
    """The address that other nodes use, if it differs from `listen`."""
    via: dict[str, str] = field(default_factory=dict, metadata={"example": {"b": "b.internal.example:2112"}})
    """For each node, the address at which this one reaches it, instead of the one that the group knows."""
    restore: Literal["auto", "manual"] = "auto"
    """If no node has the records that it lacks: it fetches a whole log, or waits for `tranlog group restore`."""
    lag_limit_bytes: int = field(default=LAG_LIMIT_BYTES, metadata={"example": "256MB"})
    """While the nearest voter with data lacks more of this primary's log, writers wait; 0: never."""
    tls_certificate: str | None = field(default=None, metadata={"path": True, "example": "a.pem"})
    """This node's certificate, which the group's authority has signed for its name."""
    tls_key: str | None = field(default=None, metadata={"path": True, "example": "a.key"})
    """The key of `tls_certificate`."""
    tls_ca: str | None = field(default=None, metadata={"path": True, "example": "group.pem"})
    """The group's authority, which signs the certificates of nodes and clients."""
    clients: dict[str, tuple[Permission, ...]] = field(
        default_factory=dict, metadata={"example": {"shop": ["read", "write"], "reports": ["read"]}}
    )
    """What a client may do, by the name in its certificate: `read`, `write`, `operate`. With the three `tls_` keys."""
    control: str | None = field(default=None, metadata={"example": "127.0.0.1:4716"})
    """The address of the control endpoint of `tranlog node run`, besides the socket in the log's folder."""
    metrics: str | None = field(default=None, metadata={"example": "127.0.0.1:4717"})
    """The same for Prometheus and other read-only clients; [pipeline] has what protects both."""

    def check(self) -> None:
        """Reject impossible values. Raises ConfigError."""
        if self.lag_limit_bytes < 0:
            raise ConfigError(option="lag_limit_bytes", value=self.lag_limit_bytes, why="is 0, for never, or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key of a section. `default` is MISSING where a value is required; `owner` has the field `field`."""

    section: str
    name: str
    owner: type
    field: str
    hint: Any
    default: Any
    doc: str
    hidden: bool
    metadata: Mapping[str, Any]

    @property
    def dotted(self) -> str:
        """The key with its section, as errors and `config show` name it."""
        return f"{self.section}.{self.name}"

    @property
    def is_path(self) -> bool:
        """Whether the value is a path, which counts from the file's folder."""
        return bool(self.metadata.get("path"))


_NOT_IN_PIPELINE: Final = frozenset(
    {
        *("pipeline", "log_dir", "target", "engine", "plan", "group", "filters"),
        *("until_seqno", "limit", "leave_out", "take_over"),
    }
)
"""The fields of ApplyOptions that are no keys of [pipeline]: they are in other sections, or belong to one run."""
_SECTIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    "service": (ServiceKeys,),
    "log": (LogKeys, LogOptions),
    "group": (GroupKeys,),
    "capture": (CaptureKeys, CaptureOptions),
    "shards": (ShardKeys, PlanOptions),
    "target": (TargetOptions, LoginKeys),
    "pipeline": (PipelineKeys, ApplyOptions, GroupBounds),
    "spark": (EngineOptions,),
}
"""The options whose fields are the keys of a section; [source] has those of its kind, [[filter]] of each one's kind."""
NAMES: Final = ("service", "source", "log", "group", "capture", "shards", "target", "spark", "filter", "pipeline")
"""Every section, in the order in which they are shown."""
OPTIONAL: Final = ("source", "target")
"""Sections without which a configuration is one: some commands need them."""
_GROUP: Final = {"seconds": "s"}
_IN_SHARDS: Final = ("shard_rule", "shard_map")
"""Fields of sources' options that [shards] gives."""
SECRETS: Final = ("password", "secret")
"""Keys that may also be given by `_file`, a file that holds the value, or `_env`, the name of a variable that does."""


def keys_of(section: str, kind: str | None = None) -> tuple[ConfigKey, ...]:
    """Return the keys of a section; `kind` is that of the source or of a filter."""
    owner: Any
    if section == "source":
        assert kind is not None
        owner = source_kind(kind).options
        more = _keys("source", SourceKeys) if kind in LOADABLE else ()
        return (_kind("source", kind, KINDS), *_keys("source", owner), *more)
    if section == "filter":
        assert kind is not None
        owner = FILTERS[kind]
        return (_kind("filter", kind, FILTERS), *_keys("filter", owner))
    return tuple([key for owner in _SECTIONS[section] for key in _keys(section, owner)])


def _kind(section: str, kind: str, kinds: Iterable[str]) -> ConfigKey:
    doc = f"The kind of {section}: {', '.join(f'`{one}`' for one in kinds)}."
    return ConfigKey(
        section=section,
        name="kind",
        owner=ConfigKey,
        field="kind",
        hint=Literal[kind],
        default=MISSING,
        doc=doc,
        hidden=False,
        metadata={"example": kind},
    )


@cache
def _keys(section: str, owner: type) -> tuple[ConfigKey, ...]:
    skipped = _NOT_IN_PIPELINE if owner is ApplyOptions else _IN_SHARDS
    hints = typing.get_type_hints(owner)
    docs = _docs(owner)
    found = []
    for one in fields(owner):
        if one.name in skipped:
            continue
        key = ConfigKey(
            section=section,
            name=f"group_{_GROUP.get(one.name, one.name)}" if owner is GroupBounds else one.name,
            owner=owner,
            field=one.name,
            hint=str if one.name == "function" else hints[one.name],
            default=_default(one),
            doc=docs.get(one.name, ""),
            hidden=not one.repr,
            metadata=one.metadata,
        )
        found.append(key)
        if key.name in SECRETS:
            found += _other_ways(key)
    return tuple(found)


def _other_ways(key: ConfigKey) -> Iterator[ConfigKey]:
    """Yield the keys that give a secret in another way."""
    for suffix, doc, example in (
        ("file", "A file that holds it, as UTF-8", f"{key.section}.{key.name}"),
        ("env", "The environment variable that holds it", "NAME"),
    ):
        yield ConfigKey(
            section=key.section,
            name=f"{key.name}_{suffix}",
            owner=ConfigKey,
            field="",
            hint=str | None,
            default=None,
            doc=f"{doc}.",
            hidden=False,
            metadata={**key.metadata, "example": example, "instead": key.name, "path": suffix == "file"},
        )


def _default(one: Field[Any]) -> Any:
    if one.default is MISSING and "default" in one.metadata:
        return ""
    return one.default_factory() if one.default_factory is not MISSING else one.default


@cache
def _docs(owner: type) -> Mapping[str, str]:
    """Return the docstrings that stand below an options class's fields."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(found, ast.ClassDef)
    docs = {}
    for one, below in pairwise(found.body):
        match one, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs

"""From a configuration to the options of each component: which file is meant, and what is made of its values.

Owns what several sections say together, and where a secret is; the keys are `sections`', the values `reading`'s, and
what an option means and which values are possible is said beside the component that has it.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tranlog.capture.capture import CaptureOptions
from tranlog.errors import ConfigError
from tranlog.log.writing.log import LogOptions
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.filters.filters import KINDS as FILTERS
from tranlog.pipeline.filters.filters import Filter, check_filter
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import PlanOptions
from tranlog.pipeline.rules.shard_list import parse_shard_list
from tranlog.pipeline.spark.cluster import EngineOptions
from tranlog.service.config.sections import NAMES, CaptureKeys, ConfigKey, GroupKeys, PipelineKeys, SourceKeys, keys_of
from tranlog.source.kinds import SourceOptions, source_kind
from tranlog.target.options import TargetOptions, default_ddl

if TYPE_CHECKING:  # with it comes pydantic: only where a configuration is read
    from tranlog.service.config.reading import Reading

DEFAULT_FILE: Final = "tranlog.toml"
_KEY_OF: Final = {
    "start": "pipeline.start_seqno",
    "pipeline": "pipeline.name",
    "group_seconds": "pipeline.group_s",
    "shard by": "shards.by",
    "shard default": "shards.default",
    "shard keys": "shards.keys",
    "shard map": "shards.channels",
}
"""What components name in their own words, and the key that gives it."""
NO_OPTIONS: Final[Mapping[str, tuple[str, Any]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions(PipelineKeys):
    """The section [pipeline], and in `apply` all that is said of what is applied, but from where to where."""

    apply: ApplyOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One configuration, read and checked; `source` and `target` are None where there is no such section."""

    file: str
    service: str
    log_dir: str
    log: LogOptions
    group: GroupKeys
    capture: CaptureOptions
    capture_ports: CaptureKeys
    source: SourceOptions | None
    target: TargetOptions | None
    pipeline: PipelineOptions
    load: tuple[str, ...] | None = None
    """The tables that a new log begins with; `all` among them: all."""

    def wanted_source(self) -> SourceOptions:
        """Return the source's options. Raises ConfigError where there are none."""
        if self.source is None:
            raise ConfigError(option=f"{self.file}: [source]", value=None, why="is missing, and this command needs it")
        return self.source

    def with_source(self, text: str) -> Config:
        """Return this configuration with another source: `thl:DIR`. Raises ConfigError for anything else."""
        kind, colon, path = text.partition(":")
        if kind != "thl" or not colon or not path:
            raise ConfigError(option="--source", value=text, why="thl:DIR, the log directory of a Java replicator")
        return dataclasses.replace(self, source=source_kind(kind).options(path=path, source_id=self.service))

    def apply_options(self, target: TargetOptions | None = None) -> ApplyOptions:
        """Return what the pipeline applies, from the log into the configured target or this one. Raises ConfigError."""
        return dataclasses.replace(self.pipeline.apply, log_dir=self.log_dir, target=target or self.wanted_target())

    def wanted_target(self) -> TargetOptions:
        """Return the target's options. Raises ConfigError where there are none."""
        if self.target is None:
            raise ConfigError(option=f"{self.file}: [target]", value=None, why="is missing, and this command needs it")
        return self.target


def find_file(*, conf: str | None, service: str | None) -> str:
    """Return the configuration file that is meant.

    `conf` names it. Else a `service` is in `NAME.toml`, or in `tranlog.toml` if that file is the service's; else
    it is `tranlog.toml`, all in the working directory. Raises ConfigError where the file is another service's.
    """
    if conf is None and service is not None:
        conf = f"{service}.toml"
        if not os.path.exists(conf):
            if not os.path.exists(DEFAULT_FILE):
                why = f"there is neither {conf} nor {DEFAULT_FILE} here; --conf FILE names a file elsewhere"
                raise ConfigError(option="--service", value=service, why=why)
            conf = DEFAULT_FILE
    file = DEFAULT_FILE if conf is None else conf
    if service is not None:
        found = reading(file, only=("service",)).read().service.name
        if found != service:
            raise ConfigError(option="--service", value=service, why=f"{file} is the configuration of {found!r}")
    return file


def find_log(*, conf: str | None, service: str | None, directory: str | None) -> str:
    """Return the log directory that is meant: `directory` itself, or the one that a configuration names."""
    if directory is not None:
        if conf is not None or service is not None:
            raise ConfigError(option="--dir", value=directory, why="cannot be combined with --conf and --service")
        return directory
    return str(reading(find_file(conf=conf, service=service), only=("log",)).read().log.dir)


def reading(
    file: str,
    *,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, tuple[str, Any]] = NO_OPTIONS,
    only: tuple[str, ...] = NAMES,
) -> Reading:
    """Return the origins of a configuration, not read yet; `environ` is the process's where it is None."""
    from tranlog.service.config.reading import Reading

    return Reading(file=file, environ=os.environ if environ is None else environ, options=options, only=only)


def load(file: str, *, environ: Mapping[str, str], options: Mapping[str, tuple[str, Any]] = NO_OPTIONS) -> Config:
    """Read and check a configuration.

    `environ` has the variables that outrank the file, and those that `password_env` names; `options` are those of a
    command line, which outrank both: dotted key to the option's name and value. Raises ConfigError, naming origin, key,
    value and reason.
    """
    return made(reading(file, environ=environ, options=options))


def made(reading: Reading) -> Config:
    """Return the configuration of these origins. Raises ConfigError."""
    values = reading.read()
    make = _Making(reading, values)
    service, shards = values.service.name, values.shards
    plan = make.options(PlanOptions, "shards") if shards.list is None else _listed(make, shards.list)
    filters = tuple([_filter(make, number, one) for number, one in enumerate(values.filter, start=1)])
    engine = make.options(EngineOptions, "spark", secret=make.secret("spark", "secret") or "")
    name = values.pipeline.name or service
    group = make.options(GroupBounds, "pipeline", check=False)
    nowhere = TargetOptions(kind="null")
    apply = make.options(
        ApplyOptions,
        "pipeline",
        check=False,
        **{"pipeline": name, "log_dir": "", "target": nowhere, "group": group, "engine": engine},
        **{"plan": plan, "filters": filters},
    )
    pipeline = PipelineOptions(**make.fields(PipelineKeys, "pipeline") | {"name": name}, apply=apply)
    source = None if values.source is None else _source(make, service)
    config = Config(
        file=reading.file,
        service=service,
        log_dir=values.log.dir,
        log=make.options(LogOptions, "log"),
        group=_group(make, service),
        capture=make.options(CaptureOptions, "capture"),
        capture_ports=CaptureKeys(**make.fields(CaptureKeys, "capture")),
        source=source,
        target=None if values.target is None else _target(make, source),
        pipeline=pipeline,
        load=None if values.source is None else make.options(SourceKeys, "source").wanted,
    )
    if config.target is not None:
        with make.naming("pipeline"):
            config.apply_options().check()
    return config


class _Making:
    """Makes components' options of the values that were read; their errors name origin and section too."""

    def __init__(self, reading: Reading, values: Any) -> None:
        self.reading = reading
        self.values = values

    def fields(self, owner: type, section: str) -> dict[str, Any]:
        """Return what was given of an options class's fields."""
        found = getattr(self.values, section)
        return _given(found, keys_of(section, getattr(found, "kind", None)), owner)

    def options(self, owner: type[Any], section: str, *, check: bool = True, **more: Any) -> Any:
        """Return the options that a section gives, checked; `more` are fields that are not its keys."""
        options = owner(**self.fields(owner, section) | more)
        if check and hasattr(options, "check"):
            with self.naming(section):
                options.check()
        return options

    def secret(self, section: str, name: str) -> str | None:
        """Return the secret that a section gives in one of three ways, None where it gives none."""
        found = getattr(self.values, section)
        ways = [way for way in (name, f"{name}_file", f"{name}_env") if way in found.model_fields_set]
        if not ways:
            return None
        dotted, value = f"{section}.{ways[-1]}", getattr(found, ways[-1])
        if len(ways) > 1:
            why = f"given together with {ways[0]} of {self.reading.origin(f'{section}.{ways[0]}')}; give one of them"
            raise self.reading.refusal(dotted, None, why)
        if ways[0] == f"{name}_env":
            if value not in self.reading.environ:
                raise self.reading.refusal(dotted, value, "there is no such environment variable")
            return self.reading.environ[value]
        if ways[0] == f"{name}_file":
            return _read_file(self.reading, dotted, value).rstrip("\r\n")
        return str(value)

    @contextmanager
    def naming(self, section: str) -> Iterator[None]:
        """Have a component's ConfigError name the origin and the section too."""
        try:
            yield
        except ConfigError as exc:
            if exc.option.startswith(self.reading.file):
                raise
            known = exc.option.partition(".")[0] in NAMES
            dotted = exc.option if known else f"{section}.{exc.option}"
            if section != "source":  # whose `start` is a key
                dotted = _KEY_OF.get(exc.option, dotted)
            if dotted == "pipeline.name" and not self.values.pipeline.name:
                dotted = "service.name"  # its default
            raise self.reading.refusal(dotted, exc.value, exc.why) from exc


def _given(found: Any, keys: tuple[ConfigKey, ...], owner: type) -> dict[str, Any]:
    """Return what a section gives of the fields of one owner."""
    return {
        key.field: getattr(found, key.name) for key in keys if key.owner is owner and key.name in found.model_fields_set
    }


def _read_file(reading: Reading, dotted: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise reading.refusal(dotted, path, f"cannot be read: {why}") from exc


def _listed(make: _Making, path: str) -> PlanOptions:
    """Return the plan of a `shard.list`."""
    given = make.fields(PlanOptions, "shards")
    for beside in ("channels", "assignment", "serial", "default"):
        if beside in given:
            why = f"{make.reading.origin(f'shards.{beside}')}: shards.{beside} is given too; give one of them"
            raise make.reading.refusal("shards.list", path, why)
    listed = parse_shard_list(_read_file(make.reading, "shards.list", path), file=path)
    return dataclasses.replace(listed, **given)


def _filter(make: _Making, number: int, found: Any) -> Filter:
    owner = FILTERS[found.kind]
    one: Filter = owner(**_given(found, keys_of("filter", found.kind), owner))
    with make.naming(f"filter {number}"):
        check_filter(one)
    return one


def _source(make: _Making, service: str) -> SourceOptions:
    found, shards = make.values.source, make.values.shards
    kind = source_kind(found.kind)
    with make.naming("shards"):
        more = kind.shard_fields(shards.rule, shards.map)
    if "password" in type(found).model_fields:
        more["password"] = make.secret("source", "password") or ""
    if "source_id" not in found.model_fields_set:
        more["source_id"] = service
    options: SourceOptions = make.options(kind.options, "source", **more)
    return options


def _group(make: _Making, service: str) -> GroupKeys:
    group: GroupKeys = make.options(GroupKeys, "group")
    return dataclasses.replace(group, name=group.name or service, node=group.node or socket.gethostname())


def _target(make: _Making, source: SourceOptions | None) -> TargetOptions:
    password = make.secret("target", "password")
    options: TargetOptions = make.options(TargetOptions, "target")
    if source is not None and "ddl" not in make.values.target.model_fields_set:
        options = dataclasses.replace(options, ddl=default_ddl(options.kind, source.kind))
    with make.naming("target"):
        return options.with_login(user=make.values.target.user, password=password)

"""From a TOML file to the options of each component, or one clear error.

Owns the file's form and the finding of it; what an option means and which values are possible is said beside the
component that has it. The hard idea: nothing is guessed. An unknown key is an error that suggests the nearest known
one, since a misspelt option that is silently ignored is found only when it was needed.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import tomllib
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, Literal, TypeVar

import msgspec

from tranlog.capture.capture import CaptureOptions
from tranlog.capture.thl_source import ThlSourceOptions
from tranlog.errors import ConfigError
from tranlog.log.properties import EXPIRE, PROPERTIES, differs, resolve
from tranlog.log.writing.log import LogOptions
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.driving.operation import OnError
from tranlog.pipeline.filters.filters import (
    Delay,
    DropColumns,
    EachBatch,
    EachTransaction,
    Exclude,
    Filter,
    Include,
    MaskColumns,
    PresentRows,
    Rename,
    check_filter,
)
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import PlanOptions
from tranlog.pipeline.rules.shard_list import parse_shard_list
from tranlog.pipeline.spark.cluster import EngineOptions
from tranlog.source.kinds import KINDS, SourceOptions, source_kind
from tranlog.target.options import TargetOptions

_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_BYTES: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_SECRET: Final = ("password", "dsn", "URL", "salt")
"""Keys whose values no message shows."""
_NOWHERE: Final[Mapping[str, Collection[str]]] = {}
_AS_NAMED: Final[Mapping[str, str]] = {}
_type_hints: Final = cache(typing.get_type_hints)
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")

OptionsT = TypeVar("OptionsT")


class Section:
    """One table of the file: hands out its values typed, and knows afterwards which keys nobody asked for.

    Every error names the file, the key with dots, the value and the reason.
    """

    def __init__(self, file: str, name: str, values: Mapping[str, Any]) -> None:
        self._file = file
        self._name = name
        self._values = values
        self._known: dict[str, None] = {}

    def key(self, name: str) -> str:
        """Return how an error names a key: `FILE: section.key`."""
        return f"{self._file}: {self._name}.{name}" if self._name else f"{self._file}: {name}"

    def has(self, name: str) -> bool:
        """Whether the file gives the key."""
        self._known[name] = None
        return name in self._values

    def given(self) -> Mapping[str, Any]:
        """Return the values as they stand in the file, none of them asked for by that."""
        return self._values

    def error(self, name: str, why: str) -> ConfigError:
        """Return the error for a key's value."""
        value = "(hidden)" if name in _SECRET else self._values.get(name)
        return ConfigError(option=self.key(name), value=value, why=why)

    def take(self, name: str, kind: Any, default: Any = dataclasses.MISSING) -> Any:
        """Return a key's value as `kind`; `default` where the file has none; an error where that is missing too."""
        if not self.has(name):
            if default is dataclasses.MISSING:
                raise ConfigError(option=self.key(name), value=None, why="is missing and has no default")
            return default
        value = self._values[name]
        if isinstance(value, str):
            value = self._quantity(name, value)
        try:
            return msgspec.convert(value, kind, strict=True)
        except msgspec.ValidationError as exc:
            raise self.error(name, _reason(str(exc), kind)) from exc

    def path(self, name: str, default: Any = dataclasses.MISSING) -> Any:
        """Return a path; a relative one counts from the file's folder."""
        value = self.take(name, str, default)
        return self.resolve(value) if isinstance(value, str) else value

    def resolve(self, path: str) -> str:
        """Return a path as seen from the file's folder; `~` is the home folder."""
        return os.path.join(os.path.dirname(os.path.abspath(self._file)), os.path.expanduser(path))

    def table(self, name: str) -> Section:
        """Return a table inside this one; an empty one where the file has none."""
        value = self._values.get(name, {})
        self._known[name] = None
        if not isinstance(value, dict):
            why = "is a table: [" + (f"{self._name}." if self._name else "") + f"{name}]"
            raise ConfigError(option=self.key(name), value=_without_text(value), why=why)
        return Section(self._file, f"{self._name}.{name}" if self._name else name, value)

    def part(self, name: str, values: Mapping[str, Any]) -> Section:
        """Return one table of a row of tables, by the name that errors give it."""
        return Section(self._file, name, values)

    def options(self, kind: type[OptionsT], *, paths: Collection[str] = (), **given: Any) -> OptionsT:
        """Fill a component's options dataclass from the keys that have its fields' names, and check it.

        `paths` are fields that hold paths; `given` are fields that do not come from the file.
        """
        options = kind(**given, **self.values(kind, paths=paths, skip=given))
        self.check(options)
        return options

    def values(
        self,
        kind: type,
        *,
        paths: Collection[str] = (),
        skip: Collection[str] = (),
        keys: Mapping[str, str] = _AS_NAMED,
    ) -> dict[str, Any]:
        """Return what the file gives of a dataclass's fields but `skip`; `keys` are those not named as their field."""
        hashable: Any = kind
        hints = _type_hints(hashable)
        values = {}
        for field in dataclasses.fields(kind):
            key = keys.get(field.name, field.name)
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if field.name in skip or not (required or self.has(key)):
                continue
            values[field.name] = self.path(key) if field.name in paths else self.take(key, hints[field.name])
        return values

    def check(self, options: object) -> None:
        """Run a component's own check; its error then names the file and the section too."""
        check = getattr(options, "check", None)
        if check is not None:
            with self.naming():
                check()

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Have a component's ConfigError name the file and the section too."""
        try:
            yield
        except ConfigError as exc:
            name = exc.option.removeprefix(f"{self._name}.")
            raise ConfigError(option=self.key(name), value=exc.value, why=exc.why) from exc

    @property
    def known(self) -> Collection[str]:
        """The keys that were asked for."""
        return self._known.keys()

    def finish(self, elsewhere: Mapping[str, Collection[str]] = _NOWHERE) -> None:
        """Raise ConfigError for a key that nobody knows; `elsewhere` are the keys of other tables, by table."""
        for name in self._values:
            if name in self._known:
                continue
            homes = [f"[{table}]" for table, keys in elsewhere.items() if name in keys]
            near = get_close_matches(name, self._known, n=1)
            if homes:
                hint = f"it belongs to {' or '.join(homes)}"
            elif near:
                hint = f"did you mean {near[0]!r}?"
            else:
                hint = f"known keys are {', '.join(self._known)}"
            if homes:
                raise self.error(name, f"unknown key; {hint}")
            shown = _without_text(self._values[name])
            raise ConfigError(option=self.key(name), value=shown, why=f"unknown key; {hint}")

    def _quantity(self, name: str, text: str) -> object:
        """Turn "12h" under a key that counts seconds, or "64MiB" under one that counts bytes, into the number."""
        for counted, units in ((name.endswith("_s"), _SECONDS), ("_bytes" in name, _BYTES)):
            if counted:
                parts = _QUANTITY.findall(text)
                whole = "".join(match[0] for match in _QUANTITY.finditer(text)) == text.lstrip() and parts
                if not whole or any(unit.lower() not in units for _, unit in parts):
                    raise self.error(name, f"a number, or one with a unit: {', '.join(units)}")
                number = sum((float(count) * units[unit.lower()] for count, unit in parts), 0.0)
                return int(number) if number.is_integer() else number
        return text


def _without_text(value: object) -> object:
    """Return a value for a message, its texts hidden: what a misspelt key or table holds may be a password."""
    match value:
        case str():
            return "(hidden)"
        case dict():
            return {key: _without_text(one) for key, one in value.items()}
        case list():
            return [_without_text(one) for one in value]
    return value


def _reason(text: str, kind: object) -> str:
    """Say in our words what msgspec found."""
    text = text.partition(" - at ")[0]
    if text.startswith("Invalid enum value"):
        members: Iterable[object] = kind if isinstance(kind, enum.EnumMeta) else typing.get_args(kind)
        return f"must be one of {', '.join(map(str, members))}"
    return f"{text[:1].lower()}{text[1:]}".replace("`", "")


def read_toml(file: str) -> Section:
    """Read a file. Raises ConfigError where it is missing, unreadable or no TOML."""
    try:
        with open(file, "rb") as stream:
            return Section(file, "", tomllib.load(stream))
    except FileNotFoundError as exc:
        raise ConfigError(
            option=file, value=None, why="there is no such file; `tranlog init` writes one, --conf FILE names another"
        ) from exc
    except OSError as exc:
        raise ConfigError(option=file, value=None, why=f"cannot be read: {exc.strerror}") from exc
    except RecursionError as exc:
        raise ConfigError(option=file, value=None, why="is nested too deeply") from exc
    except ValueError as exc:  # TOML's own error, bytes that are no UTF-8, a number of thousands of digits
        raise ConfigError(option=file, value=None, why=f"is no TOML: {exc}") from exc


DEFAULT_FILE: Final = "tranlog.toml"
DEFAULT_SERVICE: Final = "tranlog"


def find_file(*, conf: str | None, service: str | None) -> str:
    """Return the configuration file that is meant.

    `conf` names it. Else a `service` stands in `NAME.toml`, or in `tranlog.toml` if that file is the service's; else
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
        found = service_name(read_toml(file))
        if found != service:
            raise ConfigError(option="--service", value=service, why=f"{file} is the configuration of {found!r}")
    return file


def service_name(file: Section) -> str:
    """Return the name of the service that a file configures."""
    name = file.table("service").take("name", str, DEFAULT_SERVICE)
    assert isinstance(name, str)
    return name


def find_log(*, conf: str | None, service: str | None, directory: str | None) -> str:
    """Return the log directory that is meant: `directory` itself, or the one that a configuration names."""
    if directory is not None:
        if conf is not None or service is not None:
            raise ConfigError(option="--dir", value=directory, why="stands alone, without --conf and --service")
        return directory
    return log_directory(read_toml(find_file(conf=conf, service=service)))


def log_directory(file: Section) -> str:
    """Return `log.dir` of a file."""
    return _read_log(file.table("log"))[0]


def _read_log(log: Section) -> tuple[str, LogOptions]:
    """Return the directory and the options of a log, by our names and the ancestors'."""
    with log.naming():
        found = resolve(log.given())
    for name in (*(one.name for one in PROPERTIES), *EXPIRE):
        if name in log.given():
            log.has(name)
    values: dict[str, Any] = {}
    hints = _type_hints(LogOptions)
    for ours, (name, value) in found.items():
        is_dir = ours == "dir"
        said = log.resolve(str(value)) if is_dir else value
        if log.has(ours):
            mine = log.path(ours) if is_dir else log.take(ours, hints[ours])
            if mine != said:
                raise ConfigError(option=log.key(name), value=value, why=differs(ours, mine))
        values[ours] = said
    path = values.pop("dir", None)
    path = log.path("dir") if path is None else path
    assert isinstance(path, str)
    return path, log.options(LogOptions, **values)


# --- the whole file --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One configuration file, read and checked; `source` and `target` are None where the file has no such table."""

    file: str
    service: str
    log_dir: str
    log: LogOptions
    capture: CaptureOptions
    source: SourceOptions | None
    target: TargetOptions | None
    pipeline: PipelineOptions

    def wanted_source(self) -> SourceOptions:
        """Return the source's options. Raises ConfigError where there are none."""
        if self.source is None:
            raise ConfigError(option=f"{self.file}: [source]", value=None, why="is missing, and this command needs it")
        return self.source

    def with_source(self, text: str) -> Config:
        """Return this configuration with another source: `thl:DIR`. Raises ConfigError for anything else."""
        kind, colon, path = text.partition(":")
        if kind != ThlSourceOptions.kind or not colon or not path:
            raise ConfigError(option="--source", value=text, why="thl:DIR, the log directory of a Java replicator")
        return dataclasses.replace(self, source=ThlSourceOptions(path=path, source_id=self.service))

    def wanted_target(self) -> TargetOptions:
        """Return the target's options. Raises ConfigError where there are none."""
        if self.target is None:
            raise ConfigError(option=f"{self.file}: [target]", value=None, why="is missing, and this command needs it")
        return self.target


GROUP_KEYS: Final = {
    "transactions": "group_transactions",
    "changes": "group_changes",
    "bytes": "group_bytes",
    "seconds": "group_s",
}
"""The keys of [pipeline] that are the fields of GroupBounds."""
_NOT_IN_PIPELINE: Final = frozenset(
    {
        *("pipeline", "log_dir", "target", "engine", "plan", "group", "filters"),
        *("until_seqno", "limit", "leave_out", "take_over"),
    }
)
"""The fields of ApplyOptions that are no keys of [pipeline]: they stand in other tables, or are one run's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """The table [pipeline], and in `apply` all that the file says of what is applied, but from where to where."""

    name: str
    apply: ApplyOptions
    control: str | None = None
    metrics: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    secret_file: str | None = dataclasses.field(default=None, repr=False)
    on_error: OnError = OnError.END

    def apply_options(self, *, log_dir: str, target: TargetOptions) -> ApplyOptions:
        """Return what the pipeline is to apply, from where to where."""
        return dataclasses.replace(self.apply, log_dir=log_dir, target=target)


def load(file: str, *, environ: Mapping[str, str]) -> Config:
    """Read and check a configuration file; `environ` is where `password_env` looks.

    Raises ConfigError, naming file, key, value and reason.
    """
    top = read_toml(file)
    service = top.table("service")
    name = service.take("name", str, DEFAULT_SERVICE)
    shards, log = top.table("shards"), top.table("log")
    capture, pipeline, spark = top.table("capture"), top.table("pipeline"), top.table("spark")
    tables = {
        "service": service,
        "shards": shards,
        "log": log,
        "capture": capture,
        "pipeline": pipeline,
        "spark": spark,
    }
    log_dir, log_options = _read_log(log)
    config = Config(
        file=file,
        service=name,
        log_dir=log_dir,
        log=log_options,
        capture=capture.options(CaptureOptions),
        source=None,
        target=None,
        pipeline=_read_pipeline(pipeline, shards, name, _read_filters(top), _read_engine(spark, environ)),
    )
    if top.has("source"):
        tables["source"] = source = top.table("source")
        config = dataclasses.replace(config, source=_read_source(source, shards, name, environ))
    if top.has("target"):
        tables["target"] = target = top.table("target")
        config = dataclasses.replace(config, target=_read_target(target, environ))
        assert config.target is not None
        pipeline.check(config.pipeline.apply_options(log_dir=config.log_dir, target=config.target))
    top.finish()
    for one, section in tables.items():
        section.finish({other: tables[other].known for other in tables if other != one})
    return config


class FilterKind(enum.StrEnum):
    """What a table [[filter]] is."""

    INCLUDE = "include"
    EXCLUDE = "exclude"
    RENAME = "rename"
    DROP = "drop"
    PRESENT = "present"
    MASK = "mask"
    DELAY = "delay"
    TRANSACTION = "transaction"
    BATCH = "batch"


_FILTERS: Final[Mapping[FilterKind, type[Filter]]] = {
    FilterKind.INCLUDE: Include,
    FilterKind.EXCLUDE: Exclude,
    FilterKind.RENAME: Rename,
    FilterKind.DROP: DropColumns,
    FilterKind.PRESENT: PresentRows,
    FilterKind.MASK: MaskColumns,
    FilterKind.DELAY: Delay,
    FilterKind.TRANSACTION: EachTransaction,
    FilterKind.BATCH: EachBatch,
}


def _read_filters(top: Section) -> tuple[Filter, ...]:
    """Return the tables [[filter]], in the order in which they stand."""
    tables = top.given().get("filter", [])
    top.has("filter")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(option=top.key("filter"), value=None, why="is a row of tables: [[filter]]")
    filters = []
    for number, values in enumerate(tables, start=1):
        section = top.part(f"filter {number}", values)
        kind = section.take("kind", FilterKind)
        given = (
            {"function": section.take("function", str)} if kind in (FilterKind.TRANSACTION, FilterKind.BATCH) else {}
        )
        for name in ("tables", "columns"):  # a text by itself would be taken for a row of letters
            if isinstance(values.get(name), str):
                raise section.error(name, "a list of one or more texts, in brackets")
        filters.append(section.options(_FILTERS[kind], **given))
        with section.naming():
            check_filter(filters[-1])
        section.finish()
    return tuple(filters)


def _read_pipeline(
    pipeline: Section, shards: Section, service: str, filters: tuple[Filter, ...], engine: EngineOptions
) -> PipelineOptions:
    plan = _read_plan(shards)
    name = pipeline.take("name", str, service)
    values = pipeline.values(ApplyOptions, skip=_NOT_IN_PIPELINE)
    apply = ApplyOptions(
        pipeline=name,
        log_dir="",
        target=TargetOptions(kind="null"),
        plan=plan,
        group=GroupBounds(**pipeline.values(GroupBounds, keys=GROUP_KEYS)),
        engine=engine,
        filters=filters,
        **values,
    )
    return pipeline.options(
        PipelineOptions,
        paths={"tls_certificate", "tls_key", "tls_client_ca", "secret_file"},
        name=name,
        apply=apply,
    )


def _read_plan(shards: Section) -> PlanOptions:
    beside = [name for name in ("channels", "assignment", "serial", "default") if shards.has(name)]
    file = shards.path("list", None)
    plan = shards.options(PlanOptions)
    if file is None:
        return plan
    if beside:
        raise shards.error("list", f"{shards.key(beside[0])} stands beside it; give one of them")
    try:
        with open(file, encoding="utf-8") as stream:
            listed = parse_shard_list(stream.read(), file=file)
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no UTF-8"
        raise shards.error("list", f"cannot be read: {why}") from exc
    return dataclasses.replace(listed, by=plan.by, keys=plan.keys)


def _read_engine(spark: Section, environ: Mapping[str, str]) -> EngineOptions:
    return spark.options(
        EngineOptions,
        paths={"package"},
        secret=_password(spark, environ, name="secret") or "",
        settings=spark.take("settings", dict[str, str], {}),
    )


def _read_source(source: Section, shards: Section, service: str, environ: Mapping[str, str]) -> SourceOptions:
    kind = source_kind(source.take("kind", Literal[tuple(KINDS)]))
    source_id = source.take("source_id", str, service)
    given = kind.given(shards, lambda: _password(source, environ) or "")
    found: SourceOptions = source.options(kind.options, paths=kind.paths, source_id=source_id, **given)
    return found


def _read_target(target: Section, environ: Mapping[str, str]) -> TargetOptions:
    password = _password(target, environ)
    options = target.options(TargetOptions, paths={"path"}, **_read_url(target))
    user = target.take("user", str) if "user" in target.given() else None
    with target.naming():
        return options.with_login(user=user, password=password)


_URLS: Final = {
    "jdbc:postgresql://": ("postgres", "dsn", "postgresql://"),
    "postgresql://": ("postgres", "dsn", "postgresql://"),
    "jdbc:mysql://": ("mariadb", "dsn", "mariadb://"),
    "jdbc:mariadb://": ("mariadb", "dsn", "mariadb://"),
    "mariadb://": ("mariadb", "dsn", "mariadb://"),
    "jdbc:sqlite:": ("sqlite", "path", ""),
}
"""How the ancestor's URL of the catalog begins: the kind of target, our option, and what stands in its place there."""


def _read_url(target: Section) -> dict[str, str]:
    """Return what `URL`, the ancestor's name of where its positions are kept, says by our names."""
    if "URL" not in target.given():
        return {}
    url = target.take("URL", str)
    kind = target.take("kind", str, "")
    begins = {begin: said for begin, said in _URLS.items() if kind in (said[0], "")}
    for begin, (_, ours, instead) in begins.items():
        if url.startswith(begin):
            said = instead + url.removeprefix(begin)
            said = target.resolve(said) if ours == "path" else said
            if target.has(ours) and (target.path(ours) if ours == "path" else target.take(ours, str)) != said:
                raise target.error("URL", f"{ours} stands beside it and says otherwise; give one of them")
            return {ours: said}
    raise target.error("URL", f"it begins with {', '.join(begins or _URLS)}: the target keeps the positions")


def _password(section: Section, environ: Mapping[str, str], *, name: str = "password") -> str | None:
    """Return the password that a table gives in one of three ways, None where it gives none."""
    plain, in_file, in_environment = name, f"{name}_file", f"{name}_env"
    given = [one for one in (plain, in_file, in_environment) if section.has(one)]
    if len(given) > 1:
        raise ConfigError(option=section.key(given[1]), value=None, why=f"stands beside {given[0]}; give one of them")
    match given:
        case []:
            return None
        case [key, *_] if key == plain:
            password = section.take(plain, str)
        case [key, *_] if key == in_environment:
            variable = section.take(in_environment, str)
            if variable not in environ:
                raise section.error(in_environment, "there is no such environment variable")
            password = environ[variable]
        case _:
            try:
                with open(section.path(in_file), encoding="utf-8") as file:
                    password = file.read().rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as exc:
                why = exc.strerror if isinstance(exc, OSError) else "it is no UTF-8"
                raise section.error(in_file, f"cannot be read: {why}") from exc
    assert isinstance(password, str)
    return password

"""From where a configuration's values come to one checked value each, by pydantic-settings, or one clear error.

Owns the origins (command line, environment, folder of secrets, file) and their precedence, the units, and what an error
says; the keys are those of `sections`. The hard idea: nothing is guessed. An unknown key is an error that suggests the
nearest known one, since a misspelt option that is silently ignored is found only when it was needed; and each error
names the origin of its value, with the line where that is a file.

Imported only where a configuration is read: pydantic takes a fifth of a second.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field
from difflib import get_close_matches
from enum import EnumType
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, create_model
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NestedSecretsSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from tranlog.errors import ConfigError, SourceSetupError
from tranlog.log.properties import EXPIRE, PROPERTIES, differs, resolve
from tranlog.pipeline.filters.filters import KINDS as FILTERS
from tranlog.service.config.sections import NAMES, OPTIONAL, ConfigKey, keys_of
from tranlog.source.kinds import KINDS

PREFIX: Final = "TRANLOG_"
BETWEEN: Final = "__"
SECRETS_DIR: Final = "TRANLOG_SECRETS_DIR"
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_SECONDS_MOST: Final = 100 * 366 * 86_400
"""Of any key: what waits is told so by the operating system, which takes no more than some 290 years."""
_BYTES: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")
_URLS: Final = {
    "jdbc:postgresql://": ("postgres", "dsn", "postgresql://"),
    "postgresql://": ("postgres", "dsn", "postgresql://"),
    "jdbc:mysql://": ("mariadb", "dsn", "mariadb://"),
    "jdbc:mariadb://": ("mariadb", "dsn", "mariadb://"),
    "mariadb://": ("mariadb", "dsn", "mariadb://"),
    "jdbc:sqlite:": ("sqlite", "path", ""),
}
"""How the ancestor's URL of the catalog begins: the kind of target, our option, and what stands in its place there."""

_HIDDEN: Final = ("password", "URL", "salt")
"""Keys that no section has, or not each, and whose values no message shows either."""

Values = dict[str, Any]


# --- the model -------------------------------------------------------------------------------------------


class _Root(BaseSettings):
    """The sections of one configuration; made with `reading`, from whose origins its values come."""

    model_config = SettingsConfigDict(extra="forbid", case_sensitive=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(init_settings, InitSettingsSource)
        return tuple(init_settings.init_kwargs["reading"].sources(settings_cls))


class _Part(_Root):
    """Some sections, whatever stands in the others."""

    model_config = SettingsConfigDict(extra="ignore")


def _hint(key: ConfigKey) -> Any:
    """Return the type by which pydantic checks a key: TOML has no enumerations, so these are made of texts."""
    parts = typing.get_args(key.hint) or (key.hint,)
    if not any(isinstance(one, EnumType) for one in parts):
        return key.hint
    return Union[tuple(Annotated[one, Strict(False)] if isinstance(one, EnumType) else one for one in parts)]  # noqa: UP007


@cache
def _section(name: str, kind: str | None = None) -> type[BaseModel]:
    """Return the model of a section; of [source] with an unknown kind one that knows the kinds alone."""
    fields: Values = {}
    extra: Literal["forbid", "ignore"] = "forbid"
    if name == "source" and kind is None:
        fields["kind"], extra = (Literal[tuple(KINDS)], ...), "ignore"
    else:
        for key in keys_of(name, kind):
            default = ... if key.default is MISSING else key.default
            fields[key.name] = (_hint(key), Field(default, description=key.doc or None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a key may have the name of a deprecated method: schema
        title = name if kind is None else f"{name}_{kind}"
        return create_model(title, __config__=ConfigDict(extra=extra, strict=True), **fields)


@cache
def model(kinds: tuple[str, ...], only: tuple[str, ...] = NAMES) -> type[_Root]:
    """Return the model of a configuration with a source of one of these kinds, or of some of its sections."""
    sources: Any = Union[tuple(_section("source", kind) for kind in kinds or (None,))]  # noqa: UP007
    if len(kinds) > 1:
        sources = Annotated[sources, Field(discriminator="kind")]
    filters: Any = Union[tuple(_section("filter", kind) for kind in FILTERS)]  # noqa: UP007
    types: Values = {"source": sources, "filter": tuple[Annotated[filters, Field(discriminator="kind")], ...]}
    fields: Values = {}
    for name in only:
        kind = types.get(name) or _section(name)
        fields[name] = (kind | None, None) if name in OPTIONAL else (kind, () if name == "filter" else ...)
    return create_model("Configuration", __base__=_Root if only == NAMES else _Part, **fields)


def schema() -> Values:
    """Return the JSON schema of a configuration file, with the kinds of sources whose libraries are installed."""
    kinds = []
    for kind in KINDS:
        with suppress(SourceSetupError):
            keys_of("source", kind)
            kinds.append(kind)
    found = model(tuple(kinds)).model_json_schema()
    ours = {"log": [one.name for one in PROPERTIES] + [*EXPIRE], "target": ["URL"]}
    for section in found["$defs"].values():
        for name, key in section.get("properties", {}).items():
            if units_of(name) and "type" in key:
                section["properties"][name] = {**key, "type": [key["type"], "string"]}
            elif units_of(name):
                key["anyOf"].append({"type": "string"})
        if section.get("title") in ours:
            section["properties"] |= {name: {} for name in ours[section["title"]]}
    return found


# --- the origins -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One value that was given, as it is used, and where: `FILE:LINE`, a variable, a secret's file, or an option."""

    value: Any
    origin: str


@dataclass(kw_only=True)
class Reading:
    """The origins of one configuration while it is read.

    `options` are a command line's: dotted key to the option's name and value. `given`, when it is read: dotted key to
    the value that counts.
    """

    file: str
    environ: Mapping[str, str]
    options: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    only: tuple[str, ...] = NAMES
    given: dict[str, Given] = field(default_factory=dict)

    @cached_property
    def in_file(self) -> Values:
        """What the file says."""
        return read_toml(self.file)

    @cached_property
    def keys(self) -> Mapping[str, Mapping[str, ConfigKey]]:
        """The keys of each section, but of [[filter]], by name."""
        kinds = self._kinds()
        sections = [name for name in NAMES if name not in ("source", "filter")]
        return {name: {key.name: key for key in keys_of(name)} for name in sections} | {
            "source": {key.name: key for kind in kinds for key in keys_of("source", kind)}
        }

    def _kinds(self) -> tuple[str, ...]:
        source = self.in_file.get("source")
        said = source.get("kind") if isinstance(source, dict) else ""
        texts = (*self._variables, *self._secrets)
        kind = next((text for _, name, text in texts if name.lower() == f"source{BETWEEN}kind"), said)
        return (kind,) if isinstance(kind, str) and kind in KINDS else ()

    def read(self) -> Any:
        """Return the model with the values in it. Raises ConfigError."""
        try:
            settings: Any = model(self._kinds() if "source" in self.only else (), self.only)
            return settings(reading=self)
        except ValidationError as exc:
            raise self._refusal(min(exc.errors(include_url=False), key=_rank)) from exc

    def sources(self, settings: type[BaseSettings]) -> Iterator[PydanticBaseSettingsSource]:
        """Yield the origins, the strongest first."""
        said: Values = {}
        for dotted, (option, value) in self.options.items():
            section, _, name = dotted.partition(".")
            said.setdefault(section, {})[name] = value
            self.given[dotted] = Given(value=value, origin=option)
        for values in (said, self._texts(self._variables), self._texts(self._secrets), self._from_file(settings)):
            yield InitSettingsSource(settings, values)

    @cached_property
    def _variables(self) -> list[tuple[str, str, str]]:
        """The variables that are ours: name, name without its beginning, and text."""
        return [(name, name[len(PREFIX) :], text) for name, text in self.environ.items() if name.startswith(PREFIX)]

    @cached_property
    def _secrets(self) -> list[tuple[str, str, str]]:
        """The files in the folder of secrets, as they were at the first look: path, name and text."""
        folder = self.environ.get(SECRETS_DIR)
        if not folder:
            return []
        try:
            os.listdir(folder)  # a folder that is not there would be an empty one
            found = NestedSecretsSettingsSource.load_secrets(Path(folder).resolve())
        except (SettingsError, OSError, UnicodeDecodeError) as exc:
            raise ConfigError(option=SECRETS_DIR, value=folder, why=f"cannot be read: {exc}") from exc
        return [(os.path.join(folder, name), name, text) for name, text in found.items()]

    def _texts(self, texts: Iterable[tuple[str, str, str]]) -> Values:
        """Return what an origin of texts gives, each as its key's type has it: where it stands, its name, itself."""
        found: Values = {}
        origins: dict[str, str] = {}
        for origin, name, text in texts:
            section, between, name = name.lower().partition(BETWEEN)
            if not between and section not in NAMES:
                section, _, name = section.partition("_")
                if name in self.keys.get(section, ()):
                    why = f"two underscores part a section from its key: {(section + BETWEEN + name).upper()}"
                    raise ConfigError(option=origin, value="(hidden)", why=why)
                continue  # a variable that is none of the configuration's
            if section not in NAMES:
                raise ConfigError(option=origin, value="(hidden)", why=f"unknown key; {_nearest(section, NAMES)}")
            if section not in self.only:
                continue
            if section == "filter":
                raise ConfigError(option=origin, value="(hidden)", why="filters stand in the file alone: [[filter]]")
            dotted, key = f"{section}.{name}", self.keys[section].get(name)
            value = self._value(section, name, text if key is None else _typed(key, text), origin)
            if found.setdefault(section, {}).setdefault(name, value) != value:
                raise ConfigError(option=origin, value="(hidden)", why=f"{origins[dotted]} differs; give one of them")
            origins[dotted] = origin
        return found

    def _from_file(self, settings: type[BaseSettings]) -> Values:
        found: Values = {name: {} for name in settings.model_fields if name not in (*OPTIONAL, "filter")}
        for section, values in self.in_file.items():
            if section not in self.only and self.only != NAMES:
                continue
            found[section] = values
            if section == "filter" and isinstance(values, list):
                self.given["filter"] = Given(value=values, origin=self.file)
                found[section] = tuple(map(self._filter, range(1, len(values) + 1), values))
            elif section != "filter" and isinstance(values, dict):
                made = {name: self._value(section, name, value, self.file) for name, value in values.items()}
                found[section] = {"log": self._ancestors, "target": self._url}.get(section, dict)(made)
        return found

    def _filter(self, number: int, row: Any) -> Any:
        if not isinstance(row, dict):
            return row
        return {name: self._prepared(name, value, f"filter {number}.{name}", self.file) for name, value in row.items()}

    def _value(self, section: str, name: str, value: Any, origin: str) -> Any:
        """Return a value as pydantic is to check it, and note where it stands unless a stronger origin has given it."""
        dotted, key = f"{section}.{name}", self.keys.get(section, {}).get(name)
        made = self._prepared(name, value, dotted, origin, path=key is not None and key.is_path)
        self.given.setdefault(dotted, Given(value=made, origin=origin))
        return made

    def _prepared(self, name: str, value: Any, dotted: str, origin: str, *, path: bool = False) -> Any:
        """Return quantities as numbers, paths whole, arrays as tuples.

        Raises ConfigError for another unit, for what is not finite, and for an empty path.
        """
        units = units_of(name)
        if isinstance(value, str) and units:
            number = _quantity(value, units)
            if number is None:
                raise self.refusal(dotted, value, f"a number, or one with a unit: {', '.join(units)}", origin=origin)
            value = number
        if isinstance(value, int | float) and units:
            if isinstance(value, float) and not math.isfinite(value):
                raise self.refusal(dotted, value, "a finite number", origin=origin)
            if units is _SECONDS and value > _SECONDS_MOST:
                raise self.refusal(dotted, value, "seconds, at most a hundred years", origin=origin)
            return value
        if value == "" and path:
            raise self.refusal(dotted, value, "a path, and it is empty", origin=origin)
        if isinstance(value, str) and path:
            if "\0" in value:
                raise self.refusal(dotted, value, "no path holds a NUL character", origin=origin)
            return os.path.join(os.path.dirname(os.path.abspath(self.file)), os.path.expanduser(value))
        if isinstance(value, list):
            return tuple([self._prepared("", one, dotted, origin) for one in value])
        if isinstance(value, dict):
            return {at: self._prepared("", one, dotted, origin) for at, one in value.items()}
        return value

    def _ancestors(self, values: Values) -> Values:
        """Return [log] with what the ancestors' names in it say by ours."""
        names = {one.name for one in PROPERTIES} | EXPIRE.keys()
        try:
            found = resolve(values)
        except ConfigError as exc:
            raise self.refusal(f"log.{exc.option}", exc.value, exc.why) from exc
        made = {name: value for name, value in values.items() if name not in names}
        for ours, (name, value) in found.items():
            meant = self._prepared(ours, value, f"log.{name}", self.file, path=ours == "dir")
            if ours in made and made[ours] != meant:
                raise self.refusal(f"log.{name}", value, differs(ours, made[ours]))
            made[ours] = meant
            self._said_by("log", name, ours, meant)
        return made

    def _said_by(self, section: str, name: str, ours: str, value: object) -> None:
        """Note that the file gives our key by an ancestor's name."""
        self.given.setdefault(
            f"{section}.{ours}", Given(value=value, origin=self.origin(f"{section}.{name}", self.file))
        )

    def _url(self, values: Values) -> Values:
        """Return [target] with what `URL`, the ancestor's name of where its positions are kept, says by our names."""
        made = dict(values)
        if "URL" not in made:
            return made
        url, kind = made.pop("URL"), made.get("kind", "")
        begins = {begin: said for begin, said in _URLS.items() if kind in (said[0], "")}
        for begin, (_, ours, instead) in begins.items():
            if isinstance(url, str) and url.startswith(begin):
                said = instead + url.removeprefix(begin)
                said = self._prepared(ours, said, "target.URL", self.file, path=ours == "path")
                if made.get(ours, said) != said:
                    why = f"{ours} is given too and differs; give one of them"
                    raise self.refusal("target.URL", url, why)
                self._said_by("target", "URL", ours, said)
                return {**made, ours: said}
        why = f"it begins with {', '.join(begins or _URLS)}: the target keeps the positions"
        raise self.refusal("target.URL", url, why)

    # --- errors ---

    def origin(self, dotted: str, known: str | None = None) -> str:
        """Return where a key's value comes from, in a file with its line; the file for what nobody gave."""
        if known is None:
            known = self.given[dotted].origin if dotted in self.given else self.file
        line = self.lines.get(dotted) if known == self.file else None
        return known if line is None else f"{known}:{line}"

    @cached_property
    def lines(self) -> Mapping[str, int]:
        """The line of each key in the file. Statements are parsed one by one, since the parser tells no lines."""
        with open(self.file, "rb") as stream:
            return dict(_lines(stream.read().decode().replace("\r\n", "\n").split("\n")))

    def _at(self, dotted: str, origin: str | None = None) -> str:
        return f"{self.origin(dotted, origin)}: {dotted}"

    def refusal(self, dotted: str, value: object, why: str, *, origin: str | None = None) -> ConfigError:
        """Return the error for a key's value: origin, key, value, reason."""
        section, _, name = dotted.partition(".")
        name = name.partition(".")[0]
        key = self.keys.get(section, {}).get(name)
        others = [keys[name] for keys in self.keys.values() if name in keys] if key is None else [key]
        hidden = name in _HIDDEN or any(one.hidden for one in others)
        shown = "(hidden)" if hidden and value is not None else value
        return ConfigError(option=self._at(dotted, origin), value=shown, why=why)

    def _refusal(self, found: Any) -> ConfigError:
        """Say in our words what pydantic found first."""
        loc = list(found["loc"])
        if loc[0] == "filter" and len(loc) > 1:
            loc[:3] = [f"filter {loc[1] + 1}"]  # the third is the kind
        in_list = next((at for at, one in enumerate(loc) if isinstance(one, int)), len(loc))  # of an element: its key's
        depth = 2 if loc[0] in OPTIONAL or str(loc[0]).startswith("filter ") else in_list
        dotted = ".".join(map(str, loc[:depth]))
        value, kind = found.get("input"), found["type"]
        match kind:
            case "extra_forbidden":
                return self._unknown(loc, value)
            case "missing" | "union_tag_not_found":
                name = f"{dotted}.kind" if kind == "union_tag_not_found" else dotted
                return ConfigError(option=self._at(name), value=None, why="is missing and has no default")
            case "union_tag_invalid":
                dotted, value = f"{dotted}.kind", found["ctx"]["tag"]
                why = f"must be one of {', '.join(FILTERS)}"
            case "enum" | "literal_error":
                why = "must be one of " + found["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
            case "tuple_type" if dotted == "filter":
                value, why = None, "is a row of tables: [[filter]]"
            case "model_type" | "model_attributes_type":
                value, why = _without_text(value), f"is a table: [{dotted}]"
            case "dict_type":
                homes = [name for name, keys in self.keys.items() if loc[-1] in keys and name != loc[0]]
                why = f"is a table: [{dotted}]" + "".join(f"; or is [{name}] {loc[-1]} meant?" for name in homes)
            case "tuple_type":
                why = "a list of one or more texts, in brackets"
            case _:
                said = found["msg"].removeprefix("Value error, ")
                why = f"{said[:1].lower()}{said[1:]}"
        return self.refusal(dotted, value, why)

    def _unknown(self, loc: list[Any], value: object) -> ConfigError:
        dotted, name = ".".join(map(str, loc)), str(loc[-1])
        if len(loc) == 1:
            hint = _nearest(name, NAMES)
        elif (number := loc[0].removeprefix("filter ")) != loc[0]:
            row = self.in_file["filter"][int(number) - 1]
            hint = _nearest(name, [key.name for key in keys_of("filter", row["kind"])])
        else:
            homes = [f"[{other}]" for other, keys in self.keys.items() if name in keys and other != loc[0]]
            if homes:
                return self.refusal(dotted, value, f"unknown key; it belongs to {' or '.join(homes)}")
            hint = _nearest(name, list(self.keys[loc[0]]))
        origin = self.given[dotted].origin if dotted in self.given else None
        return ConfigError(option=self._at(dotted, origin), value=_without_text(value), why=f"unknown key; {hint}")


def _rank(found: Any) -> int:
    """Return which error is said first: a key too many, and of a list what is wrong in it, not that it is no word."""
    if found["type"] == "extra_forbidden":
        return 0
    return 2 if found["type"] == "literal_error" and isinstance(found["input"], list | tuple) else 1


def _nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}"


def _without_text(value: object) -> object:
    """Return a value for a message, its texts hidden: what a misspelt key or table holds may be a password."""
    match value:
        case str():
            return "(hidden)"
        case dict():
            return {key: _without_text(one) for key, one in value.items()}
        case list() | tuple():
            return [_without_text(one) for one in value]
    return value


def units_of(name: str) -> Mapping[str, float]:
    """Return the units that a key's value may have, by its name; none for one that counts neither time nor bytes."""
    return _SECONDS if name.endswith("_s") else _BYTES if "_bytes" in name else {}


def _quantity(text: str, units: Mapping[str, float]) -> int | float | None:
    """Return "1h 30m" or "64MiB" as a number of seconds or bytes, None for what is neither."""
    parts = _QUANTITY.findall(text)
    whole = "".join(match[0] for match in _QUANTITY.finditer(text)) == text.lstrip() and parts
    named = [unit.lower() for _, unit in parts]
    if not whole or not units.keys() >= set(named) or len(named) != len(set(named)):
        return None
    number = sum((float(count) * units[unit.lower()] for count, unit in parts), 0.0)
    return int(number) if number.is_integer() else number


def _typed(key: ConfigKey, text: str) -> Any:
    """Return a text of the environment as TOML has the value, unless the key is of texts."""
    if str in (key.hint, *typing.get_args(key.hint)) and typing.get_origin(key.hint) not in (tuple, dict):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _lines(rows: list[str]) -> Iterator[tuple[str, int]]:
    """Yield each key of a TOML text, dotted, and the line on which its statement begins."""
    table, at, counts = "", 0, dict[str, int]()
    while at < len(rows):
        found: Any = None
        end = at
        while found is None and end < len(rows):  # a statement may take several lines
            end += 1
            with suppress(ValueError):
                found = tomllib.loads("\n".join(rows[at:end]))
        header, value = rows[at].lstrip().startswith("["), found
        path = "" if header else table
        while isinstance(value, dict) and len(value) == 1:
            ((name, value),) = value.items()
            path = f"{path}.{name}" if path else name
            if not header:
                yield path, at + 1
        if header:
            if isinstance(value, list):
                yield path, at + 1
                counts[path] = counts.get(path, 0) + 1
                path = f"{path} {counts[path]}"
            table = path
            yield table, at + 1
        at = end


def read_toml(file: str) -> Values:
    """Return what a file holds. Raises ConfigError where it is missing, unreadable or no TOML."""
    try:
        with open(file, "rb") as stream:
            return tomllib.load(stream)
    except FileNotFoundError as exc:
        raise ConfigError(
            option=file, value=None, why="there is no such file; `tranlog init` writes one, --conf FILE names another"
        ) from exc
    except OSError as exc:
        raise ConfigError(option=file, value=None, why=f"cannot be read: {exc.strerror}") from exc
    except RecursionError as exc:
        raise ConfigError(option=file, value=None, why="is nested too deeply") from exc
    except ValueError as exc:  # TOML's own error, bytes that are no UTF-8, a number of thousands of digits
        raise ConfigError(option=file, value=None, why=f"is not TOML: {exc}") from exc

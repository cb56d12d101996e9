"""What is written of the configuration's model: the file of `tranlog init`, and the reference page.

Owns both forms. The hard idea: a commented key is a promise that it may be uncommented, so a test does that with each;
and what is written must work as it is for the embedded default.
"""

from __future__ import annotations

import enum
import json
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any, Final, get_args

from tranlog.pipeline.filters.filters import KINDS as FILTERS
from tranlog.service.config.sections import NAMES, ConfigKey, keys_of
from tranlog.source.kinds import KINDS, source_kind
from tranlog.target.options import EXAMPLES, TargetKind

if TYPE_CHECKING:
    from tranlog.service.config.reading import Reading

SOURCES: Final = tuple(KINDS)
TARGETS: Final = get_args(TargetKind)
_WIDTH: Final = 120
_LIVE: Final = (
    "service.name",
    "pipeline.channels",
    "source.host",
    "source.port",
    "source.user",
    "source.start",
)
"""Keys that are shown uncommented, besides those that are required."""

_HEAD: Final = """\
## tranlog: from a source database through a log to a target database.
## A key after one "#" is not set. Its value is the default, or an example if the end of its line says so.
## Relative paths count from this file's folder; times and sizes may have units: "30s", "64MiB". An environment
## variable overrides this file: TRANLOG_PIPELINE__CHANNELS=8. All of it: docs/configuration.md.
## Next: `tranlog capture` (source to log), `tranlog apply` (log to target), or `tranlog run` (both).
"""
_FILTER: Final = """
## What is left out, renamed, masked or delayed, in this order: docs/filters.md
# [[filter]]  # example; default: none
# kind = "exclude"
# tables = ["scratch.*"]
# statements = "pass"
"""


def template(*, service: str, source: str, target: TargetKind) -> str:
    """Return the text of a configuration file."""
    kind = source_kind(source)
    shown: dict[str, Mapping[str, Any]] = {
        "service": {"name": service},
        "shards": {"rule": kind.default_rule.value, **kind.shard_examples},
        "target": {"kind": target, **EXAMPLES[target]},
    }
    parts = [_HEAD]
    for name in NAMES:
        if name == "filter":
            parts.append(_FILTER)
            continue
        parts.append(f"\n[{name}]\n")
        for key in keys_of(name, source):
            if (target if name == "target" else source) in key.metadata.get("only", (source, target)):
                parts.append(_shown(key, shown.get(name, {}).get(key.name), service))
    return "".join(parts)


def _shown(key: ConfigKey, example: Any, service: str) -> str:
    """Return a key's lines; `example`: what to show rather than the model's own example."""
    live = key.dotted in _LIVE or key.default is MISSING or (key.section == "target" and key.name in ("path", "dsn"))
    if example is None:
        example = key.metadata.get("example")
    told = key.metadata.get("default", "" if key.default not in (None, "", (), {}) else "none")
    if told == "the service's name":
        value, note = service, "default"
    elif key.dotted == "shards.rule":
        value, note = example, "default"
    elif key.default is MISSING or (live and example is not None):
        value, note = example, ""
    elif told:
        value, note = example, f"example; default: {told}"
    else:
        value, note = key.default, "default"
    if len(choices := _choices(key.hint)) > 1 and note == "default":
        note += f"; or {', '.join(toml('', one) for one in choices if one != value)}"
    if "needs" in key.metadata:
        note += f"; with {key.metadata['needs']}"
    if "instead" in key.metadata:
        note += f"; instead of {key.metadata['instead']}"
    line = f"{key.name} = {toml(key.name, value)}"
    if key.name == "kind":
        return f"{line}\n"  # its values are obvious
    doc = _first(key.doc)
    if live and len(line) + len(doc) + 4 <= _WIDTH:
        return f"{line}  # {doc}\n"
    above = textwrap.fill(doc, _WIDTH, initial_indent="## ", subsequent_indent="## ")
    return f"{above}\n{line}\n" if live else f"{above}\n# {line}  # {note}\n"


def shown(read: Reading, *, service: str, source: str | None) -> Iterator[tuple[str, str, str]]:
    """Yield each key of a configuration with its value, as TOML, and its origin."""
    for name in NAMES:
        keys = () if name == "filter" or (name == "source" and source is None) else keys_of(name, source)
        for key in keys:
            given = read.given.get(key.dotted)
            told = key.metadata.get("default")
            if key.hidden and given is not None:
                value = "(hidden)"
            elif given is not None:
                value = toml(key.name, given.value)
            elif told == "the service's name":
                value = toml(key.name, service)
            elif key.default is None or key.default is MISSING or told:
                value = f"({told or 'none'})"
            else:
                value = toml(key.name, key.default)
            yield key.dotted, value, "default" if given is None else read.origin(key.dotted)
    for number, row in enumerate(read.in_file.get("filter", ()), start=1):
        for name, one in row.items():
            dotted = f"filter {number}.{name}"
            yield dotted, "(hidden)" if name == "salt" else toml(name, one), read.origin(dotted)


def _first(doc: str) -> str:
    """Return a meaning, of a long one the first sentence."""
    return doc if len(doc) <= 2 * _WIDTH else f"{doc.partition('. ')[0].rstrip('.')}."


def toml(name: str, value: object) -> str:
    """Return a value as TOML, sizes by their unit."""
    match value:
        case bool() | float():
            return json.dumps(value)
        case enum.Enum():
            return json.dumps(value.value)
        case int():
            for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("MB", 10**6)):
                if "_bytes" in name and value and value % size == 0:
                    return f'"{value // size}{unit}"'
            return str(value)
        case tuple() | list():
            return "[" + ", ".join(toml(name, one) for one in value) + "]"
        case dict():
            return "{" + ", ".join(f"{json.dumps(at)} = {toml(name, one)}" for at, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


# --- the reference page ----------------------------------------------------------------------------------

_PAGE: Final = """\
# Configuration

Written by `TRANLOG_WRITE_DOCS=1 .venv/bin/pytest tests/service/test_template.py` from the model that reads it.

A configuration is `tranlog.toml` in the working directory, or what `--conf` or `--service` name. `tranlog init` writes
one, `tranlog config check` reads it and starts nothing, `tranlog config show --origin` prints each value and where it
came from, `tranlog config schema` prints the JSON schema for editors.

A value comes from the first of these that gives it:

1. the command line: `--channels 8`
2. the environment: `TRANLOG_PIPELINE__CHANNELS=8`, section and key with two underscores between them
3. a folder of secrets, which `TRANLOG_SECRETS_DIR` names: a file `source__password` holds the value
4. the file
5. the default

In the environment and in secrets a text is written without quotes; everything else is written as in TOML. Keys with
time
(`_s`) are numbers of seconds or have units, `"1h 30m"` (ms, s, m, min, h, d); keys with `_bytes` are numbers of bytes
or have units (b, kb, mb, gb, kib, mib, gib). Relative paths count from the file's folder, `~` is the home folder.

A password or secret is given in one way: the key itself, `_file` or `_env`. Two of them together are an error, wherever
they come from, as are an unknown key, a variable of an unknown section, and two names of one option with different
values. Where a description says None, leave the key out. An error names origin, line, key, value and reason, and ends
the command with code 2; no message and no listing shows a value that is marked *hidden*. For the ancestors' names in
`[log]` and `URL` in `[target]` see docs/operations.md.
"""


def reference() -> str:
    """Return docs/configuration.md."""
    parts = [_PAGE]
    for name in NAMES:
        kinds: Mapping[str, object] = {"source": KINDS, "filter": FILTERS}.get(name, {"": None})
        for kind in kinds:
            table = f"[[{name}]]" if name == "filter" else f"[{name}]"
            parts.append(f"\n## {table}" + (f', kind = "{kind}"' if kind else "") + "\n\n")
            if name == "filter":
                parts.append(f"{' '.join((FILTERS[kind].__doc__ or '').split())}\n\n")
            parts.append("| key | value | default | |\n|---|---|---|---|\n")
            parts += [_row(key) for key in keys_of(name, kind)]
    return "".join(parts)


def _row(key: ConfigKey) -> str:
    if key.default is MISSING:
        default = "required"
    elif "default" in key.metadata or key.default in (None, "", (), {}):
        default = str(key.metadata.get("default", "none"))
    else:
        default = f"`{toml(key.name, key.default)}`"
    of = "targets" if key.section == "target" else "sources"
    only = f"Only for {of} of {' and '.join(key.metadata['only'])}. " if "only" in key.metadata else ""
    hidden = "*Hidden.* " if key.hidden else ""
    return f"| `{key.name}` | {_type(key)} | {default} | {only}{hidden}{key.doc} |\n".replace("  ", " ")


def _type(key: ConfigKey) -> str:
    """Return what a value may be, for people."""
    found = []
    for one in get_args(key.hint) if typing.get_origin(key.hint) in _UNIONS else (key.hint,):
        choices = _choices(one)
        found += [f"`{choice}`" for choice in choices]
        if not choices and one is not types.NoneType:
            found.append("path" if key.is_path else _WORDS.get(typing.get_origin(one) or one, "table"))
    if key.name.endswith("_s"):
        return "seconds"
    return "bytes" if "_bytes" in key.name else ", ".join(found)


def _choices(hint: Any) -> list[str]:
    """Return the values of a key that is one of a few."""
    if typing.get_origin(hint) is typing.Literal:
        return list(get_args(hint))
    if typing.get_origin(hint) in _UNIONS:
        return [one for part in get_args(hint) for one in _choices(part)]
    return [one.value for one in list[Any](hint)] if isinstance(hint, enum.EnumType) else []


_UNIONS: Final = (types.UnionType, typing.Union)
_WORDS: Final[Mapping[object, str]] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true, false",
    tuple: "list of texts",
}

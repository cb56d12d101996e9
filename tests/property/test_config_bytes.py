"""Mutated configuration files: every one is a configuration or an error that names the file.

The samples are what `tranlog init` writes, with every key switched on, for each source and target.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any, Final

import pytest

from fix_mutation import Fuzz
from tranlog.errors import ConfigError
from tranlog.service.config import reading as reading_module
from tranlog.service.config.config import Config, find_log, load, reading
from tranlog.service.config.template import SOURCES, TARGETS, template

SECRET: Final = "s3cr3t"
_KEY: Final = re.compile(r"^# ?(\w+ = .*)$", re.MULTILINE)
HOSTILE: Final = (
    b'[log]\ndir = "log"\nsegment_bytes = "9999999999999999999999999999999999999999gib"\n',
    b'[log]\ndir = "log"\nretention_s = "0.00000000000000000000000000000000001d"\n',
    b'[log]\ndir = "\\u0000"\n[source]\nkind = "sqlite"\npath = "\\uFFFF"\n',
    b'[log]\ndir = "log"\nretention_s = nan\n[pipeline]\nchannels = -9223372036854775809\nretry_s = inf\n',
    b'[log]\ndir = "log"\n[capture]\nbatch_s = 1e999\n[shards]\nchannels = {a = 18446744073709551616}\n',
    b'[log]\ndir = "log"\nbuffer_bytes = true\n[pipeline]\ngroup_s = 1e308\ngroup_bytes = "1e5gib"\n',
    b"[log]\ndir = 1979-05-27T07:32:00Z\n[[source]]\nkind = []\n",
    b'[service]\nname = "' + b"x" * 500 + b'"\n[log]\ndir = "~nobody/log"\n',
    b"a = " + b"[" * 90 + b"]" * 90 + b"\n",
    b"a = " + b"[" * 2000,
    b"a" + b".a" * 60 + b" = 1\n",
    b"x = 1" + b"0" * 6000 + b"\n",
    b'[target]\nkind = "postgres"\ndsn = "host=\'"\npassword = "s3cr3t\'c"\n[log]\ndir = "l"\n',
)


def samples() -> list[bytes]:
    found = [template(service="shop", source=source, target=target) for source in SOURCES for target in TARGETS]
    switched = [_KEY.sub(r"\1", text) for text in found]
    assert any(one != other for one, other in zip(found, switched, strict=True))
    # The comments would take most of the changes.
    bare = ["\n".join(line for line in text.splitlines() if not line.startswith("#")) for text in found + switched]
    return [text.encode() for text in bare] + list(HOSTILE)


class OneFile:
    """The configuration in memory, since a file written ten thousand times is what would take the time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw = b""

    def open(self, name: str, *args: Any, **named: Any) -> Any:
        return io.BytesIO(self.raw) if name == str(self.path) else open(name, *args, **named)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneFile:
    made = OneFile(tmp_path / "tranlog.toml")
    monkeypatch.setattr(reading_module, "open", made.open, raising=False)
    return made


def read(file: OneFile, raw: bytes) -> Config | None:
    file.raw = raw
    try:
        config = load(str(file.path), environ={"HOME": "/"})
    except ConfigError as exc:
        named, told = exc.option.startswith(str(file.path)), str(exc)
    else:
        named, told = True, ""
    assert named, told
    assert f'\npassword = "{SECRET}'.encode() not in raw or SECRET not in told, told
    if told:
        return None
    if config.target is not None:
        options = config.apply_options()
        options.check()
    return config


@pytest.mark.long
def test_configurations(fuzz: Fuzz, file: OneFile, tmp_path: Path) -> None:
    for name in ("source.password", "target.password"):
        (tmp_path / name).write_text(SECRET)
    given = samples()
    assert sum(read(file, raw) is not None for raw in given) >= len(SOURCES) * len(TARGETS)
    fuzz.samples(given, lambda raw: read(file, raw))


@pytest.mark.parametrize("raw", HOSTILE, ids=range(len(HOSTILE)))
def test_what_was_made_to_hurt(raw: bytes, file: OneFile) -> None:
    read(file, raw)


def test_what_thl_reads_of_it(fuzz: Fuzz, file: OneFile) -> None:
    """`thl` needs the log's directory alone, from whatever else is in the file."""

    def look(raw: bytes) -> None:
        file.raw = raw
        with contextlib.suppress(ConfigError):
            assert isinstance(reading(str(file.path), only=("service",)).read().service.name, str)
            assert isinstance(find_log(conf=str(file.path), service=None, directory=None), str)

    fuzz.samples(samples(), look, share=0.3)

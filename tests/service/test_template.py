"""What is written of the configuration's model: `tranlog init`, the schema, and docs/configuration.md."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tranlog.pipeline.filters.filters import KINDS as FILTERS
from tranlog.service.config.config import Config, load
from tranlog.service.config.reading import schema
from tranlog.service.config.sections import NAMES, ConfigKey, keys_of
from tranlog.service.config.template import SOURCES, TARGETS, reference, template
from tranlog.source.mariadb.connection import MariadbSourceOptions

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
SWITCHED = re.compile(r"^# (\[\[\w+\]\]|\w+ = [^#]*)", re.MULTILINE)
"""A key that is not set, and the example of a filter."""
NEEDS = {'rule = "map"': "rule", 'by = "key"': "by", 'by = "writes"': "by"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("source.password", "target.password", "spark.secret"):
        (tmp_path / name).write_text("hush\n")
    (tmp_path / "shard.list").write_text("shop=1\n")
    return tmp_path


def loaded(folder: Path, text: str) -> Config:
    (folder / "tranlog.toml").write_text(text)
    return load(str(folder / "tranlog.toml"), environ={"NAME": "hush"})


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", TARGETS)
def test_the_template_loads_as_it_is_and_with_every_key(source: str, target, folder: Path) -> None:
    """A commented key is a promise that it may be uncommented; of several ways to say one thing, one is."""
    text = template(service="shop", source=source, target=target)
    assert loaded(folder, text).service == "shop"
    kept = [line for line in text.split("\n") if not re.search(r"; with |; instead of those|= \"a (pass|sec)", line)]
    kept = [line for line in kept if "_env = " not in line]
    text, count = SWITCHED.subn(r"\1", "\n".join(kept))
    assert count > 40
    config = loaded(folder, text)
    assert "#" not in "".join(map(str, tomllib.loads(text)))
    assert (config.service, config.pipeline.name) == ("shop", "shop")
    assert config.log_dir == str(folder / "log")
    assert config.target is not None
    assert config.apply_options().channels == 4
    if target == "postgres":
        assert "password=hush" in config.target.dsn
    if source == "mariadb":
        assert isinstance(config.source, MariadbSourceOptions)
        assert config.source.password == "hush"
    assert config.pipeline.apply.engine.secret == "hush"
    assert "hush" not in repr(config)


@pytest.mark.long
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", TARGETS)
def test_each_line_is_a_default_or_an_example_and_says_which(source: str, target, folder: Path) -> None:
    """Uncommented by itself, a default changes nothing and an example does."""
    text = template(service="shop", source=source, target=target)
    before = loaded(folder, text)
    lines = text.split("\n")
    seen = {"default": 0, "example": 0}
    for at, line in enumerate(lines):
        if not SWITCHED.match(line) or any(row.startswith("# [[") for row in lines[max(0, at - 3) : at + 1]):
            continue
        now = [*lines[:at], line.removeprefix("# "), *lines[at + 1 :]]
        for needed, key in NEEDS.items():
            if line.endswith(f"; with {needed}"):
                now = [needed if row.startswith(f"# {key} = ") else row for row in now]
        found = re.search(r"  # (default|example)", line)
        assert found is not None, line
        same = loaded(folder, "\n".join(now)) == before
        assert same == (found[1] == "default") or line.startswith("# user = "), line  # a dsn may name it, too
        seen[found[1]] += 1
    assert seen["default"] > 30 and seen["example"] > 20


def every_key() -> Iterator[tuple[str, ConfigKey]]:
    """Yield each key with the kind of source or filter that it is of, "" for one of every kind."""
    for section in NAMES:
        for kind in {"source": SOURCES, "filter": tuple(FILTERS)}.get(section, ("",)):
            for key in keys_of(section, kind):
                yield kind, key


def test_every_key_of_the_model_is_in_the_page_the_schema_and_a_template() -> None:
    page = PAGE.read_text()
    sections = {part.split("\n")[0]: part for part in page.split("\n## ")[1:]}
    model = schema()["$defs"]
    written = {
        f"{source} {target}": template(service="shop", source=source, target=target)
        for source in SOURCES
        for target in TARGETS
    }
    count = 0
    for kind, key in every_key():
        assert key.doc or key.section == "filter", key.dotted
        table = f"[[{key.section}]]" if key.section == "filter" else f"[{key.section}]"
        title = f'{table}, kind = "{kind}"' if kind else table
        assert f"\n| `{key.name}` |" in sections[title], key.dotted
        assert key.name in model[f"{key.section}_{kind}" if kind else key.section]["properties"], key.dotted
        if key.section != "filter":
            found = re.compile(rf"^\[{key.section}\]\n(?:(?!\[).*\n)*?(?:# )?{key.name} = ", re.MULTILINE)
            texts = [text for name, text in written.items() if not kind or name.startswith(f"{kind} ")]
            assert any(map(found.search, texts)), key.dotted
        count += 1
    assert count > 120 and {key.section for _, key in every_key()} == set(NAMES)


def test_the_reference_page_is_the_models() -> None:
    """`TRANLOG_WRITE_DOCS=1` writes it again."""
    if os.environ.get("TRANLOG_WRITE_DOCS"):
        PAGE.write_text(reference())
    assert PAGE.read_text() == reference(), "run this test once with TRANLOG_WRITE_DOCS=1"


def test_the_schema_leaves_out_a_kind_whose_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tranlog.source.mariadb")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pymysql", None)
    found = schema()["$defs"]
    assert "source_mariadb" not in found and "source_sqlite" in found


def test_the_schema_knows_units_and_the_ancestors_names() -> None:
    found = schema()["$defs"]
    assert found["log"]["properties"]["segment_bytes"]["type"] == ["integer", "string"]
    assert {"type": "string"} in found["log"]["properties"]["retention_s"]["anyOf"]
    assert "logFileSize" in found["log"]["properties"]
    assert found["log"]["additionalProperties"] is False
    assert json.dumps(schema())

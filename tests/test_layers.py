"""The layers of ARCHITECTURE.md, held against what the modules import.

Every import statement of every module in src is read, not run. What only types need (under `TYPE_CHECKING`) counts
for the layers, since a layer that names another knows it, but not for cycles and purity, which are about run time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"

EVERYTHING = "everything"

# Layer: what it may import beside itself. ARCHITECTURE.md has the same table for people, and a test compares them.
MAY_IMPORT: dict[str, set[str]] = {
    "floor": set(),
    "log": {"floor"},
    "codecs": {"floor", "log", "source"},
    "source": {"floor"},
    "target": {"floor"},
    "capture": {"floor", "log", "source"},
    "replication": {"floor", "log"},
    "queues": {"floor", "log"},
    "pipeline": {"floor", "log", "codecs", "source", "target", "replication"},
    "service": {EVERYTHING},
    "testing": {EVERYTHING},
}

# Folders that stand in a layer of another name.
IN_LAYER = {"tungsten": "codecs"}

# What `codecs/` is there to hide: the bytes of our own log, and the ancestor's codec.
SEALED = ("tranlog.log.records", "tranlog.tungsten")
KNOW_NO_CODEC = ("capture", "pipeline", "service")

# Modules that stand in no folder and are no floor: the package's face names what others may use.
OUTSIDE_FOLDERS = {"tranlog": "service", "tranlog.__main__": "service", "pyspark_thl": "pipeline"}

ROOMS: dict[str, tuple[str, ...]] = {
    "log": ("records", "rules", "files", "reading", "writing", "upkeep"),
    "tungsten": ("records", "rules", "files", "reading", "writing", "upkeep"),
    "pipeline": ("rules", "filters", "applying", "spark", "datasource", "driving", "status", "upkeep"),
    "service": ("config", "frame", "show", "process", "upkeep", "thl", "commands"),
    "replication": ("rules", "acting"),
    "queues": ("rules", "files"),
    "amqp": ("protocol", "serving"),
}
"""The rooms of a folder: each imports itself and those before it. What stands beside them is bound by the layers."""
NOT_HERE_YET = {"amqp"}
"""Folders that have their place in the table before they are there."""
SPARK_ROOMS = {("pipeline", "spark"), ("pipeline", "datasource")}
"""The only ones that import pyspark."""
PURE_ROOMS = {"records", "rules", "filters", "protocol"}
"""Rooms whose modules decide and do not act, in whatever folder they are."""

# Modules in no such room that decide and do not act: time, chance, disk and network reach them as arguments.
PURE = {
    "tranlog.affinity",
    "tranlog.change",
    "tranlog.checksum",
    "tranlog.dml",
    "tranlog.errors",
    "tranlog.findings",
    "tranlog.gaps",
    "tranlog.header",
    "tranlog.ids",
    "tranlog.listing",
    "tranlog.loads",
    "tranlog.option_kinds",
    "tranlog.payload",
    "tranlog.raising",
    "tranlog.row_text",
    "tranlog.servers.identity",
    "tranlog.servers.mariadb_errors",
    "tranlog.servers.mariadb_rights",
    "tranlog.servers.mariadb_values",
    "tranlog.shard",
    "tranlog.slices",
    "tranlog.types",
    "tranlog.table_map",
    "tranlog.row_bytes",
    "tranlog.row_touches",
    "tranlog.value_ends",
    "tranlog.write_item",
    "tranlog.write_set",
    "tranlog.varint",
    "tranlog.lsn",
    "tranlog.words",
    "tranlog.verification",
    "tranlog.log.options",
    "tranlog.log.properties",
    "tranlog.pipeline.status.status",
    "tranlog.pipeline.status.view",
    "tranlog.target.binding",
    "tranlog.target.batches",
    "tranlog.target.related",
    "tranlog.target.dialect",
    "tranlog.target.edits",
    "tranlog.table_notes",
    "tranlog.target.recorded",
    "tranlog.target.sql_text",
    "tranlog.text_forms",
    "tranlog.target.sqlite_dialect",
    "tranlog.target.postgres_dialect",
    "tranlog.target.copy_lines",
    "tranlog.target.mariadb_dialect",
    "tranlog.target.mariadb_statements",
    "tranlog.source.sqlite.buffer",
    "tranlog.source.sqlite.bulk",
    "tranlog.source.sqlite.hook",
    "tranlog.source.sqlite.raw",
    "tranlog.source.sqlite.statement",
    "tranlog.charsets",
    "tranlog.source.mariadb.events",
    "tranlog.source.mariadb.groups",
    "tranlog.source.mariadb.position",
    "tranlog.source.mariadb.rows",
    "tranlog.ddl",
    "tranlog.sql_tokens",
    "tranlog.statements",
    "tranlog.table_edits",
    "tranlog.source.mariadb.types",
    "tranlog.source.mariadb.values",
    "tranlog.source.mariadb.wire",
    "tranlog.source.keyset",
    "tranlog.row_blocks",
    "tranlog.text_rows",
    "tranlog.source.packer",
    "tranlog.source.postgres.messages",
    "tranlog.source.postgres.position",
    "tranlog.source.postgres.rows",
    "tranlog.source.postgres.small",
    "tranlog.source.postgres.transactions",
    "tranlog.source.postgres.values",
    "tranlog.service.show.overview",
    "tranlog.service.show.screen",
    "tranlog.target.target",
}

DRIVERS = {"apsw", "sqlite3", "pymysql", "psycopg"}
"""What opens a database. No module of service/ imports one, nor a module that needs one."""

NOT_IN_PURE = {
    "tranlog.affinity",
    *("os", "io", "pathlib", "shutil", "tempfile", "mmap", "fcntl", "glob"),
    *("socket", "select", "selectors", "ssl", "http", "urllib"),
    *("random", "secrets", "time", "logging", "signal"),
    *("threading", "multiprocessing", "subprocess", "concurrent", "asyncio", "queue"),
    *DRIVERS,
    *("pyspark", "py4j"),
}
READS_THE_CLOCK = {"now", "utcnow", "today"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module, at one line."""

    name: str
    line: int
    only_types: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_modules() -> dict[str, str]:
    return {module_name(path): path.read_text() for path in sorted(SRC.rglob("*.py"))}


def layer_of(module: str) -> str:
    """Return the layer of a module of ours: its folder, or the floor for those that stand in none."""
    parts = module.split(".")
    if module in OUTSIDE_FOLDERS:
        return OUTSIDE_FOLDERS[module]
    folder = IN_LAYER.get(parts[1], parts[1]) if len(parts) > 1 else ""
    return folder if folder in MAY_IMPORT else "floor"


def room_of(module: str) -> tuple[str, str] | None:
    """Return the folder and the room in which a module stands; None for one in no room."""
    parts = module.split(".")
    if len(parts) > 2 and parts[2] in ROOMS.get(parts[1], ()):
        return parts[1], parts[2]
    return None


def knows_spark(module: str) -> bool:
    return module == "pyspark_thl" or room_of(module) in SPARK_ROOMS


def is_pure(module: str) -> bool:
    room = room_of(module)
    return module in PURE or (room is not None and room[1] in PURE_ROOMS)


def imports_of(source: str, modules: Mapping[str, str]) -> Iterator[Import]:
    """Find what a module imports: `from package import module` is an import of that module."""

    def visit(node: ast.AST, only_types: bool) -> Iterator[Import]:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(name=alias.name, line=node.lineno, only_types=only_types)
            case ast.ImportFrom(module=base, names=names, level=level):
                start = "." * level + (base or "")
                for alias in names:
                    full = f"{start}.{alias.name}"
                    yield Import(name=full if full in modules else start, line=node.lineno, only_types=only_types)
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                for statement in node.body:
                    yield from visit(statement, True)
                for statement in node.orelse:
                    yield from visit(statement, only_types)
            case ast.expr():
                pass  # holds no statement
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from visit(child, only_types)

    yield from visit(ast.parse(source), False)


def is_ours(name: str) -> bool:
    return name.partition(".")[0] == "tranlog"


def layer_problems(modules: Mapping[str, str]) -> list[str]:
    """Find imports that point up or sideways, relative ones, and PySpark outside pipeline/."""
    problems = []
    for module, source in modules.items():
        layer = layer_of(module)
        for imported in imports_of(source, modules):
            at = f"{module}:{imported.line}"
            if imported.name.startswith("."):
                problems.append(f"{at} has a relative import; name the module in full")
            elif imported.name.partition(".")[0] in ("pyspark", "py4j") and not knows_spark(module):
                problems.append(f"{at} imports {imported.name}; only two rooms of pipeline/ know Spark")
            elif is_ours(imported.name):
                below = layer_of(imported.name)
                if layer in KNOW_NO_CODEC and imported.name.startswith(SEALED):
                    problems.append(f"{at} imports {imported.name}; {layer}/ knows no codec")
                    continue
                if below == layer:
                    continue
                if below == "testing":
                    problems.append(f"{at} imports {imported.name}; nothing in src imports testing/")
                elif not MAY_IMPORT[layer] & {below, EVERYTHING}:
                    problems.append(f"{at} ({layer}) imports {imported.name} ({below})")
    return problems


def room_problems(modules: Mapping[str, str]) -> list[str]:
    """Find imports that point to a later room, a module that is in none, and rooms and pure modules that are not."""
    problems = []
    for module, source in modules.items():
        room = room_of(module)
        if room is None:
            continue
        folder, name = room
        order = ROOMS[folder]
        for imported in imports_of(source, modules):
            other = room_of(imported.name)
            if other is not None and other[0] == folder and order.index(other[1]) > order.index(name):
                problems.append(f"{module}:{imported.line} ({folder}/{name}) imports {imported.name}")
    for folder in ROOMS.keys() - NOT_HERE_YET:
        for name in ROOMS[folder]:
            if f"tranlog.{folder}.{name}" not in modules:
                problems.append(f"{folder}/{name} is in the table of rooms and not in src")
    problems += [f"{module} is in the list of pure modules and not in src" for module in sorted(PURE - modules.keys())]
    return problems


def purity_problems(modules: Mapping[str, str]) -> list[str]:
    """Find pure modules that touch the world, by an import, by `open`, by a clock, or by an impure module of ours."""
    problems = []
    for module in sorted(filter(is_pure, modules)):
        for imported in imports_of(modules[module], modules):
            if imported.only_types:
                continue
            top = imported.name.partition(".")[0]
            impure_of_ours = is_ours(imported.name) and not (is_pure(imported.name) or imported.name == "tranlog")
            if top in NOT_IN_PURE or impure_of_ours:
                problems.append(f"{module}:{imported.line} is pure and imports {imported.name}")
        for node in ast.walk(ast.parse(modules[module])):
            match node:
                case ast.Call(func=ast.Name(id="open")):
                    problems.append(f"{module}:{node.lineno} is pure and opens a file")
                case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=attr)):
                    if attr in READS_THE_CLOCK:
                        problems.append(f"{module}:{node.lineno} is pure and reads the clock")
                case _:
                    pass
    return problems


def knows_driver(name: str) -> bool:
    return name.partition(".")[0] in DRIVERS


def without_functions(source: str) -> str:
    """Return what a module runs when it is imported."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return ast.unparse(tree)


def database_problems(modules: Mapping[str, str]) -> list[str]:
    """Find modules of service/ that import a database's driver, a module that is of no use without one, or its folder.

    A module that imports a driver only inside a function serves other databases as well.
    """
    opening = {
        module
        for module, source in modules.items()
        if any(driver in source for driver in DRIVERS)
        and any(knows_driver(one.name) for one in imports_of(without_functions(source), modules))
    }
    opening |= {module.rpartition(".")[0] for module in opening if module.count(".") > 2}
    return [
        f"{module}:{one.line} imports {one.name}; service/ opens no database"
        for module in sorted(modules)
        if layer_of(module) == "service" and module != "tranlog"  # the package's face loads what it names when asked
        for one in imports_of(modules[module], modules)
        if one.name in opening or knows_driver(one.name)
    ]


def find_cycle(modules: Mapping[str, str]) -> list[str]:
    """Return one cycle of run-time imports, first module repeated at its end; empty when there is none."""
    edges = {
        module: sorted(
            {i.name for i in imports_of(source, modules) if not i.only_types and i.name in modules} - {module}
        )
        for module, source in modules.items()
    }
    done: set[str] = set()
    path: list[str] = []

    def walk(module: str) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        path.append(module)
        for below in edges[module]:
            cycle = walk(below)
            if cycle:
                return cycle
        path.pop()
        done.add(module)
        return []

    for module in sorted(edges):
        cycle = walk(module)
        if cycle:
            return cycle
    return []


def read_layer_table(text: str) -> dict[str, set[str]]:
    """Read the table of layers out of ARCHITECTURE.md, a row of several layers as several rows.

    What stands in parentheses is for people; "the floor" is the floor.
    """
    rows = re.search(r"^\| *layer *\| *may import *\|.*\n\|[-| :]+\n((?:\|.*\n?)+)", text, re.MULTILINE)
    if rows is None:
        return {}
    table = {}
    for row in rows[1].splitlines():
        cells = [re.sub(r"\([^)]*\)", "", cell).strip(" `") for cell in row.strip().strip("|").split("|")]
        names = [name.strip(" `/") for name in cells[0].split(",")]
        below = {re.sub(r"^the ", "", name.strip(" `/")) for name in cells[1].split(",")}
        for name in names:
            table[name] = below - {name}
    return table


@pytest.mark.long
def test_imports_point_down_the_layers() -> None:
    assert layer_problems(read_modules()) == []


@pytest.mark.long
def test_pure_modules_touch_nothing() -> None:
    assert purity_problems(read_modules()) == []


@pytest.mark.long
def test_rooms_import_those_before_them() -> None:
    assert room_problems(read_modules()) == []


@pytest.mark.long
def test_the_pipeline_knows_of_targets_what_all_have() -> None:
    """No SQL, no session: a target may keep rows in files. One imports a module only to have it before it forks."""
    known = {"tranlog.target.target", "tranlog.target.options"}
    modules = read_modules()
    found = {
        (module, imported.name)
        for module, source in modules.items()
        if layer_of(module) == "pipeline"
        for imported in imports_of(source, modules)
        if layer_of(imported.name) == "target" and imported.name not in known
    }
    assert found == {("tranlog.pipeline.spark.daemon", "tranlog.target.database")}


@pytest.mark.long
def test_service_opens_no_database() -> None:
    assert database_problems(read_modules()) == []


@pytest.mark.long
def test_a_process_is_reached_by_its_one_server() -> None:
    """Nobody listens beside it, and nobody asks it but by its client."""
    modules = read_modules()
    found = {
        module
        for module, source in modules.items()
        for imported in imports_of(source, modules)
        if not imported.only_types
        and imported.name.partition(".")[0]
        in ("starlette", "uvicorn", "httpx", "prometheus_client", "http", "socketserver")
    }
    assert found == {f"tranlog.service.process.{name}" for name in ("client", "metrics", "server")}


@pytest.mark.long
def test_no_module_imports_itself_by_a_detour() -> None:
    assert find_cycle(read_modules()) == []


def test_architecture_has_the_same_table() -> None:
    """ARCHITECTURE.md, "Layers": the table for people is the table that is enforced."""
    path = ROOT / "ARCHITECTURE.md"
    if not path.exists():
        pytest.skip("there is no ARCHITECTURE.md yet")
    assert read_layer_table(path.read_text()) == MAY_IMPORT


# That the checks above can fail.

CLEAN = {"tranlog": "", "tranlog.ids": "", "tranlog.log": "", "tranlog.log.aio": "from tranlog.ids import Seqno\n"}


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("tranlog.ids", "import tranlog.log.aio", "tranlog.ids:1 (floor) imports tranlog.log.aio (log)"),
        ("tranlog.ids", "from tranlog import log", "tranlog.ids:1 (floor) imports tranlog.log (log)"),
        ("tranlog.source.mariadb", "def f():\n    import tranlog.log", "tranlog.source.mariadb:2 (source) imports"),
        ("tranlog.capture.capture", "import tranlog.target.target", "(capture) imports tranlog.target.target"),
        ("tranlog.log.writing.log", "import pyspark.sql", "only two rooms of pipeline/ know Spark"),
        ("tranlog.pipeline.driving.apply", "import pyspark", "only two rooms of pipeline/ know Spark"),
        ("tranlog.log.writing.log", "from .format import x", "has a relative import"),
        ("tranlog.log.writing.log", "from . import format", "has a relative import"),
        ("tranlog.service.commands.cli", "from tranlog.testing import servers", "nothing in src imports testing/"),
        ("tranlog.service.commands.cli", "import tranlog.log.records.format", "service/ knows no codec"),
        ("tranlog.pipeline.driving.apply", "import tranlog.tungsten.source", "pipeline/ knows no codec"),
        (
            "tranlog.log.writing.log",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tranlog.source.source",
            "tranlog.log.writing.log:3 (log) imports tranlog.source.source (source)",
        ),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str, problem: str) -> None:
    assert layer_problems(CLEAN) == []
    problems = layer_problems({**CLEAN, "tranlog.testing.servers": "", module: source})
    assert len(problems) == 1
    assert problem in problems[0]


@pytest.mark.parametrize(
    "source",
    [
        "import os.path",
        "from time import monotonic",
        "def f():\n    import random",
        "open('x')",
        "datetime.now()",
        "date.today()",
        "import tranlog.clock",
        "from tranlog import disk",
    ],
)
def test_an_impure_pure_module_is_found(source: str) -> None:
    modules = {"tranlog.clock": "import time", "tranlog.disk": "import os", "tranlog.ids": source}
    assert len(purity_problems(modules)) == 1
    typed = f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {source}"
    if "import" in source and "def" not in source:
        assert purity_problems({**modules, "tranlog.ids": typed}) == []


def test_a_wrong_room_is_found() -> None:
    there = dict.fromkeys(PURE, "")
    for folder in ROOMS.keys() - NOT_HERE_YET:
        there |= dict.fromkeys([f"tranlog.{folder}.{name}" for name in ROOMS[folder]], "")
    assert room_problems(there) == []
    there["tranlog.tungsten.rules.a"] = "from tranlog.tungsten.reading import text"
    assert room_problems(there) == ["tranlog.tungsten.rules.a:1 (tungsten/rules) imports tranlog.tungsten.reading"]
    there["tranlog.tungsten.rules.a"] = "import tranlog.tungsten.records\nimport tranlog.ids"
    assert room_problems(there) == []
    assert purity_problems({"tranlog.tungsten.rules.a": "import os"}) == [
        "tranlog.tungsten.rules.a:1 is pure and imports os"
    ]
    del there["tranlog.ids"], there["tranlog.tungsten.upkeep"]
    assert room_problems(there) == [
        "tungsten/upkeep is in the table of rooms and not in src",
        "tranlog.ids is in the list of pure modules and not in src",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "import sqlite3",
        "def f():\n    from psycopg.conninfo import make_conninfo",
        "from tranlog.source.sqlite.opening import open_database",
        "from tranlog.source.sqlite import opening",
        "from tranlog.source.sqlite import SqliteSource",
    ],
)
def test_a_database_that_service_opens_is_found(source: str) -> None:
    modules = dict.fromkeys(["tranlog", "tranlog.source", "tranlog.source.kinds", "tranlog.source.sqlite"], "")
    modules["tranlog.source.sqlite.opening"] = "import apsw"
    modules["tranlog.target.options"] = "def open_target():\n    import psycopg"
    modules["tranlog.service.frame.a"] = "from tranlog.source import kinds\nimport tranlog.target.options"
    assert database_problems(modules) == []
    assert len(database_problems({**modules, "tranlog.service.frame.a": source})) == 1
    assert database_problems({**modules, "tranlog.target.sqlite": source}) == []


def test_a_cycle_is_found() -> None:
    modules = {
        "tranlog.a": "from tranlog import b",
        "tranlog.b": "def late():\n    import tranlog.c",
        "tranlog.c": "from tranlog.a import x",
        "tranlog": "",
    }
    assert find_cycle(modules) == ["tranlog.a", "tranlog.b", "tranlog.c", "tranlog.a"]
    modules["tranlog.c"] = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tranlog.a import x"
    assert find_cycle(modules) == []


def test_a_wrong_table_is_found() -> None:
    table = """
| layer | may import | must not know |
|---|---|---|
| floor | the floor | anything above |
| log | floor | who writes to it or reads it |
| codecs | floor, log, source | targets |
| `source`, `target` | floor | logs, nodes, Spark |
| capture | floor, log, source | targets, Spark |
| replication, queues | floor, log | each other, sources, targets |
| pipeline | floor, log, codecs, source, target, replication (as a subscriber) | queues |
| service | everything | |
| testing | everything | and nothing in src imports it |
"""
    assert read_layer_table(table) == MAY_IMPORT
    assert read_layer_table(table.replace("| capture | floor, log,", "| capture | floor,")) != MAY_IMPORT
    assert read_layer_table(table.replace("| testing | everything |", "| testing | floor |")) != MAY_IMPORT
    assert read_layer_table("no table") == {}

"""Rules of the house that no other program checks: names, sizes, docstrings, and documents that stay true.

Only what is really held stands in CONTRIBUTING.md as a rule, and the other way round.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"

MODULE_LINES_MAX = 900
EMPTY_NAMES = ("utils", "util", "manager", "helper", "helpers", "common", "impl", "misc")
DECISION_HEADINGS = ["Status", "Context", "Decision", "Consequences", "Reconsider when"]

# Tests, in folders that src has too, of what several modules do together: all others are named for a module.
SUBJECTS = {
    ".": "conformance_doc filters_doc format_doc layers programming tidy tiers",
    "capture": "bad_input crash_points full_disk slow_disk",
    "log": "bad_input ends failing_disk fork group_commit harm history memory processes shapes slow_disk state_machine"
    " windows",
    "queues": "bad_input fork",
    "pipeline": "filtered_channel lost_positions model mutants orders parallelization tungsten_log",
    "replication/acting": "bad_input lives page",
    "service": "bad_input spark_options views",
    "source/mariadb": "options",
    "source/sqlite": "fuzz",
    "target": "apply types_there_and_back",
    "tungsten": "bytes golden",
}

# What names the machine that somebody worked on. Written in pieces, so that this file passes its own test.
_FOLDERS = "|".join(("home", "root", "Users", "work", "opt", "tmp"))
OF_A_MACHINE = {
    "an absolute path of somebody's machine": re.compile(rf"(?<![\w.~$}}*?/])/(?:{_FOLDERS})/[\w.-]"),
    "a package index of somebody's own": re.compile(r"(?:index-url|find-links|trusted-host)[ =]+\S+:/|^deb +\S+:/"),
    "a private network address": re.compile(
        r"(?<![\w.])(?:10\.\d+|192\.168|169\.254|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}(?![\w.]\d)"
    ),
}
# Bytes and texts that the real ancestors produced are kept as they were.
AS_PRODUCED = ("tests/golden/",)


def tracked_files() -> list[str]:
    """Return the files that are in the repository or would be at the next commit."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0")
    return sorted(name for name in set(listed) if name and (ROOT / name).is_file())


def read_source() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(SRC.rglob("*.py"))}


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def read_pyproject() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def empty_names(names: list[str]) -> list[str]:
    """Find files and folders named for nothing in particular."""
    return [name for name in names if any(Path(part).stem.lower() in EMPTY_NAMES for part in Path(name).parts)]


def long_modules(modules: Mapping[str, str]) -> list[str]:
    return [name for name, text in modules.items() if text.count("\n") > MODULE_LINES_MAX]


def bare_definitions(modules: Mapping[str, str]) -> list[str]:
    """Find modules, public functions and public classes without a docstring. Overloads leave it to the last one."""
    bare = []
    for name, text in modules.items():
        tree = ast.parse(text)
        if ast.get_docstring(tree) is None:
            bare.append(name)
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            overload = any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)
            if not node.name.startswith("_") and not overload and ast.get_docstring(node) is None:
                bare.append(f"{name}:{node.lineno} {node.name}")
    return bare


def is_named_for(test: str, names: set[str]) -> bool:
    """Whether a test's name, without test_, is that of a module, alone or with what it is about after it."""
    words = test.split("_")
    return any("_".join(words[:count]) in names for count in range(1, len(words) + 1))


def of_a_machine(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        for what, pattern in OF_A_MACHINE.items():
            found = pattern.search(line)
            if found:
                yield f"{name}:{number}: {what}: {found[0]}"


def named_files(text: str) -> list[str]:
    """Return what a document names, in backquotes, as a file or a folder of the project."""
    quoted = re.findall(r"`([^`\s]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    looks_like_a_file = re.compile(r"^(?:[\w.*-]+/)+[\w.*-]*$|^[\w-]+\.(?:py|md|toml)$")
    return [name for name in quoted if looks_like_a_file.match(name)]


def missing_files(text: str) -> list[str]:
    """Find what a document names and the project does not have. A module may go without src/tranlog/ and .py."""
    missing = []
    for name in named_files(text):
        wanted = name.rstrip("/")
        tried = [start / (wanted + end) for start in (ROOT, SRC / "tranlog", SRC, ROOT / "docs") for end in ("", ".py")]
        if not any(path.exists() or any(path.parent.glob(path.name)) for path in tried):
            missing.append(name)
    return missing


def unknown_targets(text: str, targets: set[str]) -> list[str]:
    """Find `make x` in a document, in backquotes or at the start of a line of code, where there is no target x."""
    named = re.findall(r"(?:`|^ *)make ([a-z][a-z-]*)", text, re.MULTILINE)
    return sorted(set(named) - targets)


def test_no_file_is_named_for_nothing() -> None:
    assert empty_names(tracked_files()) == []


def test_no_module_is_too_long() -> None:
    assert long_modules(read_source()) == []


@pytest.mark.long
def test_whatever_is_public_has_a_docstring() -> None:
    assert bare_definitions(read_source()) == []


@pytest.mark.long
def test_no_tracked_file_names_a_machine() -> None:
    problems: list[str] = []
    for name in tracked_files():
        if name.startswith(AS_PRODUCED):
            continue
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue
        problems += of_a_machine(name, text)
    assert problems == []


def test_architecture_names_files_that_exist() -> None:
    path = ROOT / "ARCHITECTURE.md"
    if not path.exists():
        pytest.skip("there is no ARCHITECTURE.md yet")
    assert named_files(path.read_text()) != []
    assert missing_files(path.read_text()) == []


def test_decisions_are_complete_and_numbered() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [record.name[:5] for record in records] == [f"{number:04}-" for number in range(1, len(records) + 1)]
    for record in records:
        headings = re.findall(r"^## (.+)$", record.read_text(), re.MULTILINE)
        assert headings == DECISION_HEADINGS, record.name


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "docs/operations.md"])
def test_documents_name_targets_that_exist(document: str) -> None:
    path = ROOT / document
    if not path.exists():
        pytest.skip(f"there is no {document} yet")
    assert unknown_targets(path.read_text(), makefile_targets()) == []


def test_contributing_explains_every_target() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert [target for target in makefile_targets() if f"`make {target}`" not in text] == []


def test_every_library_has_its_range_its_version_and_its_reason() -> None:
    """What a user installs is a range, whose tested version is in constraints.txt; tools are pinned.

    Each library has its line in docs/decisions/0001-dependencies.md.
    """
    project = read_pyproject()["project"]
    assert isinstance(project, dict)
    extras = project["optional-dependencies"]
    tools = [one for name in ("bench", "dev") for one in extras[name]]
    used = [*project["dependencies"], *(one for name in extras for one in extras[name] if one not in tools)]
    constraints = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    record = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text()
    for requirement in [*used, *tools]:
        form = r"==[0-9.]+" if requirement in tools else r">=(?P<least>[0-9.]+),<[0-9.]+"
        parts = re.fullmatch(r"(?P<name>[A-Za-z0-9-]+)(?:\[[a-z,]+\])?" + form, requirement)
        assert parts is not None, f"{requirement}: not of the form {form}"
        name = parts["name"]
        assert f"`{name}`" in record, f"{requirement}: no line of reason in docs/decisions/0001-dependencies.md"
        if requirement in used:
            assert f"{constraints[name]}.".startswith(f"{parts['least']}."), f"{requirement}: not the tested version"


def test_what_is_no_module_is_in_the_package_too() -> None:
    """The `.proto` files, which docs/format.md names as shipped, among it."""
    tool = read_pyproject()["tool"]
    assert isinstance(tool, dict)
    patterns = tool["setuptools"]["package-data"]["*"]
    files = [path for path in (SRC / "tranlog").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    others = [path for path in files if path.suffix not in (".py", ".so")]
    assert {path.name for path in others} >= {"event.proto", "log4j2.properties", "py.typed"}
    assert [path.name for path in others if not any(path.match(one) for one in patterns)] == []
    assert [path for path in others if not (path.parent / "__init__.py").is_file()] == [], "its folder is a package"


def test_ci_runs_make_test_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["exec make test"]


def test_tests_are_named_for_a_module_or_a_subject() -> None:
    """In a folder that src has too, for a module in it or below it; CONTRIBUTING.md says of what the others are."""
    listed = {f"{folder}/test_{name}.py" for folder, names in SUBJECTS.items() for name in names.split()}
    subjects, others = set(), set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        test = path.relative_to(ROOT / "tests")
        folder = SRC / "tranlog" / test.parent
        if not folder.is_dir():
            others.add(test.parts[0])
            continue
        modules = folder.rglob("*.py") if test.parent.parts else folder.iterdir()
        if not is_named_for(test.stem.removeprefix("test_"), {module.stem for module in modules}):
            subjects.add(f"{test.parent}/{test.name}")
    assert subjects == listed
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert [one for one in sorted(others) if f"`tests/{one}`" not in text] == []


CLASS_LINES_MAX, CLASS_ATTRIBUTES_MAX = 400, 20
LARGE_CLASSES = {
    "GroupAssembler": "one transaction of a binlog, event by event",
    "Operation": "what operators in several threads wish, under one lock",
}
"""Classes that may be larger, and why."""


def large_classes(modules: Mapping[str, str]) -> set[str]:
    """Return the classes with more lines, or more attributes that they set on themselves, than one may have."""
    found = set()
    for text in modules.values():
        for one in ast.parse(text).body:
            if isinstance(one, ast.ClassDef):
                stored = (node for node in ast.walk(one) if isinstance(node, ast.Attribute))
                names = {
                    node.attr
                    for node in stored
                    if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
                }
                lines = (one.end_lineno or one.lineno) - one.lineno + 1
                if lines > CLASS_LINES_MAX or len(names) > CLASS_ATTRIBUTES_MAX:
                    found.add(one.name)
    return found


@pytest.mark.long
def test_no_class_is_too_large() -> None:
    assert large_classes(read_source()) == set(LARGE_CLASSES)
    attributes = "\n".join(f"        self.a{number} = 1" for number in range(21))
    assert large_classes({"a": f"class A:\n    def f(self):\n{attributes}\n"}) == {"A"}
    assert large_classes({"a": "class A:\n" + "    x = 1\n" * 400, "b": "class B:\n    x = 1\n"}) == {"A"}


def classes_twice(modules: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the modules of each public class whose name another one has."""
    found: dict[str, list[str]] = {}
    for module, text in modules.items():
        for name in re.findall(r"^class ([A-Z]\w*)", text, re.MULTILINE):
            found.setdefault(name, []).append(module)
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_public_class_name_stands_twice() -> None:
    assert classes_twice(read_source()) == {}
    assert classes_twice({"a": "class Run:\n", "b": "class Run(Base):\nclass _Run:\n"}) == {"Run": ["a", "b"]}


def test_folders_of_tests_are_no_packages() -> None:
    """Modules of one name in two folders are told apart by their path; an `__init__.py` would make them clash."""
    assert [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("__init__.py")] == []


# That the checks above can fail.


def test_an_empty_name_is_found() -> None:
    names = [
        "src/tranlog/log/utils.py",
        "tests/Helper/test_x.py",
        "src/tranlog/log/reading/cursor.py",
        "src/managers.md",
    ]
    assert empty_names(names) == names[:2]


def test_a_test_of_no_module_is_found() -> None:
    names = {"spill", "index_flush"}
    assert is_named_for("spill", names) and is_named_for("spill_memory", names) and is_named_for("index_flush", names)
    assert not is_named_for("index", names) and not is_named_for("memory", names) and not is_named_for("spilled", names)


def test_a_long_module_is_found() -> None:
    assert long_modules({"a": "\n" * 900, "b": "\n" * 901}) == ["b"]


def test_a_missing_docstring_is_found() -> None:
    text = '"""A module."""\ndef _private(): ...\ndef public(): ...\nclass Public: ...\n@overload\ndef one(): ...\n'
    assert bare_definitions({"m": text, "n": "x = 1\n"}) == ["m:3 public", "m:4 Public", "n"]


@pytest.mark.parametrize(
    "line",
    [
        f"path = '{os.sep}home/somebody/x'",
        f"see {os.sep}work/project",
        f"--find-links file:{os.sep}{os.sep}wheels",
        f"deb http:{os.sep}{os.sep}mirror bookworm main",
        ".".join(("connect to 192", "168", "4", "5")),
        ".".join(("10", "0", "3", "17:3306")),
    ],
)
def test_a_machine_is_found(line: str) -> None:
    assert len(list(of_a_machine("file", line))) == 1


@pytest.mark.parametrize(
    "line",
    ["apsw==3.54.1.0", "127.0.0.1:3306", "MariaDB 10.11.19", "$HOME/tmp/x", "tests/work/x", "https://x.org/home/y"],
)
def test_what_is_no_machine_is_let_pass(line: str) -> None:
    assert list(of_a_machine("file", line)) == []


def test_a_file_that_is_not_there_is_found() -> None:
    text = (
        "See `pyproject.toml`, `tests/test_tidy.py`, `testing/servers`, `docs/decisions/`, `testing/*.py`; not `a / b`."
    )
    assert len(named_files(text)) == 5
    assert missing_files(text) == []
    assert missing_files("`log/nowhere.py`, `nowhere.md`, `nowhere/*.py`") == [
        "log/nowhere.py",
        "nowhere.md",
        "nowhere/*.py",
    ]


def test_a_target_that_is_not_there_is_found() -> None:
    assert unknown_targets("run `make unit`, or\n    make nowhere\nto make do", {"unit"}) == ["nowhere"]

"""docs/replication.md: its configuration, its commands and its programs, as printed, in processes of their own.

The sections on TLS are `test_node_security.py`'s.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fix_live_group import LONG_S, events, eventually
from tranlog.change import Change, Column, Op, RowChange, TableMap
from tranlog.replication.acting.client import RemoteGroup, Satisfied
from tranlog.service.group_client import connect_group
from tranlog.testing.servers import free_port
from tranlog.types import LogicalType

PAGE = (Path(__file__).parents[3] / "docs" / "replication.md").read_text()
PRINTED = ("127.0.0.1:2112", "127.0.0.1:2113", "127.0.0.1:2114")
AS_PRINTED = {"a": "a", "b": "b", "c": "c"}


def section(title: str) -> str:
    """Return a section of the page."""
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def blocks(kind: str, title: str) -> list[str]:
    """Return the blocks of a kind in a section."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)


def commands(title: str) -> list[str]:
    """Return the commands in a section, without what is said of them."""
    return [line.partition(" #")[0].strip() for line in re.findall(r"^    \$ (.*)$", section(title), re.MULTILINE)]


class Processes:
    """The nodes of the page, in a folder of their own, and its commands given there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.at = dict(zip("abc", [f"127.0.0.1:{free_port()}" for _ in "abc"], strict=True))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (configuration,) = blocks("toml", "Setting one up")
        for name, address in self.at.items():
            text = configuration.replace("log-a", f"log-{name}").replace('node = "a"', f'node = "{name}"')
            assert PRINTED[0] in text
            (folder / f"{name}.toml").write_text(text.replace(PRINTED[0], address))

    def placed(self, text: str, names: Mapping[str, str] = AS_PRINTED) -> str:
        """Return what the page prints with the nodes' addresses here; `names` says which node is meant by each."""
        for name, printed in zip("abc", PRINTED, strict=True):
            text = text.replace(printed, self.at[names[name]])
        return text

    def give(self, command: str, names: Mapping[str, str] = AS_PRINTED) -> str:
        """Give a command of the page, say yes where it asks, and return what it prints."""
        text = re.sub(r"\b([abc])(?=\.toml| |$)", lambda found: names[found[1]], self.placed(command, names))
        assert text.startswith(("tranlog --conf ", "echo "))
        words = text if text.startswith("echo ") else f"{sys.executable} -m {text}"
        done = subprocess.run(
            words,
            shell=True,
            cwd=self.folder,
            input="y\n",
            capture_output=True,
            text=True,
            timeout=4 * LONG_S,
            check=False,
        )
        assert done.returncode == 0, f"{text}: {done.stdout}{done.stderr}"
        return done.stdout

    def run(self, name: str) -> None:
        """Run a node, and wait until it can be asked."""
        command = [sys.executable, "-m", "tranlog", "--conf", f"{name}.toml", "node", "run"]
        self.running[name] = subprocess.Popen(command, cwd=self.folder)
        eventually(lambda: self.is_well(name) or not (self.folder / f"log-{name}" / "group" / "commit").exists())

    def is_well(self, name: str) -> bool:
        """Whether a node is primary, replica or witness."""
        command = [sys.executable, "-m", "tranlog", "--conf", f"{name}.toml", "node", "status"]
        return subprocess.run(command, cwd=self.folder, capture_output=True, check=False).returncode == 0

    def kill(self, *names: str) -> None:
        """Kill nodes with -9."""
        for name in names:
            self.running[name].kill()
        for name in names:
            self.running.pop(name).wait()

    def end(self) -> list[int]:
        """Stop all nodes; return their exit codes."""
        for node in self.running.values():
            node.send_signal(signal.SIGTERM)
        return [node.wait(LONG_S) for node in self.running.values()]

    def client(self) -> RemoteGroup:
        """Return a program's side of the group."""
        return connect_group("thl://" + ",".join(self.at.values()), find_s=LONG_S)

    def primary(self) -> str:
        """Return the primary's name, by a client's word."""
        with self.client() as client:
            return client.primary()


def row(number: int) -> list[Change]:
    """Return a transaction that inserts a row."""
    column = Column(name="id", source_type="int", logical=LogicalType.INTEGER)
    table = TableMap(schema="shop", table="stock", columns=(column,), primary_key=(0,))
    return [RowChange(table=table, op=Op.INSERT, before=None, after=(number,))]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """The three nodes as "Setting one up" makes them."""
    found = Processes(tmp_path)
    try:
        for command in commands("Setting one up"):
            if command.endswith("node run"):
                name = command.split()[2][0]
                found.run(name)
                eventually((tmp_path / f"log-{name}" / "control" / ".node").exists)
            else:
                said = found.give(command)
        assert re.match("group shop, seen by b: primary [abc]", said) and len(found.running) == 3
        yield found
    finally:
        codes = found.end()
    assert set(codes) == {0}


def commit(client: RemoteGroup, number: int, w: int | str) -> None:
    """Commit a row, again until it is acknowledged."""
    while not isinstance(client.commit(row(number), w=w, wtimeout=LONG_S, event_id=f"e{number}"), Satisfied):
        pass


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_do_what_it_says(processes: Processes) -> None:
    """A group is made; what only a killed primary has is rolled back, shown, and committed again; a log is restored, a
    node that was wiped takes its place; one goes on alone by force."""
    with processes.client() as client:
        commit(client, 1, "majority")

    former, others = alone_at_its_primary(processes, 2)
    names = {"a": former, "b": others[0], "c": others[1]}
    for command in commands("Committing from Python"):
        if "discard" in command:
            program = blocks("python", "Committing from Python")[-1]
            assert "again.jsonl" in program
            done = [sys.executable, "-c", processes.placed(program)]
            told = subprocess.run(done, cwd=processes.folder, capture_output=True, text=True, check=True)
            assert told.stdout.startswith("Satisfied(gtid="), told.stdout
        said = processes.give(command, names)
        assert " show " not in command or "rid" in said, said
    assert "INSERT INTO" in (processes.folder / "again.sql").read_text()

    leads = processes.primary()
    source, wiped = [name for name in "abc" if name != leads]
    names = {"a": leads, "b": source, "c": wiped}
    for command in commands("A whole log of another node"):
        said = processes.give(command, names)
    assert said.startswith(f"node {wiped} of group shop is REPLICA")

    processes.running[wiped].terminate()
    assert processes.running.pop(wiped).wait(LONG_S) == 0
    shutil.rmtree(processes.folder / f"log-{wiped}")
    processes.run(wiped)
    eventually((processes.folder / f"log-{wiped}" / "control" / ".node").exists)
    for command in commands("A node that was wiped"):
        processes.give(command, names)
    with processes.client() as client:
        commit(client, 3, 3)

    processes.kill(source, wiped)
    plain, *_ = commands("When a majority is lost for ever")
    processes.give(plain, names)
    with processes.client() as client:
        assert client.primary() == leads
        commit(client, 4, "majority")
    assert sorted(set(events(processes.folder / f"log-{leads}"))) == ["e1", "e2", "e3", "e4"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_one_that_is_left_goes_on_with_another_write_concern(processes: Processes) -> None:
    """The default is one that it could not meet alone."""
    leads = processes.primary()
    left, *lost = sorted("abc", key=lambda name: name != leads)
    names = dict(zip("abc", [left, *lost], strict=True))
    (processes.folder / "group.json").write_text('{"w": 2}')
    processes.give("tranlog --conf a.toml group reconfigure group.json", names)
    processes.kill(*lost)
    _, *with_file = commands("When a majority is lost for ever")
    assert len(with_file) == 2
    for command in with_file:
        processes.give(command, names)
    with processes.client() as client:
        assert client.primary() == left
        assert isinstance(client.commit(row(1), wtimeout=LONG_S), Satisfied)


def alone_at_its_primary(processes: Processes, number: int) -> tuple[str, list[str]]:
    """Commit a row that only the primary has, kill it, have the others go on; return who it was, and the others."""
    while True:
        with processes.client() as client:
            former = client.primary()
            others = [name for name in "abc" if name != former]
            processes.kill(*others)
            answer = client.commit(row(number), w=1, event_id=f"e{number}")
        processes.kill(former)
        for name in others:
            processes.run(name)
        assert processes.primary() in others
        processes.run(former)
        if isinstance(answer, Satisfied):
            return former, others

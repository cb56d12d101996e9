"""docs/replication.md, "Setting one up": the page's files and commands, as printed, make a group that commits."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fix_live_group import LONG_S, eventually, words
from tranlog.replication.acting.client import Satisfied
from tranlog.service.group_client import connect_group
from tranlog.testing.servers import free_port

PAGE = Path(__file__).parents[3] / "docs" / "replication.md"
PRINTED = ("127.0.0.1:2112", "127.0.0.1:2113", "127.0.0.1:2114")


def setting_up() -> tuple[str, list[list[str]]]:
    """Return the configuration of node a, and the commands, each as its words."""
    section = PAGE.read_text().partition("## Setting one up\n")[2].partition("\n## ")[0]
    (configuration,) = re.findall(r"^```toml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^    \$ tranlog (.*)$", section, re.MULTILINE)
    return configuration, [shlex.split(line, comments=True) for line in lines]


@pytest.mark.slow
def test_the_commands_make_a_group_that_commits(tmp_path: Path) -> None:
    configuration, commands = setting_up()
    places = dict(zip(PRINTED, [f"127.0.0.1:{free_port()}" for _ in PRINTED], strict=True))
    for name, printed in zip("abc", PRINTED, strict=True):
        text = configuration.replace("log-a", f"log-{name}").replace('node = "a"', f'node = "{name}"')
        assert PRINTED[0] in text
        (tmp_path / f"{name}.toml").write_text(text.replace(PRINTED[0], places[printed]))
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for words_ in commands:
            command = [sys.executable, "-m", "tranlog", *[places.get(word, word) for word in words_]]
            if words_[-2:] == ["node", "run"]:
                nodes.append(subprocess.Popen(command, cwd=tmp_path))
                socket = tmp_path / f"log-{words_[1][0]}" / "control" / ".node"
                eventually(socket.exists)
                continue
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=4 * LONG_S
            )
            assert done.returncode == 0, f"{words_}: {done.stdout}{done.stderr}"
        assert done.stdout.startswith("group shop, seen by b: primary a") and len(nodes) == 3
        with connect_group("thl://" + ",".join(places.values()), find_s=LONG_S) as group:
            answer = group.commit(words("x"), w="majority", wtimeout=LONG_S)
            assert isinstance(answer, Satisfied)
            assert isinstance(group.ask(answer.gtid, w=3, wtimeout=LONG_S), Satisfied)
    finally:
        for node in nodes:
            node.send_signal(signal.SIGTERM)
        codes = [node.wait(LONG_S) for node in nodes]
    assert codes == [0, 0, 0]

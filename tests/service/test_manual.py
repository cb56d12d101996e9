"""Manual pages and shell completion."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from fix_effort import few_of
from tranlog.ids import Seqno
from tranlog.log.files.holds import hold
from tranlog.service.commands import cli
from tranlog.service.frame.manual import man_page
from tranlog.service.thl import thl

PAGES = Path(__file__).parents[2] / "docs" / "man"
PROGRAMS = {
    "thl": (thl.app, "look into a transaction log, check it, compare it, repair it"),
    "tranlog": (cli.app, "capture transactions into a durable log and apply them with a pipeline on Spark"),
}


@pytest.mark.parametrize("prog", PROGRAMS)
def test_the_pages_say_what_the_commands_say(prog: str) -> None:
    """`TRANLOG_WRITE_DOCS=1` writes them again."""
    app, summary = PROGRAMS[prog]
    page = man_page(app, prog=prog, summary=summary)
    path = PAGES / f"{prog}.1"
    if os.environ.get("TRANLOG_WRITE_DOCS"):
        path.write_text(page)
    assert path.read_text() == page, "run this test once with TRANLOG_WRITE_DOCS=1"


def test_every_command_and_option_has_its_place() -> None:
    page = (PAGES / "thl.1").read_text().replace("\\-", "-")
    group = typer.main.get_command(thl.app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert (f".SS {name}\n" in page) is not command.hidden
        for option in command.params:
            if not command.hidden and not option.hidden and option.param_type_name == "option":
                assert f"\\fB{option.opts[0]}\\fR" in page, (name, option.opts)
    assert "thl -dir log list -gtid 'GTID(1, 15)'" in page


@pytest.mark.long
@pytest.mark.parametrize(
    ("prog", "words", "offered"),
    few_of(
        [
            ("thl", ["thl", "list", "--tim"], {"--time", "--timezone"}),
            ("thl", ["thl", "ver"], {"verify"}),
            ("tranlog", ["tranlog", "cap"], {"capture"}),
        ]
    ),
)
def test_bash_completes(prog: str, words: list[str], offered: set[str], tmp_path: Path) -> None:
    """A real bash with the program's own script: `PROG --show-completion bash` prints it."""
    bash = shutil.which("bash")
    assert bash is not None
    module = "thl.thl" if prog == "thl" else "commands.cli"
    (tmp_path / prog).write_text(
        f"#!{sys.executable}\nimport sys\nfrom tranlog.service.{module} import main\nsys.exit(main())\n"
    )
    (tmp_path / prog).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = (
        f'eval "$({prog} --show-completion bash)"; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; '
        f'_{prog}_completion {prog}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run([bash, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert set(done.stdout.split()) == offered, done.stderr


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("status --name s", {"stores", "shards", "stages"}),
        ("wait --state ONL", {"ONLINE", "ONLINE:DEGRADED"}),
        ("tables create --from ", {"log", "source"}),
        ("--conf ", {"shop.toml"}),
        ("--service s", {"shop"}),
        ("hold drop p", set()),
        ("hold drop --dir log p", {"p1"}),
        ("--conf shop.toml hold drop ", {"p1", "q"}),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_values_are_completed(
    shell: str,
    line: str,
    offered: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the scripts of both shells are answered: views, states, configurations, services, and holds of the log."""
    (tmp_path / "log").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("p1", "q"):
        hold("log", name, Seqno(5))
    Path("shop.toml").write_text('[service]\nname = "shop"\n[log]\ndir = "log"\n')
    words = f"tranlog {line}"
    monkeypatch.setenv("_TRANLOG_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", words)
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        cli.main([])
    found = capsys.readouterr().out
    assert set(re.findall(r'"([^" ]+)"' if shell == "zsh" else r"(\S+)", found.replace("\\", ""))) == offered

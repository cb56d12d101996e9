"""scripts/install-packages finds what is there, and says exactly what to install where it cannot do so itself.

Proves issue A.1's "without root it says exactly what to install". That it installs for real is shown by
a fresh machine, not here: these tests change nothing on this one.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install-packages"
USES = ("bash", "env", "id", "sed", "awk", "head", "ls", "sort", "dirname", "getent", "grep", "cat")


class Machine:
    """A PATH that holds only what it is given; the script adds the folders of Debian's server programs to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in USES:
            found = shutil.which(name)
            assert found is not None
            (folder / name).symlink_to(found)

    def add(self, name: str, body: str) -> Path:
        program = self.folder / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        return program

    def add_java(self, version: str) -> Path:
        return self.add("java", f"echo 'openjdk version \"{version}\" 2026-01-01' >&2")

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(SCRIPT), *arguments],
            env={"PATH": str(self.folder), **environment},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("version", ["17.0.15", "17", "25-ea", "21.0.2+13"])
def test_a_java_of_17_or_newer_is_found(machine: Machine, version: str) -> None:
    machine.add_java(version)
    done = machine.run("--check", "java")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Java {version}" in done.stdout


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", "16-ea"])
def test_an_old_java_is_as_none(machine: Machine, version: str) -> None:
    machine.add_java(version)
    machine.add("apt-get", "exit 1")
    done = machine.run("--check", "java")
    assert done.returncode == 4
    assert f"Java {version} (java) is too old" in done.stdout
    assert done.stderr.endswith("apt-get install --no-install-recommends default-jre-headless\n")


def test_a_java_that_does_not_run_is_as_none(machine: Machine) -> None:
    machine.add("java", "echo 'error while loading shared libraries' >&2; exit 127")
    machine.add("apt-get", "exit 1")
    done = machine.run("--check", "java")
    assert done.returncode == 4
    assert "no working Java" in done.stdout


def test_java_home_goes_before_path(machine: Machine, tmp_path: Path) -> None:
    """Spark asks JAVA_HOME first: a wrong one cannot be mended by a package, so the message is about it."""
    machine.add_java("17.0.1")
    done = machine.run("--check", "java", JAVA_HOME=str(tmp_path / "nowhere"))
    assert done.returncode == 4
    assert f"JAVA_HOME names a Java that cannot be used: {tmp_path / 'nowhere'}. Unset it" in done.stderr
    home = tmp_path / "jdk" / "bin"
    home.mkdir(parents=True)
    shutil.move(machine.add_java("21.0.1"), home / "java")
    done = machine.run("--check", "java", JAVA_HOME=str(home.parent))
    assert done.returncode == 0
    assert "Java 21.0.1" in done.stdout


def test_without_root_one_command_names_all_that_is_missing(machine: Machine) -> None:
    machine.add("id", "echo 1000")
    machine.add("apt-get", "echo installed >&2; exit 1")
    machine.add("python3", "exit 1")
    done = machine.run("venv", "java")
    assert done.returncode == 4
    assert done.stderr == (
        "install-packages: missing: venv java. Run this as root, and start again: "
        "apt-get install --no-install-recommends python3-venv default-jre-headless\n"
    )


def test_without_debian_the_packages_are_named(machine: Machine) -> None:
    done = machine.run("--check", "java")
    assert done.returncode == 4
    assert "this is no Debian" in done.stderr
    assert "default-jre-headless" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("--check",), ("jawa",), ("java", "--check")])
def test_wrong_usage_is_told(machine: Machine, arguments: tuple[str, ...]) -> None:
    machine.add_java("17")
    done = machine.run(*arguments)
    assert done.returncode == 2
    assert "scripts/install-packages [--check] venv|compiler|java|mariadb|mariadb-test|postgres|sysbench" in done.stderr

"""`tranlog queue publish`, `get`, `peek`, `purge`: the messages of a store."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from fix_mail import Mail

COMMANDS = ("publish", "get", "peek", "purge", "declare", "delete", "bind", "unbind", "status")


@pytest.fixture
def mail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Mail:
    made = Mail(tmp_path / "mail", capsys)
    with made.open() as store:
        store.declare("a")
        store.declare("b")
        store.declare_exchange("events", "topic")
        store.bind("events", queue="b", key="new.#")
    return made


@contextmanager
def piped(raw: bytes) -> Iterator[BinaryIO]:
    """Return the reading end of a pipe that somebody else writes to."""
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "wb") as file:
            file.write(raw)

    writer = threading.Thread(target=write)
    writer.start()
    with open(reading, "rb") as file:
        yield file
    writer.join()


def test_a_message_goes_in_and_comes_out_once(mail: Mail) -> None:
    path = str(mail.path)
    code, out, _ = mail("publish", path, "two teas", "--queue", "a", "--queue", "b")
    assert code == 0
    assert mail("peek", path, "a")[1].split() == [
        "id",
        "bytes",
        "attempts",
        "begins",
        out.strip(),
        "8",
        "0",
        "two",
        "teas",
    ]
    assert mail("get", path, "a") == (0, "two teas", "")
    code, out, err = mail("get", path, "a")
    assert (code, out, err) == (1, "", "no message waits on a\n")
    assert mail.json("get", path, "a", code=1) == {"message": None}
    assert mail("get", path, "b")[1] == "two teas"
    assert mail.json("list", path)["queues"] == [
        {"name": "a", "waiting": 0, "transient": False},
        {"name": "b", "waiting": 0, "transient": False},
    ]


@pytest.mark.parametrize("how", ["argument", "file", "pipe", "redirected"])
@pytest.mark.parametrize("size", [0, 1, 200_000])
def test_a_body_of_any_size_comes_from_anywhere_and_goes_to_a_file(
    mail: Mail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, size: int
) -> None:
    raw = (bytes(range(1, 128)) * (size // 127 + 1))[:size]
    (tmp_path / "body").write_bytes(b"skipped" * (how == "redirected") + raw)
    words = {"argument": ["--", raw.decode()], "file": ["--file", str(tmp_path / "body")]}.get(how, [])
    with piped(raw) if how == "pipe" else open(tmp_path / "body", "rb") as file:
        if how == "redirected":
            file.seek(7)
        with io.TextIOWrapper(file) as stdin, monkeypatch.context() as patch:
            patch.setattr("sys.stdin", stdin)
            code, out, err = mail("publish", str(mail.path), "--queue", "a", *words)
    assert code == 0, err
    found = mail.json("get", str(mail.path), "a", "--output", str(tmp_path / "out"))["message"]
    assert (tmp_path / "out").read_bytes() == raw
    assert (found["bytes"], "body" in found) == (size, False)
    assert found["id"] == out.strip()


def test_a_body_comes_from_and_goes_to_what_is_no_regular_file(mail: Mail, tmp_path: Path) -> None:
    """A file without a size, and a pipe and a device, which take no sync: what has read the body is done with it."""
    assert mail("publish", str(mail.path), "--queue", "a", "--file", "/proc/version")[0] == 0
    raw = Path("/proc/version").read_bytes()
    assert mail("get", str(mail.path), "a", "--output", "/dev/null", "--requeue")[0] == 0
    os.mkfifo(tmp_path / "pipe")
    with os.fdopen(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        assert mail("get", str(mail.path), "a", "--output", str(tmp_path / "pipe"))[0] == 0
        assert reader.read() == raw
    assert mail.json("list", str(mail.path))["queues"][0]["waiting"] == 0


def test_what_is_no_text_is_base64_in_a_line_of_json(mail: Mail) -> None:
    with mail.open() as store:
        store.publish(b"\xff\x00", queues=["a"], header=b"head", priority=7)
        store.publish("Grüße".encode(), queues=["a"])
    first = mail.json("get", str(mail.path), "a")["message"]
    assert base64.b64decode(first["body_base64"]) == b"\xff\x00"
    assert (first["bytes"], first["priority"], first["redelivered"]) == (2, 7, True)
    assert mail.json("get", str(mail.path), "a")["message"]["body"] == "Grüße"


def test_what_is_published_with_a_message_comes_with_it(mail: Mail) -> None:
    path, words = str(mail.path), ("--header", "kind: tea", "--priority", "7", "--expires-in", "3600")
    assert mail("publish", path, "gone", "--queue", "a", "--expires-in", "0")[0] == 0
    assert mail("publish", path, "one", "--queue", "a", *words)[0] == 0
    assert mail("publish", path, "two", "--queue", "a")[0] == 0
    first, second = mail.json("peek", path, "a")["messages"]
    assert (first["header"], first["priority"], second["header"], second["expires_at_ms"]) == ("kind: tea", 7, "", None)
    assert first["expires_at_ms"] - first["stored_at_ms"] == pytest.approx(3_600_000, abs=60_000)
    found = mail.json("get", path, "a")["message"]
    assert {name: found[name] for name in ("body", "header", "expires_at_ms")} == {
        "body": "one",
        "header": "kind: tea",
        "expires_at_ms": first["expires_at_ms"],
    }
    for wrong in (("--priority", "256"), ("--expires-in", "-1"), ("--expires-in", "nan"), ("--expires-in", "inf")):
        assert mail("publish", path, "x", "--queue", "a", *wrong)[0] == 2, wrong


def test_a_message_left_is_next_again_and_counts_it(mail: Mail) -> None:
    path = str(mail.path)
    for body in ("one", "two"):
        mail("publish", path, body, "--queue", "a")
    assert mail.json("get", path, "a", "--requeue")["message"]["attempts"] == 0
    found = mail.json("get", path, "a", "--requeue")["message"]
    assert (found["body"], found["attempts"], found["redelivered"]) == ("one", 1, True)
    assert [(one["begins"], one["attempts"]) for one in mail.json("peek", path, "a")["messages"]] == [
        ("one", 2),
        ("two", 0),
    ]
    assert len(mail("peek", path, "a", "--count", "1")[1].splitlines()) == 2


def test_a_body_that_cannot_be_written_stays_on_its_queue(mail: Mail, tmp_path: Path) -> None:
    path = str(mail.path)
    mail("publish", path, "one", "--queue", "a")
    assert mail("get", path, "a", "--output", str(tmp_path / "no" / "where"))[0] == 4
    assert mail("get", path, "a", "--output", "/dev/full")[0] == 4
    assert mail("get", path, "a")[1] == "one"


def test_a_message_is_routed_or_told_not_to_be_stored(mail: Mail) -> None:
    path = str(mail.path)
    assert mail("publish", path, "x", "--exchange", "events", "--key", "new.tea")[0] == 0
    assert mail("publish", path, "y", "--key", "b")[0] == 0
    code, out, err = mail("publish", path, "x", "--exchange", "events", "--key", "old.tea")
    assert (code, out) == (1, "") and "leads to no queue" in err
    assert mail.json("publish", path, "x", "--exchange", "events", "--key", "old.tea", code=1) == {"id": None}
    assert [one["begins"] for one in mail.json("peek", path, "b")["messages"]] == ["x", "y"]


def test_purging_asks_and_empties_one_queue(mail: Mail, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(mail.path)
    mail("publish", path, "x", "--queue", "a", "--queue", "b")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert mail("purge", path, "a")[0] == 1
    assert mail.json("purge", path, "a", "-y") == {"purged": 1, "queue": "a"}
    assert mail("purge", path, "a")[1] == "took 0 messages off a\n"
    assert mail.json("list", path)["queues"] == [
        {"name": "a", "waiting": 0, "transient": False},
        {"name": "b", "waiting": 1, "transient": False},
    ]


def test_names_that_are_not_there_and_bad_words(mail: Mail, tmp_path: Path) -> None:
    path = str(mail.path)
    for words in (["get", path, "c"], ["peek", path, "c"], ["purge", path, "c", "-y"]):
        code, _, err = mail(*words)
        assert code == 1 and "there is no queue 'c'" in err
    assert mail("publish", path, "x", "--queue", "a", "--queue", "c")[0] == 1
    assert mail.json("peek", path, "a", code=1) == {"messages": []}
    assert mail("publish", path, "x", "--exchange", "c", "--key", "k")[0] == 1
    for words in (["x"], ["x", "--queue", "a", "--file", "f"], ["x", "--queue", "a", "--key", "k"]):
        assert mail("publish", path, *words)[0] == 2
    assert mail("publish", path, "x", "--exchange", "events", "--headers", "{")[0] == 2
    assert mail("publish", path, "--queue", "a", "--file", str(tmp_path / "nowhere"))[0] == 4
    assert mail("publish", str(tmp_path / "nowhere"), "x", "--queue", "a")[0] == 4


@pytest.mark.long
def test_a_store_that_another_process_holds_says_which(mail: Mail) -> None:
    path = str(mail.path)
    program = (
        "import sys; from tranlog.queues.store import MessageStore\n"
        "with MessageStore.open(sys.argv[1]): print('open', flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None and owner.stdout.readline() == "open\n"
        for words in (
            ["publish", path, "x", "--queue", "a"],
            *(["get", path, "a"], ["purge", path, "a", "-y"]),
            *(["declare", path, "c"], ["delete", path, "a", "-y"]),
            *(["bind", path, "events", "a"], ["unbind", path, "events", "b", "--key", "new.#"]),
        ):
            code, _, err = mail(*words)
            assert code == 4 and f"pid {owner.pid}" in err, (words, err)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_an_example(mail: Mail, command: str) -> None:
    code, out, _ = mail(command, "--help")
    assert code == 0 and f"tranlog queue {command} mail" in out and "--json" in out

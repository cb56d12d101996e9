"""Commands on a store that a process holds and serves go there, with the same words and exit codes: item 11."""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from fix_mail import Mail
from fix_sqlite_disk import SimVfs
from tranlog.errors import DiskFullError
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore
from tranlog.service.commands.queue_messages import _parts as read_parts
from tranlog.service.process.api import AnswerMessage, TakeMessage
from tranlog.service.process.operating import OperatingOptions, serve_store
from tranlog.service.process.store_part import StorePart
from tranlog.testing.disk import SimDisk

pytestmark = pytest.mark.long


@pytest.fixture
def mail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Mail:
    made = Mail(tmp_path / "mail", capsys)
    with made.open() as store:
        store.declare("a")
        store.declare("b")
        store.declare_exchange("events", "topic")
        for number in range(3):
            store.publish(b"%d" % number * 100, queues=["a"], header=b"h", priority=number)
        store.publish_once("till-3", 7, b"\xff", queues=["b"])
        for xid in (b"transfer 7", b"\xff"):
            session = store.session()
            session.tpc_begin(xid)
            session.publish(b"x", queues=["b"])
            session.tpc_prepare()
    return made


@pytest.fixture
def served(mail: Mail) -> Iterator[MessageStore]:
    with mail.open() as store, serve_store(store):
        yield store


COMMANDS = [
    ["list"],
    ["peek", "a", "--count", "2"],
    ["peek", "b"],
    ["peek", "nothing"],
    ["pinned"],
    ["producer", "list"],
    ["in-doubt", "list"],
    ["in-doubt", "commit", "transfer 7"],
    ["in-doubt", "rollback", "0xff"],
    ["in-doubt", "commit", "nobody's"],
    ["declare", "c"],
    ["declare", "a"],
    ["declare", "x" * 300],
    ["declare", "all", "--exchange", "fanout", "--alternate", "events"],
    ["declare", "events", "--exchange", "direct"],
    ["bind", "events", "c", "--key", "new.#"],
    ["bind", "all", "events", "--to-exchange"],
    ["bind", "events", "nothing"],
    ["unbind", "events", "c", "--key", "new.#"],
    ["unbind", "events", "c", "--key", "new.#"],
    ["publish", "two teas", "--queue", "a", "--queue", "c"],
    ["publish", "tea", "--exchange", "events", "--key", "new.tea"],
    ["publish", "tea", "--exchange", "events", "--key", "old.tea"],
    ["publish", "tea", "--exchange", "nothing", "--key", "k"],
    ["publish", "tea", "--queue", "c", "--priority", "3", "--header", "h", "--expires-in", "0"],
    ["publish", "tea", "--queue", "a", "--queue", "nothing"],
    ["publish", "--queue", "c", "--file", __file__],
    ["publish", "--queue", "c", "--file", "/nowhere/at/all"],
    ["get", "c", "--requeue"],
    ["get", "c"],
    ["get", "c", "--output", "/dev/full"],
    ["get", "c", "--output", "/nowhere/at/all"],
    ["get", "c"],
    ["get", "c"],
    ["get", "a"],
    ["get", "b", "--json"],
    ["get", "nothing"],
    ["purge", "a", "-y"],
    ["purge", "nothing", "-y"],
    ["producer", "remove", "till-3", "-y"],
    ["producer", "remove", "till-3", "-y"],
    ["delete", "b", "-y"],
    ["delete", "all", "--exchange"],
    ["delete", "nothing", "-y"],
    ["list"],
]


def told(answer: tuple[int, str, str]) -> tuple[int, str, str]:
    """Leave out of an answer how old a message is and where it stands, and that a later opening has redelivered it."""
    code, out, err = answer
    out = re.sub(r'"age_ms":\d+|\d+ s old|"stored_at_ms":\d+|\d+:\d+', "", out).replace(
        '"redelivered":true', '"redelivered":false'
    )
    return code, out, err


def test_each_command_says_the_same_by_the_process_and_by_the_files(
    mail: Mail, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On two copies of one store; errors too, but for what names the folder."""
    copy = Mail(tmp_path / "copy", capsys)
    shutil.copytree(mail.path, copy.path)
    with copy.open() as store, serve_store(store):
        for words in COMMANDS:
            count = 2 if words[0] in ("in-doubt", "producer") else 1
            for more in ([], ["--json"]) if words[-1] in ("list", "pinned", "a", "b") else ([],):
                by_files = mail(*words[:count], str(mail.path), *words[count:], *more)
                by_owner = mail(*words[:count], str(copy.path), *words[count:], *more)
                assert told(by_owner) == told(by_files), words


def test_how_a_store_stands_is_told_by_its_process(mail: Mail, served: MessageStore) -> None:
    """What only it knows is in it."""
    delivery = served.get("a")
    assert delivery is not None
    assert mail.json("list", str(mail.path))["queues"][0] == {"name": "a", "waiting": 2, "transient": False}
    found = mail.json("status", str(mail.path))
    assert (found["syncs"], found["in_doubt"]) == (served.status().syncs, ["transfer 7", "0xff"])
    (standing,) = [one for one in found["queues"] if one["name"] == "a"]
    assert (standing["waiting"], standing["held"], standing["counts"]["delivered"]) == (2, 1, 1)
    assert re.search(r"^a +2 +1 +\d+ s +durable$", mail("status", str(mail.path))[1], re.MULTILINE)
    assert (found["recovered"]["epoch"], found["recovered"]["clean"]) == (served.recovered.epoch, True)


def test_a_new_store_is_said_to_be_one(mail: Mail, tmp_path: Path) -> None:
    """And not that it was closed badly."""
    with MessageStore.open(tmp_path / "new") as store, serve_store(store):
        assert "recovery: the store was made; 0 messages" in mail("status", str(tmp_path / "new"))[1]


def test_a_process_that_serves_nothing_is_named_and_what_only_looks_goes_on(mail: Mail) -> None:
    with mail.open() as store:
        assert mail.json("list", str(mail.path))["queues"][0] == {"name": "a", "waiting": 3, "transient": False}
        assert mail("peek", str(mail.path), "a")[0] == 0
        code, _, err = mail("purge", str(mail.path), "a", "-y")
        assert code == 4 and "held by another writer" in err
        assert store.queues()["a"] == (3, 0)


def test_a_socket_that_a_killed_process_left_is_passed_over(mail: Mail) -> None:
    """The file of a socket that no process listens on stays: a process that is killed does not remove it."""
    with mail.open() as store, serve_store(store) as server:
        (address,) = (door.path for door in server.doors)
    assert address is not None and Path(address).parent == mail.path / "control"
    Path(address).parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(address)
    with mail.open():
        assert mail.json("list", str(mail.path))["queues"][0]["waiting"] == 3
        assert mail("purge", str(mail.path), "a", "-y")[0] == 4


def test_a_binding_to_nothing_or_to_two_is_refused(served: MessageStore) -> None:
    with serve_store(served, OperatingOptions(control="127.0.0.1:0")) as server:
        url = f"http://{server.doors[0].address}/store"
        for body in ({"exchange": "events"}, {"exchange": "events", "queue": "a", "destination": "events"}):
            answer = httpx.post(f"{url}/bind", json=body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "ConfigError")
        assert httpx.post(f"{url}/peek", json={"queue": "a", "count": 0}).status_code == 400


def test_metrics_tell_of_each_queue_and_of_the_space(served: MessageStore) -> None:
    first, second = served.get("a"), served.get("a")
    assert first is not None and second is not None
    served.ack(first, wait=True)
    served.requeue(second)
    served.publish(b"more", queues=["a", "b"])
    served.publish(b"prices", queues=["b"], transient=True)
    held = served.get("b")
    assert held is not None
    with serve_store(served, OperatingOptions(metrics="127.0.0.1:0")) as server:
        url = f"http://{server.doors[0].address}"
        answer = httpx.get(f"{url}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        found = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
        status = served.status()

        def number(name: str, **labels: str) -> float:
            labels = {"store": served.path, **labels}
            told = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
            return float(found[f"tranlog_{name}{{{told}}}"])

        of_a: dict[str, float] = {
            "waiting_messages": 3,
            "held_messages": 0,
            "published_messages_total": 1,
            "delivered_messages_total": 2,
            "acknowledged_messages_total": 1,
            "requeued_messages_total": 1,
            "dropped_messages_total": 0,
        }
        assert {name: number(f"queue_{name}", queue="a") for name in of_a} == of_a
        assert number("queue_held_messages", queue="b") == 1
        assert number("queue_oldest_age_seconds", queue="a") >= 0
        assert number("store_in_doubt_transactions") == 2
        assert number("store_containers_in_use") == status.containers_in_use
        assert number("store_containers_free") == status.containers_free
        assert number("store_pinned_bytes") == status.pinned_bytes
        assert number("store_syncs_total") == status.syncs
        assert (number("store_transient_messages"), number("store_transient_bytes")) == (1, 406)
        assert httpx.post(f"{url}/store/purge", json={"name": "a"}).status_code == 403, "who comes here only reads"
        assert httpx.get(f"{url}/readyz").status_code == 200
        served.close()
        answer = httpx.get(f"{url}/readyz")
        assert answer.status_code == 503 and "closed" in json.dumps(answer.json()["reasons"])


def test_the_counts_are_those_of_what_happened(mail: Mail) -> None:
    with mail.open() as store:
        steps: list[tuple[str, Callable[[], object]]] = [
            ("published", lambda: store.publish(b"x", queues=["a"])),
            ("delivered", lambda: store.get("a")),
        ]
        for name, step in steps:
            before = store.status().queues["a"].counts
            step()
            after = store.status().queues["a"].counts
            assert getattr(after, name) == getattr(before, name) + 1
        with store.transaction() as transaction:
            delivery = store.get("a")
            assert delivery is not None
            transaction.ack(delivery)
            transaction.publish(b"y", queues=["a"])
        counts = store.status().queues["a"].counts
        assert counts is not None
        assert (counts.published, counts.delivered, counts.acknowledged) == (2, 2, 1)
        store.purge("a")
        store.tpc_rollback(b"transfer 7")
        store.tpc_commit(b"\xff")
        other = store.status().queues["b"].counts
        assert other is not None and other.published == 1
        assert store.status().queues["a"].counts == counts.__class__(
            published=2, delivered=2, acknowledged=1, dropped=3
        )


# --- content through the process -------------------------------------------------------------------------


@contextmanager
def over_tcp(store: MessageStore) -> Iterator[str]:
    """Serve a store at a port; give the address of its operations."""
    with serve_store(store, OperatingOptions(control="127.0.0.1:0")) as server:
        yield f"http://{server.doors[0].address}/store"


def wait_for(told: Callable[[], object], wanted: object) -> None:
    """Wait until it is told, for a minute at most."""
    until = time.monotonic() + 60
    while told() != wanted:
        assert time.monotonic() < until, told()
        time.sleep(0.01)


def test_an_answer_for_which_the_disk_has_no_room_leaves_the_message_to_its_connection() -> None:
    """Such answers free nothing: the messages before them stay on another queue."""
    disk = SimDisk()
    vfs = SimVfs(disk)
    options = QueueStoreOptions(container_bytes=12_288, ack_sync_s=None)
    store = MessageStore.open("/s", options=options, disk=disk, connect=vfs.connect)
    for name in ("a", "b", "c"):
        store.declare(name)
    store.publish(b"1", queues=["a"])
    for _ in range(300):
        store.publish(b"w", queues=["b", "c"], wait=False)
    disk.room = 0
    with suppress(DiskFullError):
        while True:
            store.publish(b"w", queues=["b", "c"])
    with suppress(DiskFullError):
        for _ in range(300):
            store.ack(*store.get_many("b", 1))
    part = StorePart(store)
    taken = part.take(TakeMessage(queue="a"))
    for _ in range(2):
        with pytest.raises(DiskFullError):
            part.answer(AnswerMessage(delivery=taken.head.delivery))
    assert store.queues()["a"] == (0, 1)
    taken.close()
    assert store.queues()["a"] == (1, 0)
    store._catalogue.close()
    vfs.unregister()


def test_who_goes_away_in_the_midst_of_a_message_leaves_it_on_its_queue(tmp_path: Path) -> None:
    """Before any of it is read, in the midst of it, and before it is answered."""
    with MessageStore.open(tmp_path / "s") as store, over_tcp(store) as url:
        store.declare("large")
        store.publish(b"x" * 10_000_000, queues=["large"])
        for count in range(3):
            with httpx.stream("POST", f"{url}/take", json={"queue": "large"}) as answer:
                parts = answer.iter_raw()
                for _ in range(count):
                    next(parts)
            wait_for(lambda: store.queues()["large"], (1, 0))
        with httpx.Client() as client:
            head, _, content = client.post(f"{url}/take", json={"queue": "large"}).content.partition(b"\n")
            assert store.queues()["large"] == (0, 1) and len(content) == 10_000_000
        wait_for(lambda: store.queues()["large"], (1, 0))
        answered = httpx.post(f"{url}/answer", json={"delivery": json.loads(head)["delivery"]})
        store.publish(b"small", queues=["large"])
        with httpx.Client() as client:
            for size in (10_000_000, 5, 10_000_000):  # another one of the same connection gives the former one back
                found = client.post(f"{url}/take", json={"queue": "large"}).content.partition(b"\n")[2]
                assert (len(found), store.queues()["large"]) == (size, (1, 1))
        assert (answered.status_code, answered.json()["error"]["type"]) == (409, "NotHeldError")
        assert json.loads(head)["message"]["attempts"] == 3


def test_the_document_says_where_content_goes(mail: Mail) -> None:
    with mail.open() as store, over_tcp(store) as url:
        paths = httpx.get(url.replace("/store", "/openapi.json")).json()["paths"]
    octets, binary = "application/octet-stream", {"schema": {"type": "string", "format": "binary"}}
    assert paths["/store/publish"]["post"]["requestBody"]["content"] == {octets: binary}
    assert paths["/store/take"]["post"]["responses"]["200"]["content"] == {octets: binary}
    assert "application/json" in paths["/store/take"]["post"]["requestBody"]["content"]


def test_what_is_held_goes_back_when_the_process_serves_no_more(mail: Mail) -> None:
    with mail.open() as store, httpx.Client() as client:
        with over_tcp(store) as url:
            assert client.post(f"{url}/take", json={"queue": "a"}).status_code == 200
            assert store.queues()["a"] == (2, 1)
        wait_for(lambda: store.queues()["a"], (3, 0))


def test_a_message_that_does_not_come_whole_is_not_there(mail: Mail) -> None:
    def broken() -> Iterator[bytes]:
        yield b'{"queues":["b"],"length":1000000}\n' + b"x" * 500_000
        raise RuntimeError("the client's own")

    with mail.open() as store, over_tcp(store) as url:
        before = store.queues()
        with pytest.raises(RuntimeError, match="own"):
            httpx.post(f"{url}/publish", content=broken())
        for head, status in (
            (b'{"queues":["b"],"length":3}\n' + b"x" * 4, 400),
            (b'{"queues":["b"],"length":3}\n', 400),
            (b'{"queues":["b"],"length":%d}\n' % (1 << 64) + b"x" * 500_000, 400),
            (b'{"queues":[],"length":3}\nabc', 400),
            (b'{"queues":["b"]}\n', 400),
            (b"no json", 400),
            (b"", 400),
            (b" " * 300_000, 413),
            (b'{"queues":["nothing"],"length":3}\nabc', 409),
        ):
            assert httpx.post(f"{url}/publish", content=head).status_code == status, head[:60]
        assert store.queues() == before
        wait_for(lambda: [one for one in store._core.state.messages.values() if not one.places], [])


def test_a_file_that_became_shorter_is_named(mail: Mail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the files and by the process; nothing is published."""
    file = tmp_path / "body"
    for served_there in (False, True):
        file.write_bytes(b"x" * 500_000)
        with ExitStack() as stack:
            if served_there:
                stack.enter_context(serve_store(stack.enter_context(mail.open())))
            patch = stack.enter_context(monkeypatch.context())
            patch.setattr("tranlog.service.commands.queue_messages._parts", lambda raw, length, path: parts(path))
            code, _, err = mail("publish", str(mail.path), "--queue", "b", "--file", str(file))
        assert code == 4 and "became shorter" in err and str(file) in err
    assert mail.json("list", str(mail.path))["queues"][1]["waiting"] == 1


def parts(path: str) -> Iterator[bytes]:
    """Read a file that somebody truncates meanwhile."""
    with open(path, "rb") as raw:
        found = read_parts(raw, 500_000, path)
        yield next(found)
        os.truncate(path, 1_000)
        yield from found


def test_what_is_transient_needs_a_process_that_goes_on(mail: Mail) -> None:
    path = str(mail.path)
    for words in (["declare", path, "t", "--transient"], ["publish", path, "x", "--queue", "a", "--transient"]):
        code, _, err = mail(*words)
        assert code == 2 and f"no process has {path} open" in err
    assert mail("declare", path, "t", "--transient", "--exchange", "fanout")[0] == 2
    with mail.open() as store, serve_store(store):
        assert mail.json("declare", path, "t", "--transient")["transient"] is True
        assert mail("publish", path, "x", "--queue", "t", "--queue", "a", "--transient") == (0, "0:0\n", "")
        assert mail("publish", path, "y", "--queue", "t")[1] == "0:0\n"
        assert mail("list", path)[1].splitlines()[-1].split() == ["t", "2", "transient"]
        assert "transient: 2 messages, which take 802 bytes" in mail("status", path)[1]
        assert (mail("get", path, "t")[1], mail("get", path, "t")[1]) == ("x", "y")
        assert mail("delete", path, "t", "-y")[0] == 0
        assert mail("declare", path, "a", "--transient")[0] == 3
        assert store.status().transient_messages == 1
    assert mail.json("list", path)["queues"][0]["waiting"] == 3


def test_a_copy_is_made_by_the_process(mail: Mail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the command names it; a directory that is there is refused, and a peer names a whole path."""
    monkeypatch.chdir(tmp_path)
    with mail.open() as store, over_tcp(store) as url:
        found = mail.json("backup", str(mail.path), "copy")
        assert (found["messages"], found["in_doubt"], found["directory"]) == (6, 2, "copy")
        assert mail("backup", str(mail.path), "copy")[0] == 2
        answer = httpx.post(f"{url}/back-up", json={"to": "copy"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "ConfigError")
        store.purge("a")
    assert mail("restore", "copy", "again")[0] == 0
    assert mail.json("list", "again")["queues"][0]["waiting"] == 3


SERVES = """
import resource, sys
from tranlog.queues.store import MessageStore
from tranlog.service.commands.queue_messages import _parts as read_parts
from tranlog.service.process.operating import serve_store
with MessageStore.open(sys.argv[1]) as store, serve_store(store):
    store.declare("q")
    print("open", flush=True)
    sys.stdin.readline()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("counting", flush=True)
    sys.stdin.readline()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, flush=True)
"""
COMMAND = """
import resource, sys
from tranlog.service.commands import cli
code = cli.main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def test_a_large_message_is_streamed_at_both_ends(tmp_path: Path) -> None:
    """In processes of their own: a message of 64 MB adds a few to either; small ones go first."""
    path, size = str(tmp_path / "s"), 64 << 20
    serves = subprocess.Popen(
        [sys.executable, "-c", SERVES, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(*words: str, give: str = os.devnull, take: str = os.devnull) -> int:
        with open(give, "rb") as stdin, open(take, "wb") as stdout:
            program = [sys.executable, "-c", COMMAND, "queue", *words]
            done = subprocess.run(program, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stderr)

    with serves:
        assert serves.stdin is not None and serves.stdout is not None
        assert serves.stdout.readline() == "open\n"
        small = [run("publish", path, "--queue", "q", "--file", __file__), run("get", path, "q")]
        print("count", file=serves.stdin, flush=True)
        assert serves.stdout.readline() == "counting\n"
        large, out = tmp_path / "large", tmp_path / "out"
        with open(large, "wb") as file:
            for number in range(size >> 16):
                file.write(hashlib.sha256(b"%d" % number).digest() * 2_048)
        most = [run("publish", path, "--queue", "q", give=str(large)), run("get", path, "q", take=str(out))]
        print("end", file=serves.stdin, flush=True)
        more = int(serves.stdout.readline())
    assert filecmp.cmp(large, out, shallow=False)
    assert more < 24 << 10, f"the process took {more >> 10} MB"
    assert all(one - other < 24 << 10 for one, other in zip(most, small, strict=True)), (small, most)

"""Commands on a store that a process holds and serves go there, with the same words and exit codes: item 11."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from fix_mail import Mail
from tranlog.queues.store import MessageStore
from tranlog.service.process.operating import OperatingOptions, serve_store

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
    """Leave out of an answer how old a message is, and that a later opening has made it a redelivered one."""
    code, out, err = answer
    out = re.sub(r'"age_ms":\d+|\d+ s old', "", out).replace('"redelivered":true', '"redelivered":false')
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
    assert mail.json("list", str(mail.path))["queues"][0] == {"name": "a", "waiting": 2}
    found = mail.json("status", str(mail.path))
    assert (found["syncs"], found["in_doubt"]) == (served.status().syncs, ["transfer 7", "0xff"])
    assert (found["recovered"]["epoch"], found["recovered"]["clean"]) == (served.recovered.epoch, True)


def test_a_process_that_serves_nothing_is_named_and_what_only_looks_goes_on(mail: Mail) -> None:
    with mail.open() as store:
        assert mail.json("list", str(mail.path))["queues"][0] == {"name": "a", "waiting": 3}
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

"""`tranlog queue declare`, `delete`, `bind`, `unbind`: what a message store has by name."""

from __future__ import annotations

import contextlib
import io
import socket
import uuid
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from fix_mail import Mail
from tranlog.errors import CatalogueError
from tranlog.queues.files.catalogue import Catalogue
from tranlog.queues.files.catalogue_postgres import PostgresCatalogue
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore
from tranlog.testing.servers import PostgresAddress


@pytest.fixture
def mail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Mail:
    """No store yet."""
    return Mail(tmp_path / "mail", capsys)


def test_declaring_makes_the_store_once_and_its_queues(mail: Mail) -> None:
    path = str(mail.path)
    code, out, err = mail("declare", path, "orders")
    assert (code, out) == (0, "declared the queue orders\n") and "made the store" in err
    assert mail("declare", path, "orders") == (0, "declared the queue orders\n", "")
    assert mail.json("declare", path, "events", "--exchange", "topic") == {
        "declared": "events",
        "exchange": "topic",
        "transient": False,
        "store_created": False,
    }
    assert mail.json("list", path) == {"queues": [{"name": "orders", "waiting": 0, "transient": False}]}
    code, _, err = mail("declare", path, "events", "--exchange", "fanout")
    assert code == 3 and "other properties" in err
    assert mail("declare", path, "x", "--exchange", "odd")[0] == 2
    assert mail("declare", path, "x", "--alternate", "events")[0] == 2
    assert mail("declare", str(mail.path / "no" / "parent"), "x")[0] == 4


@pytest.mark.parametrize("more", [(), ("--exchange", "topic")])
def test_a_name_that_none_can_have_is_a_wrong_word(mail: Mail, more: tuple[str, ...]) -> None:
    """The exit code was that of wrong data, after the store had been made."""
    for name, why in (("", "0 bytes"), ("é" * 128, "256 bytes"), ("\udcff", "is no UTF-8")):
        code, _, err = mail("declare", str(mail.path), name, *more)
        assert code == 2 and "cannot be declared: its name" in err and why in err
    assert not mail.path.exists()
    assert mail("declare", str(mail.path), "x" * 255, *more)[0] == 0


def test_a_binding_leads_and_does_not_when_it_is_gone(mail: Mail) -> None:
    path = str(mail.path)
    for words in (["orders"], ["events", "--exchange", "topic"], ["all", "--exchange", "fanout", "--alternate", "by"]):
        assert mail("declare", path, *words)[0] == 0
    assert mail("declare", path, "by", "--exchange", "headers")[0] == 0
    assert mail("bind", path, "events", "orders", "--key", "new.#")[1] == "bound events to orders, key 'new.#'\n"
    assert mail("bind", path, "all", "events", "--to-exchange")[0] == 0
    assert mail("bind", path, "by", "orders", "--headers", '{"kind": "order", "x-match": "any"}')[0] == 0
    with MessageStore.open(path) as store:
        assert store.route("all", "new.tea") == ["orders"]
        assert store.route("all", "old.tea") == []  # events took it, and has no binding for it
        assert store.route("by", "", {"kind": "order"}) == ["orders"]
        assert store.route("by", "", {"kind": "other"}) == []
    assert mail.json("unbind", path, "events", "orders", "--key", "new.#") == {
        "unbound": {"exchange": "events", "to": "orders", "key": "new.#"}
    }
    assert mail("unbind", path, "by", "orders", "--headers", '{"x-match": "any", "kind": "order"}')[0] == 0
    assert mail("unbind", path, "all", "events", "--to-exchange")[0] == 0
    with MessageStore.open(path) as store:
        assert store.route("events", "new.tea") == store.route("by", "", {"kind": "order"}) == []
    code, _, err = mail("unbind", path, "events", "orders", "--key", "new.#")
    assert code == 1 and "there is no binding" in err
    for words in (["bind", path, "nothing", "orders"], ["bind", path, "events", "nothing"]):
        assert mail(*words)[0] == 1
    assert mail("bind", path, "by", "orders", "--headers", "[1]")[0] == 2
    assert mail("bind", path, "by", "orders", "--headers", '{"x-match": "odd"}')[0] == 3


def test_deleting_asks_and_takes_messages_and_bindings_along(mail: Mail, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(mail.path)
    with mail.open() as store:
        store.declare("orders")
        store.declare_exchange("events", "fanout")
        store.bind("events", queue="orders")
        store.publish(b"tea", queues=["orders"])
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, _, err = mail("delete", path, "orders")
    assert code == 1 and "Delete the queue orders with 1 messages?" in err and "declined" in err
    assert mail.json("list", path)["queues"] == [{"name": "orders", "waiting": 1, "transient": False}]
    assert mail("delete", path, "orders", "-y") == (0, "deleted the queue orders with 1 messages\n", "")
    assert mail.json("list", path)["queues"] == []
    assert mail("publish", path, "x", "--exchange", "events")[0] == 1
    assert mail("delete", path, "events", "--exchange") == (0, "deleted the exchange events\n", "")
    for words in (["orders", "-y"], ["events", "--exchange"]):
        found = mail.json("delete", path, *words, code=1)
        assert (found["error"]["type"], found["error"]["exit_code"]) == ("UnknownQueueError", 1)


def test_a_new_store_has_the_sizes_that_were_asked_for_and_keeps_them(mail: Mail) -> None:
    path = str(mail.path)
    asked = ["--container-size", "524289", "--initial-containers", "6", "--max-write-buffers", "3"]
    assert mail("declare", "--store-dir", path, *asked, "orders")[0] == 0
    found = mail.json("status", path)
    assert found["container_bytes"] == 528_384
    assert found["containers_in_use"] + found["containers_free"] == 6
    code, out, err = mail("declare", "--store-dir", path, "--container-bytes", "1048576", "orders")
    assert (code, out) == (0, "declared the queue orders\n")
    assert err == f"{path} exists and keeps its containers, of 528384 bytes each, and how many it began with\n"
    assert mail("declare", path, "--initial-containers", "2", "b")[2] == err
    assert mail("declare", path, "b")[2] == ""
    found = mail.json("status", path)
    assert found["containers_in_use"] + found["containers_free"] == 6
    code, _, err = mail("declare", str(mail.path.parent / "huge"), "--container-size", str(1 << 40), "b")
    assert code == 2 and "container_bytes" in err and not (mail.path.parent / "huge").exists()
    for words in ([path], ["--store-dir", path], ["--store-dir", path, path, "b"], ["--initial-containers", "1", path]):
        assert mail("declare", *words)[0] == 2


def test_the_store_is_where_the_documents_options_say(mail: Mail) -> None:
    """Document, "Plugin Options": a folder of --data-dir; with --no-data-dir it must be given."""
    parent = mail.path.parent
    assert mail("declare", "--data-dir", str(parent), "orders")[0] == 0
    assert mail.json("list", str(parent / "queues")) == {
        "queues": [{"name": "orders", "waiting": 0, "transient": False}]
    }
    assert mail("declare", "--data-dir", str(parent), "--store-dir", str(mail.path), "b")[0] == 0
    assert mail.json("list", str(mail.path)) == {"queues": [{"name": "b", "waiting": 0, "transient": False}]}
    assert mail("declare", "--no-data-dir", "--store-dir", str(mail.path), "c")[0] == 0
    for words, named in (
        (["--no-data-dir", str(mail.path), "c"], "--store-dir"),
        (["--no-data-dir", "--data-dir", str(parent), "c"], "--data-dir"),
        (["--data-dir", str(parent), str(mail.path), "c"], "[DIR] NAME"),
        ([str(mail.path), "c", "--catalog", "mail"], "catalog"),
        ([str(mail.path), "c", "--connect", "mysql://x"], "connect"),
    ):
        code, _, err = mail("declare", *words)
        assert code == 2 and named in err


def test_a_server_that_is_away_is_no_damage(mail: Mail) -> None:
    """A script waits for it, and need not look at the data first."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        url = f"postgresql://127.0.0.1:{taken.getsockname()[1]}/mail"
        code, _, err = mail("declare", str(mail.path), "a", "--connect", url)
    assert code == 4 and "cannot be reached: connection failed" in err and "Start its server" in err


@pytest.mark.integration
def test_a_store_remembers_the_server_of_its_catalogue(mail: Mail, postgres: PostgresAddress) -> None:
    path, name = str(mail.path), f"mail_{uuid.uuid4().hex[:12]}"
    dsn = make_conninfo(postgres.dsn("postgres"), application_name="by hand")
    try:
        assert mail("declare", path, "orders", "--connect", dsn, "--catalog", name)[0] == 0
        assert mail("publish", path, "two teas", "--queue", "orders")[0] == 0
        assert mail.json("list", path) == {"queues": [{"name": "orders", "waiting": 1, "transient": False}]}
        assert mail.json("verify", path)["queues"] == 1
        kept = (mail.path / "catalogue.connect").read_text()
        assert f"dbname={name}" in kept and not (mail.path / "catalogue.db").exists()
        other = str(mail.path.parent / "other")
        code, _, err = mail("declare", other, "orders", "--connect", dsn, "--catalog", name)
        assert code == 3 and "catalogue was opened in epoch" in err
        assert not Path(other, "catalogue.connect").exists()
        assert mail("declare", other, "orders")[0] == 0
        code, _, err = mail("declare", other, "orders", "--connect", dsn, "--catalog", name)
        assert code == 3 and "a store has one catalogue" in err
        postgres.execute("update tranlog_queues.store set counter = 1", database=name)
        code, _, err = mail("list", path)
        assert code == 3 and "the catalogue is an older copy" in err
        postgres.execute(f'drop database "{name}" with (force)')
        code, _, err = mail("list", path)
        assert code == 3 and "does not exist" in err
    finally:
        postgres.execute(f'drop database if exists "{name}" with (force)')


@pytest.mark.integration
def test_a_password_is_used_and_not_kept(tmp_path: Path, postgres: PostgresAddress, postgres_database: str) -> None:
    connect = make_conninfo(postgres.dsn(postgres_database), password="secret")
    with MessageStore.open(tmp_path / "s", options=QueueStoreOptions(connect=connect)) as store:
        store.declare("a")
        assert "secret" not in repr(store._opened)
        with (
            contextlib.closing(PostgresCatalogue(connect)) as database,
            pytest.raises(CatalogueError, match="another process works on it"),
        ):
            Catalogue(database).load(None, 0)
    assert "password" not in (tmp_path / "s" / "catalogue.connect").read_text()

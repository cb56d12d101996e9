"""replication/acting/remote_log.py: a node's log read from afar is the log, and ends where the group has committed.

docs/replication.md, "Reading a node's log"; docs/protocol.md, "Readers".
"""

from __future__ import annotations

import errno
import re
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fix_fork import in_child
from fix_live_group import LONG_S, LiveGroup, events, eventually, live_group, words
from fix_tube import Tube
from tranlog.disk import OS_DISK
from tranlog.errors import ConfigError, HandshakeError, LogUnreadableError, NoNodeError, PurgedError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.reading.readable import ReadableLog
from tranlog.log.reading.reader import LogReader
from tranlog.replication.acting.client import Satisfied
from tranlog.replication.acting.links import Greeting, enter, greet
from tranlog.replication.acting.node import group_dir, lock_node
from tranlog.replication.acting.remote_log import ANSWER_S, RemoteLog, open_remote
from tranlog.replication.acting.state import StateFile
from tranlog.replication.rules.config import MAJORITY, ConfigId, GroupConfig, Member, NodeId
from tranlog.replication.rules.packets import FIRST_WITHIN_S, NO_GTID, REPLICA, Join, Welcome
from tranlog.replication.rules.stored import Stored
from tranlog.service.thl.thl import main as thl


def commit(group: LiveGroup, *texts: str, w: int | str = MAJORITY) -> Gtid:
    with group.client() as client:
        for text in texts:
            answer = client.commit(words(text), w=w, wtimeout=LONG_S, event_id=text)
            assert isinstance(answer, Satisfied)
    assert answer.gtid is not None
    return answer.gtid


def remote(group: LiveGroup, **options: object) -> RemoteLog:
    return open_remote(group.url, **{"find_s": LONG_S, "timeout": LONG_S, **options})  # type: ignore[arg-type]


@pytest.mark.long
def test_the_log_of_a_node_is_read_as_any_log(tmp_path: Path) -> None:
    """Range, headers, payloads, cursors, index, hash and batches are those of a reader beside the node."""
    with live_group(tmp_path, "a") as group:
        last = commit(group, "e1", "e2", "e3")
        with remote(group, consistency=f"at least {last}") as log, LogReader.open(str(tmp_path / "a")) as beside:
            held: ReadableLog = log
            assert held.keeps_holds
            assert log.node == "a" and log.range() == beside.range() and log.range().last_seqno == last.seqno
            assert log.history == beside.history and log.index() == beside.index()
            for seqno in range(last.seqno + 1):
                assert log.header(Seqno(seqno)) == beside.header(Seqno(seqno))
                assert log.payload(Seqno(seqno)) == beside.payload(Seqno(seqno))
                assert log.h(Seqno(seqno)) == beside.h(Seqno(seqno))
            assert log.header(Seqno(last.seqno + 1)) is None
            with log.cursor() as far, beside.cursor(committed_only=True) as near:
                batches = [list(one.batches(until=last.seqno, wait=False)) for one in (far, near)]
                assert batches[0] == batches[1] != []
            with pytest.raises(ConfigError, match="a node keeps none"):
                log.cursor(hold="mine")


@pytest.mark.long
def test_a_cursor_goes_on_with_what_is_committed_and_stops_before_the_rest(tmp_path: Path) -> None:
    with live_group(tmp_path) as group:
        before = commit(group, "before", w=3)
        primary = group.await_primary()
        with remote(group, prefer="primary", consistency=f"at least {before}") as log, log.cursor() as cursor:
            assert log.node == primary
            cursor.seek(before.seqno)
            assert cursor.next_header() is not None
            waiter = threading.Thread(target=commit, args=(group, "while it waits"))
            waiter.start()
            header = cursor.next_header(timeout_s=LONG_S)
            waiter.join()
            assert header is not None and header.event_id == "while it waits"
            others = [name for name in "abc" if name != primary]
            for name in others:
                group.stop(name)
            with group.client() as client:  # durable at the primary alone
                alone = client.commit(words("alone"), w=1, wtimeout=LONG_S, event_id="alone")
            if isinstance(alone, Satisfied):
                assert log.range().last_seqno < alone.gtid.seqno and cursor.next_header() is None
                with LogReader.open(str(tmp_path / primary)) as beside:
                    assert beside.range().last_seqno == alone.gtid.seqno, "who is beside the node sees it"


@pytest.mark.long
def test_which_node_is_read_and_how_far_it_must_be(tmp_path: Path) -> None:
    with live_group(tmp_path) as group:
        last = commit(group, "x", w=3)
        group.await_whole()
        primary = group.await_primary()
        for prefer, good in (("primary", {primary}), ("replica", set("abc") - {primary}), ("nearest", set("abc"))):
            with remote(group, prefer=prefer) as log:
                assert log.node in good
        with remote(group, consistency="latest", prefer="replica") as log:
            assert log.node == primary, "the primary alone can tell"
            assert log.range().last_seqno >= last.seqno
        with pytest.raises(NoNodeError, match=r"`at least GTID\(1000, 1\)` was not so within 0.2 s"):
            remote(group, consistency="at least GTID(1000, 1)", timeout=0.2)
        named = ", ".join(f"{name} is {'PRIMARY' if name == primary else 'REPLICA'}" for name in "abc")
        asked = 'replica was asked for, with tags [{"site":"elsewhere"}]'
        with pytest.raises(NoNodeError, match=re.escape(f"{asked}; no node fits: {named}.")):
            remote(group, prefer="replica", tags=[{"site": "elsewhere"}], find_s=0.1)
        for option, value in (("consistency", "at last"), ("consistency", "at least GTID(1)"), ("prefer", "any")):
            with pytest.raises(ConfigError):
                remote(group, **{option: value})


@pytest.mark.long
def test_a_large_transaction_is_read_in_pieces(tmp_path: Path) -> None:
    """One that spilled, whose fragments stand in files of their own."""
    with live_group(tmp_path, "a") as group, group.client() as client:
        big = [one for at in range(9) for one in words(f"{at}" * 500_000)]
        answer = client.commit(big, w=1, wtimeout=LONG_S, event_id="big")
        assert isinstance(answer, Satisfied)
        with remote(group, consistency=f"at least {answer.gtid}") as log, log.cursor() as cursor:
            cursor.seek(answer.gtid.seqno)
            assert cursor.next_header() is not None
            assert list(cursor.current().changes()) == big


@pytest.mark.long
def test_a_node_that_ends_is_one_error_and_another_is_read(tmp_path: Path) -> None:
    with live_group(tmp_path) as group:
        last = commit(group, "x", w=3)
        group.await_whole()
        with remote(group, consistency=f"at least {last}") as log:
            group.stop(log.node)
            eventually(lambda: log.lost)
            with pytest.raises(LogUnreadableError, match=r"ended\. Open the log again"):
                log.range()
            with remote(group, consistency=f"at least {last}") as other:
                assert other.node != log.node and other.range().last_seqno >= last.seqno


@contextmanager
def tube_to(group: LiveGroup, name: str) -> Iterator[Tube]:
    """A way to a node of a group with a commit, which can fall silent."""
    commit(group, "x")
    tube = Tube(group.options[name].listen)
    group.run(tube.open())
    try:
        yield tube
    finally:
        group.run(tube.close())


@pytest.mark.long
def test_a_node_that_falls_silent_is_given_up(tmp_path: Path) -> None:
    """docs/replication.md, "Reading a node's log": frozen, or gone without a word. A disk that hangs has longer."""
    with live_group(tmp_path, "a") as group, tube_to(group, "a") as tube:
        with open_remote(f"thl://{tube.address}", via={"a": tube.address}) as log, log.cursor() as cursor:
            cursor.seek(Seqno(log.range().last_seqno + 1))
            tube.silent = True
            begun = time.monotonic()
            with pytest.raises(LogUnreadableError, match=r"ended\. Open the log again"):
                cursor.next(1.0)
            assert time.monotonic() - begun < ANSWER_S / 2 and log.lost


@pytest.mark.long
def test_a_silent_node_is_tried_once_in_a_round(tmp_path: Path) -> None:
    """It stands first in the URL, and is one of the members, too; each try takes five seconds."""
    with live_group(tmp_path, "ab") as group, tube_to(group, "a") as tube:
        tube.silent = True
        begun = time.monotonic()
        with open_remote(f"thl://{tube.address},{group.options['b'].listen}", via={"a": tube.address}) as log:
            assert log.node == "b" and time.monotonic() - begun < 1.6 * FIRST_WITHIN_S


@pytest.mark.long
def test_what_was_purged_is_said_to_be(tmp_path: Path) -> None:
    with live_group(tmp_path, "a") as group:
        commit(group, "e1", "e2")
        thread = group.nodes["a"].thread
        assert thread is not None

        log = thread.log.log
        thread.call(lambda core: log.add_segment()).result(LONG_S)
        last = commit(group, "e3")
        thread.call(lambda core: log.purge(below=last.seqno)).result(LONG_S)
        with remote(group, consistency=f"at least {last}") as far, far.cursor() as cursor:
            assert far.range().first_seqno > 0
            with pytest.raises(PurgedError):
                cursor.seek(Seqno(0))


@pytest.mark.long
def test_a_reader_sees_the_logs_files_and_nothing_else(tmp_path: Path) -> None:
    """Not the node's vote, nor what lies outside; nothing can be written; files that stay open are few."""
    with live_group(tmp_path, "a") as group:
        commit(group, "x")
        (tmp_path / "secret").write_text("secret")
        with remote(group) as log:
            disk = log._node_disk
            root = "thl://a"
            assert (
                disk.exists(f"{root}/positions") and disk.exists(f"{root}/group") and "positions" in disk.list_dir(root)
            )
            for name in (
                "group/node",
                "../secret",
                "group/../../secret",
                ".hidden",
                "rollback/0",
                "/etc/hostname",
                "a\0b",
            ):
                with pytest.raises(OSError) as told:
                    disk.open(f"{root}/{name}")
                assert told.value.errno == errno.ENOENT, name
            for name in ("disk.unlink", "disk.make_dir", "disk.sync_dir", "disk.lock"):
                with pytest.raises(OSError) as told:
                    getattr(disk, name.partition(".")[2])(f"{root}/positions")
                assert told.value.errno == errno.EROFS
            with pytest.raises(OSError, match="files are open already"):
                _ = [disk.open(f"{root}/positions") for _ in range(1000)]
        commit(group, "y")
        assert events(tmp_path / "a") == ["x", "y"]


@pytest.mark.long
def test_thl_looks_into_a_nodes_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """list, tail, info, index as beside the node; what changes a log, or checks it, does not go there."""
    with live_group(tmp_path, "a") as group:
        last = commit(group, "e1", "e2")
        group.await_whole()

        def shown(*words: str) -> str:
            assert thl(words) == 0
            return capsys.readouterr().out

        for command in (
            "list",
            "list -headers -json",
            "list -gtid 'GTID(1, 1)'",
            "list -event e2",
            "tail -n 1",
            "index",
        ):
            split = [word.strip("'") for word in re.split(r" (?![^(]*\))", command)]
            far = shown("-node", group.url, *split)
            assert far == shown("-dir", str(tmp_path / "a"), *split) != ""
        assert f"max seq# = {last.seqno}\n" in shown("info", "-node", group.url)
        for command in ("verify", "purge", "repair"):
            assert thl(("-node", group.url, command)) == 2
            assert "-node" in capsys.readouterr().err
        assert thl(("-node", group.url, "-dir", "x", "info")) == 2
        assert thl(("-node", group.url, "-tls-ca", "x", "info")) == 2
        assert thl(("-node", "nowhere", "info")) == 2


@pytest.mark.long
def test_the_handshake_by_what_the_client_has(tmp_path: Path) -> None:
    """thl-internals, "EPOCH Numbers": the epoch of the client's last seqno is held against the node's log."""
    with live_group(tmp_path, "a") as group:
        commit(group, "e1", "e2")
        thread = group.nodes["a"].thread
        assert thread is not None
        log = thread.log.log
        thread.call(lambda core: log.add_segment()).result(LONG_S)
        last = commit(group, "e3", "e4")
        thread.call(lambda core: log.purge(below=Seqno(last.seqno - 1))).result(LONG_S)
        group.await_whole()
        first = Seqno(last.seqno - 1)
        epoch = last.epoch

        def wrong(seqno: int, theirs: int) -> str:
            return (
                "Client handshake failure: Client response validation failed: Log epoch numbers do not match: "
                f"client source ID=west-db2 seqno={seqno} server epoch number={epoch} client epoch number={theirs}"
            )

        missing = f"Client handshake failure: seqno 1 is not in this log, which holds {first} to {last.seqno}"
        for after, refused in (
            (last, ""),
            (Gtid(epoch, first), ""),
            (Gtid(Epoch(epoch + 7), last.seqno), wrong(last.seqno, epoch + 7)),
            (Gtid(Epoch(0), first), wrong(first, 0)),
            (Gtid(epoch, Seqno(first - 1)), ""),  # what follows is held, and not the one itself
            (Gtid(epoch, Seqno(0)), f"{missing}: client source ID=west-db2"),
            (Gtid(epoch, Seqno(last.seqno + 1)), ""),  # nothing so late yet
            (None, ""),  # nothing is held against anything
        ):
            if refused:
                with pytest.raises(HandshakeError, match=re.escape(refused)):
                    remote(group, name="west-db2", after=after)
            else:
                with remote(group, name="west-db2", after=after) as opened:
                    assert opened.range().last_seqno == last.seqno
        for event, found in (("e3", first), ("e4", last.seqno), ("e1", None), ("never", None)):
            if found is None:
                none = f"no transaction from seqno {first} to {last.seqno} has the event id '{event}': client source"
                with pytest.raises(HandshakeError, match=f"Client handshake failure: {none} ID=west-db2"):
                    remote(group, name="west-db2", after_event=event)
            else:
                with remote(group, name="west-db2", after_event=event) as opened:
                    assert opened.after == Gtid(epoch, Seqno(found)) and opened.range().last_seqno == last.seqno
        with pytest.raises(ConfigError, match="after says already"):
            remote(group, after=last, after_event="e3")
        welcome = joined(group, last=Gtid(Epoch(epoch + 7), last.seqno), force=True)
        assert welcome.last == last, "with --force nothing is held against anything"
        later = Gtid(Epoch(epoch + 7), Seqno(last.seqno + 1))
        with remote(group, name="west-db2", after=later) as opened:
            assert opened.range().last_seqno == last.seqno, "nothing so late is there"
            commit(group, "e5")
            with pytest.raises(HandshakeError, match=re.escape(wrong(later.seqno, epoch + 7))):
                eventually(lambda: opened.range().last_seqno > last.seqno)


@pytest.mark.long
def test_the_handshake_with_a_node_that_has_nothing_yet(tmp_path: Path) -> None:
    """Nothing is there to be held against: the transaction that comes in that place decides."""
    group = LiveGroup(tmp_path, "ab")
    try:
        members = tuple([Member(node=NodeId(name), name=name, address=group.options[name].listen) for name in "ab"])
        config = GroupConfig(group="5a" * 16, id=ConfigId(0, 1), members=members)
        for name in "ab":
            lock_node(group.options[name]).release()
            state = StateFile(OS_DISK, group_dir(group.options[name].dir))
            state.store(Stored(group=config.group, node=NodeId(name), config=config))
        group.start("a")
        eventually(lambda: group.nodes["a"].standing.state == REPLICA)
        with (
            remote(group, name="west-db2", after=Gtid(Epoch(99), Seqno(0))) as wrong,
            remote(group, name="west-db2", after=NO_GTID) as right,
        ):
            assert wrong.range().last_seqno == right.range().last_seqno == -1
            group.start("b")
            group.await_primary()
            last = commit(group, "e1", w=2)
            eventually(lambda: right.range().last_seqno == last.seqno)
            words_of_it = "Log epoch numbers do not match: client source ID=west-db2 seqno=0 server epoch number="
            with pytest.raises(HandshakeError, match=words_of_it):
                wrong.range()
    finally:
        group.close()


@pytest.mark.long
def test_a_role_that_is_preferred_is_waited_for(tmp_path: Path) -> None:
    with live_group(tmp_path, "a") as group, ThreadPoolExecutor() as pool:
        for prefer_s in (0.0, 0.1):
            with remote(group, prefer="replicaPreferred", prefer_s=prefer_s) as log:
                assert log.node == "a", "in the end another role will do"
        found = pool.submit(remote, group, prefer="replicaPreferred", prefer_s=LONG_S)
        group.add("d", votes=0, priority=0)
        with found.result() as log:
            assert log.node == "d"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"heartbeat_ms": 0}, "Heartbeat interval must be greater than 0: client source ID=west-db2"),
        ({"heartbeat_ms": -1}, "Heartbeat interval must be greater than 0: client source ID=west-db2"),
        ({"purpose": "write"}, "there is no purpose 'write'"),
        (
            {"versions": (99, 100)},
            "node a speaks protocol versions 1 to 2, and west-db2 protocol versions 99 to 100",
        ),
        ({"versions": ()}, "speaks protocol versions 1 to 2, and west-db2 no version of the protocol"),
        ({"purpose": "vote", "group": "00" * 16}, "you are of the group 0000"),
        ({"purpose": "vote", "node_name": "a"}, "there is another node a in the group"),
        ({"purpose": "vote", "heartbeat_ms": 0}, "Heartbeat interval must be greater than 0"),
    ],
)
def test_the_handshake_by_who_the_client_is(changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    with live_group(tmp_path, "a") as group, pytest.raises(HandshakeError, match=why):
        joined(group, **changed)


def joined(group: LiveGroup, /, **changed: Any) -> Welcome:
    """Come to node a as a client; return its welcome."""
    given = {
        "node": NodeId("x"),
        "node_name": "west-db2",
        "purpose": "read",
        "versions": (1, 1),
        "config": ConfigId(),
        "last": NO_GTID,
        "heartbeat_ms": 1000,
    }

    async def join() -> Welcome:
        greeting = Greeting()
        wire, _ = await greet(group.options["a"].listen, greeting, None)
        welcome = await enter(wire, greeting, Join(**{**given, **changed}))
        wire.cut()
        return welcome

    return group.run(join())


@pytest.mark.long
def test_who_waits_for_what_was_rolled_back_is_told(tmp_path: Path) -> None:
    """At least what this program has written: the seqno is there again, and another transaction."""
    with live_group(tmp_path) as group:
        commit(group, "kept")
        group.await_whole()
        primary = group.await_primary()
        others = [name for name in "abc" if name != primary]
        for name in others:
            group.stop(name)
        lost = commit(group, "lost", w=1)
        group.stop(primary)
        for name in others:
            group.start(name)
        group.await_primary()
        new = commit(group, "after 1", "after 2")
        assert new.seqno > lost.seqno
        with pytest.raises(NoNodeError, match="was rolled back"):
            remote(group, consistency=f"at least {lost}")
        with group.client() as client:
            assert not client.wait(at_least=lost, timeout=LONG_S)
            assert client.wait(at_least=new, timeout=LONG_S) and client.wait(at_least=NO_GTID, timeout=LONG_S)


@pytest.mark.parametrize("given", [{"site": "x"}, "site", ["site"], [{"site": 1}], [{1: "x"}, {}]])
def test_what_are_no_sets_of_tags_is_refused_before_a_node_is_asked(given: Any) -> None:
    with pytest.raises(TypeError, match="tags are a list of sets of texts"):
        open_remote("thl://127.0.0.1:1", find_s=0.0, tags=given)


@pytest.mark.long
def test_a_forked_child_has_to_open_the_log_for_itself(tmp_path: Path) -> None:
    with live_group(tmp_path, "a") as group:
        last = commit(group, "x")
        with remote(group, consistency=f"at least {last}") as log:

            def child() -> None:
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    with pytest.raises(LogUnreadableError, match="Open the log again"):
                        log.range()
                    log.close()
                assert not said, "no question is begun that nobody answers"
                with remote(group) as own:
                    assert own.range().last_seqno == last.seqno

            in_child(child)
            assert log.range().last_seqno == last.seqno


@pytest.mark.parametrize("given", ["prefer", "consistency", "after", "after_event", "tls"])
def test_what_says_no_wish_is_refused_before_a_node_is_asked(given: str) -> None:
    with pytest.raises(TypeError, match=f"{given} is of the type"):
        open_remote("thl://127.0.0.1:1", find_s=0.0, **{given: 7})  # type: ignore[arg-type]


@pytest.mark.long
def test_a_node_that_is_gone_is_named_once(tmp_path: Path) -> None:
    """However many others name it."""
    with live_group(tmp_path, "abc") as group:
        gone = group.options["c"].listen
        group.stop("c")
        with pytest.raises(NoNodeError, match=r"no node fits: a is .*, c was not reached") as caught:
            remote(group, prefer="replica", tags=[{"site": "elsewhere"}], find_s=0.1)
        assert str(caught.value).count(f"; {gone}: ") == 1

"""replication/acting/restore.py, restoring.py: a node gets a whole log of another one. docs/replication.md."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from fix_effort import Effort
from fix_group import gtid
from fix_live_group import LONG_S, LiveGroup, differences, events, eventually, live_group, words
from fix_log import PATH
from fix_replicated import bring, copied, cut_everywhere, follow, reign
from tranlog.change import Statement
from tranlog.disk import OS_DISK, Disk, DiskFile
from tranlog.errors import ConfigError, DiskFailedError, GroupOrderError, LogReplacedError, LogUnreadableError
from tranlog.ids import Seqno
from tranlog.log.files.directory import RESTORING_NAME
from tranlog.log.files.holds import drop_hold, read_holds
from tranlog.log.reading.reader import LogReader
from tranlog.log.upkeep.verify import verify
from tranlog.replication.acting import restore
from tranlog.replication.acting.client import Satisfied
from tranlog.replication.acting.following import NodeLog
from tranlog.replication.acting.remote_log import open_remote
from tranlog.replication.acting.restore import (
    FETCHED,
    Fetch,
    RestoreWanted,
    ServedFiles,
    _is_file_of_log,
    begin,
    begun,
    finish_install,
    install,
    save_alone,
)
from tranlog.replication.acting.rollback import read_transactions, saved_rollbacks
from tranlog.replication.rules.config import MAJORITY
from tranlog.replication.rules.effects import Committed
from tranlog.replication.rules.packets import NO_GTID, STATE_NAMES, File, Packet
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk


def small(disk: SimDisk) -> NodeLog:
    return follow(disk, segment_bytes=1_000)


# --- the files -------------------------------------------------------------------------------------------


def fetched(disk: SimDisk, source: SimDisk) -> list[str]:
    """Put the files of a log beside those of another one, as a fetch leaves them."""
    begin(PATH, RestoreWanted("a", NO_GTID), disk)
    names = [name for name in source.list_dir(PATH) if name.startswith(("thl.data", "thl.spill"))]
    for name in names:
        with closing(disk.open(f"{PATH}/{name}{FETCHED}", write=True, create=True)) as file:
            file.pwrite(source.content(f"{PATH}/{name}"), 0)
            file.sync()
    disk.sync_dir(PATH)
    return names


def source_disk() -> SimDisk:
    disk = SimDisk()
    log = small(disk)
    reign(log, 5, *"abcdefghijkl")
    log.close()
    return disk


def own(disk: SimDisk) -> None:
    log = small(disk)
    reign(log, 1, *"mnopqrstuvwxyz" * 2)
    log.close()


def test_one_log_takes_the_place_of_another() -> None:
    """Of the former nothing is left, whatever the names of its files; nobody opens the log meanwhile."""
    disk, source = SimDisk(), source_disk()
    own(disk)
    names = fetched(disk, source)
    assert begun(PATH, disk) == RestoreWanted("a", NO_GTID)
    assert small(disk).last == gtid(1, 28), "before the marker it is as it was"
    disk = disk.after_crash(random.Random(1))
    install(PATH, names, disk)
    assert begun(PATH, disk) is None
    log, other = small(disk), small(source)
    assert copied(log) == copied(other) and log.committed() == NO_GTID
    reign(other, 6, "later")
    bring(other, log)
    log.close()
    assert verify(PATH, disk=disk).problems == ()


@pytest.mark.parametrize("committed_only", [True, False])
def test_who_reads_meanwhile_is_told_that_it_was_another_log(committed_only: bool) -> None:
    """What the former log had alone must not be returned as committed by a word of the new one."""
    disk = SimDisk()
    log = small(disk)
    reign(log, 1, *"abc")
    kept = log.last
    log.carry_out(Committed(kept))
    reign(log, 2, "alone 1", "alone 2")
    with LogReader.open(PATH, disk=disk) as reader, reader.cursor(committed_only=committed_only) as cursor:
        cursor.seek(Seqno(0))
        last = reader.range().committed_seqno if committed_only else reader.range().last_seqno
        assert [one.header.seqno for one in cursor.scan(until=last, wait=False)][-1] == last
        log.close()
        install(PATH, fetched(disk, source_disk()), disk)
        other = small(disk)
        reign(other, 6, *"uvwxyz")
        other.carry_out(Committed(other.last))
        with pytest.raises(LogReplacedError, match="was reset or restored while it was read"):
            list(cursor.scan(until=other.last.seqno, wait=False))
        other.close()


def test_with_the_marker_nobody_opens_the_log() -> None:
    disk = source_disk()
    with LogReader.open(PATH, disk=disk) as reader:
        disk.open(f"{PATH}/{RESTORING_NAME}", write=True, create=True).pwrite(b"[]", 0)
        with pytest.raises(LogUnreadableError, match="is replacing the log"):
            LogReader.open(PATH, disk=disk)
        with pytest.raises(LogUnreadableError):
            follow(disk)
        with pytest.raises(LogUnreadableError):
            verify(PATH, disk=disk)
        del reader


@pytest.mark.long
def test_a_replacement_that_a_crash_cuts_off_is_finished(effort: Effort) -> None:
    source = source_disk()
    expected = copied(small(source_disk()))
    names: list[str] = []

    def before(disk: SimDisk) -> None:
        own(disk)
        names[:] = fetched(disk, source)

    def act(disk: SimDisk) -> None:
        install(PATH, names, disk)

    def check(disk: SimDisk) -> None:
        if not finish_install(PATH, disk) and begun(PATH, disk) is not None:
            assert small(disk).last == gtid(1, 28), "it did not begin"
            return
        log = small(disk)
        assert copied(log) == expected
        reign(log, 6, "later")
        log.close()
        assert verify(PATH, disk=disk).problems == ()

    assert cut_everywhere(before, act, check, effort(1, 3, 20)) > 15


def test_what_a_log_has_alone_is_saved() -> None:
    """What follows a transaction that it holds; all of it where it does not hold that one."""
    disk, clock = SimDisk(), ManualClock(7)
    log = follow(disk, clock)
    reign(log, 1, "a", "b")
    assert save_alone(log, gtid(1, 1), clock) == 0 == save_alone(log, gtid(1, 1), clock)
    assert save_alone(log, gtid(1, 2), clock) is None
    assert save_alone(log, gtid(9, 9), clock) == 1
    assert [[one.event_id for one in read_transactions(PATH, rid, disk)] for rid in (0, 1)] == [["b"], ["a", "b"]]


# --- nodes -----------------------------------------------------------------------------------------------


def commit(group: LiveGroup, *names: str, size: int = 10) -> None:
    with group.client() as client:
        for name in names:
            client.commit(words(name * size), w=MAJORITY, wtimeout=60.0, event_id=name)


def log_of(group: LiveGroup, name: str) -> NodeLog:
    thread = group.nodes[name].thread
    assert thread is not None
    return thread.log


def purge(group: LiveGroup, *names: str) -> int:
    """Have nodes' logs begin later, whoever needs what goes; return the first one's first seqno."""
    logs = [log_of(group, name).log for name in names]
    commit(group, "before the purge")
    for log in logs:
        log.add_segment()
    commit(group, "after the purge")
    for log in logs:
        for one in read_holds(log.path):
            drop_hold(log.path, one.name)
        log.purge(below=log.visible_seqno)
    return int(logs[0].first_seqno)


def state_of(group: LiveGroup, name: str) -> str:
    return STATE_NAMES[group.nodes[name].standing.state]


@pytest.mark.long
def test_a_new_node_gets_what_was_purged_by_itself(tmp_path: Path) -> None:
    """Empty, and its source begins later; chunks of a large transaction come, too. It then takes part."""
    with live_group(tmp_path, "a") as group:
        commit(group, "one")
        first = purge(group, "a")
        assert first > 0
        commit(group, "large", size=1_000_000)
        group.add("b")
        group.await_whole()
        assert log_of(group, "b").first == first
        commit(group, "later")
        group.await_whole()
        group.stop("a")
    assert differences(tmp_path / "a", tmp_path / "b") == ""
    assert events(tmp_path / "b")[-2:] == ["large", "later"]
    assert begun(str(tmp_path / "b"), OS_DISK) is None


def fatal(group: LiveGroup) -> str:
    """Have a primary commit DDL alone, and the others go on without it; return its name."""
    ddl, answer = [Statement(schema="shop", sql="DROP TABLE x", ddl=True)], None
    commit(group, "common")
    while not isinstance(answer, Satisfied):  # on a busy machine it may be primary no more
        former = group.await_primary()
        group.await_whole()
        others = [name for name in group.options if name != former]
        with group.client() as client:
            assert client.primary() == former
            for name in others:
                group.stop(name)
            answer = client.commit(ddl, w=1, wtimeout=1.0, event_id="alone")
        if isinstance(answer, Satisfied):
            group.stop(former)
        for name in others:
            group.start(name)
    group.await_primary()
    group.start(former)
    eventually(lambda: state_of(group, former) == "FATAL")
    return former


@pytest.mark.long
def test_a_fatal_node_follows_again_and_what_it_had_is_saved(tmp_path: Path) -> None:
    with live_group(tmp_path) as group:
        former = fatal(group)
        through = group.await_primary()
        assert group.run(group.nodes[former].orders.status()).fatal.endswith(
            "= abandon in the group's configuration allows it"
        )
        with pytest.raises(GroupOrderError, match=r"it is primary; `tranlog group step-down` first"):
            group.order(former, "restore", name=through)
        for source in (former, "nobody"):
            with pytest.raises((ConfigError, GroupOrderError), match=r"name another node of the group|has this name"):
                group.order(through, "restore", name=former, source=source)
        assert state_of(group, former) == "FATAL"
        assert group.order(through, "restore", name=former) == {"restored": former}
        commit(group, "later")
        group.await_whole()
        assert saved_rollbacks(group.options[former].dir) == [0]
        (saved,) = read_transactions(group.options[former].dir, 0)
        assert saved.event_id == "alone"
        for name in group.options:
            assert events(tmp_path / name) == ["common", "later"]
        eventually(lambda: not group.nodes[former].thread.core.stored.owing)  # type: ignore[union-attr]
    assert differences(tmp_path / "a", tmp_path / "b") == differences(tmp_path / "b", tmp_path / "c") == ""


@pytest.mark.long
def test_a_restore_that_is_cut_off_begins_again(tmp_path: Path) -> None:
    """In the middle of a file, and between marker and end; the node is ended there, and started again."""
    with live_group(tmp_path) as group:
        former = fatal(group)
        path = group.options[former].dir
        reached = threading.Event()

        async def hang(self: Fetch, file: DiskFile, wanted: tuple[str, int, int]) -> None:
            file.pwrite(b"half of it", 0)
            reached.set()
            await asyncio.sleep(3600)

        group.nodes[former].options = replace(group.options[former], restore="manual")
        with mock.patch.object(Fetch, "_file", hang):
            ordered = asyncio.run_coroutine_threadsafe(
                group.nodes[former].orders.give("restore", {"name": former}), group.loop
            )
            assert reached.wait(60)
            status = group.run(group.nodes[former].orders.status())
            assert status.state == "RESTORING" and status.restore is not None and status.restore.bytes_total > 0
            group.stop(former)
            ordered.cancel()
        assert begun(path, OS_DISK) is not None
        assert events(tmp_path / former) == ["common", "alone"], "it is as it was"

        def stop_here(path: str, disk: Disk) -> bool:
            raise DiskFailedError(path=path, why="the test ends it here")

        with mock.patch.object(restore, "finish_install", stop_here):
            group.start(former)
            with pytest.raises(DiskFailedError, match="the test ends it here"):
                group.run(group.nodes[former].ended())
            group.stop(former)
        with pytest.raises(LogUnreadableError):
            events(tmp_path / former)
        group.start(former)
        group.await_whole()
        assert events(tmp_path / former) == ["common"]
        assert begun(path, OS_DISK) is None


def test_what_an_order_leads_to_is_heard_before_its_answer(tmp_path: Path) -> None:
    """An order's answer could overtake the restore it had asked for, which was taken for one that is done then."""
    with live_group(tmp_path, "ab") as group:
        replica = next(name for name in group.options if name != group.await_primary())
        thread, posted, over = group.nodes[replica].thread, threading.Event(), threading.Event()
        heard: list[object] = []
        source = group.nodes[group.await_primary()].node
        assert thread is not None
        with mock.patch.object(group.nodes[replica], "restore", heard.append):
            thread.call(lambda core: posted.wait(60))
            answer = thread.call(lambda core: core.restore(source))
            thread.call(lambda core: over.wait(60))  # the same turn: it lasts until the answer was looked at
            posted.set()

            async def heard_when_answered() -> int:
                assert await asyncio.wrap_future(answer) is None
                return len(heard)

            try:
                assert group.run(heard_when_answered()) == 1
            finally:
                over.set()


@pytest.mark.long
def test_a_source_that_leaves_the_group_is_not_waited_for(tmp_path: Path) -> None:
    """The primary's log is taken then; where no other node is left, the node goes on with its own."""
    with live_group(tmp_path, "abc") as group:
        primary = group.await_primary()
        source, name = (one for one in "abc" if one != primary)
        with group.client() as client:
            assert isinstance(client.commit(words("x"), w=3, wtimeout=60.0, event_id="x"), Satisfied)

        def order_in_vain(source: str) -> None:
            group.stop(source)
            with pytest.raises(GroupOrderError, match=f"{name} keeps trying"):
                group.order(name, "restore", name=name, source=source)

        order_in_vain(source)
        group.order(primary, "remove", name=source)
        group.await_whole()
        order_in_vain(primary)
        begin(str(tmp_path / name), RestoreWanted(primary, NO_GTID), OS_DISK)
        group.order(name, "reconfigure", force=True, without=[primary])
        assert group.await_primary() == name
        assert begun(str(tmp_path / name), OS_DISK) is None, "no start continues it"
        assert events(tmp_path / name) == ["x"]


@pytest.mark.long
def test_a_garbled_segment_is_not_taken(tmp_path: Path) -> None:
    """The sum is another one: the node keeps its log, says so, and tries again."""
    with live_group(tmp_path) as group:
        former = fatal(group)
        read = ServedFiles._read
        garbling = [True]

        def garbled(self: ServedFiles, name: str, size: int, offset: int) -> bytes:
            raw = bytearray(read(self, name, size, offset))
            raw[len(raw) // 2] ^= garbling[0]
            return bytes(raw)

        with mock.patch.object(ServedFiles, "_read", garbled):
            with pytest.raises(
                GroupOrderError, match=r"sum of thl\.data\.0000000001 is not the source's.*keeps trying"
            ):
                group.order(group.await_primary(), "restore", name=former)
            assert events(tmp_path / former) == ["common", "alone"]
            status = group.run(group.nodes[former].orders.status())
            assert status.restore is not None and "is not the source's" in status.restore.trouble
            garbling[0] = False
            group.await_whole()
        assert events(tmp_path / former) == ["common"]


@pytest.mark.long
@pytest.mark.parametrize(
    "error",
    [LogUnreadableError(path="p", why="Input/output error"), OSError(5, "Input/output error"), KeyError("of ours")],
    ids=["log", "disk", "ours"],
)
@pytest.mark.parametrize("method", ["_list", "_read"])
def test_a_source_that_cannot_answer_says_so_and_is_asked_again(
    method: str, error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both nodes say why; nobody waits for what will not come."""
    with live_group(tmp_path, "ab") as group:
        commit(group, "common")
        former = next(name for name in "ab" if name != group.await_primary())
        with mock.patch.object(ServedFiles, method, side_effect=error), caplog.at_level(logging.WARNING):
            why = "it says: this log cannot be read: .*(Input/output error|KeyError: 'of ours').* keeps trying"
            with pytest.raises(GroupOrderError, match=why):
                group.order(former, "restore", name=former)
            status = group.run(group.nodes[former].orders.status()).restore
            assert status is not None and "this log cannot be read" in status.trouble
        group.await_whole()
        eventually(lambda: state_of(group, former) == "REPLICA")
    assert any("and this log cannot be read" in one.getMessage() for one in caplog.records), "at the source"
    assert events(tmp_path / former) == ["common"]


@pytest.mark.long
def test_an_error_of_whatever_kind_ends_an_attempt_and_not_the_restore(tmp_path: Path) -> None:
    with live_group(tmp_path, "ab") as group:
        commit(group, "common")
        former = next(name for name in "ab" if name != group.await_primary())
        with mock.patch("tranlog.replication.acting.restoring.begin", side_effect=KeyError("of ours")):
            with pytest.raises(GroupOrderError, match=r"'of ours'.* keeps trying"):
                group.order(former, "restore", name=former)
        group.await_whole()
        eventually(lambda: state_of(group, former) == "REPLICA")
    assert events(tmp_path / former) == ["common"]


@pytest.mark.long
def test_a_part_that_never_comes_ends_an_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source goes on to say that it is there, more often than the time that a part may take."""
    monkeypatch.setattr(restore, "_SILENT_S", 2.5)
    answer, dropped = ServedFiles.answer, [True]

    async def deaf(self: ServedFiles, packet: Packet, size: int) -> None:
        if isinstance(packet, File) and dropped[0]:
            self._wire.done(size)
        else:
            await answer(self, packet, size)

    with live_group(tmp_path, "ab") as group:
        commit(group, "common")
        former = next(name for name in "ab" if name != group.await_primary())
        with mock.patch.object(ServedFiles, "answer", deaf):
            with pytest.raises(GroupOrderError, match=r"what was asked for did not come in time.* keeps trying"):
                group.order(former, "restore", name=former)
            dropped[0] = False
            eventually(lambda: state_of(group, former) == "REPLICA")
        group.await_whole()
    assert events(tmp_path / former) == ["common"]


@pytest.mark.long
def test_a_node_that_is_too_old_waits_for_an_operator_where_it_shall(tmp_path: Path) -> None:
    """`restore = "manual"`; what it alone has beyond what was committed is saved."""
    with live_group(tmp_path) as group:
        commit(group, "common")
        group.await_whole()
        primary = group.await_primary()
        behind, other = (name for name in group.options if name != primary)
        group.options[behind] = replace(group.options[behind], restore="manual")
        group.stop(behind)
        purge(group, primary, other)
        group.start(behind)
        eventually(lambda: state_of(group, behind) == "RESTORING")
        assert group.run(group.nodes[behind].orders.status()).restore is None
        assert group.order(other, "restore", name=behind, source=primary) == {"restored": behind}
        group.await_whole()
        assert log_of(group, behind).first == log_of(group, primary).first > 0


def test_only_a_list_of_a_logs_files_is_believed() -> None:
    """A source could name any file."""
    assert [name for name in ("thl.data.0000000001", "thl.spill.0000000001") if not _is_file_of_log(name)] == []
    assert not any(
        _is_file_of_log(name) for name in ("../thl.data.0000000001", "group/node", "restoring", "/etc/passwd")
    )


@pytest.mark.long
def test_a_reader_at_a_node_whose_log_is_replaced_opens_it_again(tmp_path: Path) -> None:
    with live_group(tmp_path) as group:
        commit(group, "a", "b", "c")
        group.await_whole()
        primary = group.await_primary()
        with open_remote(group.url, prefer="replica", find_s=LONG_S) as log, log.cursor() as cursor:
            last = log.range().last_seqno
            cursor.seek(log.range().first_seqno)
            assert [one.header.seqno for one in cursor.scan(until=last, wait=False)][-1] == last
            assert group.order(primary, "restore", name=log.node) == {"restored": log.node}
            commit(group, "later")
            group.await_whole()
            with pytest.raises(LogUnreadableError, match=r"ended\. Open the log again"):
                list(cursor.scan(until=Seqno(last + 1), wait=False))
        with open_remote(group.url, prefer="replica", find_s=LONG_S, consistency="within 5000 ms") as log:
            assert log.range().last_seqno > last

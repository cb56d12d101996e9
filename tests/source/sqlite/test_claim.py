"""One log follows a source, says beside it what is durable, and writers free that; what is not as it was is noticed.

Proves: docs/decisions/0022; docs/format.md, "The outbox of a SQLite source".
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tranlog.capture.capture import Capture
from tranlog.change import Fragment, RowChange
from tranlog.errors import PositionLostError, SourceClaimedError, SourceError
from tranlog.ids import Gtid
from tranlog.log.writing.log import Log, LogReader
from tranlog.source.sqlite import SqliteConnection, SqliteSource, SqliteSourceOptions, connect
from tranlog.source.sqlite.claim import FREE_BYTES, FREE_ROWS, PROGRESS_SUFFIX, read_progress
from tranlog.source.sqlite.outbox import FREE_EVERY_COMMITS
from tranlog.testing.clock import ManualClock


class Place:
    """A captured database with one writer, and its log; captures that run are closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = str(folder / "source.db")
        self.db: SqliteConnection = connect(self.path)
        self.db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
        self.opened: list[tuple[SqliteSource, Log]] = []
        self.clock = ManualClock()

    def capture(self, log: str = "log", path: str = "", *, take_source: bool = False) -> Capture:
        source = SqliteSource(SqliteSourceOptions(path=path or self.path, source_id="s"), clock=self.clock)
        opened = Log.open(str(self.folder / log), source_id="s")
        self.opened.append((source, opened))
        return Capture(source, opened, take_source=take_source)

    def caught_up(self, log: str = "log", path: str = "", *, take_source: bool = False) -> int:
        """Capture what is there by a capture of its own; return how many transactions that were."""
        done = self.capture(log, path, take_source=take_source).catch_up().transactions
        self.end()
        return done

    def insert(self, *values: object) -> None:
        for value in values:
            self.db.execute("INSERT INTO t(a) VALUES(?)", (value,))

    def insert_by_new_writer(self, value: object, path: str = "") -> None:
        """Commit once through a connection that has not looked yet for what to free."""
        writer = connect(path or self.path)
        writer.execute("INSERT INTO t(a) VALUES(?)", (value,))
        writer.close()

    def outbox(self, path: str = "") -> list[int]:
        raw = apsw.Connection(path or self.path)
        ids = [int(str(number)) for (number,) in raw.execute("SELECT id FROM _tranlog_outbox ORDER BY id")]
        raw.close()
        return ids

    def logged(self, log: str = "log") -> list[object]:
        """Return what the log says was inserted, in order."""
        with LogReader.open(str(self.folder / log)) as reader, reader.cursor() as cursor:
            changes = [change for transaction in iter(cursor.next, None) for change in transaction.changes()]
        return [change.after[1] for change in changes if isinstance(change, RowChange) and change.after is not None]

    def backup(self, to: str, *, beside: bool = False) -> None:
        """Copy the database as a program for backups does, with the progress file or without."""
        source, target = apsw.Connection(self.path), apsw.Connection(to)
        with target.backup("main", source, "main") as copy:
            copy.step()
        source.close()
        target.close()
        if beside:
            shutil.copy(self.path + PROGRESS_SUFFIX, to + PROGRESS_SUFFIX)

    def restore(self, of: str) -> None:
        """Put a copy back into the database, as `.restore` does: inode, uuid and claim stay."""
        source, target = apsw.Connection(of), apsw.Connection(self.path)
        with target.backup("main", source, "main") as copy:
            copy.step()
        source.close()
        target.close()

    def end(self) -> None:
        for source, log in self.opened:
            source.close()
            log.close()
        self.opened.clear()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.end()
    place.db.close()


# --- no transaction fails for capture's sake -------------------------------------------------------------


@pytest.mark.long
def test_a_transaction_that_reads_first_does_not_fail(place: Place) -> None:
    """BEGIN, SELECT, UPDATE, COMMIT, as every ORM does, and capture at work between the second and the third."""
    capture = place.capture()
    place.insert(0)
    for number in range(60):
        capture.catch_up()
        place.db.execute("BEGIN")
        ((value,),) = place.db.execute("SELECT a FROM t WHERE id = 1").fetchall()
        capture.catch_up()
        place.clock.advance(1)
        place.db.execute("UPDATE t SET a = ? WHERE id = 1", (value + 1,))
        place.db.execute("COMMIT")
        assert value == number
    assert len(place.outbox()) <= FREE_EVERY_COMMITS + 2, "the writer has freed what was durable"


# --- what a writer frees ---------------------------------------------------------------------------------


def test_a_writer_frees_what_is_below_the_last_durable_row(place: Place) -> None:
    place.insert(*range(5))
    assert place.caught_up() == 6
    assert place.outbox() == [1, 2, 3, 4, 5, 6]
    place.insert_by_new_writer(5)
    assert place.outbox() == [6, 7], "the last row captured stays"
    assert place.caught_up() == 1
    place.insert_by_new_writer(6)
    assert place.outbox() == [7, 8]


def test_one_commit_frees_a_hundred_rows(place: Place) -> None:
    place.insert(*range(250))
    place.caught_up()
    writer = connect(place.path)
    before = len(place.outbox())
    writer.execute("INSERT INTO t(a) VALUES('x')")
    assert len(place.outbox()) == before + 1 - FREE_ROWS
    writer.execute("INSERT INTO t(a) VALUES('x')")  # more was to be freed: the next commit goes on at once
    assert len(place.outbox()) == before + 2 - 2 * FREE_ROWS
    assert writer.total_changes() == 2, "what was freed is no change of the program's"
    writer.close()


def test_one_commit_frees_about_a_mebibyte(place: Place) -> None:
    for _ in range(8):
        place.insert("x" * (FREE_BYTES // 2))
    place.insert("x" * (3 * FREE_BYTES))
    place.insert("last")
    place.caught_up()
    gone, writer = [], connect(place.path)
    for _ in range(7):
        before = len(place.outbox())
        writer.execute("INSERT INTO t(a) VALUES('x')")
        gone.append(before + 1 - len(place.outbox()))
    writer.close()
    assert gone == [3, 2, 2, 2, 1, 0, 0], "the table's own row and two halves, halves by twos, the large one alone"


def test_a_transaction_that_is_rolled_back_frees_nothing(place: Place) -> None:
    place.insert(*range(5))
    place.caught_up()
    writer = connect(place.path)
    writer.execute("PRAGMA foreign_keys = ON")
    writer.execute("CREATE TABLE child(p REFERENCES t(id) DEFERRABLE INITIALLY DEFERRED)")
    place.caught_up()
    before = place.outbox()
    for _ in range(FREE_EVERY_COMMITS):
        writer.execute("BEGIN")
        writer.execute("INSERT INTO child VALUES(99)")
        with pytest.raises(apsw.ConstraintError):
            writer.execute("COMMIT")
        writer.execute("ROLLBACK")
    assert place.outbox() == before
    writer.close()


def damage(path: str, kind: str) -> None:
    """Make the progress file another one than capture has written."""
    name = path + PROGRESS_SUFFIX
    with open(name, "rb") as file:
        words = file.read().split(b" ")
    if kind == "missing":
        os.unlink(name)
        return
    at = {"uuid": 2, "history": 3, "id": 4, "token": 5, "check": 6}.get(kind)
    raw = b" ".join(words)
    if kind == "cut":
        raw = raw[:50]
    elif kind == "zeros":
        raw = bytes(len(raw))
    elif kind == "longer":
        raw += b"x"
    else:
        assert at is not None
        digit = words[at][:1]
        words[at] = (b"1" if digit != b"1" else b"2") + words[at][1:]
        raw = b" ".join(words)
    with open(name, "wb") as file:
        file.write(raw)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["missing", "cut", "zeros", "longer", "uuid", "history", "id", "token", "check", "unreadable"]
)
def test_a_missing_or_damaged_file_frees_nothing_and_is_written_anew(place: Place, kind: str) -> None:
    place.insert(*range(5))
    place.caught_up()
    written = Path(place.path + PROGRESS_SUFFIX).read_bytes()
    if kind == "unreadable":
        os.unlink(place.path + PROGRESS_SUFFIX)
        os.mkdir(place.path + PROGRESS_SUFFIX)
    else:
        damage(place.path, kind)
    place.insert_by_new_writer(5)
    assert place.outbox() == [1, 2, 3, 4, 5, 6, 7]
    if kind == "unreadable":
        os.rmdir(place.path + PROGRESS_SUFFIX)
    place.capture()
    source, log = place.opened[-1]
    Capture(source, log).catch_up()
    assert Path(place.path + PROGRESS_SUFFIX).read_bytes()[:50] == written[:50]
    place.end()
    place.insert_by_new_writer(6)
    assert place.outbox() == [7, 8]
    assert place.logged() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("what", ["uuid", "history", "id", "token"])
def test_a_file_that_says_something_else_frees_nothing(place: Place, what: str) -> None:
    """One that is whole, of another database, another history, or a row that is not there like that."""
    from tranlog.source.sqlite.claim import DurableUpTo, write_progress
    from tranlog.source.sqlite.claim import OutboxPlace as Row

    place.insert(*range(5))
    place.caught_up()
    told = read_progress(place.path)
    assert told is not None and told.place.id == 6
    other = {
        "uuid": DurableUpTo(uuid="0" * 36, history=told.history, place=told.place),
        "history": DurableUpTo(uuid=told.uuid, history=bytes(16), place=told.place),
        "id": DurableUpTo(uuid=told.uuid, history=told.history, place=Row(99, told.place.token)),
        "token": DurableUpTo(uuid=told.uuid, history=told.history, place=Row(6, told.place.token ^ 1)),
    }
    write_progress(place.path, other[what])
    place.insert_by_new_writer(5)
    assert place.outbox() == [1, 2, 3, 4, 5, 6, 7]


def test_a_link_to_the_database_leads_to_the_same_file(place: Place) -> None:
    link = str(place.folder / "link.db")
    os.symlink(place.path, link)
    place.insert(1, 2)
    assert place.caught_up(path=link) == 3
    assert not os.path.exists(link + PROGRESS_SUFFIX)
    place.insert_by_new_writer(3, link)
    assert place.outbox() == [3, 4]


# --- what no writer frees --------------------------------------------------------------------------------


def test_capture_frees_after_a_minute_a_part_at_a_time(place: Place) -> None:
    place.insert(*range(250))
    capture = place.capture()
    capture.catch_up()
    before = len(place.outbox())
    source, _ = place.opened[-1]
    place.clock.advance(59)
    assert list(source.read(0)) == []
    assert len(place.outbox()) == before
    place.clock.advance(1)
    assert list(source.read(0)) == []
    assert len(place.outbox()) == before - FREE_ROWS
    assert list(source.read(0)) == []
    assert len(place.outbox()) == before - FREE_ROWS, "then a pause"
    place.clock.advance(0.1)
    place.db.execute("BEGIN IMMEDIATE")
    assert list(source.read(0)) == []
    place.db.execute("COMMIT")
    assert len(place.outbox()) == before - FREE_ROWS, "a writer goes first, and is not waited for"
    for _ in range(5):
        place.clock.advance(0.1)
        assert list(source.read(0)) == []
    assert place.outbox() == [251]
    place.clock.advance(600)
    place.insert("new")
    assert len(list(source.read(0))) == 1
    assert place.outbox() == [251, 252], "what the log does not have as yet stays, however old"


# --- one log ---------------------------------------------------------------------------------------------


def test_a_second_log_is_refused_and_takes_the_source_when_told(place: Place) -> None:
    place.insert(1)
    first = place.capture("first")
    first.catch_up()
    with pytest.raises(SourceClaimedError, match="--take-source"):
        place.capture("second").catch_up()
    place.insert(2)
    assert first.catch_up().transactions == 3
    place.clock.advance(1)
    assert list(place.opened[0][0].read(0)) == []
    taken = place.capture("third", take_source=True)
    place.insert(3)
    assert taken.catch_up().transactions == 1, "it begins behind what the first one has"
    with pytest.raises(SourceClaimedError, match="claimed by another log"):
        first.catch_up()
    place.insert(4)
    assert taken.catch_up().transactions == 2
    place.end()
    assert place.caught_up("first", take_source=True) == 2, "its last row was not freed as yet, so nothing is missing"
    assert place.logged("first") == [1, 2, 3, 4]


def test_a_copy_of_the_log_is_another_holder(place: Place) -> None:
    place.insert(1)
    place.caught_up()
    shutil.copytree(place.folder / "log", place.folder / "copy")
    place.insert(2)
    with pytest.raises(SourceClaimedError):
        place.caught_up("copy")
    place.end()
    os.rename(place.folder / "log", place.folder / "moved")
    assert place.caught_up("moved") == 1, "a directory that was renamed is the same"
    assert place.caught_up("copy", take_source=True) == 1
    with pytest.raises(SourceClaimedError):
        place.caught_up("moved")


def test_a_capture_that_is_not_the_holder_any_more_does_not_write_the_file(place: Place) -> None:
    place.insert(1)
    first = place.capture("first")
    first.catch_up()
    source, _ = place.opened[-1]
    place.insert(2)
    (fragment,) = source.read(0)
    raw = apsw.Connection(place.path)
    raw.execute("UPDATE _tranlog_source SET holder = 'another'")
    raw.close()
    place.clock.advance(1)
    source.release(fragment.event_id)
    told = read_progress(place.path)
    assert told is not None and told.place.id == 2
    place.insert(3)
    with pytest.raises(SourceClaimedError, match="another"):
        list(source.read(0))


@pytest.mark.parametrize("beside", [True, False])
def test_a_copy_of_the_database(place: Place, beside: bool) -> None:
    """It has uuid and claim; the log that follows the first one is not led astray, and no other gets it unasked."""
    place.insert(1, 2)
    place.caught_up()
    copy = str(place.folder / "copy.db")
    place.backup(copy, beside=beside)
    place.insert(3)
    place.insert_by_new_writer("copy", copy)
    assert place.outbox(copy) == ([3, 4] if beside else [1, 2, 3, 4]), "what is freed the log has"
    with pytest.raises(SourceClaimedError):
        place.caught_up("another", copy)
    place.end()
    place.caught_up()
    with pytest.raises(PositionLostError, match="another transaction as"):
        place.caught_up(path=copy)
    place.end()
    assert place.caught_up("another", copy, take_source=True) == (1 if beside else 4)
    assert place.logged("another")[-1] == "copy"
    place.insert(4)
    assert place.caught_up() == 1
    assert place.logged() == [1, 2, 3, 4]


# --- what is not as it was -------------------------------------------------------------------------------


@pytest.mark.parametrize("writes_since", [0, 1, 5])
def test_a_backup_restored_into_the_file_stops_a_running_capture(place: Place, writes_since: int) -> None:
    place.insert(1)
    capture = place.capture()
    capture.catch_up()
    copy = str(place.folder / "backup.db")
    place.backup(copy, beside=True)
    place.insert(2, 3)
    capture.catch_up()
    place.restore(copy)
    place.insert(*range(10, 10 + writes_since))
    with pytest.raises(PositionLostError, match="put back to an older copy"):
        capture.catch_up()
    for _ in range(FREE_EVERY_COMMITS + 1):
        place.insert_by_new_writer("later")
    assert min(place.outbox()) == 1, "the file beside names a row that is not there: nothing is freed"
    place.end()
    with pytest.raises(PositionLostError, match="put back to an older copy"):
        place.caught_up()


def test_a_backup_from_before_the_first_capture_stops_it(place: Place) -> None:
    place.insert(1)
    copy = str(place.folder / "backup.db")
    place.backup(copy)
    capture = place.capture()
    capture.catch_up()
    place.restore(copy)
    place.insert(2)
    source, _ = place.opened[-1]
    with pytest.raises(SourceError, match="before this log followed it"):
        list(source.read(0))
    assert capture.catch_up().transactions == 3
    assert place.logged() == [1, 2]


@pytest.mark.parametrize(
    ("which", "why"),
    [
        ("id = (SELECT max(id) FROM _tranlog_outbox) - 1", "lacks the row"),
        ("id = 3", "something other than capture deleted"),
        ("id <= 3", "already freed its changes"),
        ("1", "is empty: something other than capture"),
    ],
)
def test_rows_that_somebody_deleted_stop_it(place: Place, which: str, why: str) -> None:
    place.insert(1, 2)
    capture = place.capture()
    capture.catch_up()
    place.insert(3, 4, 5)
    raw = apsw.Connection(place.path)
    raw.execute(f"DELETE FROM _tranlog_outbox WHERE {which}")
    raw.close()
    with pytest.raises(SourceError, match=why):
        capture.catch_up()


def test_a_log_that_was_rolled_back(place: Place) -> None:
    """It goes on where its last row is still there, and is refused where writers have freed it."""
    place.insert(1, 2, 3)
    place.caught_up()
    with Log.open(str(place.folder / "log"), source_id="s") as log:
        with log.cursor() as cursor:
            gtids = [transaction.header.gtid for transaction in iter(cursor.next, None) if not transaction.is_noop()]
        log.rollback(gtids[2])
    assert place.caught_up() == 1
    with Log.open(str(place.folder / "log"), source_id="s") as log:
        log.rollback(gtids[1])
    place.insert_by_new_writer(4)
    assert place.outbox() == [4, 5]
    with pytest.raises(PositionLostError, match="rolled back"):
        place.caught_up()


def test_an_empty_log_of_a_source_that_was_freed(place: Place) -> None:
    """The source is this history's, and the history holds nothing: what was freed is nowhere."""
    place.insert(1, 2)
    place.caught_up()
    place.insert_by_new_writer(3)
    source = SqliteSource(SqliteSourceOptions(path=place.path, source_id="s"))
    told = read_progress(place.path)
    raw = apsw.Connection(place.path)
    ((holder,),) = raw.execute("SELECT holder FROM _tranlog_source").fetchall()
    raw.close()
    assert told is not None
    source.claim(history=told.history, holder=str(holder))
    with pytest.raises(PositionLostError, match="this log holds nothing of it"):
        source.start(None)
    source.claim(history=told.history, holder=str(holder), take=True)
    source.start(None)
    assert len(list(source.read(0))) == 1, "what was committed behind the last one that it had"
    source.close()


def test_a_new_log_without_the_file_begins_with_what_may_be_new(place: Place) -> None:
    place.insert(1, 2)
    place.caught_up()
    place.insert_by_new_writer(3)
    os.unlink(place.path + PROGRESS_SUFFIX)
    assert place.outbox() == [3, 4]
    assert place.caught_up("new", take_source=True) == 1
    assert place.logged("new") == [3]


# --- the WAL ---------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_wal_stays_small_while_capture_is_behind(place: Place) -> None:
    """A read that goes on for long keeps no read transaction open: the WAL begins anew while it lasts."""
    for _ in range(10):
        place.insert("x" * 100_000)
    place.capture()
    source, _ = place.opened[-1]
    source.start(None)
    reading = source.read(0)
    assert next(iter(reading)) is not None
    for _ in range(60):
        place.insert("x" * 500_000)
    assert os.path.getsize(place.path + "-wal") < 12_000_000
    assert sum(1 for _ in reading) == 70


@pytest.mark.long
def test_a_wal_that_grew_large_is_cut(place: Place) -> None:
    with place.db:
        for _ in range(75):
            place.insert("x" * 500_000)
    assert os.path.getsize(place.path + "-wal") > 70_000_000
    for _ in range(3):
        place.insert("x")
    assert os.path.getsize(place.path + "-wal") <= 64 << 20


def test_commits_without_a_sync_are_synced_before_the_log_has_them(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PRAGMA synchronous = NORMAL: the writer is warned, and the log never gets ahead of the database."""
    calls: list[str] = []

    fsync, append = os.fsync, Log.append

    def told_fsync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("-wal"):
            calls.append("sync of the WAL")
        fsync(fd)

    def told_append(log: Log, fragment: Fragment) -> Gtid:
        calls.append("append")
        return append(log, fragment)

    capture = place.capture()
    capture.catch_up()
    monkeypatch.setattr(os, "fsync", told_fsync)
    monkeypatch.setattr(Log, "append", told_append)
    place.db.execute("PRAGMA synchronous = NORMAL")
    assert "synchronous=NORMAL: a loss of power may take the last commits of this connection" in caplog.text
    place.insert(1, 2)
    assert capture.catch_up().transactions == 3
    assert calls == ["sync of the WAL", "append", "append"]
    place.db.execute("PRAGMA synchronous = FULL")
    calls.clear()
    place.insert(3)
    assert capture.catch_up().transactions == 4
    assert calls == ["append"]

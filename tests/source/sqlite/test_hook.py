"""The preupdate hook's rows become entries: some rows each, in order, and large ones single."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import apsw
import pytest

from fix_sqlite import Replica, content
from tranlog.source.sqlite import connect
from tranlog.source.sqlite.hook import ROWS_OF_ENTRY
from tranlog.source.sqlite.raw import decode_entry


def test_rows_of_a_statement_share_entries_until_they_are_large(tmp_path: Path) -> None:
    """Rows that wait take memory, and an entry has to fit into a piece: they wait while rows are small."""
    db = connect(tmp_path / "s.db", fragment_bytes=8000)
    db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    with db:
        db.executemany("INSERT INTO t VALUES(?, '')", [(n,) for n in range(100)])
    with db:
        entries = db.recorder.buffer.entries
        db.execute("UPDATE t SET a = CASE WHEN id < 40 THEN 'small' ELSE printf('%.*c', 2000, 'x') END")
        assert db.recorder.hook.pending == []
        packed = [decode_entry(entry) for entry in entries]
        assert [change.new_place for change in chain.from_iterable(packed)] == list(range(100))
        assert packed[0] and len(packed[1]) == ROWS_OF_ENTRY == max(map(len, packed))
        assert all(len(changes) == 1 for changes in packed if len(str(changes[0].after)) > 2000)
        assert max(map(len, entries)) < 2100
    db.close()
    raw = apsw.Connection(str(tmp_path / "s.db"))
    replica = Replica()
    assert replica.follow(raw) == 3
    assert content(replica.db) == content(raw)
    raw.close()


@pytest.mark.parametrize("generated", [False, True])
def test_a_statement_inside_a_statement_is_cut_where_it_began(tmp_path: Path, generated: bool) -> None:
    """What an SQL function writes and takes back leaves the rows of the statement that called it."""
    db = connect(tmp_path / "s.db")
    db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    db.execute("CREATE TABLE u(x UNIQUE)" if not generated else "CREATE TABLE u(x UNIQUE, y AS (x + 1))")

    def nested(value: int) -> int:
        with pytest.raises(apsw.ConstraintError):
            db.execute("INSERT INTO u(x) VALUES(?), (?), (?)", (value, -value, value))
        db.execute("INSERT INTO u(x) VALUES(?)", (value,))
        return value

    db.create_scalar_function("nested", nested, 1)
    with db:
        db.executemany("INSERT INTO t VALUES(?, 0)", ((n,) for n in range(1, 40)))
        db.execute("UPDATE t SET a = nested(id)")
    db.close()
    raw = apsw.Connection(str(tmp_path / "s.db"))
    replica = Replica()
    replica.follow(raw)
    assert content(replica.db) == content(raw) and len(content(raw)["u"]) == 39
    raw.close()

"""`flush`, `check`, `offline --immediate` and `online --until-…` as an operator types them.

The pipeline's channels are threads; tests/service/test_operating_spark.py has the article's session on Spark.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from fix_effort import few_of
from fix_operated import Operated, operation_of, without_java
from fix_server import at_port
from tranlog.capture.capture import Capture
from tranlog.change import Column, Op, RowChange, TableMap
from tranlog.log.writing.log import Log, LogOptions
from tranlog.pipeline.driving.operation import OnError
from tranlog.pipeline.filters.filters import Rename
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.states import State
from tranlog.service.commands import cli
from tranlog.service.process.operating import Capturing, OperatingOptions, Operator, capture_endpoint, operated
from tranlog.source.packer import pack
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect, install
from tranlog.target.options import TargetOptions, open_target
from tranlog.types import LogicalType

pytestmark = pytest.mark.long

CONFIG = """\
[service]
name = "shop"
[source]
kind = "sqlite"
path = "source.db"
[log]
dir = "log"
[target]
kind = "sqlite"
path = "target.db"
[pipeline]
name = "p"
"""
ITEM = TableMap(
    schema="main",
    table="item",
    columns=(
        Column(name="id", source_type="INTEGER", logical=LogicalType.INTEGER, nullable=False),
        Column(name="note", source_type="TEXT", logical=LogicalType.TEXT),
    ),
    primary_key=(0,),
)
Tell = Callable[..., str]


class Shop:
    """A source, its log, whose transaction with seqno N inserts row N, and a running pipeline that is offline."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tranlog.toml").write_text(CONFIG)
        self.source = connect(str(folder / "source.db"))
        self.source.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, note TEXT)")
        self.options = TargetOptions(kind="sqlite", path=str(folder / "target.db"))
        target = open_target(self.options)
        target.rows.create_table(ITEM)
        target.close()
        self.write(20)
        self._opened = ExitStack()

    def write(self, upto: int) -> None:
        """Commit rows at the source, and what capture would write of them."""
        with Log.open(str(self.folder / "log"), source_id="shop") as log:
            for seqno in range(int(log.last_seqno) + 1, upto + 1):
                row = (seqno, f"row {seqno}")
                self.source.execute("INSERT INTO item VALUES (?, ?)", row)
                change = RowChange(ITEM, Op.INSERT, None, row)
                log.transact(
                    pack([change], source_id="shop", event_id=f"event {seqno}", tstamp=1_700_000_000_000 + 1000 * seqno)
                )

    def start(self, **more: Any) -> Operator:
        given = ApplyOptions(
            pipeline="p",
            log_dir=str(self.folder / "log"),
            target=self.options,
            channels=2,
            master="local[16]",
            sync_interval_s=0.05,
            **more,
        )
        operation = operation_of(given, on_error=OnError.OFFLINE)
        run = Operated(operation, online=False)
        self._opened.callback(run.join)
        self._opened.callback(operation.end)
        run.come_to(State.OFFLINE_NORMAL)
        told = OperatingOptions(service="shop", source="sqlite source.db")
        return self._opened.enter_context(operated(operation, LogOptions(), told, runtime_dir=None))

    def rows(self) -> set[int]:
        target = open_target(self.options)
        try:
            return {int(str(row[0])) for row in target.rows.read(ITEM)}
        finally:
            target.close()

    def stop(self) -> None:
        self._opened.close()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    without_java(monkeypatch)
    monkeypatch.chdir(tmp_path)
    opened = Shop(tmp_path)
    try:
        yield opened
    finally:
        opened.stop()


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Run a command here, and return what it printed; errors too, where another exit code than 0 is expected."""

    def tell(line: str, *more: str, code: int = 0) -> str:
        found = cli.main([*line.split(), *more])
        said = capsys.readouterr()
        assert found == code, (line, said)
        return said.err if code >= 2 else said.out

    return tell


def test_flush_and_check(shop: Shop, told: Tell) -> None:
    shop.start()
    assert told("flush --timeout 0", code=1) == "not applied in time: everything up to seqno 20\n"
    assert told("check --timeout 0", code=1).endswith("; 1 tables, differing: main.item\n")
    told("online")
    assert told("flush") == "applied: everything up to seqno 20\n"
    assert told("check") == "applied up to seqno 20; 1 tables, all equal\n"
    shop.write(25)
    assert json.loads(told("flush --json"))["seqno"] == 25 and shop.rows() == set(range(1, 26)) - {21}, (
        "the second opening is seqno 21"
    )
    (shop.folder / "tranlog.toml").write_text(f'{CONFIG}[[filter]]\nkind = "exclude"\ntables = ["main.*"]\n')
    assert told("check", code=1) == "applied up to seqno 25; 0 tables, nothing is compared\n"
    (shop.folder / "tranlog.toml").write_text(CONFIG)
    shop.source.execute("UPDATE item SET note = 'not captured' WHERE id = 3")
    found = json.loads(told("check --json --timeout 1", code=1))
    assert found == {"seqno": 25, "applied": True, "differing": ["main.item"], "waiting": {}}


def test_check_sees_what_the_filters_leave(shop: Shop, told: Tell) -> None:
    """As `tranlog verify` does: renamed at the target is not missing there."""
    conf = shop.folder / "tranlog.toml"
    conf.write_text(conf.read_text() + '[[filter]]\nkind = "rename"\ntable = "main.item"\nto = "goods"\n')
    target = apsw.Connection(shop.options.path)
    target.execute("ALTER TABLE item RENAME TO goods")
    target.close()
    shop.start(filters=(Rename(table="main.item", to="goods"),))
    told("online")
    assert json.loads(told("check --json")) == {"seqno": 20, "applied": True, "differing": [], "waiting": {}}


def test_check_waits_for_nothing_that_is_offline(shop: Shop, told: Tell) -> None:
    """It waited all of its time for what nobody applies: here more than a test has."""
    shop.start()
    found = json.loads(told("check --json --timeout 3600", code=1))
    assert (found["applied"], found["differing"]) == (False, ["main.item"])
    told("online")
    told("wait --applied 20")
    told("offline")
    assert json.loads(told("check --json")) == {"seqno": 20, "applied": True, "differing": [], "waiting": {}}


@pytest.mark.parametrize(
    ("limit", "at"),
    few_of(
        [
            ("--until-seqno", "7"),
            ("--until-gtid", "GTID(1, 7)"),
            ("--until-time", "2023-11-14T22:13:27"),
            ("--until-event", "event 7"),
        ]
    ),
)
def test_online_until(shop: Shop, told: Tell, limit: str, at: str) -> None:
    shop.start()
    assert ", until " in told("-service shop online", limit, at, "--skip-seqno", "2,4-5")
    told("wait --applied 7 --state OFFLINE:NORMAL")
    assert shop.rows() == {1, 3, 6, 7}
    told("online --from-seqno 8")
    told("wait --applied 20")
    told("offline --immediate")
    assert "is OFFLINE:NORMAL, applied up to seqno 20 of 20" in told("state")
    assert shop.rows() == set(range(1, 21)) - {2, 4, 5}


def test_what_is_applied_already_is_not_skipped_and_said(shop: Shop, told: Tell) -> None:
    """An operator who mistakes the number would think it done. What was skipped before may be named again."""
    shop.start()
    told("online --until-seqno 7 --skip-seqno 2,4-5")
    told("wait --applied 7 --state OFFLINE:NORMAL")
    refused = told("online --skip-seqno 1-3,5,7-9", code=2)
    assert "--skip-seqno = '1,3,7': applied already, so nothing is skipped" in refused
    assert "is OFFLINE:NORMAL, applied up to seqno 7" in told("state")
    told("online --skip-seqno 2,5,9")
    assert "is ONLINE" in told("wait --applied 20")
    assert "--skip-seqno" not in told("online --skip-seqno 3", code=4), "it is online: that comes first"
    told("offline")
    assert shop.rows() == set(range(1, 21)) - {2, 4, 5, 9}
    told("online --from-seqno 9 --skip-seqno 10-20")
    told("wait --applied 20")


def test_an_error_is_pending_with_its_seqno_and_event_id(shop: Shop, told: Tell) -> None:
    operator = shop.start()
    target = apsw.Connection(shop.options.path)
    target.execute("INSERT INTO item VALUES (9, 'mine')")
    target.close()
    told("online")
    assert "conflict at seqno 9" in told("wait --applied 20", code=4)
    pending = json.loads(told("state --json"))["pending"]
    assert (pending["type"], pending["seqno"], pending["event_id"]) == ("ConflictError", 9, "event 9")
    assert "ConflictError at seqno 9, event id 'event 9': conflict" in told("state")
    with at_port(operator) as address:
        (shop.folder / "tranlog.toml").unlink()
        told(f"online --skip-seqno 9 --host {address}")
        told(f"wait --applied 20 --host {address}")
    assert shop.rows() == set(range(1, 21))


def test_a_process_that_was_just_started_is_waited_for(shop: Shop, told: Tell) -> None:
    """docs/parallel-apply.md: "tranlog run &", "tranlog wait --state ONLINE"."""
    assert "nobody listens there" in told("wait --state OFFLINE:NORMAL --timeout 0", code=4)
    starting = threading.Timer(0.5, shop.start)
    starting.start()
    try:
        assert "is OFFLINE:NORMAL" in told("wait --state OFFLINE:NORMAL")
    finally:
        starting.join()


@pytest.mark.parametrize("time", ["inf", "nan", "-1", "1e400"])
def test_a_time_out_that_no_clock_takes_is_refused(shop: Shop, told: Tell, time: str) -> None:
    shop.start()
    for line in ("wait --applied 1", "flush", "offline", "heartbeat x", "reload"):
        assert "invalid value for '--timeout'" in told(f"{line} --timeout {time}", code=2)
    assert "is OFFLINE:NORMAL" in told("state")


def test_contradictions_are_refused(shop: Shop, told: Tell) -> None:
    shop.start()
    assert "one limit at a time" in told("online --until-seqno 3 --until-event x", code=2)
    assert "--until-time" in told("online --until-time tomorrow", code=2)
    assert "--until-gtid" in told("online --until-gtid 7", code=2)
    assert "--skip-seqno" in told("online --skip-seqno 5-3", code=2)
    assert "a seqno is 0 or more" in told("online --from-seqno=-1", code=2)


def test_a_heartbeat_is_in_the_log_when_the_command_returns(shop: Shop, told: Tell) -> None:
    """A script goes on with its seqno; while the source has not given way, it hears that it is not there yet."""
    install("source.db")
    assert "Start it with `tranlog capture`" in told("heartbeat early", code=4), "an apply would not do"
    shutil.rmtree("log")  # a source that is SQLite's begins where it says itself
    with ExitStack() as opened:
        source = opened.enter_context(closing(SqliteSource(SqliteSourceOptions(path="source.db", source_id="shop"))))
        log = opened.enter_context(Log.open("log", source_id="shop"))
        work = Capture(source, log)
        opened.enter_context(capture_endpoint(Capturing(log, work), runtime_dir=None))
        last = int(log.durable_seqno)
        assert told("heartbeat early --timeout 0.01", code=1) == "heartbeat early is not in the log within 0.01 s\n"
        assert json.loads(told("heartbeat early --timeout 0 --json", code=1)) == {"heartbeat": "early", "seqno": None}
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(work.run)
            opened.callback(work.stop)
            seqno = json.loads(told("heartbeat evening --json"))["seqno"]
            assert last + 2 < seqno <= log.durable_seqno, "both that were given up came before it"
            number = told("heartbeat evening").removeprefix("heartbeat evening is seqno ").removesuffix(" of the log\n")
            assert seqno < int(number) <= log.durable_seqno
            work.stop()
            running.result()
        assert "a heartbeat's name is 1 to" in told("heartbeat", "*", code=2)

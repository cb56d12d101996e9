"""A pipeline's hold and a rollback of its log: the real driver and channels, on threads, at SQLite."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fix_operated import ThreadContext, operation_of, options_of, running, without_java
from fix_pipeline import SqliteTarget, Workload, write_log
from tranlog.errors import ConfigError, RollbackError
from tranlog.ids import Gtid, Seqno
from tranlog.log.files.holds import MAY_HAVE_ALL, drop_hold, hold, is_running, read_hold
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying.holding import Holding
from tranlog.pipeline.driving.apply import run_apply
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.states import State


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ApplyOptions:
    without_java(monkeypatch)
    workload = Workload(seed=7)
    write_log(tmp_path / "log", workload, 40)
    return options_of(tmp_path, SqliteTarget(tmp_path / "target.db", workload.tables))


def gtid_at(log: Log, seqno: int) -> Gtid:
    with LogReader.open(log.path) as reader:
        header = reader.header(Seqno(seqno))
    assert header is not None
    return header.gtid


def test_a_log_is_not_rolled_back_while_its_pipeline_runs_nor_below_what_that_applied(options: ApplyOptions) -> None:
    path = options.log_dir
    with Log.open(path, source_id="db1") as log:
        last = log.last_seqno
        with running(operation_of(options)) as operated:
            operated.come_to(State.ONLINE, applied=last)
            assert is_running(path, "p")
            with pytest.raises(RollbackError, match="the pipeline 'p' runs; stop it first"):
                log.rollback(gtid_at(log, last - 1))
        found = read_hold(path, "p")
        assert found is not None and (found.applied_seqno, is_running(path, "p")) == (last, False)
        with pytest.raises(RollbackError, match=f"'p' has applied up to seqno {last}"):
            log.rollback(gtid_at(log, last - 1))
        Workload(seed=9).write(log, 5)
        assert log.rollback(gtid_at(log, last)) is not None, "what it has not applied may go"


def _apply_and_die(options: ApplyOptions) -> None:
    Holding.renew = lambda *given, **more: os._exit(9)  # type: ignore[method-assign]
    run_apply(replace(options, until_seqno="now"), spark=ThreadContext())  # type: ignore[arg-type]


def test_one_that_died_counts_as_having_applied_everything(options: ApplyOptions) -> None:
    """It said nothing; a run that ends says it."""
    path = options.log_dir
    child = multiprocessing.get_context("fork").Process(target=_apply_and_die, args=(options,))
    child.start()
    child.join(60)
    assert child.exitcode == 9
    found = read_hold(path, "p")
    assert found is not None and (found.applied_seqno, is_running(path, "p")) == (MAY_HAVE_ALL, False)
    with Log.open(path, source_id="db1") as log:
        last = log.last_seqno
        with pytest.raises(RollbackError, match=f"may have applied up to seqno {last}; run it once more and stop it"):
            log.rollback(gtid_at(log, last - 1))
        run_apply(replace(options, until_seqno="now", take_over=True), spark=ThreadContext())  # type: ignore[arg-type]
        Workload(seed=9).write(log, 5)
        assert log.rollback(gtid_at(log, last)) is not None


def test_a_relative_directory_is_held_where_it_was(options: ApplyOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver may stand elsewhere by the time it ends."""
    path = Path(options.log_dir)
    monkeypatch.chdir(path.parent)
    operation = operation_of(replace(options, log_dir=path.name))
    with Log.open(path, source_id="db1") as log, running(operation) as operated:
        operated.come_to(State.ONLINE, applied=log.last_seqno)
        last = log.last_seqno
        (path.parent / "elsewhere").mkdir()
        monkeypatch.chdir(path.parent / "elsewhere")
    found = read_hold(str(path), "p")
    assert found is not None and found.applied_seqno == last


def test_a_readers_hold_is_not_taken_for_an_earlier_run_of_the_pipeline(options: ApplyOptions) -> None:
    """What it names is the seqno that a reader needs next, and no position of a target."""
    hold(options.log_dir, "p", Seqno(3), holder="audit of the shop")
    with pytest.raises(ConfigError, match=r"a reader \(audit of the shop\) keeps the log .*tranlog hold drop p"):
        run_apply(replace(options, until_seqno="now"), spark=ThreadContext())  # type: ignore[arg-type]
    found = read_hold(options.log_dir, "p")
    assert found is not None and (found.restart_seqno, found.applied_seqno) == (3, None)
    drop_hold(options.log_dir, "p")
    run_apply(replace(options, until_seqno="now"), spark=ThreadContext())  # type: ignore[arg-type]

"""What `status` says: positions, lag, and what the whole waits for."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fix_pipeline import SqliteTarget, Workload, take, write_log
from tranlog.capture.capture import Capture, PartRead
from tranlog.change import Fragment
from tranlog.clock import SystemClock
from tranlog.disk import OsDisk
from tranlog.errors import TargetError
from tranlog.ids import Epoch, Seqno
from tranlog.log.files.holds import hold
from tranlog.log.writing.log import Log
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.progress import ChannelStats, Counters, InFlight, Lag, LastError
from tranlog.pipeline.rules.states import OperationState, State
from tranlog.pipeline.rules.troubles import Trouble, trouble_text
from tranlog.pipeline.status.gathering import writer_of
from tranlog.pipeline.status.status import ChannelState, LogState, PipelineState, WaitsFor
from tranlog.service.commands import cli
from tranlog.service.commands.status import (
    ServiceStatus,
    SourceState,
    service_status,
    status_json,
    status_lines,
    waits_for,
)
from tranlog.service.config.config import load
from tranlog.service.frame.exits import json_line
from tranlog.service.process.operating import Capturing, capture_endpoint
from tranlog.shard import UNKNOWN_SHARD
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect
from tranlog.target.options import TargetOptions
from tranlog.target.target import DIFFERS, EQUAL, OPEN, ChannelRow, PipelineRow, VerdictRow

AT = 1309533317000


def log_state(writer: str | None = "pid 7") -> LogState:
    return LogState(directory="log", writer=writer, first_seqno=0, last_seqno=20, committed_seqno=20, epoch=2)


def source_state(waiting: int = 0) -> SourceState:
    return SourceState(kind="sqlite", where="s.db", source_id="s", waiting=waiting, retained_bytes=0)


def pipeline_state(
    *applied: int, running: bool = True, holder: str = "vm pid 8", next_shard: str | None = None
) -> PipelineState:
    restart = min(applied, default=-1)
    return PipelineState(
        options=ApplyOptions(pipeline="shop", log_dir="log", target=TargetOptions(kind="sqlite", path="t.db")),
        target="t.db",
        running=running,
        row=PipelineRow(
            pipeline="shop",
            token=1,
            holder=holder,
            channels=len(applied),
            shard_rule="",
            stop_at_seqno=None,
            alive_at=0,
        ),
        lag=Lag(seqnos=20 - restart, ms=1500),
        next_shard=next_shard,
        channels=tuple(
            ChannelState(
                row=ChannelRow(
                    channel=number,
                    applied_seqno=Seqno(seqno),
                    epoch=Epoch(2),
                    event_id="e",
                    tstamp=AT,
                    updated_at=AT,
                ),
                counters=Counters(transactions=5, changes=9, serial=1, waits=2),
                stats=ChannelStats(),
                behind=20 - seqno,
                transactions_per_s=12.0 / len(applied) if running else None,
            )
            for number, seqno in enumerate(applied)
        ),
    )


def status_of(
    source: SourceState | None = None,
    log: LogState | None = None,
    pipeline: PipelineState | None = None,
    *,
    now_ms: int = AT,
    **more: Any,
) -> ServiceStatus:
    given = {"service": "s", "file": "f", **more}
    return ServiceStatus(now_ms=now_ms, source_state=source, log=log, pipeline=pipeline, **given)


@pytest.mark.parametrize(
    ("source", "log", "pipeline", "told"),
    [
        (None, None, None, ["capture: nobody writes the log (`tranlog capture`)"]),
        (
            source_state(3),
            log_state(None),
            None,
            ["capture: nobody writes the log; 3 transactions wait in the source (`tranlog capture`)"],
        ),
        (source_state(3), log_state(), None, ["capture, which has 3 transactions to go"]),
        (source_state(), log_state(), None, []),
        (
            source_state(),
            log_state(),
            pipeline_state(20, 20),
            ["the source: everything that was committed there is at the target"],
        ),
        (
            source_state(),
            log_state(),
            replace(pipeline_state(20, 20), waiting_tables=("s.a", "s.b")),
            [
                "the source: everything that was committed there is at the target, but not of tables that wait for a "
                "load: s.a, s.b"
            ],
        ),
        (source_state(), log_state(), pipeline_state(20, 17, 18, next_shard="main.item"), ["channel 1 at seqno 18"]),
        (
            source_state(),
            log_state(),
            pipeline_state(17, 17, 18, next_shard="main.item"),
            ["channels 0, 1 at seqno 18"],
        ),
        (
            source_state(),
            log_state(),
            pipeline_state(17, 17, next_shard=UNKNOWN_SHARD),
            ["channel 0, which applies seqno 18 alone: it is serial"],
        ),
        (
            source_state(),
            log_state(),
            pipeline_state(running=False),
            ["apply: pipeline shop does not run, it has never run here (`tranlog apply`)"],
        ),
        (
            source_state(),
            log_state(),
            pipeline_state(17, 17, running=False),
            ["apply: pipeline shop does not run, its driver is not alive (`tranlog apply`)"],
        ),
        (
            source_state(),
            log_state(),
            pipeline_state(17, 17, running=False, holder=""),
            ["apply: pipeline shop does not run, it was stopped (`tranlog apply`)"],
        ),
        (source_state(), log_state(None), pipeline_state(20, 20), ["capture: nobody writes the log"]),
    ],
)
def test_what_it_waits_for(
    source: SourceState | None,
    log: LogState | None,
    pipeline: PipelineState | None,
    told: list[str],
) -> None:
    found = list(waits_for(status_of(source, log, pipeline)))
    assert len(found) == len(told)
    assert all(line.startswith(start) for line, start in zip(found, told, strict=True)), found


def test_the_human_form_tells_all_parts() -> None:
    shown = "\n".join(
        status_lines(
            status_of(
                SourceState(
                    kind="mariadb",
                    where="db:3306",
                    source_id="db",
                    captured_event_id="0-1-5;bin.000001:99",
                    captured_tstamp=AT,
                    now_at="0-1-7",
                ),
                log_state(),
                pipeline_state(17, 20, next_shard="main.item"),
                service="shop",
                file="tranlog.toml",
                now_ms=AT + 2500,
                problems={"target": TargetError("does not answer")},
            )
        )
    )
    for told in (
        "service   shop (tranlog.toml)",
        "captured up to 0-1-5;bin.000001:99 (2011-07-01 15:15:17.0 UTC, 2.5 s ago)",
        "is at 0-1-7",
        "log       log, written by pid 7",
        "applied up to 17, lag 3 transactions, 1.5 s, 12 transactions/s",
        "          channel  applied  behind  transactions  changes  serial  waits  tx/s  commit time (UTC)\n"
        "                0       17       3             5        9       1      2     6  2011-07-01 15:15:17.0",
        "target    PROBLEM: does not answer",
        "waits for channel 0 at seqno 18",
    ):
        assert told in shown, shown


def test_a_target_that_is_away_hides_no_trouble() -> None:
    """Nothing was said of the pipeline but that its target does not answer, whether it ran or not."""
    process = OperationState(
        pipeline="p",
        state=State.DEGRADED,
        began_ms=AT,
        since_ms=AT,
        applied_seqno=3,
        committed_seqno=9,
        limit="",
        left_out="",
        pending=None,
        waits=(),
        troubles=(Trouble(channel=1, reason="it is away", since_ms=AT),),
    )
    status = status_of(None, log_state(), None, process=process, problems={"target": TargetError("does not answer")})
    assert list(status_lines(status))[-3:] == [
        "pipeline  p, ONLINE:DEGRADED",
        "target    PROBLEM: does not answer",
        f"waits for {trouble_text(process.troubles[0])}",
    ]
    told = json.loads(json_line(status_json(status)))
    assert (told["pipeline"]["state"], told["pipeline"]["troubles"][0]["reason"]) == ("ONLINE:DEGRADED", "it is away")
    assert status.waits_for is WaitsFor.TROUBLE


def test_up_to_where_tables_are_verified() -> None:
    """Those that are equal in one line, which names the one that was longest not verified: it may be gone."""
    verdicts = [
        VerdictRow(table=f"s.{name}", verify="2", seqno=Seqno(9), token=1, verdict=verdict, verified_through=Seqno(to))
        for name, verdict, to in (("a", EQUAL, 9), ("b", EQUAL, 7), ("c", DIFFERS, 5), ("d", OPEN, -1))
    ]
    status = status_of(None, log_state(), replace(pipeline_state(17), verdicts=tuple(verdicts)))
    shown = list(status_lines(status))
    first = shown.index("          2 tables verified through seqno 7 (s.b) or later, up to 9")
    assert shown[first + 1 : first + 3] == [
        "          s.c: differs at seqno 9, verified through seqno 5",
        "          s.d: no verdict yet at seqno 9, never equal before",
    ]
    verified = json.loads(json_line(status_json(status)))["pipeline"]["verified"]
    assert verified[2] == {"table": "s.c", "verdict": "differs", "seqno": 9, "verified_through": 5}


def test_who_writes_a_log_is_seen_without_taking_its_lock(tmp_path: Path) -> None:
    assert writer_of(str(tmp_path)) is None, "there is no log"
    lock = OsDisk().lock(str(tmp_path / "disklog.lck"))
    (tmp_path / "disklog.lck").write_text("pid 4711\n")
    assert writer_of(str(tmp_path)) == "pid 4711"
    lock.release()
    assert writer_of(str(tmp_path)) is None, "the name in the file alone does not hold it"
    OsDisk().lock(str(tmp_path / "disklog.lck")).release()


def test_what_was_not_looked_at_is_not_known() -> None:
    """`--no-watch` said "running": false, and "not running", of a pipeline that ran."""
    status = status_of(None, log_state(), replace(pipeline_state(17), running=None))
    assert json.loads(json_line(status_json(status)))["pipeline"]["running"] is None
    (line,) = [line for line in status_lines(status) if line.startswith("pipeline")]
    assert line == "pipeline  shop, last run by vm pid 8; not checked whether it runs"
    assert not any("does not run" in one for one in waits_for(status))


def test_whether_a_pipeline_runs_is_not_known_unwatched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the commands, of a pipeline that was claimed and whose process does not answer here: null, and NONE."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tranlog.toml").write_text(
        '[log]\ndir = "log"\n[target]\nkind = "sqlite"\npath = "t.db"\n[pipeline]\nname = "p"\nchannels = 2\n'
    )
    take(SqliteTarget(tmp_path / "t.db", ()).options, ShardPlan(channels=2), begin=5)
    write_log(tmp_path / "log", Workload(seed=1), 9)
    assert cli.main(["status", "--json", "--no-watch"]) == 0
    assert json.loads(capsys.readouterr().out)["pipeline"]["running"] is None
    assert cli.main(["status", "-name", "tasks", "--no-watch"]) == 0
    shown = [line.split(":")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("state ")]
    assert shown == ["NONE", "NONE"]


def test_the_lag_of_a_log_that_cannot_be_read_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "lag 0 transactions, 0.0 s" was said of it: all is well, beside a log that is gone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tranlog.toml").write_text(
        '[log]\ndir = "log"\n[target]\nkind = "sqlite"\npath = "t.db"\n[pipeline]\nname = "p"\nchannels = 2\n'
    )
    plan, target = ShardPlan(channels=2), SqliteTarget(tmp_path / "t.db", ())
    take(target.options, plan, begin=5)
    write_log(tmp_path / "log", Workload(seed=1), 9)
    config = load("tranlog.toml", environ={})

    shown = ("          applied up to ", "                0 ")

    def told() -> tuple[PipelineState, list[str]]:
        status = service_status(config, clock=SystemClock(), watch_s=0.0)
        assert status.pipeline is not None
        return status.pipeline, [line for line in status_lines(status) if line.startswith(shown)]

    state, (lag, channel) = told()
    assert state.lag is not None and state.lag.seqnos == 5 and [one.behind for one in state.channels] == [5, 5]
    assert "applied up to 4, lag 5 transactions, " in lag
    (tmp_path / "log").rename(tmp_path / "elsewhere")
    state, (lag, channel) = told()
    assert (state.lag, [one.behind for one in state.channels]) == (None, [None, None])
    assert lag == "          applied up to 4, lag not known"
    assert channel.split()[:3] == ["0", "4", "-"]


def test_an_end_by_an_error_is_none_by_an_operator() -> None:
    """ "it was stopped" was said of both."""
    error = LastError("ConflictError", "conflict at seqno 18. Mend it, start apply again", AT, 18)
    state = pipeline_state(17, running=False, holder="")
    (channel,) = state.channels
    row = replace(channel.row, stats=ChannelStats(error=error).text(Counters()))
    status = status_of(None, log_state(), replace(state, channels=(replace(channel, row=row),)))
    ended = "ended at 2011-07-01 15:15:17.0 UTC by ConflictError: conflict at seqno 18. Mend it, start apply again"
    assert f"          {ended}" in list(status_lines(status))
    (waits,) = waits_for(status)
    assert waits == (
        "apply: pipeline shop does not run, it ended by an error at 2011-07-01 15:15:17.0 UTC (`tranlog apply`)"
    )


def process_state(state: State) -> OperationState:
    return OperationState(
        pipeline="shop",
        state=state,
        began_ms=AT,
        since_ms=AT,
        applied_seqno=17,
        committed_seqno=20,
        limit="",
        left_out="",
        pending=None,
        waits=(),
        troubles=(),
        slots=0,
        channels=1,
    )


def test_a_pipeline_that_goes_online_has_neither_driver_nor_slots_yet() -> None:
    """ "run by , GOING-ONLINE:SYNCHRONIZING" and "0 slots for 1 channels" was said of every start."""
    status = status_of(None, log_state(), pipeline_state(17, holder=""), process=process_state(State.GOING_ONLINE))
    lines = list(status_lines(status))
    assert "pipeline  shop, not claimed yet, GOING-ONLINE:SYNCHRONIZING" in lines
    assert not any("slots" in one for one in lines)


@pytest.mark.parametrize("state", [State.OFFLINE_NORMAL, State.OFFLINE_ERROR])
def test_a_process_that_is_offline_runs(state: State) -> None:
    """ "not running" was said of it, and `tranlog apply` as what to do, which it refuses."""
    status = status_of(None, log_state(), pipeline_state(17, running=False, holder=""), process=process_state(state))
    assert f"pipeline  shop, at rest, {state}" in list(status_lines(status))
    assert list(waits_for(status)) == [f"its operator: pipeline shop is {state} (`tranlog online`)"]


def test_a_large_transaction_shows_how_far_it_is() -> None:
    """ "lag 1 transactions, 43.6 s" was all that was said of a million rows."""
    large = InFlight(
        seqno=18, changes=400_000, read_bytes=12_040_000, size_bytes=40_000_000, began_at=AT - 41_100, written_at=AT
    )
    state = pipeline_state(17, 20)
    first = replace(state.channels[0], in_flight=large)
    status = status_of(None, log_state(), replace(state, channels=(first, state.channels[1])), now_ms=AT + 2_500)
    assert [one["in_flight"] for one in json.loads(json_line(status_json(status)))["pipeline"]["channels"]] == [
        {"seqno": 18, "changes": 400_000, "read_bytes": 12_040_000, "size_bytes": 40_000_000}
        | {"began_at": AT - 41_100, "written_at": AT},
        None,
    ]
    assert list(status_lines(status))[-2] == (
        "          channel 0 is in seqno 18, 400000 changes so far, 12.0 of 40.0 MB, for 43.6 s, told 2.5 s ago"
    )


def test_who_cannot_use_the_target_is_named() -> None:
    troubles = (Trouble(channel=2, reason="no more connections", since_ms=AT),)
    process = OperationState(
        pipeline="shop",
        state=State.DEGRADED,
        began_ms=AT,
        since_ms=AT,
        applied_seqno=17,
        committed_seqno=20,
        limit="",
        left_out="",
        pending=None,
        waits=(),
        troubles=troubles,
        slots=1,
        channels=2,
    )
    status = status_of(None, log_state(), pipeline_state(17, 20), process=process)
    told = list(status_lines(status))
    assert "pipeline  shop, run by vm pid 8, ONLINE:DEGRADED" in told and "          1 slots for 2 channels" in told
    assert list(waits_for(status)) == [
        "channel 2, which cannot use the target since 2011-07-01 15:15:17 UTC: no more connections"
    ]


def test_a_large_transaction_that_is_captured_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a real source, asked of the capture that runs; how large it is only its end tells."""
    (tmp_path / "tranlog.toml").write_text(
        '[service]\nname = "shop"\n[log]\ndir = "log"\n[source]\nkind = "sqlite"\nload = "none"\npath = "shop.db"\n'
        'source_id = "shop"\n'
    )
    monkeypatch.chdir(tmp_path)
    config = load("tranlog.toml", environ={})
    database = connect("shop.db", fragment_bytes=2_000)
    database.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    with database:
        for _ in range(100):
            database.execute("INSERT INTO t(a) VALUES(?)", ("x" * 500,))
    source = SqliteSource(SqliteSourceOptions(path="shop.db", source_id="shop"))
    read, seen = source.read, list[PartRead | None]()
    told: list[ServiceStatus] = []

    def watched(wait_s: float) -> Iterator[Fragment]:
        for fragment in read(wait_s):
            yield fragment
            seen.append(work.status().in_flight)
            if len(told) < 2 and seen[-1] is not None:
                told.append(service_status(config, clock=SystemClock(), watch_s=0.0))

    monkeypatch.setattr(source, "read", watched)
    began = SystemClock().now_ms()
    with Log.open("log", source_id="shop") as log:
        work = Capture(source, log)
        with capture_endpoint(Capturing(log, work), runtime_dir=None):
            done = work.catch_up()
            after = service_status(config, clock=SystemClock(), watch_s=0.0)
    source.close()
    database.close()
    inside = [one for one in seen if one is not None]
    assert len(inside) > 10 and seen[-1] is None and done.in_flight is None
    for before, one in itertools.pairwise(inside):
        assert before.changes < one.changes < 100 and before.read_bytes < one.read_bytes
        assert began <= before.began_at == one.began_at
    assert [one.source_state.in_flight for one in told if one.source_state is not None] == inside[:2]
    first = inside[0]
    line = f"capture is in a large transaction, {first.changes} changes so far, {first.read_bytes} bytes, for "
    assert any(one.strip().startswith(line) for one in status_lines(told[0])), list(status_lines(told[0]))
    assert after.source_state is not None and after.source_state.in_flight is None


def test_the_json_form_has_its_keys_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tranlog.toml").write_text(
        '[service]\nname = "shop"\n[log]\ndir = "log"\n[source]\nkind = "sqlite"\nload = "none"\n'
        'path = "s.db"\nsource_id = "s"\n'
        '[target]\nkind = "sqlite"\npath = "t.db"\n[pipeline]\nname = "p"\nchannels = 2\n'
    )
    connect("s.db").close()
    take(SqliteTarget(tmp_path / "t.db", ()).options, ShardPlan(channels=2), begin=5)
    write_log(tmp_path / "log", Workload(seed=1), 9)
    hold(str(tmp_path / "log"), "p", Seqno(5))
    assert cli.main(["status", "--json", "--no-watch"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert " ".join(told) == "service file at source log pipeline loads waits_for problems"
    assert " ".join(told["source"]) == (
        "kind where source_id captured_event_id captured_tstamp now_at waiting retained_bytes note in_flight error "
        "waiting_unit"
    )
    assert " ".join(told["log"]) == (
        "directory writer history first_seqno last_seqno committed_seqno first_epoch epoch segments bytes holds"
    )
    assert " ".join(told["log"]["holds"][0]) == "name restart_seqno written_at"
    assert " ".join(told["pipeline"]) == (
        "pipeline target running state slots troubles error notes holder verified shard_rule stop_at_seqno "
        "restart_seqno lag_seqnos lag_ms transactions_per_s changes_per_s channels shards"
    )
    assert " ".join(told["pipeline"]["channels"][0]) == (
        "channel applied_seqno epoch event_id tstamp updated_at behind transactions_per_s counters in_flight"
    )

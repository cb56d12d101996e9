"""`tranlog reload`: the configuration file of a running process, read again.

Up to the operator's answer, with the driver in threads; the socket is `test_server`'s, Spark `tests/spark`'s.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fix_operated import WAIT_S, operation_of, running, without_java
from fix_pipeline import SqliteTarget, Workload, check_equal, positions, write_log
from tranlog.errors import ConfigError
from tranlog.log.writing.log import LogOptions
from tranlog.pipeline.rules.channels import PlanOptions, ShardBy
from tranlog.pipeline.rules.states import State
from tranlog.service.commands.orders import _reloaded
from tranlog.service.config.config import load
from tranlog.service.process.api import WithinTime
from tranlog.service.process.operating import Operator
from tranlog.service.process.reloading import PLAN_KEYS, ConfigFile

START = """
[service]
name = "p"
[log]
dir = "log"
[target]
kind = "sqlite"
path = "target.db"
[pipeline]
channels = 3
sync_interval_s = 0.05
master = "local[16]"
[shards]
assignment = "hash"
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "tranlog.toml"
    path.write_text(START)
    return path


def file_of(conf: Path, *, channels: int | None = None) -> ConfigFile:
    return ConfigFile(load(str(conf), environ={}), environ={}, channels=channels)


def test_what_of_the_file_is_the_plan_and_what_waits(conf: Path) -> None:
    file = file_of(conf)
    assert file.read_again().at_restart == ()
    (conf.parent / "shard.list").write_text("north=1\n(*)=4\n(critical)=east\n")
    conf.write_text(
        START.replace("channels = 3", "channels = 5\ngroup_s = 0.5")
        .replace('assignment = "hash"', 'list = "shard.list"\nby = "table"\nrule = "map"\n[shards.map]\nt = "x"')
        .replace("sync_interval_s = 0.05\n", "")
        .replace('"target.db"', '"other.db"')
        + '[[filter]]\nkind = "exclude"\ntables = ["a.*"]\n[source]\nkind = "sqlite"\npath = "source.db"\n'
    )
    found = file.read_again()
    assert found.at_restart == (
        "filter",
        "pipeline.group_s",
        "pipeline.sync_interval_s",
        "shards.map.t",
        "shards.rule",
        "source.kind",
        "source.path",
        "target.path",
    )
    config = load(str(conf), environ={})
    options = config.apply_options()
    started = replace(options, channels=3, sync_interval_s=7.0, plan=PlanOptions())
    changed = found.change(started)
    assert changed.channels == 5
    assert changed.plan == PlanOptions(by=ShardBy.TABLE, channels={"north": 1}, default=4, serial=("east",))
    assert changed.sync_interval_s == 7.0


def test_every_key_of_the_plan_is_one_of_the_file(conf: Path) -> None:
    """Else one would be taken up and named as waiting, or the reverse."""
    values = {
        "channels": "{north = 1}",
        "assignment": '"hash"',
        "by": '"key"',
        "default": "2",
        "keys": '{"a.b" = "c"}',
        "serial": '["east"]',
    }
    shards = "\n".join(f"{key} = {value}" for key, value in values.items())
    file = file_of(conf)
    config = load(str(conf), environ={})
    options = config.apply_options()
    conf.write_text(START.replace("channels = 3", "channels = 4").replace('assignment = "hash"', shards))
    found = file.read_again()
    assert found.at_restart == () and found.change(options).shard_plan() != options.shard_plan()
    others = {"shards.independent_triggers", "shards.commit_order", "shards.commit_cost"}  # these need another `by`
    more = {"pipeline.channels", "shards.list"} | others
    assert more | {f"shards.{key}" for key in values} == PLAN_KEYS


def test_the_command_line_outranks_the_file(conf: Path) -> None:
    file = file_of(conf, channels=2)
    assert file.read_again().at_restart == ("pipeline.channels (the command line says 2)",)
    conf.write_text(START.replace('assignment = "hash"', "default = 2"))
    with pytest.raises(ConfigError, match=r"tranlog\.toml: shard default.*channels are numbered 0 to 1"):
        file.read_again()


def test_a_reload_from_request_to_answer(conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(monkeypatch)
    workload = Workload(seed=4)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 80)
    config = load(str(conf), environ={})
    operation = operation_of(config.apply_options())
    operator = Operator(operation, LogOptions(), reread=file_of(conf).read_again)
    ask = WithinTime(timeout_s=WAIT_S)
    with running(operation) as operated:
        operated.come_to(State.ONLINE, last)
        answer = msgspec.to_builtins(operator.reload(ask))
        assert (answer["plan"], answer["at_restart"], answer["state"]) == ("unchanged", (), "ONLINE")
        assert _reloaded(answer) == ['plan unchanged: 3 channels, rule "hash"']

        conf.write_text(START.replace("channels = 3", "channels = 5\nidle_every = 50"))
        answer = msgspec.to_builtins(operator.reload(ask))
        assert _reloaded(answer) == [
            f"plan changed at seqno {last}",
            '  before: 3 channels, rule "hash"',
            '  after:  5 channels, rule "hash"',
            "  only at a restart: pipeline.idle_every",
        ]
        assert positions(target.options) == dict.fromkeys(range(5), last)

        for wrong, why in (
            ("channels = ", "is not TOML"),
            (START.replace("channels = 3", "channels = 17"), "17 channels need 17 slots"),
            (START.replace("channels = 3", "chanels = 4"), "did you mean 'channels'"),
            (START.replace('"hash"', '"no rule"'), "must be one of recorded, hash"),
            (START.replace('assignment = "hash"', 'list = "nowhere"'), "cannot be read: No such file"),
        ):
            conf.write_text(wrong)
            with pytest.raises(ConfigError, match=why) as caught:
                operator.reload(ask)
            assert str(conf) in str(caught.value)
            assert operator.state().state is State.ONLINE and operation.options.channels == 5
        last = write_log(tmp_path / "log", workload, 10)
        operated.come_to(State.ONLINE, last)

        operation.offline()
        operated.come_to(State.OFFLINE_NORMAL)
        conf.write_text(START)
        assert _reloaded(msgspec.to_builtins(operator.reload(ask)))[0] == "plan changes at the next online"
    check_equal(target, workload)
    with pytest.raises(ConfigError, match="started without a configuration file"):
        Operator(operation, LogOptions()).reload(ask)

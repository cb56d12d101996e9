"""The configuration file; conventions 6.4."""

from __future__ import annotations

from pathlib import Path

import pytest

from tranlog.errors import ConfigError
from tranlog.log.options import LogOptions
from tranlog.pipeline.filters.filters import Delay, EachTransaction, Include, MaskBy, MaskColumns, OnStatement
from tranlog.pipeline.rules.channels import AssignmentRule, PlanOptions, ShardBy
from tranlog.service.config.config import Config, find_file, find_log, load
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.mariadb.connection import MariadbSourceOptions


def read(text: str, tmp_path: Path) -> Config:
    """Return the configuration of a source of MariaDB with `text` in [source], and what may follow that table."""
    file = tmp_path / "x.toml"
    file.write_text(f'[log]\ndir = "log"\n[source]\nkind = "mariadb"\n{text}\n')
    return load(str(file), environ={})


def test_values_become_options(tmp_path: Path) -> None:
    config = read(
        'spool_directory = "a/b"\nreconnect_s = "1.5h"\nread_bytes = "64MiB"\nstatements = "record"\nport = 3307\n'
        'databases = ["x"]\nheartbeat_s = 1\n[shards]\nrule = "map"\nmap = {a = "b"}',
        tmp_path,
    )
    assert config.source == MariadbSourceOptions(
        spool_directory=str(tmp_path / "a" / "b"),
        reconnect_s=5400,
        read_bytes=64 << 20,
        statements="record",
        port=3307,
        databases=("x",),
        heartbeat_s=1.0,
        source_id="tranlog",
        shard_rule=ShardRule(kind=ShardRuleKind.MAP, mapping={"a": "b"}),
    )


@pytest.mark.parametrize(
    ("source", "more", "ddl"),
    [
        ('[source]\nkind = "mariadb"\n', "", "follow"),
        ('[source]\nkind = "postgres"\ndsn = "host=x"\n', "", "follow"),
        ('[source]\nkind = "mariadb"\n', 'ddl = "stop"\n', "stop"),
        ('[source]\nkind = "sqlite"\npath = "s.db"\n', "", "stop"),
        ('[source]\nkind = "thl"\npath = "thl"\n', "", "stop"),
        ("", "", "stop"),
    ],
)
def test_tables_follow_a_source_of_another_kind(source: str, more: str, ddl: str, tmp_path: Path) -> None:
    """Unless the file says else; what kind of database a log is of whose source is not named, nobody knows here."""
    file = tmp_path / "tranlog.toml"
    file.write_text(f'[log]\ndir = "log"\n{source}[target]\nkind = "sqlite"\npath = "t.db"\n{more}')
    assert load(str(file), environ={}).wanted_target().ddl == ddl


def test_a_path_may_be_absolute_or_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for said, meant in (("~/log", tmp_path / "me" / "log"), (f"{tmp_path}/log", tmp_path / "log")):
        source = read(f'spool_directory = "{said}"', tmp_path).source
        assert isinstance(source, MariadbSourceOptions) and source.spool_directory == str(meant)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pord = 5", "x.toml:5: source.pord = 5: unknown key; did you mean 'port'?"),
        ("zzz = 5", "x.toml:5: source.zzz = 5: unknown key; known keys are kind, host, port, "),
        ('port = "five"', "x.toml:5: source.port = 'five': input should be a valid integer"),
        ("port = true", "x.toml:5: source.port = True: input should be a valid integer"),
        ("port = 0", "x.toml:5: source.port = 0: a port is a number from 1 to 65535"),
        ('statements = "perhaps"', "x.toml:5: source.statements = 'perhaps': must be one of stop, record"),
        ('reconnect_s = "soon"', "x.toml:5: source.reconnect_s = 'soon': a number, or one with a unit: ms, s, m"),
        ('reconnect_s = "5MiB"', "x.toml:5: source.reconnect_s = '5MiB': a number, or one with a unit: ms, s, m"),
        ('reconnect_s = "1h1h"', "x.toml:5: source.reconnect_s = '1h1h': a number, or one with a unit: ms, s, m"),
        ('read_bytes = "5 stones"', "x.toml:5: source.read_bytes = '5 stones': a number, or one with a unit"),
        ('databases = "x"', "x.toml:5: source.databases = 'x': a list of one or more texts, in brackets"),
        ("host = 5", "x.toml:5: source.host = 5: input should be a valid string"),
        ("host = 2026-11-23", "x.toml:5: source.host = datetime.date(2026, 11, 23): input should be a valid string"),
        ("[target]", "x.toml: target.kind: is missing and has no default"),
        ("[[target]]", "x.toml:5: target = [{}]: is a table: [target]"),
        (
            "[shards]\nchannels = 2",
            "x.toml:6: shards.channels = 2: is a table: [shards.channels]; or is [pipeline] channels meant?",
        ),
        ('[shards]\nrule = "column"', "x.toml:6: shards.rule = 'column': must be one of schema, table, map"),
        ('databases = [\n  "x",\n]\nport = 0', "x.toml:8: source.port = 0: a port is"),
    ],
)
def test_a_wrong_key_or_value_is_named(text: str, told: str, tmp_path: Path) -> None:
    """File, line, key with dots, value, reason, and the nearest known key."""
    with pytest.raises(ConfigError) as raised:
        read(text, tmp_path)
    assert str(raised.value).startswith(f"configuration: {tmp_path}/{told}")


@pytest.mark.parametrize(
    ("section", "key"),
    [
        *(
            ("pipeline", one)
            for one in ("max_offline_interval_s", "retry_s", "give_up_s", "sync_interval_s", "group_s")
        ),
        *(("source", "busy_timeout_s"), ("capture", "batch_s"), ("log", "retention_s"), ("spark", "slots_wait_s")),
    ],
)
@pytest.mark.parametrize(
    ("said", "value", "why"),
    [
        ("nan", "nan", "a finite number"),
        ("-inf", "-inf", "a finite number"),
        ("inf", "inf", "a finite number"),
        ("1e300", "1e+300", "seconds, at most a hundred years"),
        (f"{10**400}", f"{10**400}", "seconds, at most a hundred years"),
        (f'"{10**400} s"', "inf", "a finite number"),
    ],
)
def test_seconds_that_nobody_can_wait_are_refused(
    section: str, key: str, said: str, value: str, why: str, tmp_path: Path
) -> None:
    """They were accepted, and failed when the first wait began."""
    file = tmp_path / "x.toml"
    given = {"log": ['dir = "log"'], "source": ['kind = "sqlite"', 'path = "a.db"']}
    given.setdefault(section, []).append(f"{key} = {said}")
    lines = [line for name, values in given.items() for line in (f"[{name}]", *values)]
    file.write_text("\n".join(lines))
    line = lines.index(f"{key} = {said}") + 1
    with pytest.raises(ConfigError) as raised:
        load(str(file), environ={})
    assert str(raised.value).startswith(f"configuration: {file}:{line}: {section}.{key} = {value}: {why}")


def test_a_writer_is_waited_for_a_day_at_most(tmp_path: Path) -> None:
    """SQLite counts milliseconds, in 31 bits."""
    file = tmp_path / "x.toml"
    file.write_text('[log]\ndir = "log"\n[source]\nkind = "sqlite"\npath = "a.db"\nbusy_timeout_s = "25d"\n')
    with pytest.raises(ConfigError, match=r"x.toml:6: source.busy_timeout_s = 2160000.0: seconds, .* at most a day"):
        load(str(file), environ={})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[pipeline]\nstart_seqno = -5", "x.toml:6: pipeline.start_seqno = -5: a seqno is 0 or more"),
        ("[pipeline]\ngroup_s = -1", "x.toml:6: pipeline.group_s = -1.0: must be above 0"),
        ('[pipeline]\nchannels = 1\nname = "a/b"', "x.toml:7: pipeline.name = 'a/b': a pipeline's name is"),
        ('[service]\nname = "a/b"', "x.toml:6: service.name = 'a/b': a pipeline's name is"),
        ('[pipeline]\nparallelization = "memory"\n[shards]\nby = "writes"', "x.toml:8: shards.by = 'writes': "),
        ('[shards.channels]\n"a.b" = 7', "x.toml:5: shards.channels = {'a.b': 7}: channels are numbered 0 to 3"),
        ('[source]\nkind = "mariadb"\nstart = "x"', "x.toml:7: source.start = 'x': not a MariaDB GTID"),
    ],
)
def test_an_error_names_the_key_and_not_the_component_s_word_for_it(text: str, told: str, tmp_path: Path) -> None:
    """docs/configuration.md: "An error names origin, line, key"."""
    (tmp_path / "x.toml").write_text(f'log = {{dir = "log"}}\n[target]\nkind = "sqlite"\npath = "t.db"\n{text}\n')
    with pytest.raises(ConfigError) as raised:
        load(str(tmp_path / "x.toml"), environ={})
    assert str(raised.value).startswith(f"configuration: {tmp_path}/{told}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[log]\ndir = ""', "x.toml:2: log.dir = '': a path, and it is empty"),
        ('[log]\ndir = "a\\u0000b"', r"x.toml:2: log.dir = 'a\x00b': no path holds a NUL character"),
        ('[log]\nlogDir = ""', "x.toml:2: log.logDir = '': a path, and it is empty"),
        ('[log]\ndir = "log"\n[source]\nkind = "sqlite"\npath = ""', "x.toml:5: source.path = '': a path"),
        ('[log]\ndir = "log"\n[target]\nkind = "sqlite"\npath = ""', "x.toml:5: target.path = '': a path"),
    ],
)
def test_an_empty_path_is_not_the_folder_of_the_file(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(f"{text}\n")
    with pytest.raises(ConfigError) as raised:
        load(str(tmp_path / "x.toml"), environ={})
    assert str(raised.value).startswith(f"configuration: {tmp_path}/{told}")
    with pytest.raises(ConfigError, match=r"TRANLOG_LOG__DIR: log\.dir = '': a path"):
        load(str(tmp_path / "x.toml"), environ={"TRANLOG_LOG__DIR": ""})


def test_a_value_where_a_table_belongs(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("log = 5\n")
    with pytest.raises(ConfigError, match=r"x\.toml:1: log = 5: is a table: \[log\]"):
        load(str(tmp_path / "x.toml"), environ={})


def test_a_file_that_is_missing_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: there is no such file; `tranlog init` writes one"):
        load(str(tmp_path / "nowhere.toml"), environ={})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(str(tmp_path), environ={})
    for raw in (b"[part\n", b"a = \xff\n"):
        (tmp_path / "x.toml").write_bytes(raw)
        with pytest.raises(ConfigError, match=r"x\.toml: is not TOML"):
            load(str(tmp_path / "x.toml"), environ={})


def test_which_file_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_file(conf=None, service=None) == "tranlog.toml"
    assert find_file(conf="other.toml", service=None) == "other.toml"
    with pytest.raises(ConfigError, match=r"--service = 'shop': there is neither shop\.toml nor tranlog\.toml here"):
        find_file(conf=None, service="shop")
    Path("tranlog.toml").write_text('[service]\nname = "shop"\n[log]\ndir = "one"\n')
    assert find_file(conf=None, service="shop") == "tranlog.toml"
    with pytest.raises(ConfigError, match=r"--service = 'mart': tranlog\.toml is the configuration of 'shop'"):
        find_file(conf=None, service="mart")
    Path("mart.toml").write_text('[service]\nname = "mart"\n[log]\ndir = "two"\n')
    assert find_file(conf=None, service="mart") == "mart.toml"
    assert find_log(conf=None, service="mart", directory=None) == str(tmp_path / "two")
    assert find_log(conf=None, service=None, directory=None) == str(tmp_path / "one")
    assert find_log(conf=None, service=None, directory="three") == "three"
    with pytest.raises(ConfigError, match="cannot be combined"):
        find_log(conf=None, service="mart", directory="three")


# --- the properties of the THL document ---

ENDS = '[source]\nkind = "sqlite"\npath = "s.db"\n[target]\n'
SQLITE = 'kind = "sqlite"\npath = "t.db"\n'


def written(tmp_path: Path, log: str, target: str = SQLITE) -> str:
    file = tmp_path / "tranlog.toml"
    file.write_text(f"[log]\n{log}\n{ENDS}{target}")
    return str(file)


def test_the_ancestors_names_are_other_names_of_ours(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        'logDir = "thl"\nlogFileSize = 50000000\nlogFileRetention = "7d"\nretention_s = "6d 24h"\ndoCheckSum = true\n'
        'bufferSize = 131072\nbuffer_bytes = "128KiB"\nflushIntervalMillis = 500\nfsyncOnFlush = false\n',
    )
    config = load(file, environ={})
    assert config.log_dir == str(tmp_path / "thl")
    assert config.log == LogOptions(
        segment_bytes=50_000_000,
        retention_s=604_800,
        buffer_bytes=131_072,
        flush_interval_s=0.5,
        sync_on_flush=False,
    )
    assert find_log(conf=file, service=None, directory=None) == str(tmp_path / "thl")


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ('dir = "a"\nlogDir = "b"', "log.logDir = 'b': dir = '"),
        (
            'dir = "a"\nretention_s = "6d"\nlogFileRetention = "7d"',
            "log.logFileRetention = 604800.0: retention_s = 518400",
        ),
        ('dir = "a"\nlogFileRetention = "7 days"', "log.logFileRetention = '7 days': an interval is written"),
        ('dir = "a"\nlogConnectionTimeout = 600', "log.logConnectionTimeout = 600: a reader holds one file"),
        ('dir = "a"\nresetPeriod = 1', "log.resetPeriod = 1: it is about Java's object streams"),
        ('dir = "a"\nURL = "jdbc:mysql://x"', "log.URL = '(hidden)': positions are kept at the target"),
        ('dir = "a"\nuser = "root"', "log.user = 'root': positions are kept at the target"),
        ('dir = "a"\npassword = "root"', "log.password = '(hidden)': positions are kept at the target"),
        (
            'dir = "a"\nfsyncOnFlush = false',
            "False: without flush_interval_s the only flush is a commit",
        ),
        ('dir = "a"\nlogFileSise = 5', "log.logFileSise = 5: unknown key"),
        ('dir = "a"\nretention_s = "7d 5 stones"', "log.retention_s = '7d 5 stones': a number, or one with a unit"),
        (
            'dir = "a"\nhard_retention_s = 5\nretention_s = 6',
            "hard_retention_s = 5.0: it is below retention_s = 6.0",
        ),
        ('dir = "a"\nretention_bytes = 0', "log.retention_bytes = 0: it is below 1"),
    ],
)
def test_a_property_that_cannot_be(log: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load(written(tmp_path, log), environ={})
    assert told in str(raised.value)


def test_the_catalogs_url_and_user_are_the_targets(tmp_path: Path) -> None:
    """thl-internals: "URL of DBMS and schema where replication service catalog tables are stored"."""
    url = 'kind = "postgres"\nURL = "jdbc:postgresql://127.0.0.1:5432/shop"\nuser = "till"\npassword = "secret"\n'
    config = load(written(tmp_path, 'dir = "log"', url), environ={})
    assert config.target is not None
    assert set(config.target.dsn.split()) == {
        "user=till",
        "password=secret",
        "host=127.0.0.1",
        "port=5432",
        "dbname=shop",
    }
    url = 'kind = "mariadb"\nURL = "jdbc:mysql://127.0.0.1:3307/shop"\nuser = "till"\npassword = "se:cret"\n'
    config = load(written(tmp_path, 'dir = "log"', url), environ={})
    assert config.target is not None and config.target.dsn == "mariadb://till:se%3Acret@127.0.0.1:3307/shop"
    config = load(written(tmp_path, 'dir = "log"', 'kind = "sqlite"\nURL = "jdbc:sqlite:t.db"\n'), environ={})
    assert config.target is not None and config.target.path == str(tmp_path / "t.db")
    dsn = 'kind = "postgres"\ndsn = "postgresql://till@127.0.0.1/shop"\n'
    for target, told in (
        (
            f'{dsn}URL = "jdbc:postgresql://elsewhere/shop"\n',
            "'(hidden)': dsn is given too and differs",
        ),
        (f'{dsn}user = "root"\n', "user = 'root': the dsn names the user 'till'"),
        ('kind = "postgres"\nURL = "jdbc:mysql://x"\n', "URL = '(hidden)': it begins with jdbc:postgresql://"),
        ('kind = "mariadb"\nURL = "jdbc:postgresql://x/y"\n', "URL = '(hidden)': it begins with jdbc:mysql://"),
        ('kind = "mariadb"\ndsn = "mariadb://till@x/y"\nuser = "root"\n', "the dsn names the user 'till'"),
        (f'{SQLITE}user = "root"\n', "user = 'root': a sqlite target has none"),
    ):
        with pytest.raises(ConfigError) as raised:
            load(written(tmp_path, 'dir = "log"', target), environ={})
        assert told in str(raised.value)
    assert load(written(tmp_path, 'dir = "log"', f'{dsn}user = "till"\n'), environ={}).target is not None


FILTERED = """
[[filter]]
kind = "include"
tables = ["shop.*"]
statements = "drop"
[[filter]]
kind = "mask"
table = "shop.users"
columns = ["email", "phone"]
by = "hash"
salt = "a secret"
[[filter]]
kind = "delay"
delay_s = "2min"
[[filter]]
kind = "transaction"
function = "copy:copy"
"""


def test_filters_keep_their_order(tmp_path: Path) -> None:
    """Filters in TOML."""
    config = load(written(tmp_path, 'dir = "log"', SQLITE + FILTERED), environ={})
    expected = (
        Include(tables=("shop.*",), statements=OnStatement.DROP),
        MaskColumns(table="shop.users", columns=("email", "phone"), by=MaskBy.HASH, salt="a secret"),
        Delay(delay_s=120),
        EachTransaction(function="copy:copy"),
    )
    assert config.pipeline.apply.filters == expected
    assert config.target is not None
    assert config.apply_options().filters == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[filter]]", "filter 1.kind: is missing"),
        ('[[filter]]\nkind = "sort"', "filter 1.kind = 'sort': must be one of include, exclude, rename, drop, present"),
        ('[[filter]]\nkind = "include"', "filter 1.tables: is missing"),
        ('[[filter]]\nkind = "include"\ntables = "shop.*"', "filter 1.tables = 'shop.*': a list of one or more texts"),
        ('[[filter]]\nkind = "include"\ntables = ["shop"]', "filter 1.tables = 'shop': not schema.table"),
        ('[[filter]]\nkind = "delay"\ndelay_s = 5\n[[filter]]\nkind = "delay"\ndelay_s = 5', "another delay"),
        ('[[filter]]\nkind = "rename"\nschema = "a"\nto = "b"\nstatement = "drop"', "did you mean 'statements'?"),
        ('[[filter]]\nkind = "mask"\ntable = "a.b"\ncolumns = ["c"]\nby = "hash"\nsalt = 5', "salt = '(hidden)'"),
        ('[[filter]]\nkind = "batch"', "filter 1.function: is missing"),
        ('[filter]\nkind = "delay"', "is a row of tables: [[filter]]"),
    ],
)
def test_a_filter_that_cannot_be(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load(written(tmp_path, 'dir = "log"', f"{SQLITE}{text}\n"), environ={})
    assert told in str(raised.value)


SHARDS = '[log]\ndir = "log"\n[shards]\n{}\n[pipeline]\nchannels = 4\n'


def test_the_shards_of_a_pipeline(tmp_path: Path) -> None:
    """What makes a shard, and which channel it has; in our words, or in a `shard.list`."""
    file = tmp_path / "x.toml"
    file.write_text(SHARDS.format('by = "key"\ndefault = 2\n[shards.keys]\n"shop.orders" = "customer"'))
    ours = load(str(file), environ={}).pipeline.apply.plan
    assert ours == PlanOptions(by=ShardBy.KEY, keys={"shop.orders": "customer"}, default=2)
    file.write_text(SHARDS.format('list = "shard.list"'))
    with pytest.raises(ConfigError, match=r"shards\.list .*cannot be read: No such file"):
        load(str(file), environ={})
    (tmp_path / "shard.list").write_text("shop=1\n(*)=3\n(critical)=ledger\n(hash-method)=string-hash\n")
    listed = load(str(file), environ={}).pipeline.apply.plan
    assert listed == PlanOptions(channels={"shop": 1}, default=3, serial=("ledger",), assignment=AssignmentRule.HASH)
    file.write_text(SHARDS.format('list = "shard.list"\ndefault = 0'))
    with pytest.raises(ConfigError, match=r"shards\.default is given too; give one of them"):
        load(str(file), environ={})

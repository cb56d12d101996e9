"""The configuration that `tranlog init` writes: every key with its default and reason, ready to run.

Owns the text. The hard idea: a commented key is a promise that it may be uncommented, so a test does that and loads
the result; and what is written must work as it is for the embedded default.
"""

from __future__ import annotations

from typing import Final, Literal

from tranlog.target.options import TargetKind

SOURCES: Final = ("sqlite", "mariadb")
TARGETS: Final = ("sqlite", "postgres", "mariadb", "null")

_HEAD: Final = """\
# tranlog: from a source database through a log to a target database.
# Lines that begin with #: show each key with its default. Relative paths count from this file's folder.
# Next: `tranlog capture` (source to log), `tranlog apply` (log to target), or `tranlog run` (both).

[service]
name = "{service}"  # how `thl -service NAME` finds this file; also the default of source_id and of the pipeline's name

"""

_SOURCE: Final = {
    "sqlite": """\
[source]
kind = "sqlite"
path = "source.db"  # writers open it by tranlog.source.sqlite.connect, which makes it if it is missing
#: source_id = "{service}"  # names this source in every record; keep it
#: foreign_writes = "refuse"  # programs that bypass connect() get an error
#: poll_s = 0.005  # how often an idle source is looked at
#: busy_timeout_s = 10.0

""",
    "mariadb": """\
[source]
kind = "mariadb"  # needs binlog_format=ROW, binlog_row_image=FULL, binlog_row_metadata=FULL
host = "127.0.0.1"
port = 3306
user = "root"
#: password_file = "source.password"  # or password_env = "NAME", or password = "..."
start = "now"  # for a log without events: "now", "earliest", a GTID list, or "binlog.000003:12345"
#: source_id = "{service}"  # names this source in every record; keep it
#: server_id = 4711  # unlike every other replica's; default: made from source_id
#: databases = ["shop"]  # default: all but ignored_databases
#: ignored_databases = ["mysql", "information_schema", "performance_schema", "sys"]
#: statements = "stop"  # statements in the place of rows; "record" logs their text
#: cascades = "refuse"  # foreign keys whose cascades the binlog does not hold; "allow" if the target has them too
#: annotate = false  # statements behind the rows as metadata
#: fragment_bytes = "1MiB"
#: queue_bytes = "32MiB"
#: memory_bytes = "16MiB"
#: spool_directory = "spool"
#: transaction_bytes_max = "1GiB"
#: read_bytes = "8MiB"
#: heartbeat_s = 1.0
#: reconnect_s = 60.0
#: connect_timeout_s = 10.0
#: position_interval_s = 10.0

""",
}

_LOG: Final = """\
[log]
dir = "log"
#: segment_bytes = "100MB"  # a segment is closed at this size
#: checksum = true  # CRC-32 over every record
#: retention_s = "7d"  # closed segments go after this time, unless a pipeline still needs them; default: never
#: retention_bytes = "20GB"  # the oldest go above this size, unless a pipeline still needs them; default: no bound
#: hard_retention_s = "30d"  # these two go although a pipeline needs them; it is told when it comes back
#: hard_retention_bytes = "50GB"
#: flush_interval_s = 0.5  # show what is appended and not committed every so often; default: 0, never
#: sync_on_flush = true  # those flushes sync
#: buffer_bytes = "256KiB"
#: ahead_bytes = "256KiB"  # zeros written ahead of small commits: durable ones are faster; 0 for none
#: index_flush_bytes = "4MiB"  # the index is stored after so much, and so long: an opening reads what came since
#: index_flush_s = 10.0
#: spill_above = 1073741824  # a larger transaction goes to spill segments, beside the log
#: spill_buffer_bytes = "8MiB"  # what an open transaction keeps in memory before it spills
#: spill_chunk_bytes = "1MiB"
#: spill_segment_bytes = "256MiB"
#: spill_compress = false  # zlib

[capture]
#: batch_bytes = "4MiB"  # at most so much, and so long, between two syncs under load
#: batch_s = 0.05
#: poll_s = 0.5

[shards]
#: rule = "{rule}"  # "schema", "table" (joined by foreign keys), or "map" with the table [shards.map]
#: assignment = "recorded"  # which channel a new shard gets: the one with the fewest, or "hash"
#: serial = ["{serial}"]  # shards that are applied alone
#: default = 0  # the channel of every shard that has none of its own, in the place of the assignment
#: by = "recorded"  # what makes a shard for the pipeline: what capture stored, "schema", "table", or "key"
#: [shards.channels]  # shards that have a channel of their own
#: "{pinned}" = 1

"""

_TARGET: Final = {
    "sqlite": """\
[target]
kind = "sqlite"
path = "target.db"  # made if it is missing, and so are its tables: a SQLite source's DDL is run here too
""",
    "postgres": """\
[target]
kind = "postgres"
dsn = "postgresql://postgres@127.0.0.1:5432/postgres"  # `tranlog tables create` makes its tables
#: password_file = "target.password"  # or password_env = "NAME"; or in the dsn
#: idle_timeout_s = 60.0  # the server ends a session of ours that stopped inside a transaction
#: connect_timeout_s = 10.0
""",
    "mariadb": """\
[target]
kind = "mariadb"
dsn = "mariadb://root@127.0.0.1:3306/tranlog"  # a database that is there; `tranlog tables create` makes the others
#: password_file = "target.password"  # or password_env = "NAME"; or in the dsn
#: idle_timeout_s = 60.0  # the server ends a session of ours that stopped inside a transaction
#: connect_timeout_s = 10.0
""",
    "null": """\
[target]
kind = "null"  # reads and decodes everything and keeps only its position: to try a pipeline without a database
path = "positions.db"  # where that stands
""",
}

_TAIL: Final = """\
#: ddl = "stop"  # a recorded statement that this target cannot run by itself; "ignore" passes it over
#: net_effect = false  # collapse the changes of one key: for catching up, at targets without triggers
#: triggers = "fire"  # "off": the target's own triggers stay silent
#: lock_timeout_s = 10.0

[pipeline]
channels = 4
#: parallelization = "disk"  # a cursor per channel; "memory": windows read once, for logs far away; "none": one channel
#: window_bytes = "32MiB"  # in memory: how much at a time
#: name = "{service}"  # whose positions these are at the target
#: master = "local[4]"  # Spark's; default: this machine, with as many slots as channels
#: start_seqno = 0  # the first to apply where the target has no position; default: the first in the log
#: max_offline_interval_s = 5.0  # how far channels may be apart, in commit times; default: no bound
#: group_transactions = 1000  # so many source transactions may share one at the target
#: group_changes = 5000
#: group_bytes = "1MiB"
#: group_s = 0.25
#: sync_interval_s = 1.0  # how long a position may go unpublished
#: idle_every = 10000
#: retry_s = 30.0  # how long to try to reach a target that is away
#: resubmit = 5
#: checksum = true
#: on_error = "end"  # "offline": the process stays, OFFLINE:ERROR, until `tranlog online`
#: control = "127.0.0.1:4712"  # where its operator reaches it; default: a socket in the log's folder; "off": nowhere
#: metrics = "127.0.0.1:4713"  # OpenMetrics over HTTP; default: none
#: tls_certificate = "tranlog.pem"  # with tls_key and secret_file, for addresses that others reach
#: tls_key = "tranlog.key"
#: secret_file = "control.secret"

#: [[filter]]  # what is left out, renamed, masked or delayed on the way, in this order: docs/filters.md
#: kind = "exclude"
#: tables = ["scratch.*"]
#: statements = "pass"

#: [spark]  # for a cluster: docs/cluster.md
#: package = "tranlog-spark.zip"  # by `tranlog spark-package`, for workers without tranlog
#: secret_file = "spark.secret"  # or secret_env = "NAME": the cluster's spark.authenticate.secret
#: slots_wait_s = 60.0  # how long it may take to give each channel a slot
#: [spark.settings]  # Spark's own
#: "spark.executor.memory" = "512m"
"""


def template(*, service: str, source: Literal["sqlite", "mariadb"], target: TargetKind) -> str:
    """Return the text of a configuration file."""
    words = (
        {"rule": "table", "serial": "main.ledger", "pinned": "main.orders"}
        if source == "sqlite"
        else {"rule": "schema", "serial": "ledger", "pinned": "shop"}
    )
    text = _HEAD + _SOURCE[source] + _LOG + _TARGET[target] + _TAIL
    for name, value in {"service": service, **words}.items():
        text = text.replace("{" + name + "}", value)
    return text.replace("#: ", "# ")

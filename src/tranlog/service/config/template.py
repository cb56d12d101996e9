"""The configuration that `tranlog init` writes: every key with its default and reason, ready to run.

Owns the text, in which `@` stands for a default; the value comes from the options that the key fills. The hard idea: a
commented key is a promise that it may be uncommented, so a test does that with each; and what is written must work as
it is for the embedded default.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from typing import Any, Final, Literal

from tranlog.capture.capture import CaptureOptions
from tranlog.log.options import LogOptions
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.spark.cluster import EngineOptions
from tranlog.service.config.config import GROUP_KEYS, PipelineOptions
from tranlog.source.kinds import SourceKind, source_kind
from tranlog.target.options import TargetKind, TargetOptions

SOURCES: Final = ("sqlite", "mariadb", "postgres")
TARGETS: Final = ("sqlite", "postgres", "mariadb", "null")

_HEAD: Final = """\
# tranlog: from a source database through a log to a target database.
# A commented key shows its default. Where the comment names the default, the value is an example. Relative paths count
# from this file's folder.
# Next: `tranlog capture` (source to log), `tranlog apply` (log to target), or `tranlog run` (both).

[service]
name = "{service}"  # how `thl -service NAME` finds this file; also the default of source_id and of the pipeline's name

"""

_LOG: Final = """\
[log]
dir = "log"
#: segment_bytes = @  # a segment is closed at this size
#: checksum = @  # CRC-32 over every record
#: retention_s = "7d"  # closed segments go after this time, unless a pipeline still needs them; default: never
#: retention_bytes = "20GB"  # the oldest go above this size, unless a pipeline still needs them; default: no bound
#: hard_retention_s = "30d"  # go although a pipeline needs them; it is told when it comes back; default: never
#: hard_retention_bytes = "50GB"  # the same by size; default: no bound
#: flush_interval_s = @  # show what is appended and not committed every so often; 0: never
#: sync_on_flush = @  # those flushes sync
#: buffer_bytes = @
#: ahead_bytes = @  # zeros written ahead of small commits: durable ones are faster; 0 for none
#: index_flush_bytes = @  # the index is stored after so much, and so long: an opening reads what came since
#: index_flush_s = @
#: spill_above = @  # a larger transaction goes to spill segments, beside the log
#: spill_buffer_bytes = @  # what an open transaction keeps in memory before it spills
#: spill_chunk_bytes = @
#: spill_segment_bytes = @
#: spill_compress = @  # zlib

[capture]
#: batch_bytes = @  # at most so much, and so long, between two syncs under load
#: batch_s = @
#: poll_s = @

[shards]
#: rule = "{rule}"  # "schema", "table" (joined by foreign keys), or "map" with the table [shards.map]
#: assignment = "recorded"  # which channel a new shard gets: the one with the fewest, or "hash"
#: serial = ["{serial}"]  # shards that are applied alone; default: none
#: default = 0  # the channel of every shard that has none of its own; default: by the assignment
#: by = "recorded"  # what makes a shard for the pipeline: what capture stored, "schema", "table", or "key"
#: [shards.channels]  # shards that have a channel of their own
#: "{pinned}" = 1  # default: none

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
#: password_file = "target.password"  # or password_env = "NAME"; default: the dsn's
#: idle_timeout_s = @  # the server ends a session of ours that stopped inside a transaction
#: connect_timeout_s = @
""",
    "mariadb": """\
[target]
kind = "mariadb"
dsn = "mariadb://root@127.0.0.1:3306/tranlog"  # a database that is there; `tranlog tables create` makes the others
#: password_file = "target.password"  # or password_env = "NAME"; default: the dsn's
#: idle_timeout_s = @  # the server ends a session of ours that stopped inside a transaction
#: connect_timeout_s = @
#: engine = @  # "innodb": tables of MyISAM and the like, which have no transactions, are made InnoDB here
""",
    "null": """\
[target]
kind = "null"  # reads and decodes everything and keeps only its position: to try a pipeline without a database
path = "positions.db"  # where that stands
""",
}

_TAIL: Final = """\
#: ddl = @  # a recorded statement that this target cannot run by itself; "ignore" passes it over
#: net_effect = @  # collapse the changes of one key: for catching up, at targets without triggers
#: triggers = @  # "off": the target's own triggers stay silent
#: lock_timeout_s = @

[pipeline]
channels = 4
#: parallelization = @  # a cursor per channel; "memory": windows read once, for logs far away; "none": one channel
#: window_bytes = @  # in memory: how much at a time
#: name = "{service}"  # whose positions these are at the target
#: master = "local[4]"  # Spark's; default: this machine, with as many slots as channels
#: start_seqno = 0  # the first to apply where the target has no position; default: the first in the log
#: max_offline_interval_s = 5.0  # how far channels may be apart, in commit times; default: no bound
#: group_transactions = @  # so many source transactions may share one at the target
#: group_changes = @
#: group_bytes = @
#: group_s = @
#: sync_interval_s = @  # how long a position may go unpublished
#: idle_every = @
#: retry_s = @  # how long a start, or a run with an end, tries to use a target that is away
#: give_up_s = 3600.0  # how long one that runs goes on while a channel cannot use it; default: for ever
#: resubmit = @
#: checksum = @
#: on_error = @  # "offline": the process stays, OFFLINE:ERROR, until `tranlog online`
#: control = "127.0.0.1:4712"  # where its operator reaches it; default: a socket in the log's folder; "off": nowhere
#: metrics = "127.0.0.1:4713"  # OpenMetrics over HTTP; default: none
#: tls_certificate = "tranlog.pem"  # with the next two, for addresses that others reach; default: none
#: tls_key = "tranlog.key"  # default: none
#: secret_file = "control.secret"  # default: none

#: [[filter]]  # what is left out, renamed, masked or delayed on the way, in this order: docs/filters.md
#: kind = "exclude"
#: tables = ["scratch.*"]
#: statements = "pass"

#: [spark]  # for a cluster: docs/cluster.md
#: package = "tranlog-spark.zip"  # by `tranlog spark-package`, for workers without tranlog; default: none
#: secret_file = "spark.secret"  # or secret_env: the cluster's spark.authenticate.secret; default: none
#: slots_wait_s = @  # how long it may take to give each channel a slot
#: [spark.settings]  # Spark's own
#: "spark.executor.memory" = "512m"  # default: none beside ours
"""


def template(*, service: str, source: Literal["sqlite", "mariadb", "postgres"], target: TargetKind) -> str:
    """Return the text of a configuration file."""
    kind = source_kind(source)
    text = _HEAD + kind.template + _LOG + _TARGET[target] + _TAIL
    for name, value in {"service": service, **kind.examples}.items():
        text = text.replace("{" + name + "}", value)
    return _with_defaults(text, kind).replace("#: ", "# ")


def _with_defaults(text: str, kind: SourceKind[Any]) -> str:
    """Put each option's default in the place of the `@` behind its key."""
    defaults = {
        "source": _defaults(kind.options),
        "log": _defaults(LogOptions),
        "capture": _defaults(CaptureOptions),
        "target": _defaults(TargetOptions),
        "pipeline": {
            **_defaults(ApplyOptions),
            **{GROUP_KEYS[name]: value for name, value in _defaults(GroupBounds).items()},
            **_defaults(PipelineOptions),
        },
        "spark": _defaults(EngineOptions),
    }
    lines, table = [], ""
    for line in text.split("\n"):
        if heading := _TABLE.match(line):
            table = heading[1]
        if key := _DEFAULT.match(line):
            line = f"{line[: key.end() - 1]}{_toml(key[1], defaults[table][key[1]])}{line[key.end() :]}"
        lines.append(line)
    return "\n".join(lines)


_TABLE: Final = re.compile(r"(?:#: )?\[([a-z]+)\]")
_DEFAULT: Final = re.compile(r"#: ([a-z_]+) = @")


def _defaults(options: type) -> dict[str, object]:
    """Return the defaults of an options dataclass that can be shown."""
    found = {field.name: field.default for field in dataclasses.fields(options)}
    return {name: value for name, value in found.items() if value is not dataclasses.MISSING and value is not None}


def _toml(key: str, value: object) -> str:
    """Return a value as TOML, sizes by their unit."""
    match value:
        case bool() | float():
            return json.dumps(value)
        case int():
            for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("MB", 10**6)):
                if "_bytes" in key and value and value % size == 0:
                    return f'"{value // size}{unit}"'
            return str(value)
        case enum.Enum():
            return json.dumps(value.value)
        case tuple():
            return json.dumps(list(value))
    return json.dumps(value)

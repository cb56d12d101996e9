"""Spark on a cluster: its settings, its security, and the meaning of its failures.

Owns the options for it, the settings that follow from a master's URL, and the errors about what workers lack. Leaves
starting Spark to `session`. The hard idea: a channel's task carries the target's password to a worker. So driver and
executors authenticate by a secret, encrypt their traffic, and listen on one address. The secret is never on a command
line, since a list of processes would show it.
"""

from __future__ import annotations

import enum
import logging
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tranlog.errors import ConfigError, EngineError
from tranlog.option_kinds import check_kinds
from tranlog.pipeline.spark.package import PACKAGE_FOLDER, check_package

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

SECRET = "spark.authenticate.secret"
AUTHENTICATE = "spark.authenticate"
EXECUTOR_MEMORY = "512m"
"""An executor's JVM only starts tasks and passes their results on: the least that Spark accepts is enough."""
LIGHT_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For JVMs that only start tasks: a second compiler and a parallel collector cost more than they give."""
_NOT_ON_COMMAND_LINES = frozenset({SECRET, "spark.archives"})
_REACH_S = 5.0

_LOCAL = re.compile(r"local(?:\[\s*(\*|0*[1-9]\d*)\s*(?:,\s*\d+\s*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")
_OTHER = re.compile(r"yarn|k8s://.+")
_STANDALONE = re.compile(r"spark://(?:[^\s:,/]+:\d+)(?:,[^\s:,/]+:\d+)*")


class MasterKind(enum.Enum):
    """Where a master's tasks run."""

    LOCAL = enum.auto()
    """In workers of this process's JVM."""
    LOCAL_CLUSTER = enum.auto()
    """In a cluster that this process's JVM starts on this machine."""
    STANDALONE = enum.auto()
    """In Spark's own cluster, which somebody else runs."""
    OTHER = enum.auto()
    """YARN, Kubernetes: what they need is in their settings."""


def master_kind(master: str) -> MasterKind:
    """Return where a master's tasks run. Raises ConfigError for an address that cannot be one."""
    if _LOCAL.fullmatch(master):
        return MasterKind.LOCAL
    if _LOCAL_CLUSTER.fullmatch(master):
        return MasterKind.LOCAL_CLUSTER
    if _OTHER.fullmatch(master):
        return MasterKind.OTHER
    if not master.startswith("spark:"):
        why = "a master is local[4], local-cluster[2,2,1024], spark://host:port, yarn or k8s://…"
        raise ConfigError(option="master", value=master, why=why)
    if not _STANDALONE.fullmatch(master):
        raise ConfigError(option="master", value=master, why="a standalone cluster's is spark://host:port")
    return MasterKind.STANDALONE


def master_slots(master: str) -> int | None:
    """Return how many tasks a master on this machine runs at a time; None for a cluster's URL, which does not say."""
    local = _LOCAL.fullmatch(master)
    if local is not None:
        if local[1] is None:
            return 1
        return (os.cpu_count() or 1) if local[1] == "*" else int(local[1])
    cluster = _LOCAL_CLUSTER.fullmatch(master)
    return None if cluster is None else int(cluster[1]) * int(cluster[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What Spark is told beyond its master; picklable, and its repr shows no secret."""

    package: str | None = field(default=None, metadata={"path": True, "example": "tranlog-spark.zip"})
    """A file that `tranlog spark-package` wrote, for executors whose Python has no tranlog."""
    secret: str = field(default="", repr=False, metadata={"example": "a secret"})
    """What a standalone cluster's master, workers and drivers all know (`spark.authenticate.secret`)."""
    slots_wait_s: float = 60.0
    """How long a cluster may take to give each channel a slot."""
    settings: Mapping[str, str] = field(
        default_factory=dict, repr=False, metadata={"example": {"spark.executor.memory": "512m"}}
    )
    """Spark's own settings, over ours."""

    def check(self) -> None:
        """Raise ConfigError for what cannot be with any master."""
        check_kinds(self, prefix="spark.")
        if self.slots_wait_s <= 0:
            raise ConfigError(option="spark.slots_wait_s", value=self.slots_wait_s, why="must be above 0")
        for name, value in self.settings.items():
            if not name.startswith("spark."):
                why = 'Spark\'s settings begin with "spark."'
                raise ConfigError(option=f"spark.settings.{name}", value=value, why=why)

    def check_for(self, master: str) -> None:
        """Raise ConfigError for what cannot work with this master."""
        self.check()
        if master_kind(master) is MasterKind.STANDALONE and self.authenticates() and not self.known_secret():
            why = (
                "this cluster's secret is needed: set secret_file or secret_env to what its master and workers have as "
                f"{SECRET}; or, where everybody who can reach it may run programs there, "
                f'set "{AUTHENTICATE}" = "false" in [spark.settings]'
            )
            raise ConfigError(option="spark.secret", value=None, why=why)

    def authenticates(self) -> bool:
        """Whether driver and executors are to know each other by a secret."""
        return self.settings.get(AUTHENTICATE, "true").strip().lower() != "false"

    def known_secret(self) -> str:
        """Return the secret that was given; empty where none was."""
        return self.secret or self.settings.get(SECRET, "")


def cluster_settings(master: str, engine: EngineOptions) -> dict[str, str]:
    """Return Spark's settings for a master, without the user's own. Raises ConfigError, EngineError.

    A standalone cluster's master is tried first: Spark itself would take a minute to say that nobody answers.
    """
    settings: dict[str, str] = {}
    kind = master_kind(master)
    match kind:
        case MasterKind.LOCAL:
            return settings
        case MasterKind.LOCAL_CLUSTER:
            found = _LOCAL_CLUSTER.fullmatch(master)
            assert found is not None
            settings["spark.executor.memory"] = f"{found[3]}m"
            if engine.authenticates():
                settings |= _trusting(engine.known_secret() or secrets.token_hex(32))
        case MasterKind.STANDALONE:
            address = driver_address(master)
            settings |= {
                "spark.executor.memory": EXECUTOR_MEMORY,
                "spark.driver.bindAddress": address,
                "spark.driver.host": address,
            }
            if engine.authenticates():
                settings |= _trusting(engine.known_secret())
        case MasterKind.OTHER:
            pass
    settings["spark.executor.extraJavaOptions"] = LIGHT_JVM
    if engine.package is not None:
        path = check_package(engine.package)
        settings["spark.archives"] = f"{Path(path).as_uri()}#{PACKAGE_FOLDER}"
    return settings


def _trusting(secret: str) -> dict[str, str]:
    return {AUTHENTICATE: "true", SECRET: secret, "spark.network.crypto.enabled": "true"}


def shown(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those settings that may stand on a command line, which every user of the machine can read."""
    return {name: value for name, value in settings.items() if name not in _NOT_ON_COMMAND_LINES}


def driver_address(master: str) -> str:
    """Return the address of ours by which a standalone master is reached, the only one that the driver listens on.

    Raises EngineError where no master answers.
    """
    why = ""
    for one in master.removeprefix("spark://").split(","):
        host, _, port = one.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_REACH_S) as connection:
                return str(connection.getsockname()[0])
        except (OSError, OverflowError) as exc:
            why = why or str(exc)
    raise EngineError(why=f"no master answers at {master} ({why})", remedy="Start it, or check host, port and firewall")


def count_slots(context: SparkContext) -> int:
    """Return how many tasks run at a time on the executors that there are now; 0 once Spark has stopped.

    Not `defaultParallelism`: that is 2 on an empty cluster, and whatever a user's setting says.
    """
    try:
        spark = context._jsc.sc()
        return int(spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile()))
    except Exception:  # whatever Py4J raises when the context, or its JVM, has ended
        logger.debug("could not count slots", exc_info=True)
        return 0


def too_few_slots(master: str, *, slots: int, channels: int) -> EngineError:
    """Return the error of a cluster that has no slot for each channel."""
    remedy = f"Start workers until there are {channels}, or set fewer channels"
    if slots == 0 and master_kind(master) is not MasterKind.LOCAL:
        remedy += (
            ". Where workers run: look at the master's log, whether the secret is the cluster's, its Spark the same "
            "version, and a worker has the memory of spark.executor.memory"
        )
    why = f"{master} offers {slots} slots, and each of {channels} channels needs one for as long as the pipeline runs"
    return EngineError(why=why, remedy=remedy)


_NO_TRANLOG = re.compile(r"No module named '(tranlog|pyspark_thl|msgspec|psycopg|apsw|pymysql)\b")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH[^:]*: *(?:\([^)]*\))?([^\n]{0,160})")
_EXECUTOR = re.compile(r"\(([^\s()]+) executor [^)\s]+\)")
MAKE_PACKAGE = "make a package by `tranlog spark-package FILE` and name it as package in [spark] (or by --package)"


def explain_failure(text: str) -> EngineError | None:
    """Return what workers lack, where that is what a failed job's text says.

    Spark has no other form for it: a Python that does not start can raise nothing of ours.
    """
    found = _EXECUTOR.search(text)
    host = "a worker" if found is None else f"the worker {found[1]}"
    missing = _NO_TRANLOG.search(text)
    if missing is not None:
        why = f"the Python of {host} has no module {missing[1]!r}"
        return EngineError(why=why, remedy=f"Install the same tranlog there, or {MAKE_PACKAGE}")
    program = _NO_PYTHON.search(text)
    if program is not None:
        why = f"{host} has no program {program[1]}"
        remedy = "Install that Python there, or name one that each worker has: PYSPARK_PYTHON in the environment"
        return EngineError(why=why, remedy=remedy)
    if "PYTHON_VERSION_MISMATCH" in text:
        remedy = "Name a Python of the driver's version by PYSPARK_PYTHON in the environment"
        return EngineError(why=f"the Python of {host} has another minor version than the driver's", remedy=remedy)
    return None

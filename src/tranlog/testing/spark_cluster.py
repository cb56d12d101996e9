"""A private Spark standalone cluster on loopback: a master and workers, to start and kill at will.

Owns the processes, their ports and folders, and the secret that all of them share. For tests of one's own pipeline on
a cluster, and for programs that kill its parts to see what is lost.

The hard idea is that nothing may be left: master and workers are our direct children, which the kernel ends with
the thread that started them; an executor ends when its worker does. Their environment holds only what they need, so
that an executor's Python finds nothing that the caller's happens to have.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tranlog.pipeline.spark.cluster import EngineOptions
from tranlog.testing.servers import (
    LOOPBACK,
    POLL_S,
    Running,
    ServerFailedError,
    ServerMissingError,
    children_of,
    free_port,
    kill_with_children,
)

START_TIMEOUT_S = 120.0
_CLASS = "org.apache.spark.deploy"
_PASSED_ON = ("PATH", "HOME", "JAVA_HOME", "LANG", "TMPDIR")


class SparkCluster(Running):
    """A master and its workers, with authentication on, without user interfaces to the network or a REST port.

    `cores` and `memory_mb` are each worker's. `environment` is added to the workers', and so to their executors':
    PYTHONPATH, for one. In a `with` block it runs, and is gone at its end.

    Raises: ServerMissingError where Java, PySpark or setpriv is not installed; ServerFailedError.
    Threads: one; the processes end with the thread that started them.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        cores: int = 2,
        memory_mb: int = 512,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.secret = secrets.token_hex(32)
        self.port = free_port()
        self.cores = cores
        self.memory_mb = memory_mb
        self.environment = dict(environment or {})
        self.directory = Path(tempfile.mkdtemp(prefix="tranlog-spark-cluster-"))
        self._wanted = workers
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._setpriv = _found("setpriv", "util-linux")
        _found("java", "default-jre-headless")
        self._home = _spark_home()

    @property
    def url(self) -> str:
        """The master's address, for `--master`."""
        return f"spark://{LOOPBACK}:{self.port}"

    def engine(self, **more: object) -> EngineOptions:
        """Return the options of a pipeline that runs here."""
        return EngineOptions(**{"secret": self.secret, **more})  # type: ignore[arg-type]

    def start(self) -> None:
        """Start the master, then all workers, and wait until they have registered."""
        # No command line shows it.
        properties = self.directory / "spark.properties"
        properties.touch(mode=0o600)
        properties.write_text(
            f"spark.authenticate true\nspark.authenticate.secret {self.secret}\n"
            "spark.network.crypto.enabled true\nspark.master.rest.enabled false\n"
            "spark.ui.enabled false\nspark.worker.cleanup.enabled true\n"
        )
        self.start_all()

    def start_all(self) -> None:
        """Start the master and the workers, which may have been killed before."""
        self._master = self._launch("master", "master.Master", ["--host", LOOPBACK, "--port", str(self.port)])
        self._until("master", self._master, self._listens)
        for number in range(self._wanted):
            self._start_worker(number)
        for number in range(self._wanted):
            self._until_registered(number)

    def kill_all(self) -> None:
        """End the master by SIGKILL, and all workers with their executors."""
        if self._master is not None:
            self._master.kill()
            self._master.wait()
            self._master = None
        for number in list(self._workers):
            self.kill_worker(number)

    def start_worker(self, number: int) -> None:
        """Start a worker, which may have been killed before, and wait until it has registered."""
        self._start_worker(number)
        self._until_registered(number)

    def _start_worker(self, number: int) -> None:
        log = self._log(f"worker-{number}")
        log.unlink(missing_ok=True)
        arguments = ["--host", LOOPBACK, "--cores", str(self.cores), "--memory", f"{self.memory_mb}M"]
        arguments += ["--work-dir", str(self.directory / f"work-{number}"), self.url]
        self._workers[number] = self._launch(f"worker-{number}", "worker.Worker", arguments)

    def executor_pids(self, number: int) -> list[int]:
        """The JVMs that a worker has started for applications."""
        return children_of(self._workers[number].pid)

    def kill_worker(self, number: int) -> None:
        """End a worker and its executors by SIGKILL, as a machine's loss would, and wait until they are gone."""
        kill_with_children(self._workers.pop(number))

    def close(self) -> None:
        """End everything and remove its folders."""
        self.kill_all()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _launch(self, name: str, program: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        command = [
            *(self._setpriv, "--pdeathsig=KILL", "--"),
            *(str(Path(self._home) / "bin" / "spark-class"), f"{_CLASS}.{program}"),
            *("--properties-file", str(self.directory / "spark.properties"), "--webui-port", str(free_port())),
            *arguments,
        ]
        environment = {variable: os.environ[variable] for variable in _PASSED_ON if variable in os.environ}
        environment |= {
            "SPARK_HOME": self._home,
            "SPARK_LOCAL_IP": LOOPBACK,  # the pages of master and worker too
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "SPARK_NO_DAEMONIZE": "1",
            **self.environment,
        }
        with open(self._log(name), "ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _listens(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=1):
                return True
        except OSError:
            return False

    def _until_registered(self, number: int) -> None:
        log = self._log(f"worker-{number}")
        self._until(
            f"worker-{number}",
            self._workers[number],
            lambda: "Successfully registered with master" in log.read_text(errors="replace"),
        )

    def _until(self, name: str, process: subprocess.Popen[bytes], true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not true():
            if process.poll() is not None or time.monotonic() > deadline:
                why = "it ended while starting" if process.poll() is not None else "it did not come up in time"
                tail = "\n".join(self._log(name).read_text(errors="replace").splitlines()[-12:])
                raise ServerFailedError(what=f"Spark {name}", why=why, log_tail=tail)
            time.sleep(POLL_S)


def _found(program: str, packages: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise ServerMissingError(what="Spark", missing=program, packages=packages)
    return path


def _spark_home() -> str:
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise ServerMissingError(what="Spark", missing="PySpark", packages="(pip install 'tranlog[spark]')")
    return found.submodule_search_locations[0]

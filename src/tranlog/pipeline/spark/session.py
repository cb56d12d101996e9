"""A quiet Spark: started without output on the terminal, bound to loopback, not reached by Ctrl-C.

Owns how tranlog starts a JVM and a session in it. Leaves what a cluster needs to `cluster`, and what runs on it to
`apply` and `datasource`. The hard idea: the JVM is a child that must outlive the signal that ends us, since a clean
stop needs it; so it gets a process group of its own, and dies with its standard input when we are killed.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tranlog.errors import ConfigError, EngineError
from tranlog.pipeline.spark.cluster import (
    LIGHT_JVM,
    EngineOptions,
    MasterKind,
    cluster_settings,
    count_slots,
    master_kind,
    master_slots,
    shown,
)
from tranlog.pipeline.spark.package import PACKAGE_FOLDER

if TYPE_CHECKING:
    from pyspark import SparkContext as SparkContext
    from pyspark.sql import SparkSession as SparkSession

logger = logging.getLogger(__name__)

INSTALL_JAVA = "Install Java 17 or later (Debian: `apt-get install default-jre-headless`), or set JAVA_HOME to it"
INSTALL_SPARK = "Install it: `pip install 'tranlog[spark]'`"
_JVM_OUTPUT = "jvm.log"
_SCRATCH = "tranlog-spark-"
_LOCK = "in-use"
_STOP_S = 4.0
"""How long Spark may take to stop."""
_runs_own: list[SparkContext] = []
"""The one that a pipeline's run has started, if there is one: a run stops no other."""
_BLOCK_FOLDERS = 64
"""Spark's default of spark.diskStore.subDirectories."""
_folders: list[str] = []
"""Of the one Spark that a process can have."""
_OLDEST = (4, 3)
"""The release that all of this was tried with."""
_OLDEST_JAVA = 17
_JAVA_S = 10.0


def default_master(channels: int) -> str:
    """Return the master that runs so many channels on this machine."""
    return f"local[{max(os.cpu_count() or 1, channels)}]"


def check_slots(master: str, channels: int) -> None:
    """Raise ConfigError for a local master whose slots are fewer than the channels, which would never all start."""
    slots = master_slots(master)
    if slots is not None and slots < channels:
        why = f"{channels} channels need {channels} slots at a time, and it has {slots}; use local[{channels}] or more"
        raise ConfigError(option="master", value=master, why=why)


def find_java() -> str:
    """Return the Java that Spark would start. Raises EngineError saying what to install."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = os.path.join(home, "bin", "java")
        if os.access(java, os.X_OK):
            return java
        raise EngineError(why=f"JAVA_HOME is {home}, where there is no bin/java", remedy=INSTALL_JAVA)
    found = shutil.which("java")
    if found is None:
        raise EngineError(why="there is no Java on this machine", remedy=INSTALL_JAVA)
    return found


def check_java() -> str:
    """Return which Java Spark would start. Raises EngineError where there is none, or one that is too old."""
    java = find_java()
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=_JAVA_S).stderr
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise EngineError(why=f"{java} does not run: {exc}", remedy=INSTALL_JAVA) from exc
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None or int(found[1]) < _OLDEST_JAVA:
        what = f"is Java {found[1]}" if found is not None else "does not tell its version"
        raise EngineError(why=f"{java} {what}, and {_OLDEST_JAVA} or later is needed", remedy=INSTALL_JAVA)
    return f"{java} is Java {found[1]}"


def build_session(
    master: str, app: str, settings: Mapping[str, str] | None = None, engine: EngineOptions | None = None
) -> SparkSession:
    """Start Spark, or go on with the one that runs, and return a session.

    `settings` are Spark's own, over ours; those of `engine` are over both. Raises ConfigError, EngineError: no Java, no
    PySpark, no master there, another master runs already.
    """
    context = build_context(master, app, settings, engine)
    from pyspark.sql import SparkSession

    return SparkSession(context)


def build_context(
    master: str, app: str, settings: Mapping[str, str] | None = None, engine: EngineOptions | None = None
) -> SparkContext:
    """Start Spark without the SQL part, which costs another second. Otherwise as `build_session`."""
    engine = engine or EngineOptions()
    engine.check_for(master)
    find_java()
    check_pyspark()
    import pyspark

    logging.getLogger().addFilter(_not_py4j)
    running = pyspark.SparkContext._active_spark_context
    if running is not None and not lives(running):
        stop_context()  # its JVM is gone: start another
        running = None
    if running is not None:
        if running.master != master:
            why = f"a Spark context on {running.master} runs in this process, and {master} is wanted"
            raise EngineError(why=why, remedy="Stop the other one first")
        return running
    local = master_slots(master) is not None
    beyond = cluster_settings(master, engine)
    scratch = _make_scratch()
    wanted = {**_settings(scratch, local=local), **beyond, **(settings or {}), **engine.settings}
    conf, first = pyspark.SparkConf(loadDefaults=False), pyspark.SparkConf(loadDefaults=False)
    conf.setAll(list(wanted.items())).setMaster(master).setAppName(app)
    first.setAll(list(shown(wanted).items())).setMaster(master).setAppName(app)
    environment = {} if engine.package is None else {"PYTHONPATH": PACKAGE_FOLDER}
    output = os.path.join(scratch, _JVM_OUTPUT)
    home = _spark_home(scratch) if master_kind(master) is MasterKind.LOCAL_CLUSTER else None
    try:
        with (
            _environment(local=local, address=wanted.get("spark.driver.bindAddress"), home=home),
            _interrupts_as_before(),
        ):
            gateway = pyspark.SparkContext._gateway or _launch(first, output)
            context = pyspark.SparkContext(conf=conf, gateway=gateway, environment=environment)
        _note_folders(scratch)
        return context
    except EngineError:
        raise
    except Exception as exc:  # whatever the JVM or Py4J raises, Spark did not start
        raise EngineError(why=_reason(output, exc), remedy=INSTALL_JAVA) from exc


def kept_master(master: str | None, channels: int) -> str:
    """Return the master for so many channels: that of the Spark that runs in this process, where it has the slots.

    Where it has not, and an earlier run has left it, it is stopped, so that another can be started. `master` None: any
    on this machine will do.
    """
    try:
        import pyspark
    except ImportError:
        return master or default_master(channels)
    running = pyspark.SparkContext._active_spark_context
    if running is not None and lives(running):
        if master in (None, running.master) and count_slots(running) >= channels:
            return running.master or ""
        if running in _runs_own:
            stop_context()
    return master or default_master(channels)


def run_context(master: str, app: str, settings: Mapping[str, str], engine: EngineOptions) -> tuple[SparkContext, bool]:
    """Return a context for a pipeline's run as `build_context`, and whether runs may stop it: not the program's own."""
    from pyspark import SparkContext

    before = SparkContext._active_spark_context
    context = build_context(master, app, settings, engine)
    if context is not before:
        _runs_own[:] = [context]
    return context, context in _runs_own


def lives(context: SparkContext) -> bool:
    """Whether a context can still run a job: its JVM answers, and has not stopped it."""
    try:
        return not context._jsc.sc().isStopped()
    except Exception:  # whatever Py4J says when there is nobody to talk to
        return False


def stop_context() -> None:
    """Stop the Spark of this process, if there is one, dead or alive; the next `build_context` starts another."""
    try:
        import pyspark
    except ImportError:
        return
    running = pyspark.SparkContext._active_spark_context
    if running is None:
        return
    alive = lives(running)

    def stop() -> None:
        try:
            running.stop()
        except Exception:  # its JVM is gone; there is nothing left to stop
            logger.debug("could not stop Spark", exc_info=True)

    stopping = threading.Thread(target=stop, name="spark-stop", daemon=True)
    stopping.start()
    stopping.join(_STOP_S)
    if stopping.is_alive():
        alive = False
        kill_jvm()
    if not alive:
        pyspark.SparkContext._active_spark_context = None
        pyspark.SparkContext._gateway = None
        pyspark.SparkContext._jvm = None


def kill_jvm() -> None:
    """End this process's JVM, which does not end by itself; whoever waits for its answer gets an error."""
    try:
        import pyspark
    except ImportError:
        return
    process = getattr(pyspark.SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()


def check_pyspark() -> str:
    """Return which PySpark there is. Raises EngineError where it is missing, or older than what we were built on."""
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise EngineError(why="PySpark is not installed", remedy=INSTALL_SPARK)
    # Read, not imported: that costs half a second.
    try:
        text = Path(package.origin).with_name("version.py").read_text()
    except OSError:
        text = ""
    found = re.search(r"""__version__[^"'\n]*["'](([0-9]+)\.([0-9]+)[^"']*)""", text)
    version = "of no known version" if found is None else found[1]
    if found is None or (int(found[2]), int(found[3])) < _OLDEST:
        needed = ".".join(map(str, _OLDEST))
        raise EngineError(why=f"PySpark {version} is installed, and {needed} or later is needed", remedy=INSTALL_SPARK)
    return f"PySpark {version}"


def _not_py4j(record: logging.LogRecord) -> bool:
    """Refuse what Py4J sends to the root logger, past its own: the trace of each call that a dead JVM cannot answer.

    The call raises too, and whoever made it says in one sentence what it means.
    """
    return Path(record.pathname).parent.name != "py4j"


def _make_scratch() -> str:
    """Make a directory for what Spark leaves, and remove those of processes that were killed before they could.

    A lock says whose is in use, and it falls with its process. A directory gets its name when it is locked already.
    """
    folder = tempfile.gettempdir()
    for name in os.listdir(folder):
        if name.startswith(_SCRATCH):
            with contextlib.suppress(OSError), open(os.path.join(folder, name, _LOCK), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    made = tempfile.mkdtemp(prefix="tranlog-new-")
    fcntl.flock(os.open(os.path.join(made, _LOCK), os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)  # until we end
    scratch = os.path.join(folder, _SCRATCH + os.path.basename(made).removeprefix("tranlog-new-"))
    os.rename(made, scratch)
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return scratch


def restore_scratch() -> None:
    """Make the folders again that Spark had in its scratch folder when it started, where somebody has deleted them.

    A pipeline runs for weeks, and its scratch folder is an old temporary one to whoever tidies up. Spark remembers
    which folders it has made and looks at none a second time, so it could not start another job without them.
    """
    for folder in _folders:
        os.makedirs(folder, exist_ok=True)


def _note_folders(scratch: str) -> None:
    """Note what `restore_scratch` makes again. Spark makes the folders for blocks when it first needs each."""
    _folders.clear()
    for folder, _, _ in os.walk(scratch):
        blocks = _BLOCK_FOLDERS if os.path.basename(folder).startswith("blockmgr-") else 0
        _folders.extend([folder, *(os.path.join(folder, f"{number:02x}") for number in range(blocks))])


def _settings(scratch: str, *, local: bool) -> dict[str, str]:
    """Return our settings for whatever this process's JVM does; only what runs on this machine stays on loopback."""
    log4j = Path(__file__).with_name("log4j2.properties")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.speculation": "false",
        "spark.python.worker.reuse": "true",
        "spark.sql.warehouse.dir": os.path.join(scratch, "warehouse"),
        "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={log4j.as_uri()}" "-Djava.io.tmpdir={scratch}"',
    }
    if local:
        settings |= {
            "spark.local.dir": scratch,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.locality.wait": "0s",
        }
        settings["spark.driver.extraJavaOptions"] += f" {LIGHT_JVM}"
    return settings


def _spark_home(scratch: str) -> str:
    """Return a folder that is Spark's home but for what a local cluster's workers write into it.

    Spark gives them no other place, and its own may be nobody's to write to.
    """
    import pyspark

    real = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    home = os.path.join(scratch, "home")
    os.makedirs(os.path.join(home, "work"))
    for name in os.listdir(real):
        if name != "work":
            os.symlink(os.path.join(real, name), os.path.join(home, name))
    return home


@contextlib.contextmanager
def _environment(*, local: bool, address: str | None, home: str | None) -> Iterator[None]:
    """Set what the JVM and the workers read from the environment; on a cluster only what the user left open."""
    wanted = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if address is not None:
        wanted["SPARK_LOCAL_IP"] = address
    if home is not None:
        wanted["SPARK_HOME"] = home
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: value for name, value in wanted.items() if local or before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _interrupts_as_before() -> Iterator[None]:
    """Keep the caller's SIGINT handler; a SparkContext sets one that cancels all jobs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _launch(conf: object, output: str) -> object:
    from pyspark.java_gateway import launch_gateway

    # A secret is given to the running JVM, not to its command line.
    with open(output, "ab") as sink:
        popen = {"stdout": sink, "stderr": sink, "start_new_session": True}
        return launch_gateway(conf, popen)  # type: ignore[no-untyped-call]


def _reason(output: str, exc: Exception) -> str:
    """Return why Spark did not start, in the JVM's words where it had some."""
    try:
        said = [line.strip() for line in Path(output).read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        said = []
    telling = [line for line in said if "rror" in line or "xception" in line or "JAVA" in line]
    text = (telling or said or [str(exc) or type(exc).__name__])[0]
    return f"it did not start ({text[:300]})"

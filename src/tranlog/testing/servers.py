"""Private database servers: a real MariaDB or PostgreSQL, to start, stop and kill at will.

Owns finding the server's programs, making a data directory, the life of the process, and the address to reach it.
Leaves what is in the databases to the caller. For tests of one's own pipeline, for the demos, and for programs
that kill servers to see what is lost.

The hard idea is that nothing may stay behind. A server is our direct child and is ended by its pid, never by a
name; the kernel ends it when the thread that started it ends, so a crashed test leaves no server either; a kill
stops the server first, so that it cannot fork a child that nobody knows of. Both servers refuse to run as root:
started by root, they run as the users `mysql` and `postgres`, and every parent of the data directory must let
those pass.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, unquote, urlsplit

from tranlog.closing import Closing
from tranlog.errors import TranlogError

if TYPE_CHECKING:
    import psycopg
    import pymysql

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.02
LOG_LINES_SHOWN = 12

# Below the range from which Linux takes ports for outgoing connections, so that no connection of anybody's
# can sit on a server's port while that server is down between a kill and a start.
PORTS = range(20_000, 32_000)

# A server option's value; None takes the option out.
OptionValue = str | int | bool | None


@dataclass(eq=False, kw_only=True)
class ServerMissingError(TranlogError):
    """A server's programs, or the user that it must run as, are not on this machine."""

    what: str
    missing: str
    packages: str

    def __str__(self) -> str:
        return (
            f"no {self.what} server can be started: {self.missing} is not there. Install Debian's packages "
            f"{self.packages}; in a checkout, scripts/install-packages does it"
        )


@dataclass(eq=False, kw_only=True)
class ServerFailedError(TranlogError):
    """A server did not start, ended by itself, or did not stop. `log_tail` holds its last words."""

    what: str
    why: str
    log_tail: str

    def __str__(self) -> str:
        return f"{self.what} server: {self.why}. The end of its log:\n{self.log_tail}"


class Address:
    """A database server that can be reached, whoever started it."""

    scheme = ""
    usual_port = 0
    superuser = ""
    usual_database = ""

    def __init__(self, *, host: str, port: int, user: str, password: str = "") -> None:
        self.host = host
        self.port = port
        self.user = user
        self.password = password

    @classmethod
    def from_dsn(cls, dsn: str) -> Self:
        """Read `scheme://user:password@host:port/`."""
        parts = urlsplit(dsn)
        if not parts.scheme or not parts.hostname:
            raise ValueError(f"not a server's URL (scheme://user:password@host:port/): {dsn!r}")
        user, password = unquote(parts.username or cls.superuser), unquote(parts.password or "")
        return cls(host=parts.hostname, port=parts.port or cls.usual_port, user=user, password=password)

    def dsn(self, database: str = "") -> str:
        """Return `scheme://user:password@host:port/database`; without a name, the usual database."""
        login = quote(self.user, safe="")
        if self.password:
            login += ":" + quote(self.password, safe="")
        return f"{self.scheme}://{login}@{self.host}:{self.port}/{quote(database or self.usual_database, safe='')}"

    def execute(self, sql: str, parameters: Sequence[object] = (), *, database: str = "") -> list[tuple[Any, ...]]:
        """Run one statement by itself, in a connection of its own, and return its rows.

        Placeholders are `%s`; without parameters a percent sign stands for itself.
        """
        raise NotImplementedError


class MariaDbAddress(Address):
    """A MariaDB server that somebody else runs."""

    scheme = "mariadb"
    usual_port = 3306
    superuser = "root"

    def connect(self, database: str = "", **options: Any) -> pymysql.Connection[Any]:
        """Open a connection by PyMySQL, which takes `options`; autocommit unless they say otherwise."""
        import pymysql

        settings: dict[str, Any] = {"charset": "utf8mb4", "autocommit": True, "connect_timeout": 10, **options}
        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            database=database or None,
            **settings,
        )

    def execute(self, sql: str, parameters: Sequence[object] = (), *, database: str = "") -> list[tuple[Any, ...]]:
        """See Address."""
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(sql, tuple(parameters) or None)
            return list(cursor.fetchall())


class PostgresAddress(Address):
    """A PostgreSQL server that somebody else runs."""

    scheme = "postgresql"
    usual_port = 5432
    superuser = usual_database = "postgres"

    def connect(self, database: str = "", **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """Open a connection by psycopg, which takes `options`; autocommit unless they say otherwise."""
        import psycopg

        settings: dict[str, Any] = {"autocommit": True, "connect_timeout": 10, **options}
        return psycopg.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password or None,
            dbname=database or "postgres",
            **settings,
        )

    def execute(self, sql: str, parameters: Sequence[object] = (), *, database: str = "") -> list[tuple[Any, ...]]:
        """See Address."""
        with self.connect(database) as connection:
            cursor = connection.execute(sql.encode(), tuple(parameters) or None)
            return cursor.fetchall() if cursor.description else []


class Running(Closing):
    """What runs in its `with` block, and is gone at its end."""

    def start(self) -> None:
        """Begin to run."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self


class _Process(Running):
    """The life of one server process over one directory: made once, started and ended any number of times.

    Threads: one at a time. The kernel ends the server when the *thread* that called `start` ends.
    """

    what = ""
    packages = ""
    account = ""  # whom it runs as when root starts it
    stop_signal = signal.SIGTERM
    orphan_signal = "KILL"  # what the kernel sends it when we are gone
    port: int

    def __init__(self, *, directory: Path | None, options: Mapping[str, OptionValue]) -> None:
        self.options: dict[str, OptionValue] = {name.replace("-", "_"): value for name, value in options.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self._owns_directory = directory is None
        self._login = self._account()
        self._setpriv = _program("setpriv", self.what, "util-linux")
        self._check_path(directory)
        if directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix=f"tranlog-{self.what.lower()}-")).resolve()
        else:
            self.directory = directory.resolve()
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._login is not None:
            os.chown(self.directory, self._login.pw_uid, self._login.pw_gid)
        self.data_directory = self.directory / "data"
        self.log_path = self.directory / "server.log"

    def _account(self) -> pwd.struct_passwd | None:
        if os.geteuid() != 0:
            return None
        try:
            return pwd.getpwnam(self.account)
        except KeyError as exc:
            raise ServerMissingError(
                what=self.what,
                missing=f"the user {self.account} (root may not run it)",
                packages=self.packages,
            ) from exc

    def _check_path(self, directory: Path | None) -> None:
        if self._login is None:
            return
        above = Path(tempfile.gettempdir()).resolve() if directory is None else directory.resolve().parent
        for parent in (above, *above.parents):
            if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
                raise ServerFailedError(
                    what=self.what,
                    why=f"the user {self.account} cannot pass {parent}; use a directory whose parents let others pass",
                    log_tail="(not started)",
                )

    def _environment(self) -> dict[str, str]:
        # A caller's TMPDIR may be closed to the server's user.
        return {**os.environ, "TMPDIR": str(self.directory)}

    def _command(self, arguments: Sequence[str | Path]) -> list[str]:
        """Return the command that runs `arguments` as the right user and ends with the calling thread."""
        command = [str(self._setpriv), f"--pdeathsig={self.orphan_signal}"]
        if self._login is not None:
            command += [f"--reuid={self._login.pw_uid}", f"--regid={self._login.pw_gid}", "--init-groups"]
        return [*command, "--", *map(str, arguments)]

    def _run(self, arguments: Sequence[str | Path]) -> None:
        """Run a program of the server's to its end, its words into the server's log."""
        with self._open_log() as log:
            done = subprocess.run(
                self._command(arguments),
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
            )
        if done.returncode != 0:
            raise self._failed(f"{Path(arguments[0]).name} ended with exit code {done.returncode}")

    def _open_log(self) -> Any:
        # Opened by us and handed down, so that it does not matter who the server runs as.
        return open(self.log_path, "ab")

    def log_tail(self, lines: int = LOG_LINES_SHOWN) -> str:
        """Return the last lines of the server's own log."""
        try:
            text = self.log_path.read_text(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def _failed(self, why: str) -> ServerFailedError:
        return ServerFailedError(what=self.what, why=why, log_tail=self.log_tail())

    # What the two kinds of server do differently.

    def _create(self) -> None:
        raise NotImplementedError

    def _server_command(self) -> list[str | Path]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _is_ours(self, directory: str) -> bool:
        """Return True. Raises ServerFailedError where the server that answers has another data directory."""
        if Path(directory) != self.data_directory:
            self.kill()
            raise self._failed(f"port {self.port} is taken by another server")
        return True

    # The life.

    @property
    def pid(self) -> int:
        """The server's process id; only while it runs."""
        if self._process is None:
            raise self._failed("it is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, with its options as they now are, and wait until it answers.

        The first start makes the data directory. Ends: at once when it runs already.

        Raises: ServerFailedError when it ends by itself or does not answer within a minute.
        """
        if self.running:
            return
        if not self.data_directory.exists():
            try:
                self._create()
            except BaseException:
                shutil.rmtree(self.data_directory, ignore_errors=True)  # half a directory would not start, ever
                raise
        with self._open_log() as log:
            self._process = subprocess.Popen(
                self._command(self._server_command()),
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal is for the program, not for its servers
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            code = self._process.poll()
            if code is not None:
                self._process = None
                raise self._failed(f"it ended while starting (exit code {code})")
            if time.monotonic() > deadline:
                self.kill()
                raise self._failed(f"it did not answer within {START_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End the server in its own orderly way. Ends: at once when it does not run.

        Raises: ServerFailedError when it did not end within a minute; it is killed then.
        """
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(self.stop_signal)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired as exc:
                self.kill()
                raise self._failed(f"it did not stop within {STOP_TIMEOUT_S:.0f} s and was killed") from exc
        self._process = None

    def kill(self) -> None:
        """End the server and all its processes by SIGKILL, as `kill -9` would, and wait until they are gone.

        Ends: at once when it does not run. What the operating system was given survives, as it does any kill.
        """
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            kill_with_children(process)
        self._process = None

    def restart(self) -> None:
        """Stop in an orderly way and start again, with the options as they now are."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill the server and remove its directory, if that was made for it."""
        self.kill()
        if self._owns_directory:
            shutil.rmtree(self.directory, ignore_errors=True)


class MariaDbServer(_Process, MariaDbAddress):
    """A private MariaDB on loopback, with its binary log on in the form that capture wants (ROW, FULL, FULL).

    `options` are the server's variables: they add to or replace what stands here, None takes one out; change
    `server.options` and restart to change them later. The user is root, without a password. In a `with` block the
    server runs, and is gone at its end.

    Raises: ServerMissingError where MariaDB is not installed.
    Source: design, sources.md, "Starting servers in tests".
    """

    what = "MariaDB"
    packages = "mariadb-server-core and mariadb-client-core"
    account = "mysql"

    DEFAULTS: Mapping[str, OptionValue] = {
        "server_id": 1,
        "log_bin": "binlog",
        "binlog_format": "ROW",
        "binlog_row_image": "FULL",
        "binlog_row_metadata": "FULL",
        "binlog_annotate_row_events": 1,
        "gtid_strict_mode": 1,
        "character_set_server": "utf8mb4",
        "skip_name_resolve": 1,
        "innodb_buffer_pool_size": "64M",
        "innodb_log_file_size": "32M",
    }

    def __init__(self, *, directory: Path | None = None, options: Mapping[str, OptionValue] | None = None) -> None:
        self._installer = _program("mariadb-install-db", self.what, self.packages)
        self._server = _program("mariadbd", self.what, self.packages)
        _program("my_print_defaults", self.what, self.packages)
        _Process.__init__(self, directory=directory, options={**self.DEFAULTS, **(options or {})})
        MariaDbAddress.__init__(self, host=LOOPBACK, port=free_port(), user=self.superuser)

    def _create(self) -> None:
        self._run(
            [
                self._installer,
                "--no-defaults",
                f"--datadir={self.data_directory}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
            ]
        )

    def _server_command(self) -> list[str | Path]:
        command: list[str | Path] = [
            self._server,
            "--no-defaults",
            f"--datadir={self.data_directory}",
            f"--bind-address={LOOPBACK}",
            f"--port={self.port}",
            # Relative to the data directory: an absolute path may be too long for a socket.
            "--socket=server.sock",
            "--pid-file=server.pid",
        ]
        for name, value in self.options.items():
            if value is not None:
                command.append(f"--{name}={int(value) if isinstance(value, bool) else value}")
        return command

    def _answers(self) -> bool:
        import pymysql

        try:
            rows = self.execute("SELECT @@datadir")
        except pymysql.err.MySQLError:
            return False
        return self._is_ours(rows[0][0])


class PostgresServer(_Process, PostgresAddress):
    """A private PostgreSQL on loopback, UTF-8 in the C locale, that trusts whoever connects.

    `options` are the server's parameters, as in postgresql.conf; None takes one out; change `server.options` and
    restart to change them later. Its fsync is on unless they say otherwise. The user is postgres. In a `with` block
    the server runs, and is gone at its end.

    Raises: ServerMissingError where PostgreSQL is not installed.
    Source: design, sources.md, "Starting servers in tests".
    """

    what = "PostgreSQL"
    packages = "postgresql"
    account = "postgres"
    stop_signal = signal.SIGINT  # "fast": its clients are sent away
    orphan_signal = "QUIT"  # ends its children too, and frees its shared memory

    DEFAULTS: Mapping[str, OptionValue] = {
        "shared_buffers": "64MB",
        "max_connections": 100,
        "lc_messages": "C",
        "log_checkpoints": False,
    }

    def __init__(self, *, directory: Path | None = None, options: Mapping[str, OptionValue] | None = None) -> None:
        self._programs = _postgres_programs()
        _Process.__init__(self, directory=directory, options={**self.DEFAULTS, **(options or {})})
        PostgresAddress.__init__(self, host=LOOPBACK, port=free_port(), user=self.superuser)

    def _create(self) -> None:
        self._run(
            [
                self._programs / "initdb",
                f"--pgdata={self.data_directory}",
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ]
        )

    def standby(
        self, *, directory: Path | None = None, options: Mapping[str, OptionValue] | None = None
    ) -> PostgresServer:
        """Return a physical standby of this server, which runs; it is not started. `options` as for a new server.

        Raises: ServerFailedError when pg_basebackup ends otherwise than well.
        """
        made = PostgresServer(directory=directory, options=options)
        try:
            made._run(
                [
                    *(made._programs / "pg_basebackup", f"--host={self.host}", f"--port={self.port}"),
                    *(f"--username={self.user}", f"--pgdata={made.data_directory}", "--write-recovery-conf"),
                    *("--wal-method=stream", "--checkpoint=fast"),
                ]
            )
        except BaseException:
            made.close()
            raise
        return made

    def put_slot(self, slot: str, state: bytes) -> None:
        """Have a slot at the next start, as tools do that keep slots over a failover. `state` is `slot_state`'s."""
        folder = self.data_directory / "pg_replslot" / slot
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "state").write_bytes(state)
        owner = self.data_directory.stat()
        for path in (folder, folder / "state"):
            os.chown(path, owner.st_uid, owner.st_gid)

    def slot_state(self, slot: str) -> bytes:
        """Return a slot as the last checkpoint left it."""
        return (self.data_directory / "pg_replslot" / slot / "state").read_bytes()

    def _server_command(self) -> list[str | Path]:
        settings: dict[str, OptionValue] = {
            "listen_addresses": LOOPBACK,
            "port": self.port,
            "unix_socket_directories": "",
            **self.options,
        }
        command: list[str | Path] = [self._programs / "postgres", "-D", self.data_directory]
        for name, value in settings.items():
            if value is not None:
                command += ["-c", f"{name}={('off', 'on')[value] if isinstance(value, bool) else value}"]
        return command

    def _answers(self) -> bool:
        import psycopg

        try:
            rows = self.execute("SHOW data_directory")
        except psycopg.OperationalError:
            return False
        return self._is_ours(rows[0][0])


def free_port() -> int:
    """Return a loopback port that nobody listens on and that no outgoing connection will take."""
    while True:
        # Not `random`: test runners seed it, and two runs side by side would want the same ports.
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port


def _program(name: str, what: str, packages: str) -> Path:
    # Debian's server programs stand in /usr/sbin, which a plain user's PATH may not name.
    found = shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")
    if found is None:
        raise ServerMissingError(what=what, missing=name, packages=packages)
    return Path(found)


def _postgres_programs() -> Path:
    """Return the folder of the newest PostgreSQL's programs. Debian keeps them out of PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda bin: _number(bin.parent.name), reverse=True)
    on_path = shutil.which("postgres")
    if on_path is not None:
        versions.append(Path(on_path).resolve().parent)
    for folder in versions:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise ServerMissingError(what=PostgresServer.what, missing="initdb with postgres", packages=PostgresServer.packages)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _stat_fields(pid: int) -> list[str] | None:
    """Return what /proc says of a process after its name: state, parent, ...; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """End a child of ours that runs, and its children, by SIGKILL, and wait until they are gone."""
    process.send_signal(signal.SIGSTOP)  # no new child between the look and the kill
    children = children_of(process.pid)
    process.kill()
    process.wait()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    while any(_alive(child) for child in children):
        time.sleep(POLL_S)


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that are still its own."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat_fields(int(entry))
            if fields is not None and int(fields[1]) == pid:
                found.append(int(entry))
    return found


def _alive(pid: int) -> bool:
    """Say whether a process still runs; one that only waits for its parent to look (a zombie) does not."""
    fields = _stat_fields(pid)
    return fields is not None and fields[0] not in ("Z", "X")

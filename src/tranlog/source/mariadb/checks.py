"""What is looked at of a MariaDB server before it is captured.

Owns the list, and what a start does not ask: rights, how long the binlog is kept, the clock. What a start refuses is
asked by the code that refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final

from tranlog.clock import Clock
from tranlog.errors import SourceSetupError
from tranlog.findings import CheckResult, Severity, compare_clocks, fine, listed, tried, warning
from tranlog.servers.mariadb_rights import account, has_right
from tranlog.source.kinds import CapturedUpTo
from tranlog.source.mariadb.catalog import Catalog
from tranlog.source.mariadb.connection import Control, MariadbSourceOptions
from tranlog.source.mariadb.server_binlog import ServerBinlog
from tranlog.source.mariadb.source import read_event_id

_KEPT_LEAST_S: Final = 86_400
_REPLICA: Final = (("REPLICATION SLAVE",), ("BINLOG MONITOR", "REPLICATION CLIENT"))


def examine(options: MariadbSourceOptions, clock: Clock, captured: CapturedUpTo | None) -> Iterator[CheckResult]:
    """Yield what is found; `captured` None: the log has no event."""
    with closing(Control(options)) as control:
        binlog, catalog = ServerBinlog(options, control), Catalog(options, control)
        found = tried("connection", lambda: f"{control.rows('SELECT VERSION()')[0][0]} at {options.where}")
        yield found
        if found.severity is Severity.WRONG:
            return
        settings = list(listed("settings", binlog.setup_problems(), otherwise="the binlog holds whole rows"))
        yield from settings
        yield tried("clock", lambda: compare_clocks(clock, lambda: catalog.now_s() * 1000))
        yield tried("rights", lambda: _rights(options, control))
        yield tried("foreign keys", lambda: _foreign_keys(catalog))
        if any(one.severity is Severity.WRONG for one in settings):
            return
        if binlog.leaves_out_what_it_replicates():
            text = "it is a replica without log_slave_updates: what it replicates is not captured"
            yield warning("settings", text, "Put log_slave_updates into its configuration file and restart it")
        if captured is not None:
            yield tried("position", lambda: _position(binlog, captured.event_id))
        behind_s = 0.0 if captured is None else max(0.0, (clock.now_ms() - captured.tstamp) / 1000)
        yield tried("retention", lambda: _retention(binlog.kept_s(), behind_s))


def _rights(options: MariadbSourceOptions, control: Control) -> str:
    """Look for the rights of a replica, which a start needs, and for SELECT. Raises SourceSetupError."""
    ((user,),) = control.rows("SELECT CURRENT_USER()")
    grants = [str(row[0]) for row in control.rows("SHOW GRANTS")]
    lacking = [" or ".join(names) for names in _REPLICA if not has_right(grants, names)]
    statements = [f"GRANT {', '.join([names[0] for names in _REPLICA])} ON *.* TO {account(user)}"] if lacking else []
    for database in (None,) if options.databases is None else options.databases:
        if not has_right(grants, ["SELECT"], database):
            on = "*.*" if database is None else f"`{database.replace('`', '``')}`.*"
            lacking.append(f"SELECT on {on}")
            statements.append(f"GRANT SELECT ON {on} TO {account(user)}")
    if lacking:
        why = f"the user {user} at {options.where} has no right {', '.join(lacking)}"
        raise SourceSetupError(why=why, remedy=f"Run at the source: {'; '.join(statements)}")
    return f"{user} may read tables and binlog"


def _foreign_keys(catalog: Catalog) -> str:
    catalog.foreign_key_edges()
    return "none changes rows that the binlog does not hold, or the targets have the same"


def _position(binlog: ServerBinlog, captured: str) -> str:
    position = binlog.resume(read_event_id(captured)).position
    binlog.check_kept(position)
    return "the binlog still holds what follows the log's end"


def _retention(kept_s: int, behind_s: float) -> CheckResult:
    if kept_s == 0 or kept_s >= max(_KEPT_LEAST_S, 2 * behind_s):
        return fine("retention", "the binlog is kept for ever" if not kept_s else f"the binlog is kept for {kept_s} s")
    behind = f", whose last transaction is {behind_s:.0f} s old" if behind_s else ""
    return warning(
        "retention",
        f"the binlog is kept for {kept_s} s: a capture{behind} that is away for longer loses its place",
        "Run at the source: SET GLOBAL binlog_expire_logs_seconds = "
        f"{max(7 * _KEPT_LEAST_S, round(4 * behind_s))}; and put the same into its configuration file",
    )

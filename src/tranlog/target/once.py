"""Statements that commit what stands before them, each run once: DDL at a MariaDB target.

Owns the table `tranlog_statement` and the rule after a fault. The hard idea: such a statement cannot share a
transaction with the position, so whether it ran is written down by the server itself. One block goes there whole:
it looks that the position is still ours, notes that the statement has begun, runs it, and notes that it is done. A task
that is killed changes nothing in that: the server had the block, or it had not. Only where the server itself, or this
session at it, was ended inside the block is it unknown whether the statement ran; then the channel stops and says so,
since some statements must not run twice.

Source: docs/decisions/0013; MariaDB's manual, "BEGIN NOT ATOMIC".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final

from tranlog.change import Statement
from tranlog.errors import DdlStopError, TargetUnavailableError, TransientTargetError
from tranlog.ids import Seqno
from tranlog.target.dialect import Dialect
from tranlog.target.recorded import by_hand, stopped
from tranlog.target.session import MisfitError, MissingTableError, Session
from tranlog.target.target import Advance, ApplyUnit

STATEMENT_TABLE: Final = "tranlog_statement"
CREATE_STATEMENT_TABLE: Final = """CREATE TABLE IF NOT EXISTS tranlog_statement (
    pipeline {key_text} NOT NULL,
    channel {integer} NOT NULL,
    number {integer} NOT NULL,
    epoch {integer} NOT NULL,
    seqno {integer} NOT NULL,
    event_id {text} NOT NULL,
    session {text} NOT NULL,
    done {integer} NOT NULL,
    updated_at {integer} NOT NULL,
    PRIMARY KEY (pipeline, channel, number)
){suffix}"""

_READ: Final = (
    "SELECT epoch, seqno, event_id, session, done, IS_USED_LOCK(CONCAT('tranlog ', session)) IS NOT NULL "
    "FROM tranlog_statement WHERE pipeline = $1 AND channel = $2 AND number = $3"
)
_FORGET: Final = "DELETE FROM tranlog_statement WHERE pipeline = $1 AND channel = $2"
_BLOCK: Final = """BEGIN NOT ATOMIC
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        DELETE FROM {own}.tranlog_statement
         WHERE pipeline = $1 AND channel = $2 AND number = $3 AND session = $7 AND done = 0;
        RESIGNAL;
    END;
    START TRANSACTION;
    IF (SELECT count(*) FROM {own}.tranlog_channel
         WHERE pipeline = $1 AND channel = $2 AND applied_seqno = $8 AND token = $9 FOR UPDATE) = 1 THEN
        REPLACE INTO {own}.tranlog_statement
            (pipeline, channel, number, epoch, seqno, event_id, session, done, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, 0, {{now}});
        COMMIT;
        {settings}
        {run}
        SET timestamp = DEFAULT;
        UPDATE {own}.tranlog_statement SET done = 1, updated_at = {{now}}
         WHERE pipeline = $1 AND channel = $2 AND number = $3 AND session = $7;
    END IF;
    COMMIT;
END"""
_RUN: Final = "EXECUTE IMMEDIATE $10;"
_RUN_AND_FAIL: Final = """BEGIN
            DECLARE failed INT DEFAULT 0;
            BEGIN
                DECLARE CONTINUE HANDLER FOR {code} SET failed = 1;
                EXECUTE IMMEDIATE $10;
            END;
            IF NOT failed THEN
                SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'it failed at the source with error {code}, and not here';
            END IF;
        END;"""

_WITHOUT: Final = {"auto_increment_increment": "1", "auto_increment_offset": "1", "lc_time_names": "0"}
"""What the source's session had where nothing is recorded: it writes these only where they are others."""
_CARRIED: Final = (
    *("sql_mode", "foreign_key_checks", "unique_checks", "check_constraint_checks", "sql_auto_is_null"),
    *("explicit_defaults_for_timestamp", "sql_if_exists", "system_versioning_insert_history", "time_zone"),
    *("auto_increment_increment", "auto_increment_offset", "lc_time_names", "insert_id", "last_insert_id"),
    *("rand_seed1", "rand_seed2", "character_set_collations", "collation_server", "collation_database"),
    *("collation_connection", "character_set_client"),
)
"""Options of a statement that are variables of its session, in the order in which they are set."""
_STANDING: Final = (
    "SELECT LOWER(VARIABLE_NAME), SESSION_VALUE, READ_ONLY = 'NO' AND VARIABLE_SCOPE LIKE 'SESSION%' "
    "FROM information_schema.SYSTEM_VARIABLES "
    f"WHERE VARIABLE_NAME IN ({', '.join([repr(name) for name in _CARRIED])})"
)
_LEFT: Final = frozenset({"insert_id", "last_insert_id", "rand_seed1", "rand_seed2", "collation_database"})
"""Not set back: they serve one statement, or follow the default database."""
_CHARSETS: Final = frozenset({"character_set_client", "collation_connection"})
"""Set back before the others, whose names no server finds where they come in UTF-16."""
_NO_DATABASE: Final = "information_schema"
"""Entered where the statement's own database is not here: no name without a database finds anything there."""
_ABORTED: Final = frozenset({1053, 1077, 1078, 1079, 1080, 1152, 1184, 1317, 1927, 3024, 1969})
"""Codes of statements that were interrupted: what they had done by then cannot be told."""


def session_of(statement: Statement) -> list[tuple[str, str | int]]:
    """Return the settings of the session in which the source ran a statement, as far as they are recorded. Pure."""
    recorded = {**_WITHOUT, **dict(reversed(statement.options))}  # of equal names the first counts
    if isinstance(statement.sql, str) and statement.sql.startswith(("DROP TABLE ", "DROP SEQUENCE ")):
        # It is recorded with all its names and without an error, also where some of them were none.
        recorded["sql_if_exists"] = "1"
    return [(name, _plain(recorded[name])) for name in _CARRIED if name in recorded]


def statement_time(statement: Statement) -> str:
    """Return when the source ran a statement, as the variable `timestamp` takes it. Pure."""
    micros = int(dict(reversed(statement.options)).get("timestamp_microseconds", "0"))
    return f"{statement.timestamp // 1000}.{micros or statement.timestamp % 1000 * 1000:06d}"


def _plain(value: str) -> str | int:
    """Return a variable's value as SET takes it: a number where it is one, as switches are."""
    return int(value) if value.isdigit() else {"ON": 1, "OFF": 0}.get(value, value)


class Standing(enum.Enum):
    """What is known of a statement before it is run."""

    NEW = "new"
    """It was never begun, or failed."""
    DONE = "done"
    RUNNING = "running"
    """The session that began it is still there."""
    UNCERTAIN = "uncertain"
    """It was begun, and whoever began it is gone without a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A row of `tranlog_statement`, and whether its session still lives."""

    epoch: int
    seqno: int
    event_id: str
    session: str
    done: bool
    alive: bool


def standing(begun: Begun | None, unit: ApplyUnit, *, session: str) -> Standing:
    """Tell how the unit's statement stands; `session` is the one that asks. Pure."""
    if begun is None or (begun.epoch, begun.seqno, begun.event_id) != (unit.epoch, unit.seqno, unit.event_id):
        return Standing.NEW  # a row about another transaction says nothing any more
    if begun.done:
        return Standing.DONE
    return Standing.RUNNING if begun.alive and begun.session != session else Standing.UNCERTAIN


class Once:
    """Runs statements once, over one session. Threads: one at a time."""

    def __init__(self, session: Session, dialect: Dialect) -> None:
        self._session = session
        self._dialect = dialect
        self._standing: dict[str, tuple[str | int, bool]] = {}
        """By name: what a variable is in our session, and whether a session can set it."""

    def run(self, advance: Advance, unit: ApplyUnit, number: int, statement: Statement, text: str) -> bool:
        """Run the unit's statement `number` if it has not run yet, outside any transaction; return whether it ran now.

        `text` is shown in messages. A position that is not ours any more is the next guard's to find: nothing runs.

        Raises DdlStopError where it is unknown whether it ran, TransientTargetError while another session runs it,
        and what `Session.run` raises.
        """
        if statement.error_code in _ABORTED:
            why = (
                f"it was interrupted at the source (error {statement.error_code}), and what it had done by then is not "
                "known"
            )
            raise stopped(unit.seqno, text, why)
        if self.has_run(advance, unit, number, text):
            return False
        own = self._dialect.quote(self._session.fetch("SELECT DATABASE()")[0][0])
        where = (advance.pipeline, advance.channel, number)
        missing = bool(statement.schema) and not self._enter(statement.schema)
        if missing:
            self._enter(_NO_DATABASE)
        values: list[Any] = [*where, unit.epoch, unit.seqno, unit.event_id, self._session.identity]
        values += [advance.old_seqno, advance.token, statement.sql]
        sets = [f"timestamp = {statement_time(statement)}"]
        for name, value in self._settings(unit.seqno, statement, text):
            values.append(value)
            sets.append(f"{name} = ${len(values)}")
        settings = f"SET {', '.join(sets)};"
        for name, value in statement.options:
            if name.startswith("@"):
                values.append(f"SET @{self._dialect.quote(name[1:])} = {value}")
                settings += f" EXECUTE IMMEDIATE ${len(values)};"
        run = _RUN_AND_FAIL.format(code=statement.error_code) if statement.error_code else _RUN
        sql = self._dialect.sql(_BLOCK.format(own=own, settings=settings, run=run))
        try:
            self._session.run(sql, values)
        except (MisfitError, MissingTableError, TargetUnavailableError) as exc:
            if not missing:
                raise
            why = f"there is no database {statement.schema} here, in which it was run at the source ({exc})"
            raise stopped(unit.seqno, text, why) from exc
        finally:
            self._session.run(f"USE {own}")
            # A literal would come in the statement's own charset, a bare word does not.
            words = [f"{name} = {self._standing[name][0]}" for name in _CHARSETS if name in self._standing]
            self._session.run(f"SET {', '.join([*words, 'timestamp = DEFAULT'])}", [])
            back = [name for name in self._standing if name not in _CHARSETS | _LEFT]
            sets = [f"{name} = ${number}" for number, name in enumerate(back, start=1)]
            self._session.run(f"SET {', '.join([*sets, 'timestamp = DEFAULT'])}", [self._standing[n][0] for n in back])
        return True

    def has_run(self, advance: Advance, unit: ApplyUnit, number: int, text: str) -> bool:
        """Return whether the unit's statement `number` has run. Raises as `run` does where that is not settled."""
        try:
            rows = self._session.fetch(_READ, (advance.pipeline, advance.channel, number))
        except MissingTableError as exc:
            why = (
                f"{STATEMENT_TABLE}, where it is noted that such a statement has begun, is gone ({exc}), "
                "so this one has run, or it has not"
            )
            remedy = (
                f"Look. If it has not, do {by_hand(unit.seqno)}. If it has, the same without it. "
                "`tranlog position set` makes the table anew"
            )
            raise DdlStopError(seqno=unit.seqno, text=text, why=why, remedy=remedy) from exc
        begun = None
        if rows:
            epoch, seqno, event_id, holder, done, alive = rows[0]
            begun = Begun(
                epoch=epoch, seqno=seqno, event_id=event_id, session=holder, done=bool(done), alive=bool(alive)
            )
        match standing(begun, unit, session=self._session.identity):
            case Standing.DONE:
                return True
            case Standing.RUNNING:
                assert begun is not None
                raise TransientTargetError(why=f"the statement {text!r} is still run by session {begun.session}")
            case Standing.UNCERTAIN:
                why = (
                    "it was begun, and the server or its session ended before it was noted as done: it has run, or it "
                    "has not"
                )
                remedy = (
                    "Look. If it has not, DELETE FROM tranlog_statement and start again. If it has, do the other "
                    f"changes of its transaction (`thl list -seqno {unit.seqno}` shows them), then "
                    f"`tranlog position set {unit.seqno}`"
                )
                raise DdlStopError(seqno=unit.seqno, text=text, why=why, remedy=remedy)
            case Standing.NEW:
                return False

    def _settings(self, seqno: Seqno, statement: Statement, text: str) -> list[tuple[str, str | int]]:
        """Return what of a statement's session is to be set here. Raises DdlStopError for what this server has not."""
        if not self._standing:
            for name, value, settable in self._session.fetch(_STANDING):
                self._standing[name] = _plain(value), bool(settable)
        found = []
        for name, wanted in session_of(statement):
            value, settable = self._standing.get(name, (0, False))
            if settable:
                found.append((name, wanted))
            elif wanted != value:
                why = f"its session had {name} = {wanted}, which this server cannot set"
                raise stopped(seqno, text, why)
        return found

    def _enter(self, schema: str) -> bool:
        try:
            self._session.run(f"USE {self._dialect.quote(schema)}")
        except MissingTableError:
            return False
        return True

    def forget(self, advance: Advance) -> None:
        """Remove what is noted, in the target transaction that moves the position past it."""
        self._session.run(_FORGET, (advance.pipeline, advance.channel))

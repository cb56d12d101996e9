"""Statements that commit what stands before them, each run once: DDL at a MariaDB target.

Owns the table `tranlog_statement` and the rule after a fault. The hard idea: such a statement cannot share a
transaction with the position, so whether it ran is written down by the server itself. One block goes there whole:
it looks that the position is still ours, notes that the statement has begun, runs it, and notes that it is done. A task
that is killed changes nothing in that: the server had the block, or it had not. Only where the server itself, or this
session at it, was ended inside the block is it unknown whether the statement ran; then the channel stops and says so,
since some statements must not run twice.

Source: design/pipeline.md, "Channels meet at the target"; docs/decisions/0013; MariaDB's manual, "BEGIN NOT ATOMIC".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from tranlog.change import Statement
from tranlog.errors import DdlStopError, TransientTargetError
from tranlog.target.dialect import Dialect
from tranlog.target.session import MissingTableError, Session
from tranlog.target.target import Advance, Unit

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
        {mode}EXECUTE IMMEDIATE $10;
        UPDATE {own}.tranlog_statement SET done = 1, updated_at = {{now}}
         WHERE pipeline = $1 AND channel = $2 AND number = $3 AND session = $7;
    END IF;
    COMMIT;
END"""


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


def standing(begun: Begun | None, unit: Unit, *, session: str) -> Standing:
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

    def run(self, advance: Advance, unit: Unit, number: int, statement: Statement, text: str) -> bool:
        """Run the unit's statement `number` if it has not run yet, outside any transaction; return whether it ran now.

        `text` is shown in messages. A position that is not ours any more is the next guard's to find: nothing runs.

        Raises DdlStopError where it is unknown whether it ran, TransientTargetError while another session runs it,
        and what `Session.run` raises.
        """
        if not isinstance(statement.sql, str):
            raise DdlStopError(seqno=unit.seqno, text=text, why="its text does not decode in its charset")
        own = self._dialect.quote(self._session.fetch("SELECT DATABASE()")[0][0])
        where = (advance.pipeline, advance.channel, number)
        try:
            rows = self._session.fetch(_READ, where)
        except MissingTableError as exc:
            why = (
                f"{STATEMENT_TABLE}, where it is noted that such a statement has begun, is gone ({exc}). "
                "So this one has run, or it has not. Look, and if it has, do not run it again; "
                "`tranlog position set` makes the table anew"
            )
            raise DdlStopError(seqno=unit.seqno, text=text, why=why) from exc
        begun = None
        if rows:
            epoch, seqno, event_id, holder, done, alive = rows[0]
            begun = Begun(
                epoch=epoch, seqno=seqno, event_id=event_id, session=holder, done=bool(done), alive=bool(alive)
            )
        match standing(begun, unit, session=self._session.identity):
            case Standing.DONE:
                return False
            case Standing.RUNNING:
                assert begun is not None
                raise TransientTargetError(why=f"the statement {text!r} is still run by session {begun.session}")
            case Standing.UNCERTAIN:
                why = (
                    "it was begun, and the server or its session ended before it was noted as done: it has run, or it "
                    "has not. Look; if it has not, DELETE FROM tranlog_statement and start again. If it has, do not"
                )
                raise DdlStopError(seqno=unit.seqno, text=text, why=why)
            case Standing.NEW:
                pass
        if statement.schema and not self._enter(statement.schema) and not self._dialect.needs_no_database(text):
            raise DdlStopError(seqno=unit.seqno, text=text, why=f"there is no database {statement.schema} here")
        try:
            mode = next((value for name, value in statement.options if name == "sql_mode"), None)
            values = (
                *where,
                unit.epoch,
                unit.seqno,
                unit.event_id,
                self._session.identity,
                advance.old_seqno,
                advance.token,
                statement.sql,
                mode,
            )
            sql = _BLOCK.format(own=own, mode="" if mode is None else "SET sql_mode = $11; ")
            self._session.run(self._dialect.sql(sql), values)
        finally:
            if statement.schema:
                self._session.run(f"USE {own}")
        return True

    def _enter(self, schema: str) -> bool:
        try:
            self._session.run(f"USE {self._dialect.quote(schema)}")
        except MissingTableError:
            return False
        return True

    def forget(self, advance: Advance) -> None:
        """Remove what is noted, in the target transaction that moves the position past it."""
        self._session.run(_FORGET, (advance.pipeline, advance.channel))

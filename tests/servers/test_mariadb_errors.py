"""Which error number of a MariaDB server has which class, by the names that the driver has for them."""

from __future__ import annotations

import pymysql
import pytest
from pymysql.constants import CR, ER

from tranlog.errors import SourceSetupError, SourceUnavailableError
from tranlog.servers.mariadb import error_number, message
from tranlog.servers.mariadb_errors import ErrorClass, error_class
from tranlog.source.mariadb.connection import MariadbSourceOptions, translated

NAMED = {
    ErrorClass.LOST: (
        *(0, CR.CR_CONNECTION_ERROR, CR.CR_CONN_HOST_ERROR, ER.CON_COUNT_ERROR),
        *(CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_SERVER_LOST_EXTENDED),
        *(ER.SERVER_SHUTDOWN, ER.NORMAL_SHUTDOWN, ER.SHUTDOWN_COMPLETE, ER.QUERY_INTERRUPTED, 1927),
        *(ER.NEW_ABORTING_CONNECTION, ER.ABORTING_CONNECTION, ER.FORCING_CLOSE),
        *(ER.NET_READ_ERROR, ER.NET_READ_INTERRUPTED, ER.NET_ERROR_ON_WRITE, ER.NET_WRITE_INTERRUPTED),
    ),
    ErrorClass.TRANSIENT: (ER.LOCK_DEADLOCK, ER.CHECKREAD, ER.TABLE_DEF_CHANGED, 1615, 1969),
    ErrorClass.UNAVAILABLE: (
        *(ER.DBACCESS_DENIED_ERROR, ER.ACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR),
        *(ER.COLUMNACCESS_DENIED_ERROR, ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.PROCACCESS_DENIED_ERROR),
        *(ER.DISK_FULL, ER.RECORD_FILE_FULL, ER.GET_ERRNO, ER.ERROR_ON_WRITE),
        *(1, 3, 20, ER.CANT_CREATE_FILE, 1878),  # the first ones of its file library: "No space left on device"
        *(5, ER.OUTOFMEMORY, ER.OUT_OF_SORTMEMORY, ER.OUT_OF_RESOURCES),
        *(ER.OPTION_PREVENTS_STATEMENT, 1662, 1665, 1792, 1836),
    ),
    ErrorClass.FINAL: (ER.PARSE_ERROR, ER.DUP_ENTRY, ER.NO_SUCH_TABLE, ER.LOCK_WAIT_TIMEOUT),
}


@pytest.mark.parametrize("kind", ErrorClass)
def test_each_number_has_its_class(kind: ErrorClass) -> None:
    assert {number: error_class(number) for number in NAMED[kind]} == dict.fromkeys(NAMED[kind], kind)


@pytest.mark.parametrize("kind", ErrorClass)
def test_a_source_is_away_when_the_connection_is_lost(kind: ErrorClass) -> None:
    """Or others lock the table, or change it, for now. Anything else it would say again: capture ends with why."""
    for number in NAMED[kind]:
        passing = number in (ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK, ER.TABLE_DEF_CHANGED)
        wanted = SourceUnavailableError if kind is ErrorClass.LOST or passing else SourceSetupError
        assert type(translated(pymysql.err.OperationalError(number, "told"), MariadbSourceOptions())) is wanted


@pytest.mark.parametrize(
    ("error", "number", "text"),
    [
        (pymysql.err.OperationalError(1213, "Deadlock\n found"), 1213, "Deadlock found"),
        (pymysql.err.InterfaceError(0, ""), 0, ""),
        (pymysql.err.Error("Already closed"), 0, "Already closed"),
        (pymysql.err.Error(), 0, ""),
        (ConnectionRefusedError(111, "refused"), 0, "[Errno 111] refused"),
    ],
)
def test_what_the_driver_raises(error: Exception, number: int, text: str) -> None:
    assert (error_number(error), message(error)) == (number, text)

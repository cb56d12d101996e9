"""What a MariaDB server's error numbers mean, for a source and a target alike.

Owns sorting them by what is to be done. A number that is not named here is final: it is about what was sent.
"""

from __future__ import annotations

import enum
from typing import Final


class ErrorClass(enum.Enum):
    """What is to be done about an error."""

    LOST = "lost"
    """The connection is gone, or was not made: connect again."""
    TRANSIENT = "transient"
    """The same may succeed when it is tried again."""
    UNAVAILABLE = "unavailable"
    """The server refuses until somebody mends it: rights, room, memory, a server that is read-only."""
    FINAL = "final"
    """What was sent is refused, and will be again."""


_LOST: Final = (
    *(1040, 2002, 2003),  # no connection: too many of them, no server
    *(1053, 1077, 1079),  # the server is shutting down
    *(1080, 1152, 1184, 1317, 1927),  # it has ended this connection, or its statement
    *(1158, 1159, 1160, 1161, 2006, 2013, 2055),  # the line
)
_TRANSIENT: Final = (
    *(1020, 1213, 1412),  # a row that changed since it was read, a deadlock, a table that changed
    *(1615, 1969),  # a statement that is to be prepared anew, max_statement_time
)
_UNAVAILABLE: Final = (
    *(1044, 1045, 1142, 1143, 1227, 1370),  # rights
    *(1, 3, 20, 1004, 1021, 1026, 1030, 1114, 1878),  # the disk; those below 1000 are of its file library
    *(5, 1037, 1038, 1041),  # memory
    *(1290, 1792, 1836),  # the server, or the transaction, is read-only or set so that it does not run this
    *(1662, 1665),  # the binlog cannot hold the change
    *(1203, 1226),  # the user's limits: connections, statements in an hour
    1047,  # a Galera node that has no part in its cluster, or is told to refuse
)
_CLASSES: Final = {
    **dict.fromkeys(_LOST, ErrorClass.LOST),
    **dict.fromkeys(_TRANSIENT, ErrorClass.TRANSIENT),
    **dict.fromkeys(_UNAVAILABLE, ErrorClass.UNAVAILABLE),
}


def error_class(number: int) -> ErrorClass:
    """Return the class of an error number; 0 is an error that the client found by itself: it has no connection."""
    return _CLASSES.get(number, ErrorClass.FINAL) if number else ErrorClass.LOST

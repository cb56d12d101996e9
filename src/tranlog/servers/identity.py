"""What names a server's database, by whichever address it is asked: whether a source and a target are the same one."""

from __future__ import annotations

from typing import Final

IDENTITY: Final = {
    "postgres": "SELECT system_identifier::text || '/' || current_database() FROM pg_control_system()",
    "mariadb": "SELECT CONCAT_WS('|', @@hostname, @@port, @@datadir)",
}
"""By kind: a query that gives one text, the same for all databases of a MariaDB."""

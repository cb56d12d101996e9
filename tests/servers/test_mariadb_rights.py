"""servers/mariadb_rights: what the text of SHOW GRANTS grants."""

from __future__ import annotations

import pytest

from tranlog.servers.mariadb_rights import account, has_right

GRANTS = (
    "GRANT USAGE ON *.* TO `u`@`%` IDENTIFIED BY PASSWORD '*00'",
    "GRANT SELECT, BINLOG MONITOR ON *.* TO `u`@`%`",
    "GRANT INSERT, CREATE ON `sh\\_op`.* TO `u`@`%`",
    "GRANT DELETE ON `log%`.* TO `u`@`%`",
    "GRANT UPDATE (`a`) ON `shop`.`orders` TO `u`@`%`",
    "GRANT ALL PRIVILEGES ON `own`.* TO `u`@`%` WITH GRANT OPTION",
)


@pytest.mark.parametrize(
    ("right", "database", "granted"),
    [
        ("SELECT", None, True),
        ("SELECT", "any", True),
        ("BINLOG MONITOR", None, True),
        ("REPLICATION SLAVE", None, False),
        ("INSERT", None, False),
        ("INSERT", "sh_op", True),
        ("INSERT", "shxop", False),
        ("DELETE", "logs", True),
        ("DELETE", "blog", False),
        ("UPDATE", "shop", False),
        ("DROP", "own", True),
        ("DROP", "other", False),
    ],
)
def test_a_right_is_found_where_it_is_granted(right: str, database: str | None, granted: bool) -> None:
    assert has_right(GRANTS, [right], database) is granted


def test_an_account_is_quoted_for_a_grant() -> None:
    assert account("o'neil@local@10.%") == "'o''neil@local'@'10.%'"

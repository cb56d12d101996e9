"""Which table a statement in the place of rows changes, where that is certain, and each form where it is not."""

from __future__ import annotations

import pytest

from tranlog.dml import changed_table

CERTAIN = (
    "INSERT INTO t VALUES (1, 'a')",
    "insert ignore t (a, b) values (1, now()), (2, concat('a', `b`))",
    "REPLACE INTO `t` SET a = 1",
    "INSERT INTO s.t VALUES (1) ON DUPLICATE KEY UPDATE a = VALUES(a) + (1 + 2)",
    "UPDATE t SET a = a + 1 WHERE b IN (1, 2) AND (c = 'SELECT; (' OR d.e IN (4))",
    "UPDATE LOW_PRIORITY t AS x SET x.a = RAND() ORDER BY a LIMIT 3",
    "UPDATE t x SET a = NAME_CONST('v', 5) -- a word",
    "DELETE FROM t",
    "/* why */ DELETE QUICK FROM `s`.`t` WHERE a NOT BETWEEN (1) AND (2)",
    "DELETE FROM t LIMIT 1",
)


@pytest.mark.parametrize("text", CERTAIN)
def test_a_statement_that_names_one_table(text: str) -> None:
    assert changed_table(text, schema="s") == ("s", "t")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "CALL p()",
        "INSERT INTO t SELECT * FROM u",
        "INSERT INTO t VALUES ((SELECT f(1)))",
        "INSERT INTO t VALUES (f(1))",
        "INSERT INTO t VALUES (s.concat('a'))",
        "INSERT INTO t VALUES (`concat`('a'))",
        "INSERT INTO t VALUES (now ())",
        "INSERT INTO t VALUES (now/**/())",
        "INSERT INTO t VALUES (NEXT VALUE FOR q)",
        "INSERT INTO t VALUES (q.nextval)",
        "INSERT INTO t VALUES (1); DELETE FROM u",
        r"INSERT INTO t VALUES ('\'), (f(1), \'')",
        "INSERT INTO /*!999999 u. */ t VALUES (1)",
        "UPDATE t, u SET t.a = 1",
        "UPDATE t JOIN u SET t.a = 1",
        "UPDATE t PARTITION (p) SET a = 1",
        "DELETE t FROM t, u",
        "DELETE FROM t USING t, u",
        "DELETE FROM t, u USING t JOIN u",
        "DELETE HISTORY FROM t",
        "WITH c AS (SELECT 1) DELETE FROM t",
        "LOAD DATA INFILE 'x' INTO TABLE t",
        "SET STATEMENT max_statement_time = 1 FOR DELETE FROM t",
        "DELETE FROM t WHERE a = 'unended",
    ],
)
def test_what_is_not_certain(text: str) -> None:
    assert changed_table(text, schema="s") is None

"""The program of `make pg-regress` with two files of our own in the place of PostgreSQL's: it copies, and it tells."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SETUP = "CREATE TABLE kept (a int, b text);\nINSERT INTO kept VALUES (1, 'one'), (2, NULL);\n"
ALL_KINDS = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE t (id int PRIMARY KEY, n numeric, at timestamptz, tags text[], m mood);
INSERT INTO t VALUES (1, 'NaN', 'infinity', '{a,NULL}', 'sad');
BEGIN;
INSERT INTO t VALUES (2, 1e100, NULL, '{}', 'glad');
UPDATE t SET id = id + 10;
COMMIT;
\\copy kept FROM stdin
3\tthree
\\.
ALTER TABLE t ADD COLUMN late int DEFAULT 7;
INSERT INTO t (id) VALUES (3);
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue';
SELECT this is no statement;
CREATE TABLE made AS SELECT * FROM t;
DELETE FROM made WHERE id = 3;
DROP TABLE t;
ALTER TABLE kept RENAME TO moved;
ALTER TABLE moved RENAME TO kept;
CREATE TABLE t (id int PRIMARY KEY, n int);
INSERT INTO t VALUES (1, 1), (2, 2);
ALTER TABLE t ADD COLUMN c int;
UPDATE t SET c = n * 10;
ALTER TABLE t DROP COLUMN n;
ALTER TABLE t RENAME c TO n;
INSERT INTO t VALUES (3, 3);
CREATE TABLE computed (a int, b int GENERATED ALWAYS AS (a + 1) STORED);
INSERT INTO computed VALUES (1);
ALTER TABLE computed ALTER COLUMN b DROP EXPRESSION;
INSERT INTO computed VALUES (2, 7);
CREATE TABLE once (a int UNIQUE);
INSERT INTO once VALUES (1);
ALTER TABLE once DROP CONSTRAINT once_a_key;
INSERT INTO once VALUES (1);
CREATE TABLE late (a int UNIQUE DEFERRABLE);
INSERT INTO late VALUES (1), (2);
UPDATE late SET a = a + 1;
CREATE TYPE pair AS (a int);
CREATE TABLE held (p pair);
INSERT INTO held VALUES (ROW(1));
ALTER TYPE pair ADD ATTRIBUTE b text;
UPDATE held SET p = ROW(2, 'two');
"""


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_file_leaves_the_same_at_the_target(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "test_setup.sql").write_text(SETUP)
    (tmp_path / "sql" / "kinds.sql").write_text(ALL_KINDS)
    (tmp_path / "sql" / "publication.sql").write_text("SELECT 1;")  # is no workload
    results = tmp_path / "results"
    command = [sys.executable, str(Path(__file__).with_name("pg_regress.py")), str(tmp_path), "--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, (told, done.stderr[-3000:])
    assert (told["files"], told["differences"], told["capture_ends"]) == (1, 0, 0)
    assert told["transactions"] >= 6 and told["rows"] >= 5
    again = subprocess.run([*command, "kinds"], capture_output=True, text=True, check=True)
    assert json.loads(again.stdout) == told, "what has its result is not run again"


@pytest.mark.e2e
def test_a_folder_without_files_is_named(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("pg_regress.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 4 and f"no such files in {tmp_path}/sql" in done.stderr

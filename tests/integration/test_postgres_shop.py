"""A shop in PostgreSQL, captured by the command under kill -9, and applied to each kind of target."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from fix_postgres_source import run
from tranlog.log.reading.reader import LogReader
from tranlog.source.postgres.position import WalPosition, parse_lsn
from tranlog.testing.servers import MariaDbServer, PostgresAddress, PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(400)]
PROGRAM = Path(sys.executable).with_name("tranlog")

SCHEMA = (
    "CREATE SCHEMA shop",
    "CREATE TABLE shop.customer (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, mail text UNIQUE NOT NULL, "
    "born date, vip boolean NOT NULL DEFAULT false, token uuid DEFAULT gen_random_uuid(), notes jsonb)",
    "CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer int NOT NULL REFERENCES shop.customer, "
    "placed timestamptz NOT NULL DEFAULT now(), total numeric(12,2) NOT NULL, status varchar(12) NOT NULL)",
    "CREATE TABLE shop.line (orders bigint REFERENCES shop.orders, number int, item text NOT NULL, "
    "price numeric(10,2), tags text[], PRIMARY KEY (orders, number))",
    "CREATE TABLE shop.visit (customer int, page text, spent interval)",
)
WRITERS, ROUNDS, KILLS = 3, 60, 3


@dataclass(frozen=True, slots=True)
class Shop:
    """A folder with a configuration and a log that holds all that the shop did."""

    folder: Path
    text: str

    def __call__(self, *arguments: str, conf: str = "tranlog.toml", code: int = 0) -> str:
        done = subprocess.run(
            [PROGRAM, "--conf", conf, *arguments], capture_output=True, text=True, timeout=200, cwd=self.folder
        )
        assert done.returncode == code and "Traceback" not in done.stderr, done.stdout + done.stderr
        return done.stdout


def trade(server: PostgresServer, database: str, seed: int, done: list[int]) -> None:
    """Do what a shop does, some of it in savepoints, and count what was committed."""
    rng = random.Random(seed)
    with server.connect(database, autocommit=False) as session:
        for number in range(ROUNDS):
            order = seed * 100_000 + number
            try:
                mail = f"{seed}-{number}@shop.example"
                session.execute(
                    "INSERT INTO shop.customer (mail, born, notes) VALUES (%s, '1980-02-29', '{\"é\": [1, 2.50]}')",
                    (mail,),
                )
                session.execute(
                    "INSERT INTO shop.orders VALUES (%s, (SELECT max(id) FROM shop.customer WHERE mail = %s), "
                    "clock_timestamp(), 0, 'new')",
                    (order, mail),
                )
                for line in range(rng.choice((1, 2, 3, 400))):
                    session.execute(
                        "INSERT INTO shop.line VALUES (%s, %s, %s, %s, ARRAY['a', NULL, 'b c'])",
                        (order, line, "item " * rng.randrange(20), rng.randrange(10_000) / 100),
                    )
                session.execute("SAVEPOINT s")
                session.execute("UPDATE shop.line SET price = price * 2 WHERE orders = %s", (order,))
                if rng.random() < 0.5:
                    session.execute("ROLLBACK TO s")
                session.execute(
                    "UPDATE shop.orders SET total = (SELECT sum(price) FROM shop.line WHERE orders = %s), "
                    "status = 'paid' WHERE id = %s",
                    (order, order),
                )
                session.execute("INSERT INTO shop.visit VALUES (%s, NULL, '1 day 00:00:01.5')", (number,))
                if rng.random() < 0.3:
                    session.execute("UPDATE shop.line SET number = number + 1000 WHERE orders = %s", (order,))
                if rng.random() < 0.3:
                    session.execute("DELETE FROM shop.line WHERE orders = %s AND number %% 2 = 1", (order,))
                session.commit()
                done.append(order)
            except psycopg.Error:
                session.rollback()
            time.sleep(0.03)


@pytest.fixture(scope="module")
def shop(postgres_source: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    database = f"shop_{uuid.uuid4().hex[:8]}"
    postgres_source.execute(f"CREATE DATABASE {database}")
    run(postgres_source, database, *SCHEMA)
    text = f"""
[service]
name = "{database}"
[source]
kind = "postgres"
load = "none"
dsn = "{postgres_source.dsn(database)}"
identity = "set"
fragment_bytes = 20000
feedback_s = 0.2
[log]
dir = "log"
[shards]
rule = "table"
"""
    (folder / "tranlog.toml").write_text(text)
    shop = Shop(folder, text)
    shop("capture", "--once")
    committed: list[int] = []
    seeds = random.sample(range(1, 1000), WRITERS)
    writers = [threading.Thread(target=trade, args=(postgres_source, database, seed, committed)) for seed in seeds]
    for writer in writers:
        writer.start()
    for _ in range(KILLS):
        with subprocess.Popen([PROGRAM, "capture"], cwd=folder, stderr=subprocess.DEVNULL) as process:
            time.sleep(random.uniform(1.5, 2.5))
            assert process.poll() is None, "capture ended by itself"
            process.kill()
    for writer in writers:
        writer.join()
    shop("capture", "--once")
    with LogReader.open(folder / "log") as log, log.cursor() as cursor:
        xids = Counter(
            dict(found.payload().metadata)["xid"]
            for found in iter(cursor.next, None)
            if found.header.tables and ("shop", "orders") in found.header.tables
        )
    assert len(xids) == len(committed) > WRITERS * ROUNDS / 2 and set(xids.values()) == {1}
    yield shop
    postgres_source.execute(f"SELECT pg_drop_replication_slot('tranlog_{database}')")
    postgres_source.execute(f"DROP DATABASE {database} WITH (FORCE)")


def applied(shop: Shop, kind: str, target: str) -> None:
    """Make the tables, apply, and compare by canonical values."""
    conf = f"{kind}.toml"
    pipeline = f'\n[pipeline]\nname = "{kind}"\nchannels = 2\n'
    (shop.folder / conf).write_text(shop.text + target + pipeline)
    shop("tables", "create", conf=conf)
    done = json.loads(shop("apply", "--until", "now", "--json", conf=conf))
    assert done["end"] == "limit"
    assert shop("verify", conf=conf).endswith("source and target are equal\n")


def test_to_postgres(shop: Shop, postgres: PostgresAddress, postgres_database: str) -> None:
    applied(shop, "postgres", f'[target]\nkind = "postgres"\ndsn = "{postgres.dsn(postgres_database)}"\n')


def test_to_mariadb(shop: Shop, mariadb_target: MariaDbServer, mariadb_target_database: str) -> None:
    applied(shop, "mariadb", f'[target]\nkind = "mariadb"\ndsn = "{mariadb_target.dsn(mariadb_target_database)}"\n')


def test_to_sqlite(shop: Shop) -> None:
    applied(shop, "sqlite", '[target]\nkind = "sqlite"\npath = "target.db"\n')


def test_status_shows_what_the_slot_keeps(shop: Shop) -> None:
    state = json.loads(shop("status", "--json"))["source"]
    assert state["kind"] == "postgres" and state["retained_bytes"] > 0 and state["waiting"] is None
    assert 0 < WalPosition.parse(state["captured_event_id"]).lsn <= parse_lsn(state["now_at"])
    assert "slot: keeps" in shop("status")

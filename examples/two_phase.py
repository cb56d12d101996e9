"""A message and a row of PostgreSQL together: the row is there if and only if the message is acknowledged.

    python examples/two_phase.py STORE DSN [publish NUMBER...]

With `publish` it puts numbers on the queue `orders`. Without, it first decides what a crash left, then takes each order
and writes its row. The store's branch is prepared first, then PostgreSQL's; the commit of PostgreSQL's is what decides.
So after a crash a prepared branch of the store is committed where the row's transaction is prepared or its row is
there, and rolled back otherwise: then the order is on its queue again. PostgreSQL needs `max_prepared_transactions`.
"""

from __future__ import annotations

import os
import sys

import psycopg

import tranlog

TABLE = "create table if not exists orders(number integer primary key, xid text not null unique)"


def step(name: str) -> None:
    """Say which step is over; a test kills this process here."""
    print(name, flush=True)
    if os.environ.get("STOP_AFTER") == name:
        sys.stdin.read()


def take_orders(store: tranlog.MessageStore, database: psycopg.Connection) -> None:
    """Write a row for each order that waits."""
    while (delivery := store.get("orders")) is not None:
        number = int(delivery.content)
        xid = f"order {number} by {store.recovered.epoch}"
        step("taken")
        session = store.session()
        session.tpc_begin(xid.encode())
        session.ack(delivery)
        session.tpc_prepare()
        step("store prepared")
        database.tpc_begin(xid)
        database.execute("insert into orders values (%s, %s)", (number, xid))
        step("row written")
        database.tpc_prepare()
        step("row prepared")
        database.tpc_commit()
        step("row committed")
        store.tpc_commit(xid.encode())
        step("store committed")


def decide(store: tranlog.MessageStore, database: psycopg.Connection) -> None:
    """Bring to an end what a crash left between the two."""
    prepared = {str(xid) for xid in database.tpc_recover()}
    database.rollback()
    for xid in store.tpc_recover():
        name = xid.decode()
        if name in prepared:
            database.tpc_commit(name)
        row = database.execute("select 1 from orders where xid = %s", (name,)).fetchone()
        database.rollback()
        if row is None:
            store.tpc_rollback(xid)
        else:
            store.tpc_commit(xid)


def main(path: str, dsn: str, *words: str) -> None:
    with tranlog.MessageStore.open(path) as store:
        store.declare("orders")
        for number in words[1:]:
            store.publish(number.encode(), queues=["orders"])
        if words:
            return
        with psycopg.connect(dsn) as database:
            database.execute(TABLE)
            database.commit()
            decide(store, database)
            take_orders(store, database)


if __name__ == "__main__":
    main(*sys.argv[1:])

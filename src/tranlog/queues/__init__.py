"""The message store: durable queues whose messages and transactions live in a log, their catalogue in SQL.

`rules/` decides (records, state, recovery, containers), `files/` acts on the disk, `store` is what programs open.
"""

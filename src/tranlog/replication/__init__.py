"""Replication of a log by a group of nodes: elections, acknowledgements, rollback, restore."""

"""Decisions of replication: elections, acks, configuration, syncup, feeding, reading. Values in, values out."""

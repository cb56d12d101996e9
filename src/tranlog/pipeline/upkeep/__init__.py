"""Maintenance of a target: its `position`, the `tables` that it needs, and whether it is equal (`verify`)."""

"""Checking, repairing and comparing a log: `verify`, `repairing`, `diff`."""

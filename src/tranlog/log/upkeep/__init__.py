"""Checking, repairing, comparing and copying a log: `verify`, `repairing`, `diff`, `copying`."""

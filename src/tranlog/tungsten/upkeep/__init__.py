"""Checking, repairing and converting a directory of the ancestor's: `verify`, `repairing`, `converting`."""

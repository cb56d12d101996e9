"""Target databases: rows and position in one target transaction."""

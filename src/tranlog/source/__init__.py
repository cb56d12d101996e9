"""Source databases: what was committed there, as fragments in commit order."""

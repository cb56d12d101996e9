"""From a source into a log, exactly once."""

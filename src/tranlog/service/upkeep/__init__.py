"""A log looked after by an operator: its `segments` and its `holds`."""

"""A target looked after by hand: its `position`, the `tables` that it needs, and whether it is equal (`verify`)."""

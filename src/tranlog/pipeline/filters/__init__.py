"""Filters: what is left out, renamed, hidden or delayed between the log and the target. Pure.

`filters` are the values, `filter_chain` applies them, `filter_batches` makes Arrow batches for a user's function.
"""

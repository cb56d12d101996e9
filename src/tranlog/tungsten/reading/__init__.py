"""Reading a directory of the ancestor's: `reader` for its events, `stream` and `translated` for transactions of ours.

`text` and `dump` show events as the ancestor's `thl` and as its dumps do.
"""

"""One channel, without Spark: `channel` applies, `holding` tells the log how far the target is.

A channel gets its `task`, has a `claim` of its row at the target, finds its own transactions by `owners`, takes them
into a `group`, and counts in its `accounts`.

`tables_ahead` and `key_shards` look at the next transactions before anything is applied; `in_flight` shows the progress
of a large transaction; `log_mark` distinguishes logs of the same name.
"""

"""One channel at work, without Spark: `channel` applies, `holding` tells the log how far the target is.

A channel is told its `task`, has a `claim` of its row at the target, finds by `owners` what is its own, takes that into
a `group`, and counts in its `accounts`.

`tables_ahead` and `key_shards` look at what comes before anything is applied; `in_flight` tells of a large transaction;
`log_mark` tells one log from another of the same name.
"""

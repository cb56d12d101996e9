"""One channel at work, without Spark: `channel` applies, `holding` tells the log how far the target is.

`tables_ahead` and `key_shards` look at what comes before anything is applied; `in_flight` tells of a large transaction;
`log_mark` tells one log from another of the same name.
"""

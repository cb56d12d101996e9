"""The decisions of a pipeline, on values alone. Pure.

`channels` decides which channel applies a transaction and when channels meet, `by_writes` does so by write sets,
`progress` decides a start, `limits` its end, `states` and `troubles` own the state, `shard_list` reads the ancestor's
file.
"""

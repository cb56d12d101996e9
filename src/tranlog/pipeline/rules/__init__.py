"""What is decided about a pipeline, on values alone. Pure.

`channels` says which channel applies a transaction and when channels meet, `by_writes` says it by write sets,
`progress` what a start means, `limits` up to where it goes, `states` and `troubles` how it is, `shard_list` reads the
ancestor's file.
"""

"""What is decided about a log, on values alone. Pure.

`recovery` and `damage` say what is wrong with one, `repair` what a repair does and loses, `retention` what may go,
`rollback` what was abandoned; `index` and `bucket` where a seqno lies, `prefix` how far readers may see, `pending`
which appends need no look at anything.
"""

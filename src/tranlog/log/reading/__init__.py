"""Reading a log: `reader.LogReader` opens it in any process, `cursor` goes through it, `arrow` makes batches of it.

`readable` is what others need of a log whatever its codec; `lookup` finds by GTID, time or event id.
"""

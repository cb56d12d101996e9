"""The Tungsten codec: log directories as the Java replicator really writes them, read and written.

Rooms, each of which imports only those before it: `records` (bytes), `rules` (decisions), `files` (what lies on disk),
`reading`, `writing`, `upkeep`. Read with `reading.reader`, as transactions of ours with `reading.translated`; write
with `writing.directory`. The native log is `tranlog.log`'s, and knows nothing of this one.
"""

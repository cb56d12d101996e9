"""The Tungsten codec: log directories as the Java replicator really writes them, read and written.

`codec` holds the records, `payload` and `values` the serialized event, `recovery` what a directory's state means,
`directory` acts on it, `text` prints it as the ancestor's `thl` does, `golden` holds all of that against directories
which the ancestor wrote. `translate` and `cells` know what an event is as a transaction of ours and back, `arrange` how
their rows of transactions differ; `stream`, `translated` and `converting` act on both codecs. The native log is
`tranlog.log`'s, and knows nothing of this one.
"""

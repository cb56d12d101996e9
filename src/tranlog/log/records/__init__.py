"""Bytes of the log: records (`format`, `record`), spilled chunks, references (`spill`), blocks of events (`columns`).

Pure. `docs/format.md` has the same for people.
"""

"""What lies in a log's directory: segments, positions and holds, the stored index, purge notes, spill, the lock.

`ownership` is asked before each write; `scan` walks segments from end to end.
"""

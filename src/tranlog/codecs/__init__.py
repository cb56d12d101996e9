"""A log of either codec, ours or the Java replicator's: opened, shown, cut into fields, checked, converted.

Import `opening` to read one; the other modules are what `thl` and `tranlog log` ask of it.
"""

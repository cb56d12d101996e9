"""The decisions: bytes in, values out; no disk, no clock, no lock."""

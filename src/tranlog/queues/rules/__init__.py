"""What decides: bytes in, values out; no disk, no clock, no lock."""

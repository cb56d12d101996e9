"""CRC-32, the polynomial of zlib and of `java.util.zip`, by the fastest library that is there.

Owns the choice alone. zlib-ng's takes a fifth of zlib's time for a record of 1 KB. Not isal's, which is as fast:
other loops of the process ran slower after it.
"""

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]

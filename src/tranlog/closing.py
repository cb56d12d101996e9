"""What is closed at the end of its `with` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """A thing with a `close`, which is harmless a second time."""

    __slots__ = ()

    def close(self) -> None:
        """Let go of what it has open."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

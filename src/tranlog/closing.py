"""What is closed at the end of its `with` block."""

from __future__ import annotations

from typing import NoReturn, Self


class Closing:
    """A thing with a `close`, which is harmless a second time."""

    __slots__ = ()

    def close(self) -> None:
        """Let go of what it has open."""
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: locks and open files are this object's alone."""
        raise TypeError(f"an open {type(self).__name__} cannot be copied or pickled; open another one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

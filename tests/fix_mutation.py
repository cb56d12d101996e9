"""What the tests of decoders share: real bytes made wrong in a thousand ways, and the bounds that a decoder must keep.

Plain seeded loops, since a decoder takes microseconds and Hypothesis milliseconds. A case is a function of a seed and
a number alone; a failing one prints the line that runs it again, and its bytes.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

CASE_VARIABLE = "TRANLOG_CASE"
"""Environment variable that runs one case alone: SEED:NUMBER."""
CASES_PER_EXAMPLE = 100
"""Mutated inputs for each example of a Hypothesis test: 10,000 in `make test`, a million in `make soak`."""
CPU_S_MAX = 5.0
"""CPU time that one case may take: nothing here needs a thousandth of it."""
ADDRESS_SPACE = 256 << 20
"""What the process may grow by while it decodes: who allocates by a length of four bytes meets a MemoryError."""
MEASURED_EVERY = 97
"""Every so many cases are run under tracemalloc too, which a length of three bytes does not escape."""
MEMORY_BASE = 8 << 20
MEMORY_PER_BYTE = 400
HEX_MAX = 4000

_WIDTHS = (1, 2, 3, 4, 8)
_TEMPTING = (0, 1, 0x7F, 0x80, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF)


def _extreme(rng: random.Random, size: int) -> bytes:
    """Return a length as formats write them, with a value that a writer would hardly choose."""
    number = rng.choice((0, 1, size - 1, size, size + 1, -1, 1 << 7, 1 << 15, 1 << 31, 1 << 63, (1 << 31) - 1, 1 << 56))
    if rng.random() < 0.3:  # a varint, up to one that does not end
        return b"\xff" * rng.randrange(1, 11) + bytes([rng.choice((0, 1, 0x7F))])
    width = rng.choice(_WIDTHS)
    return (number & (1 << 8 * width) - 1).to_bytes(width, rng.choice(("big", "little")))


def mutated(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """Return one of the samples, changed in one to four places."""
    raw = bytearray(rng.choice(samples))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        size = len(raw)
        at = rng.randrange(size + 1)
        match rng.randrange(10):
            case 0 | 1 if at < size:
                raw[at] ^= 1 << rng.randrange(8)
            case 2 if at < size:
                raw[at] = rng.choice(_TEMPTING)
            case 3 if at < size:
                raw[at] = rng.randrange(256)
            case 4:
                del raw[at:]
            case 5:
                del raw[at : at + rng.choice((1, 1, 2, 4, 8, 30))]
            case 6:
                raw[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 8, 40)))
            case 7:
                field = _extreme(rng, size)
                raw[at : at + len(field)] = field
            case 8:  # the beginning of this one, the rest of another
                other = rng.choice(samples)
                raw[at:] = other[min(at, len(other)) if rng.random() < 0.5 else rng.randrange(len(other) + 1) :]
            case _:  # a stretch of another one, here or in the place of as much
                other = rng.choice(samples)
                start = rng.randrange(len(other) + 1)
                stretch = other[start : start + rng.choice((1, 4, 16, 64, 200))]
                raw[at : at + (len(stretch) if rng.random() < 0.5 else 0)] = stretch
    return bytes(raw)


class TooLong(BaseException):
    """A case that went past its CPU time; no decoder's own `except` takes it for something of its own."""


@contextmanager
def _bounded() -> Iterator[None]:
    """Bound address space, and turn the end of a case's CPU time into TooLong."""

    def expired(number: int, frame: FrameType | None) -> None:
        raise TooLong

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGVTALRM, expired)
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class Fuzz:
    """Feeds a decoder with mutated input, or with whatever `make` returns; made by the fixture `fuzz`."""

    def __init__(self, *, test: str, examples: int) -> None:
        self._test = test
        self._examples = examples

    def samples(
        self,
        samples: Sequence[bytes],
        decode: Callable[[bytes], object],
        *,
        mend: Callable[[bytes], bytes] | None = None,
        share: float = 1.0,
    ) -> None:
        """Decode mutated samples; `mend` makes the checksums of most of them right again, so that decoders go on.

        `decode` returns for a value and for one of our errors, and raises for everything else.
        """
        assert samples and all(samples)

        def make(rng: random.Random) -> bytes:
            raw = mutated(rng, samples)
            return mend(raw) if mend is not None and rng.random() < 0.8 else raw

        self.cases(make, decode, share=share)

    def cases(
        self, make: Callable[[random.Random], bytes], decode: Callable[[bytes], object], *, share: float = 1.0
    ) -> None:
        """Run the decoder on what `make` returns, `share` of the usual number of times."""
        alone = os.environ.get(CASE_VARIABLE)
        seed = random.randrange(1 << 32)  # pytest-randomly's own seed decides it
        numbers: Sequence[int] = range(max(1, int(self._examples * CASES_PER_EXAMPLE * share)))
        if alone is not None:
            first, _, second = alone.partition(":")
            seed, numbers = int(first), (int(second),)
        with _bounded():
            for number in numbers:
                rng = random.Random(seed << 32 | number)
                raw = make(rng)
                try:
                    self._one(raw, decode, measured=number % MEASURED_EVERY == 0)
                except (Exception, TooLong) as exc:
                    text = raw.hex() if len(raw) <= HEX_MAX else f"{raw[:HEX_MAX].hex()}... of {len(raw)} bytes"
                    replay = f"{CASE_VARIABLE}={seed}:{number} .venv/bin/pytest '{self._test}'"
                    raise AssertionError(f"{type(exc).__name__}: {exc}\nreplay: {replay}\ninput: {text}") from exc

    def _one(self, raw: bytes, decode: Callable[[bytes], object], *, measured: bool) -> None:
        began = time.thread_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S_MAX)
        if not measured:
            decode(raw)
        else:
            tracemalloc.start()
            try:
                decode(raw)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak <= MEMORY_BASE + MEMORY_PER_BYTE * len(raw), f"{peak} bytes for an input of {len(raw)}"
        took = time.thread_time() - began
        assert took <= CPU_S_MAX, f"{took:.1f} s for an input of {len(raw)} bytes"

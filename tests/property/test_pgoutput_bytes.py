"""Mutated messages of pgoutput: alone, and in transactions whose messages are left out, doubled or exchanged.

Whatever the server, or the wire, makes of them, the outcome is rows that can be read back from a payload, or one error,
in bounded time and memory (`fix_mutation`). The samples are what a real server sent (tests/golden/postgres).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from fix_mutation import Fuzz, mutated
from fix_pgoutput import Tables, messages, with_streaming
from tranlog.payload import PayloadBuilder, decode
from tranlog.source.postgres.messages import MessageFormatError, RowMessage, parse_keepalive, parse_message
from tranlog.source.postgres.rows import NoBeforeImageError, encode_change
from tranlog.source.postgres.small import SmallTransaction
from tranlog.source.postgres.transactions import TransactionAssembler, WholeTransaction
from tranlog.source.waiting import WaitingEvents

NAMES = ("plain", "streamed", "prepared")


def few(name: str) -> list[bytes]:
    """Return a recording without most of its many equal rows."""
    seen: dict[tuple[bytes, int], int] = {}
    kept = []
    for raw in messages(name):
        shape = (raw[:1], len(raw))
        seen[shape] = seen.get(shape, 0) + 1
        if raw[:1] != b"I" or seen[shape] < 4:
            kept.append(raw)
    return kept


def known_tables() -> Tables:
    tables = Tables()
    for name in NAMES:
        for raw, inside in with_streaming(messages(name)):
            if raw[:1] in (b"R", b"Y"):
                tables.note(raw, streamed=inside)
    return tables


def test_single_messages(fuzz: Fuzz) -> None:
    tables = known_tables()
    samples = [struct.pack(">?", inside) + raw for name in NAMES for raw, inside in with_streaming(few(name))]
    samples.append(b"\0A" + struct.pack(">IIQq", 5, 6, 7, 8))
    samples.append(b"\0k" + bytes(17))

    def read(raw: bytes) -> None:
        streamed, raw = raw[:1] == b"\1", raw[1:]
        try:
            if raw[:1] == b"k":
                parse_keepalive(raw)
                return
            message = parse_message(raw, streamed=streamed)
            if isinstance(message, RowMessage):
                layout = tables.layouts.get(message.relation) or next(iter(tables.layouts.values()))
                builder = PayloadBuilder()
                builder.add_encoded(layout.table, *encode_change(layout, raw, message.at))
                decode(builder.take())
        except (MessageFormatError, NoBeforeImageError):
            pass

    assert len(samples) > 40
    fuzz.samples(samples, read)


def assembler() -> TransactionAssembler:
    return TransactionAssembler(
        new_store=lambda: WaitingEvents(1 << 20, None), memory_bytes=1 << 20, transaction_bytes_max=1 << 30
    )


def test_transactions(fuzz: Fuzz) -> None:
    runs = [few(name) for name in NAMES]
    every = [raw for run in runs for raw in run]

    def assembled(sent: list[bytes], *, at_once: bool) -> object:
        """Return what becomes of the messages: xids and rows, and why they are refused."""
        one, found, why = assembler(), [], ""
        one.put(sent if at_once else [])
        try:
            for whole in iter(one.take, None) if at_once else filter(None, map(one.feed, sent)):
                if isinstance(whole, (SmallTransaction, WholeTransaction)):
                    found.append((whole.xid, whole.rows if isinstance(whole, SmallTransaction) else list(whole)))
        except MessageFormatError as exc:
            why = exc.why
        finally:
            one.close()
        return found, why

    def read(raw: bytes) -> None:
        assert assembled(unframed(raw), at_once=True) == assembled(unframed(raw), at_once=False)
        one = assembler()
        tables, builder = Tables(), PayloadBuilder()
        try:
            for message in unframed(raw):
                whole = one.feed(message)
                if not isinstance(whole, WholeTransaction):
                    continue
                for kept in whole:
                    if kept[:1] in (b"R", b"Y"):
                        tables.note(kept, streamed=whole.streamed)
                    elif kept[:1] in (b"I", b"U", b"D"):
                        row = parse_message(kept, streamed=whole.streamed)
                        assert isinstance(row, RowMessage)
                        layout = tables.layouts.get(row.relation)
                        if layout is not None:
                            builder.add_encoded(layout.table, *encode_change(layout, kept, row.at))
                decode(builder.take())
                whole.messages.close()
        except (MessageFormatError, NoBeforeImageError):
            pass
        finally:
            one.close()

    def make(rng: random.Random) -> bytes:
        run = list(rng.choice(runs))
        at = rng.randrange(len(run))
        sent = run[max(0, at - rng.randrange(60)) : at + rng.randrange(1, 60)]
        for _ in range(rng.randrange(0, 3)):
            at = rng.randrange(len(sent))
            match rng.randrange(5):
                case 0:
                    del sent[at]
                case 1:
                    sent.insert(at, rng.choice(every))
                case 2:
                    other = rng.randrange(len(sent))
                    sent[at], sent[other] = sent[other], sent[at]
                case _:
                    sent[at] = mutated(rng, [sent[at]])
            if not sent:
                break
        return framed(sent)

    fuzz.cases(make, read, share=0.3)


def framed(raws: Sequence[bytes]) -> bytes:
    return b"".join(len(raw).to_bytes(4, "big") + raw for raw in raws)


def unframed(raw: bytes) -> list[bytes]:
    found, at = [], 0
    while at + 4 <= len(raw):
        size = int.from_bytes(raw[at : at + 4], "big")
        found.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return found

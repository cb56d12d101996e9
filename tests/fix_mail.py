"""A message store as `tranlog queue` is used on it: by commands alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore
from tranlog.service.commands import cli


class Mail:
    """A store, and commands on it."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = cli.main(["queue", *words])
        told = self._capsys.readouterr()
        assert "Traceback" not in told.err, told.err
        return int(code), told.out, told.err

    def json(self, *words: str, code: int = 0) -> dict:
        found, out, err = self(*words, "--json")
        assert found == code, err
        return json.loads(out or err)

    def open(self) -> MessageStore:
        return MessageStore.open(self.path, options=QueueStoreOptions(container_bytes=16_384))

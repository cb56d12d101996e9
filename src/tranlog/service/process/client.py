"""A running pipeline from another program: where it stands, typed, by its control endpoint.

Owns how a caller finds an endpoint, and turning its answers into dataclasses. What can be asked is in `requests`, the
socket in `control`. The hard idea: one answer has all views of one moment, so no two numbers of a status come from
different ones.

Source: issue 7, items 5 and 6.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from tranlog.errors import ControlError
from tranlog.pipeline.rules.states import OperationState
from tranlog.pipeline.status.view import PipelineStatus
from tranlog.service.config.config import Config, find_file, load
from tranlog.service.config.exposure import read_secret
from tranlog.service.process.control import call, socket_paths
from tranlog.service.process.requests import GetState, Look, Request

GRACE_S = 15.0
"""How much longer than its request a caller waits for the answer."""

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPipeline:
    """A pipeline's control endpoint. Nothing is connected between two calls. Threads: any.

    `addresses`: where it may listen, the first that answers is asked; a socket's path has a slash, else HOST:PORT.
    `authority`: whose certificates are believed beyond loopback, a PEM file; None: the system's.
    """

    addresses: tuple[str, ...]
    secret: str | None = field(default=None, repr=False)
    authority: str | None = None

    @classmethod
    def at(cls, address: str, *, secret_file: str | None = None, authority: str | None = None) -> RunningPipeline:
        """Return the one that listens at HOST:PORT, or at a socket's path. Raises ConfigError for the secret's file."""
        return cls(
            addresses=(os.path.abspath(address) if "/" in address else address,),
            secret=None if secret_file is None else read_secret(secret_file),
            authority=authority,
        )

    @classmethod
    def find(
        cls, *, conf: str | None = None, service: str | None = None, pipeline: str | None = None
    ) -> RunningPipeline:
        """Return the one that a configuration names, found as `tranlog -conf CONF -service SERVICE` does.

        `pipeline`: instead of the configured name. Raises ConfigError.
        """
        config = load(find_file(conf=conf, service=service), environ=os.environ)
        return cls.of_config(config, pipeline=pipeline)

    @classmethod
    def of_config(
        cls,
        config: Config,
        *,
        pipeline: str | None = None,
        secret_file: str | None = None,
        authority: str | None = None,
    ) -> RunningPipeline:
        """Return the one of a configuration that is read already. Raises ConfigError for the secret's file."""
        control = config.pipeline.control
        reached = control not in (None, "off")
        if reached and secret_file is None:
            secret_file = config.pipeline.secret_file
        secret = None if secret_file is None else read_secret(secret_file)
        if reached:
            return cls(
                addresses=(str(control),),
                secret=secret,
                authority=authority or config.pipeline.tls_certificate,
            )
        name = config.pipeline.name if pipeline is None else pipeline
        paths = socket_paths(config.log_dir, name, runtime_dir=runtime_dir())
        return cls(addresses=tuple(paths), secret=secret, authority=authority)

    def ask(self, request: Request, *, timeout_s: float = GRACE_S) -> dict[str, Any]:
        """Ask, and return the answer as plain values. Raises ControlError where nobody answers, Told for its error."""
        return call(self.addresses, request, timeout_s=timeout_s, secret=self.secret, authority=self.authority)

    def state(self, *, timeout_s: float = GRACE_S) -> OperationState:
        """Return its state, and the error that took it offline. Raises as `ask`."""
        return self._typed(self.ask(GetState(), timeout_s=timeout_s), OperationState)

    def status(self, *, timeout_s: float = GRACE_S) -> PipelineStatus:
        """Return all views of it, with rates, for which it is watched for a third of a second. Raises as `ask`."""
        return self._typed(self.ask(Look(), timeout_s=timeout_s)["shown"], PipelineStatus)

    def _typed(self, found: Mapping[str, Any], kind: type[AnswerT]) -> AnswerT:
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError as exc:
            remedy = "Use the release that the pipeline runs with"
            where = ", ".join(self.addresses)
            raise ControlError(where=where, why=f"it answers in another form: {exc}", remedy=remedy) from exc


def runtime_dir() -> str | None:
    """Return the user's folder for sockets, where the system gives one."""
    found = os.environ.get("XDG_RUNTIME_DIR")
    return found if found and os.path.isdir(found) else None

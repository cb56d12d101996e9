"""servers/mariadb: sessions at a MariaDB."""

from __future__ import annotations

import ssl
from typing import Any

from tranlog.servers.mariadb import _Connection


def opened(**settings: Any) -> Any:
    """A session that is not connected yet."""
    return _Connection(defer_connect=True, **settings)


def test_sessions_that_prove_no_certificate_share_a_context() -> None:
    """It would take the system's certificates tens of milliseconds each; whoever proves one has them."""
    first, second = opened(), opened()
    assert first.ctx is second.ctx
    assert (first.ctx.verify_mode, first.ctx.check_hostname) == (ssl.CERT_NONE, False)
    proving = opened(ssl={"ca": None, "verify_mode": True})
    assert proving.ctx is not first.ctx
    assert proving.ctx.verify_mode is ssl.CERT_REQUIRED

# SPDX-License-Identifier: GPL-2.0-only
"""The pool that is up: its scheduler, reached over TLS with the keys that `lab.py pool up` made.

Not here: what runs on it (driver).
"""

from __future__ import annotations

import json

import distributed

from numalab.core import state
from numalab.core.errors import HostError

CONNECT_SECONDS = 30.0


def connect() -> distributed.Client:
    """A client of the pool's scheduler, from pool/pool.json in the state directory. Raises HostError."""
    path = state.folder("pool") / "pool.json"
    try:
        about = json.loads(path.read_text())
    except FileNotFoundError:
        raise HostError("no pool is up: lab.py pool up") from None
    try:
        tls = about.get("tls")
        security = (
            distributed.Security(
                require_encryption=True,
                tls_ca_file=tls["ca"],
                tls_client_cert=tls["cert"],
                tls_client_key=tls["key"],
            )
            if tls
            else None
        )
        return distributed.Client(about["scheduler"], security=security, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError) as error:
        raise HostError(
            f"{path}: the pool's scheduler does not answer ({error}): lab.py pool status"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise HostError(f"{path}: {error!r}: lab.py pool up writes it again") from error

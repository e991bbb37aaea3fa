# SPDX-License-Identifier: GPL-2.0-only
"""An SSH server for tests, on loopback: runs commands, forwards connections, takes one key.

usage: sshd.py HOST_KEY AUTHORIZED_KEYS; prints its port.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

import asyncssh


class Server(asyncssh.SSHServer):
    """Whoever has the key may do what this user may."""

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host == "127.0.0.1"


async def pump(source: Any, sink: Any) -> None:
    """Copy bytes from one stream to the other until the first ends."""
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()


async def command(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Run a session's command line with the shell, as sshd does."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_shell(
        process.command or "sh", stdin=pipe, stdout=pipe, stderr=pipe
    )

    async def feed() -> None:
        assert child.stdin is not None
        await pump(process.stdin, child.stdin)
        child.stdin.close()

    feeding = asyncio.create_task(feed())
    # asyncssh ends the connection, which others share, on any error, such as a client that has gone away.
    with contextlib.suppress(OSError, asyncssh.Error):
        await asyncio.gather(pump(child.stdout, process.stdout), pump(child.stderr, process.stderr))
    status = await child.wait()
    feeding.cancel()
    with contextlib.suppress(OSError, asyncssh.Error):
        process.exit(status if status >= 0 else 255)


async def main() -> None:
    """Serve until killed."""
    server = await asyncssh.create_server(
        Server,
        "127.0.0.1",
        0,
        server_host_keys=[sys.argv[1]],
        authorized_client_keys=sys.argv[2],
        process_factory=command,
        sftp_factory=True,
        encoding=None,
    )
    print(server.get_port(), flush=True)
    await server.wait_closed()


asyncio.run(main())

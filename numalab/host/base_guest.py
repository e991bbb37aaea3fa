# SPDX-License-Identifier: GPL-2.0-only
"""An image's base, booted and provisioned by the lab itself: what Packer does, where there is none.

The machine is the one of images/guest.pkr.hcl. Not here: how a base is made, what becomes of the disk
(image).
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from numalab.core.errors import DeadlinePassed, GuestLost, HostError, LabError
from numalab.core.process import Deadline, Result, ends_with_us, need, run
from numalab.host import ansible
from numalab.host.remote import free_port
from numalab.host.ssh import Ssh

CPUS, MEMORY = 2, "2048M"
HOST = "10.0.2.2"
"""This host's loopback, as a guest on QEMU's user network reaches it."""
HTTP_ADDRESS = "{{ .HTTPIP }}:{{ .HTTPPort }}"
"""Packer's template for the address of the seed's server."""
POWEROFF_SECONDS = 120.0
POLL_SECONDS = 2.0


def provision(
    *,
    name: str,
    base: Path,
    disk: Path,
    boot: Sequence[Sequence[str]],
    accelerator: str,
    cpu: str,
    key: Path,
    playbook: str,
    variables: Mapping[str, object],
    seed: Path | None,
    scratch: Path,
    log: Path,
    deadline: Deadline,
    watch: Callable[[], None] | None = None,
) -> None:
    """Copy `base` to `disk` (qcow2), boot it, run playbooks/PLAYBOOK in it and switch it off.

    `boot` has further pairs of QEMU arguments; `seed` is the folder that is served to cloud-init;
    `watch` is called while the guest boots and the playbook runs, and may raise. Raises CommandFailed,
    HostError, DeadlinePassed.
    """
    qemu_img = need("qemu-img", "qemu-utils")
    run([qemu_img, "convert", "-O", "qcow2", base, disk], deadline=deadline)
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(_served(seed)) if seed else ""
        port = free_port()
        arguments = [word.replace(HTTP_ADDRESS, address) for pair in boot for word in pair]
        argv = [
            need("qemu-system-x86_64", "qemu-system-x86"),
            *("-name", f"numalab-image-{name}", "-machine", f"pc,accel={accelerator}", "-cpu", cpu),
            *("-smp", str(CPUS), "-m", MEMORY, "-display", "none"),
            *("-drive", f"file={disk},if=virtio,format=qcow2,cache=writeback,discard=ignore"),
            *("-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{port}-:22"),
            *("-device", "virtio-net,netdev=net"),
            *arguments,
        ]
        qemu = stack.enter_context(_running(argv, log, deadline))
        ssh = _reached(name, port, key, scratch, qemu, watch, deadline)
        inventory = ansible.write_inventory([ssh], scratch / "inventory.yml")
        ansible.playbook(
            playbook,
            inventories=[inventory],
            limit=name,
            variables=variables,
            deadline=deadline,
            log=log.with_name(f"ansible-{log.name}"),
            watch=watch,
        )
        with contextlib.suppress(GuestLost):  # it may be gone before it has answered
            ssh.execute("systemctl poweroff", deadline=deadline)
        ssh.disconnect(deadline)
        end = deadline.within(POWEROFF_SECONDS)
        while not qemu.done():
            end.check(f"image {name}: waiting for the guest to switch itself off")
            end.pause(0.2)
        qemu.result()
    inventory.unlink()
    (scratch / "known_hosts").unlink()


@contextlib.contextmanager
def _running(argv: Sequence[str], log: Path, deadline: Deadline) -> Iterator[Future[Result]]:
    """QEMU, while the block runs; it is ended with the block."""
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        # The thread lives as long as QEMU: ends_with_us ends a program with the thread that started it.
        qemu = pool.submit(run, ends_with_us(argv), deadline=Deadline(deadline.at, cancel), log=log)
        try:
            yield qemu
        finally:
            cancel.set()


def _reached(
    name: str,
    port: int,
    key: Path,
    scratch: Path,
    qemu: Future[Result],
    watch: Callable[[], None] | None,
    deadline: Deadline,
) -> Ssh:
    """SSH to the guest once it lets the lab's key in. The host key is the one that it shows first."""
    known_hosts = scratch / "known_hosts"
    ssh = Ssh(name, port, key, known_hosts)
    scan = [need("ssh-keyscan", "openssh-client"), "-T", "20", "-t", "ed25519", "-p", str(port), "127.0.0.1"]
    while True:
        deadline.check(f"image {name}: waiting for the base to be reached by SSH")
        if watch:
            watch()
        if qemu.done():
            qemu.result()  # raises what QEMU ended with, if it did not end by itself
            raise HostError(f"image {name}: the base switched itself off before it could be reached")
        shown = ""
        with contextlib.suppress(DeadlinePassed):  # the check above names the wait
            shown = run(scan, deadline=deadline, check=False).stdout
        keys = [line.split() for line in shown.splitlines()]
        known_hosts.write_text(
            "".join(f"numalab {words[1]} {words[2]}\n" for words in keys if len(words) == 3)
        )
        if keys:
            # A cloud image's sshd answers before cloud-init has put the key there.
            with contextlib.suppress(LabError):
                if not ssh.execute("true", deadline=deadline.within(30)).status:
                    return ssh
        deadline.pause(POLL_SECONDS)


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serve a folder by HTTP on this host's loopback; yields ADDRESS:PORT as the guest reaches it."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"{HOST}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()

# SPDX-License-Identifier: GPL-2.0-only
"""What rounds need from this machine: kernels are built here or on [builders], image and kernels are sent.

Kernels that a night needs and that are not built are built before the rounds that need them, one at a time
on each builder, side by side. Not here: how they travel (travel), how one is built (kernel.build), what waits
for them (queue).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from numalab.core import log, state
from numalab.core.errors import Cancelled, HostError, InputError, LabError
from numalab.core.process import Deadline
from numalab.experiment.plan import Builds, Plan
from numalab.host import image
from numalab.host.image import Image
from numalab.kernel import build as kernel_build
from numalab.kernel import recipe, toolchain
from numalab.kernel.build import Built
from numalab.kernel.recipe import DISTRIBUTION, Kernel
from numalab.kernel.toolchain import Builder
from numalab.pool import travel
from numalab.pool.queue import Cause, NotReady, Ready
from numalab.pool.travel import Call
from numalab.pool.unit import Order

FIND_SECONDS = 120.0
"""Limit of a look for an image or a kernel of this machine; a large file's checksum is taken once."""
END_SECONDS = 60.0
"""How long builds may take to end."""
IMAGE = str(Plan.model_fields["image"].default)
"""The image of all cases."""


def built(name: str) -> Built | None:
    """The kernel of this name as this machine has it; None when it is not built. Raises LabError."""
    kernel = recipe.load(name)
    plan = kernel_build.make_plan(
        kernel, _base(kernel, required=False), Deadline.after(FIND_SECONDS), fetch=False
    )
    return kernel_build.existing(plan) if plan else None


def build(name: str, builder: Builder, deadline: Deadline) -> None:
    """Build a kernel on a builder. Raises LabError."""
    kernel = recipe.load(name)
    kernel_build.build(kernel, _base(kernel, required=True), deadline, on=builder)


def _base(kernel: Kernel, *, required: bool) -> Image | None:
    """The image, for a kernel that takes its configuration from it."""
    if DISTRIBUTION not in kernel.recipe.config:
        return None
    find = image.require if required else image.existing
    return find(IMAGE, Deadline.after(FIND_SECONDS))


@dataclass(frozen=True)
class Workshop:
    """Where kernels come from; a test has another."""

    is_built: Callable[[str], bool]
    build: Callable[[str, Builder, Deadline], None]
    builders: Callable[[], Sequence[Builder]]


def _is_built(name: str) -> bool:
    """Whether nothing is to be built for a kernel; not when that cannot be told: building it says why."""
    with contextlib.suppress(LabError):
        return not recipe.load(name).recipe.built or built(name) is not None
    return False


REAL = Workshop(is_built=_is_built, build=build, builders=toolchain.builders)


class Supply:
    """The kernels that a night lacks, in the making; and what is sent to hosts."""

    def __init__(self, workshop: Workshop = REAL) -> None:
        self._workshop = workshop
        self._cancel = threading.Event()
        self._threads: list[threading.Thread] = []
        self._changing = threading.Condition()
        self._waiting: deque[str] = deque()
        self._busy = 0
        self._able = 0
        self._lacking: dict[str, set[str]] = {}

    def begin(self, orders: Iterable[Order], tell: Callable[[Ready | NotReady], None]) -> set[str]:
        """Begin to build what orders lack; returns the ids of those that have to wait for it.

        `tell` hears, from other threads too, what becomes of each of these.
        """
        users: dict[str, set[str]] = {}
        for order in orders:
            for kernel in order.kernels:
                users.setdefault(kernel, set()).add(order.id)
        names = [name for name in users if not self._workshop.is_built(name)]
        for name in names:
            for order_id in users[name]:
                self._lacking.setdefault(order_id, set()).add(name)
        self._waiting.extend(names)
        waiting = set(self._lacking)
        if names:
            try:
                builders = self._workshop.builders()
            except InputError as error:
                for order_id in waiting:
                    tell(NotReady(order_id, Cause.INPUT, str(error)))
                return waiting
            where = ", ".join(builder.host for builder in builders)
            log.tell(f"to build: {', '.join(names)}; on {where}", who="pool")
            self._able = len(builders)
            for builder in builders:
                thread = threading.Thread(target=self._work, args=(builder, tell), daemon=True)
                self._threads.append(thread)
                thread.start()
        return waiting

    def end(self) -> None:
        """End the builds that run."""
        with self._changing:
            self._cancel.set()
            self._changing.notify_all()
        for thread in self._threads:
            thread.join(END_SECONDS)

    def _work(self, builder: Builder, tell: Callable[[Ready | NotReady], None]) -> None:
        """Build one kernel after another on a builder."""
        while name := self._next():
            error: LabError | None = None
            try:
                deadline = Deadline.after(kernel_build.BUILD_SECONDS, self._cancel)
                self._workshop.build(name, builder, deadline)
            except LabError as failed:
                # A builder that is down, or has no compiler, would else fail one kernel after the other.
                own = isinstance(failed, (InputError, Cancelled))
                if not own and self._left_to_others(name, f"builder {builder.host}", failed):
                    return
                error = failed
            except Exception as failed:  # else its orders would wait for ever
                error = LabError(f"{type(failed).__name__}: {failed}")
            with self._changing:
                self._busy -= 1
                self._changing.notify_all()
            if not self._cancel.is_set() and not isinstance(error, Cancelled):
                self._ended(name, error, tell)

    def _next(self) -> str:
        """A kernel to build; '' when there will be none. One may come back from another builder."""
        with self._changing:
            self._changing.wait_for(lambda: self._waiting or not self._busy or self._cancel.is_set())
            if self._cancel.is_set() or not self._waiting:
                return ""
            self._busy += 1
            return self._waiting.popleft()

    def _left_to_others(self, name: str, builder: str, error: LabError) -> bool:
        """Give a kernel back, unless there is no other builder left."""
        with self._changing:
            if self._able == 1:
                return False
            why = str(error)
            log.note(f"{why if builder in why else f'{builder}: {why}'}: it builds none of this night's")
            self._able -= 1
            self._busy -= 1
            self._waiting.appendleft(name)
            self._changing.notify_all()
            return True

    def _ended(self, name: str, error: LabError | None, tell: Callable[[Ready | NotReady], None]) -> None:
        with self._changing:
            users = [order for order, lacking in self._lacking.items() if name in lacking]
            for order in users:
                self._lacking[order].discard(name)
            ready = [order for order in users if not self._lacking[order]]
            for order in users if error else ready:
                del self._lacking[order]
        if error:
            cause = Cause.INPUT if isinstance(error, InputError) else Cause.LAB
            for order in users:
                tell(NotReady(order, cause, str(error)))
        else:
            for order in ready:
                tell(Ready(order))

    def give(self, order: Order, checkout: str, host: str, call: Call, cancel: threading.Event) -> Builds:
        """Have on a host what an order's rounds need; returns what is there. Raises as travel.send.

        The hosts of a spread experiment all use this machine's image: their runs are judged as one.
        """
        image_id, kernels, exact = "", dict[str, str](), order.part is not None
        sent = partial(_sent, call=call, host=host, cancel=cancel, checkout=checkout, exact=exact)
        deadline = Deadline.after(FIND_SECONDS, cancel)
        # Without an image here the host needs its own; the round says so if it has none.
        if base := image.existing(IMAGE, deadline):
            files = {name: base.file(name) for name in (*image.FILES, "config", "manifest.json")}
            files[state.SSH_KEY] = state.guest_key(base.name, base.id)
            image_id = sent("image", base.name, base.id, files)
        elif exact:
            raise HostError(f"a spread experiment needs this machine's image: lab.py image build {IMAGE}")
        for name in dict.fromkeys(order.kernels):
            if not recipe.load(name).recipe.built:
                continue
            ready = built(name)
            if ready is None:
                raise HostError(f"kernel {name} is no longer built here: lab.py kernel build {name}")
            files = {
                path.name: path for path in Path(ready.directory).iterdir() if not path.name.startswith(".")
            }
            sent("kernel", ready.name, ready.key, files)
            kernels[name] = f"{ready.name}-{ready.key}"
        return Builds(image_id=image_id, kernels=kernels)


def _sent(
    kind: Literal["image", "kernel"],
    name: str,
    id: str,
    files: dict[str, Path],
    *,
    call: Call,
    host: str,
    cancel: threading.Event,
    checkout: str,
    exact: bool,
) -> str:
    """An item, sent; no other lab.py here removes it meanwhile."""
    place = next(iter(files.values())).parent
    with state.using(place):
        one = travel.item(kind, name, id, files)
        return travel.send(one, files, call, host, cancel, checkout=checkout, exact=exact)

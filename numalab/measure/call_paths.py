# SPDX-License-Identifier: GPL-2.0-only
"""Text for and from the plugin of QEMU that counts instructions: /proc/kallsyms -> what it reads; what it
wrote -> folded stacks.

Not here: the plugin, and which text means what to it (host.instructions), profiles (runs.profile).
"""

from __future__ import annotations

import re

from numalab.core.errors import InputError
from numalab.runs.profile import IDLE

KALLSYMS = "uname -r; awk 'tolower($2) ~ /[tw]/ { print $1, $2, $3 }' /proc/kallsyms"
"""Prints the kernel's release and functions, those of modules too; to be run in the guest, as root."""
STACKS_SINCE = (3, 15)
"""Since this release a kernel stack has the 16 KiB by which instructions.c tells stacks apart."""
INTERRUPT = re.compile(
    r"asm_(sysvec_\w+|common_interrupt|spurious_interrupt)"
    r"|(common|apic_timer|reschedule|call_function|call_function_single|irq_work|spurious|error)_interrupt"
)
"""Where the kernel enters for an interrupt: what follows is not the work of what it interrupted
(arch/x86/include/asm/idtentry.h; before 5.8 arch/x86/entry/entry_64.S). Since 5.8 the names without asm_ are
of the C functions that these call."""
SECTION = re.compile(r"__\w+_(start|begin|end)|_[se]text|_[se]inittext")
"""Symbols that a linker script puts at the edges of sections: no functions."""
IDLING = {"do_idle", "cpu_startup_entry", "cpu_idle", "cpu_idle_loop"}
LEAST_SHARE = 1e-6
"""Call paths with less of all instructions are one line, [not-kept]: nine tenths of the paths, and 0.15 % of
the instructions of a boot of migratefail."""
KERNEL_HALF = 1 << 63


def symbols(kallsyms: str) -> tuple[str, list[str]]:
    """What the plugin reads, from what KALLSYMS prints; and the names of these functions, in that order.

    Of several names of one address the shortest global one of a function is taken. InputError when there is
    no address, or when the kernel is too old.
    """
    release, _, kallsyms = kallsyms.partition("\n")
    if tuple(map(int, re.findall(r"\d+", release)[:2])) < STACKS_SINCE:
        raise InputError(f"kernel {release}: its stacks are smaller than those since 3.15")
    known: dict[int, tuple[bool, bool, int, str]] = {}
    for line in kallsyms.splitlines():
        words = line.split()
        if len(words) >= 3 and int(words[0], 16) >= KERNEL_HALF:
            edge = SECTION.fullmatch(words[2]) is not None
            name = (edge, words[1].islower(), len(words[2]), words[2])
            address = int(words[0], 16)
            known[address] = min(known.get(address, name), name)
    if not known:
        raise InputError("/proc/kallsyms of the guest shows no addresses: is CONFIG_KALLSYMS set?")
    ordered = sorted(known.items())
    names = {name for _, (*_, name) in ordered}
    enters = {name for name in names if INTERRUPT.fullmatch(name) and f"asm_{name}" not in names}
    text = "".join(f"{address:x} {int(name in enters)}\n" for address, (*_, name) in ordered)
    return text, [name for _, (*_, name) in ordered]


def folded(counted: str, names: list[str]) -> str:
    """What the plugin wrote, as `outermost;…;innermost COUNT` lines. InputError when it is not whole.

    The first frame is `kernel`, the idle task's name, or, for all programs, `user` alone.
    """
    *lines, last = counted.splitlines() or [""]
    counts: dict[str, int] = {}
    try:
        for line in lines:
            stack, _, count = line.rpartition(" ")
            frames = [_name(int(number), names) for number in stack.split(";")]
            if frames != ["user"]:
                frames.insert(0, IDLE if IDLING.intersection(frames) else "kernel")
            path = ";".join(frames)
            counts[path] = counts.get(path, 0) + int(count)
        whole = last == f"total {sum(counts.values())}"
    except (ValueError, IndexError):
        whole = False
    if not whole:
        raise InputError(f"QEMU's count of instructions is not whole: it ends with {last[:80]!r}")
    least = sum(counts.values()) * LEAST_SHARE
    rest = sum(count for count in counts.values() if count < least)
    kept = "".join(f"{stack} {count}\n" for stack, count in sorted(counts.items()) if count >= least)
    return kept + (f"[not-kept] {rest}\n" if rest else "")


def _name(number: int, names: list[str]) -> str:
    return "user" if number < 0 else names[number - 1] if number else "[unknown]"

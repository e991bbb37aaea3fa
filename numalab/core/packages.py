# SPDX-License-Identifier: GPL-2.0-only
"""How a package is installed on this host: the command of its package manager, with the name it has there.

The lab names packages by their Debian names; playbooks/roles/hypervisor/vars has those of other families.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from numalab.core import paths

COMMANDS = {
    "Debian": "apt-get install",
    "RedHat": "dnf install",
    "Suse": "zypper install",
    "Archlinux": "pacman -S",
}
"""Family, by Ansible's names -> the command."""
FAMILIES = {
    "debian": "Debian",
    "ubuntu": "Debian",
    "fedora": "RedHat",
    "rhel": "RedHat",
    "suse": "Suse",
    "opensuse": "Suse",
    "arch": "Archlinux",
}
"""ID or ID_LIKE of os-release(5) -> family."""


def family(os_release: Path = Path("/etc/os-release")) -> str | None:
    """This host's family of distributions; None when it is another, or tells none."""
    try:
        lines = os_release.read_text().splitlines()
    except OSError:
        return None
    about = {key: value for key, _, value in (line.partition("=") for line in lines)}
    words = [word for key in ("ID", "ID_LIKE") for word in " ".join(shlex.split(about.get(key, ""))).split()]
    return next((FAMILIES[word] for word in words if word in FAMILIES), None)


def mend(package: str) -> str:
    """How to install a package, which is given by its Debian name: `dnf install qemu-img`."""
    here = family()
    if here is None:
        return f"install what Debian calls {package}"
    name = package if here == "Debian" else _names(here).get(package, package)
    return f"{COMMANDS[here]} {name}" if name else f"{here} has no package for what Debian calls {package}"


def _names(here: str) -> dict[str, str]:
    """Debian's name of a package -> the family's."""
    from ruamel.yaml import YAML  # here: needed by few errors, and this module by every command

    path = paths.ROOT / "playbooks/roles/hypervisor/vars" / f"{here}.yml"
    groups = YAML(typ="safe").load(path.read_text())["hypervisor_packages"]
    return {ours: theirs for group in groups.values() for ours, theirs in group.items()}

# SPDX-License-Identifier: GPL-2.0-only
"""QEMU for a topology with an empty node, as libvirt starts it.

QEMU wants no memory backend for a node without memory. libvirt (as of 12.8) writes one for each node, of size
0 for such a one, which QEMU refuses; no XML prevents it, and no words after libvirt's take it back. Machine
types of QEMU 5.0 need no backends, but QEMU 11 has none of them. There the domain's emulator is a script that
leaves these backends out and becomes QEMU. Not here: the domain's XML (domain).
"""

from __future__ import annotations

import hashlib
import os
import shlex

from numalab.core import state
from numalab.core.process import Deadline
from numalab.host.domain import WITHOUT_BACKENDS
from numalab.host.hypervisor import Host
from numalab.model.guest import Emulator
from numalab.model.topology import Topology

SCRIPT = """\
#!/bin/sh
# Made by numalab (numalab/host/emulator.py): QEMU, without the memory backends of nodes that have no memory.
empty=' '
object=
for word do
	shift
	if [ "$word" = -object ]; then
		object=yes
		continue
	fi
	case $object$word in
	yes'{"qom-type":"memory-backend-'*'"size":0}' | yes'{"qom-type":"memory-backend-'*'"size":0,'*)
		id=${word#*'"id":"'}
		empty="$empty${id%%\\"*} "
		object=
		continue
		;;
	node,nodeid=*,memdev=*)
		case $empty in
		*" ${word##*,memdev=} "*) word=${word%,memdev=*} ;;
		esac
		;;
	esac
	set -- "$@" ${object:+-object} "$word"
	object=
done
exec QEMU "$@"
"""
"""Takes the words that libvirt 9 to 12 write: -object in JSON, and memdev= as the last word of -numa node."""


def program(host: Host, topology: Topology, deadline: Deadline) -> Emulator | None:
    """The emulator of a domain with this topology, a file here; None for the one that libvirt takes."""
    if all(node.memory for node in topology.nodes):
        return None
    can = host.capabilities(deadline)
    if WITHOUT_BACKENDS[topology.machine] in can.machines:
        return None
    text = SCRIPT.replace("QEMU", shlex.quote(can.emulator))
    # By its content: libvirt queries a program again, for seconds, when its path or its time has changed.
    path = state.folder("emulator") / f"qemu-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not os.access(path, os.X_OK):
        state.write(path, text)
        path.chmod(0o700)
    return Emulator(path=str(path), confined_by=can.confined_by)

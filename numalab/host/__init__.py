# SPDX-License-Identifier: GPL-2.0-only
"""The machine that runs guests, and how it is reached: libvirt, SSH, Ansible, disks, images, the console.

libvirt is imported in hypervisor alone. What becomes of a kernel's source is kernel's; a guest as a whole is
guest's."""

# SPDX-License-Identifier: GPL-2.0-only
"""The machine that runs guests, and how it is reached: libvirt, SSH, Ansible, domain XML, disks, images, the
accelerator, the console. libvirt is imported in hypervisor alone. Building kernels belongs in kernel, the
life of a guest in guest."""

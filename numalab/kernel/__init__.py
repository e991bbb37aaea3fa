# SPDX-License-Identifier: GPL-2.0-only
"""From kernels/NAME.yml to a kernel that a guest can boot: recipes, eras, patches, sources, tool chains,
builds. The guest that boots it belongs in guest, the work on a builder in playbooks/roles/kernel."""

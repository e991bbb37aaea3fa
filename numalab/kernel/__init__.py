# SPDX-License-Identifier: GPL-2.0-only
"""From kernels/NAME.yml to a kernel that a guest can boot: recipes, eras, patches, sources, toolchains,
builds."""

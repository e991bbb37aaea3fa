# SPDX-License-Identifier: GPL-2.0-only
"""Where the checkout and the package's own files are. Every other module reads the paths from here, so a
module can move.

Write paths.ROOT, not `from numalab.core.paths import ROOT`: tests that need a checkout of their own replace
ROOT.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent
"""The checkout, with topologies/, kernels/, images/, playbooks/ and testcases/."""
WORKLOADS = "testcases/workloads"
"""Relative to ROOT."""
TEMPLATES = PACKAGE / "report/templates"
"""The HTML report's templates."""
AGENT = PACKAGE / "measure/agent.py"
"""The program that runs phases in the guest."""
WORKLOAD_MODULE = PACKAGE / "workload.py"
"""Helpers that several workloads share."""

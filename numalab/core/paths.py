# SPDX-License-Identifier: GPL-2.0-only
"""Where the checkout and the package's own files are. Every module asks here, so that a module can move.

Write paths.ROOT, not `from numalab.core.paths import ROOT`: a test that needs a checkout of its own replaces
ROOT.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent
"""The checkout: topologies/, kernels/, images/, playbooks/ and testcases/ stand here."""
WORKLOADS = "testcases/workloads"
"""A folder in ROOT."""
TEMPLATES = PACKAGE / "report/templates"
"""The HTML report's."""
AGENT = PACKAGE / "measure/agent.py"
"""The program that runs phases in the guest."""
WORKLOAD_MODULE = PACKAGE / "workload.py"
"""What several workloads share."""

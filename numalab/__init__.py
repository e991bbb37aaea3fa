"""numalab: Linux memory-management regressions, reproduced, judged and explained.

The layers, from the bottom: errors, log, proc, state | model | catalog, topology, domain, counters,
record, report, workload, patches, kconfig, eras, recipes | where, console, shell, host, accel, storage, image,
source, toolchain, kernelbuild, kernel, provision, guest, settle, prune, doctor | measure | progress, interrupt, plugin, cli_kernel, cli.
Imports go only downwards (tests/unit/test_layers.py). `inside` runs in the guest, alone.
"""

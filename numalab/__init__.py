"""numalab: Linux memory-management regressions, reproduced, judged and explained.

The layers, from the bottom: errors, log, proc, state | model | catalog, topology, domain, counters,
metrics, record, report, workload, patches, kconfig, recipes | where, console, shell, host, accel, storage, image,
source, kernelbuild, kernel, provision, guest, settle, doctor | measure | progress, interrupt, plugin, cli_kernel, cli.
Imports go only downwards (tests/unit/test_layers.py). `inside` runs in the guest, alone.
"""

"""numalab: Linux memory-management regressions, reproduced, judged and explained.

The layers, from the bottom: errors, log, proc, state | model | catalog, topology, domain, counters,
record, report, workload | where, console, shell, host, accel, storage, image, kernel, provision, guest,
doctor | measure | progress, plugin, cli. Imports go only downwards (tests/unit/test_layers.py). `inside`
runs in the guest, alone.
"""

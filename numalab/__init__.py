"""numalab: Linux memory-management regressions, reproduced, judged and explained.

The layers, from the bottom: errors, log, proc | model | catalog, topology, domain, counters, record |
host, accel, storage, image, shell, console, guest, provision | measure | plugin, cli. Imports go only
downwards (tests/unit/test_layers.py).
"""

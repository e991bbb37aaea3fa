"""numalab: Linux memory-management regressions, reproduced, judged and explained.

The layers, from the bottom; imports go only downwards (tests/unit/test_layers.py):

    tools      errors, log, proc, state
    values     case, model, runs
    pure       blocks, catalog, comparable, counters, domain, eras, kconfig, metrics, patches, published,
               recipes, record, report, tables, topology, workload
    edges      accel, console, doctor, guest, host, image, kernel, kernelbuild, provision, settle, shell,
               source, storage, toolchain, where
    measuring  experiment, measure
    front      cli, cli_kernel, interrupt, plugin, progress

`inside` runs in the guest, alone.
"""

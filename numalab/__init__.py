"""numalab: Linux memory-management regressions, reproduced, judged and explained.

The layers, from the bottom; imports go only downwards (tests/unit/test_layers.py):

    tools      errors, log, proc, state
    values     case, model, runs
    pure       blocks, calibration, catalog, comparable, counters, domain, effect, eras, finding, judge,
               kconfig, metrics, patches, published, recipes, record, report, tables, topology, workload
    edges      accel, console, doctor, guest, host, image, kernel, kernelbuild, provision, settle, shell,
               source, storage, toolchain, where
    measuring  experiment, measure
    front      cli, cli_case, cli_common, cli_kernel, interrupt, live, plugin, progress

`inside` runs in the guest, alone.
"""

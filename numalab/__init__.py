"""numalab: Linux memory-management regressions, reproduced, judged and explained.

The layers, from the bottom; imports go only downwards (tests/unit/test_layers.py):

    tools      errors, log, proc, state
    values     case, model, runs
    pure       blocks, calibration, catalog, comparable, counters, domain, effect, eras, export, finding,
               judge, kconfig, mail, metrics, mirror, patches, published, recipes, record, report, tables,
               topology, trial, workload
    edges      accel, console, doctor, guest, host, image, kernel, kernelbuild, provision, prune, settle,
               shell, source, storage, store, toolchain, where
    measuring  experiment, measure
    front      cli, cli_case, cli_common, cli_kernel, cli_report, interrupt, live, plugin, progress

`inside` runs in the guest, alone.
"""

"""numalab: Linux memory-management regressions, reproduced, judged and explained.

The layers, from the bottom; imports go only downwards (tests/unit/test_layers.py):

    tools      errors, log, proc, state
    values     case, model, runs
    pure       blocks, calibration, catalog, comparable, counters, domain, drawing, effect, eras,
               figures, finding, folded, judge, kconfig, metrics, moments, page, patches, plot,
               published, recipes, record, report, sections, tables, topology, workload
    edges      accel, console, doctor, evidence, guest, host, html, image, kernel, kernelbuild,
               provision, settle, shell, source, storage, toolchain, where
    measuring  experiment, measure
    front      cli, cli_case, cli_common, cli_html, cli_kernel, interrupt, live, plugin, progress

`inside` runs in the guest, alone.
"""

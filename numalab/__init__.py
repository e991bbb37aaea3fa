# SPDX-License-Identifier: GPL-2.0-only
"""numalab: Linux memory-management regressions, reproduced, judged and explained.

The layers, from the bottom; imports go only downwards (tests/unit/test_layers.py):

    tools      errors, log, paths, proc, state
    values     case, model, runs
    pure       blocks, calibration, catalog, comparable, counters, domain, drawing, effect, eras,
               export, figures, finding, folded, gallery, judge, kconfig, mail, metrics, mirror,
               moments, page, patches, plot, published, recipes, record, report, sections, tables,
               topology, trial, workload
    edges      accel, console, doctor, evidence, guest, host, html, image, kernel, kernelbuild, launch,
               leftovers, provision, prune, qemu_user, settle, shell, source, storage, store, toolchain,
               version, where
    measuring  experiment, measure
    front      __main__, cli, cli_case, cli_common, cli_guest, cli_html, cli_kernel, cli_report, interrupt,
               live, plugin, progress, terminal

`inside` runs in the guest, alone.
"""

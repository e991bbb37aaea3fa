"""numalab: Linux memory-management regressions, reproduced, judged and explained.

The layers, from the bottom: errors, log, proc, state | model | catalog, topology, domain, counters, metrics, record,
comparable, report, workload, patches, kconfig, recipes, folded, moments, plot, figures, drawing, sections, page | where,
console, shell, host, accel, storage, image, source, kernelbuild, kernel, provision, guest, settle, doctor, evidence,
html | measure | progress, interrupt, plugin, cli_kernel, cli_html, cli.
Imports go only downwards (tests/unit/test_layers.py). `inside` runs in the guest, alone.
"""

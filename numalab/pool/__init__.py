# SPDX-License-Identifier: GPL-2.0-only
"""Experiments on many hypervisors: what runs where (queue), what a host does (worker), how results come home
(store), what is kept on disk to resume (night), the thin layer over Dask that joins them (driver), and the
same in a thread, for pytest (background).

A host runs whole rounds through experiment.run, as one machine does. Dask is imported when a pool is used, in
driver and cluster alone. Not here: booting and measuring (experiment), options and printing (cli).
"""

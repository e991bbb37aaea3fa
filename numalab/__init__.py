# SPDX-License-Identifier: GPL-2.0-only
"""numalab: Linux memory-management regressions, reproduced, judged and explained.

Frozen values in, pure functions between, context managers at the edges, evidence on disk. The folders are the
layers; imports go down only (tests/unit/test_layers.py has the table):

    core                 errors, steps, programs, the state directory
    model                values, and the files that people write -> values
    runs                 what is on disk of a run                           needs no guest
    analysis             runs -> metrics, effects, verdicts                 needs no guest
    report               runs and verdicts -> text, mail, HTML              needs no guest
    host                 libvirt, SSH, Ansible, disks, images
    kernel               a recipe -> a kernel that a guest boots
    guest                a guest's life
    measure              a workload's phases between counters; measure.agent runs in the guest, alone
    maintenance          doctor, gc, prune
    experiment           fresh guests of two kernels in turn
    pool                 experiments on many hypervisors
    cli, pytest_plugin   the two front doors

`workload` is what a file in testcases/workloads imports beside `model`.
"""

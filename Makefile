# SPDX-License-Identifier: GPL-2.0-only
# make demo and make test are all that a person needs on a bare Debian 12; both set up what is missing.
# State (images, guests, runs) goes to LAB_STATE, or ~/.local/state/numalab.

VENV := .venv
LAB := ./lab.py
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
PYTHON := /usr/bin/python3
# /tmp may be in memory, as it is in Debian 13; guests' disks and ready states are too large for that.
TESTS_IN := PYTEST_DEBUG_TEMPROOT=/var/tmp
# With this set, each of the many lab.py and pytest that the tests start compiles the lab's modules anew.
unexport PYTHONDONTWRITEBYTECODE
comma := ,
space := $() $()

# Programs and libraries of the host are in playbooks/roles/hypervisor/vars, a file for each family of distributions.
# Here is what it takes to run that playbook: Python and Ansible. EXTRA names one more group of packages.
PACKAGE_GROUPS := python guests images kernels lint
ROLE := playbooks/hypervisor.yml $(shell find playbooks/roles/hypervisor -type f)
RECORD = $(VENV)/packages$(subst $(space),,$(addprefix -,$(EXTRA) $(QEMU)))

# Prints where Packer is: the host's, or the one that the lab fetches for hosts that have none.
PACKER := from numalab.core.process import Deadline; from numalab.host import packer; print(packer.fetch(Deadline.after(600)))
YAMLLINT := {extends: default, rules: {line-length: {max: 160}, document-start: disable, comments: {min-spaces-from-content: 1}, braces: {max-spaces-inside: 0}, truthy: {check-keys: false}}}

.PHONY: demo test setup packages image kernel lint unit oldest browser vm kvm pool shapes chaos matrix rates man picture clean

demo: kernel
	$(LAB) run migratefail

# Image and kernel are made while the tests run that boot no guest; what that prints follows theirs. The last lines are
# the seconds of each part, of kernel's what was left of it.
TOOK = echo "make $1: $$(($$(date +%s) - begun)) s" >>build/parts

test: export EXTRA := browser$(if $(SUDO),, pool)
test: MAKE += --no-print-directory
test: setup
	@mkdir -p build; : >build/parts; $(MAKE) kernel >build/kernel.log 2>&1 & kernel=$$!; \
	trap 'kill $$kernel 2>/dev/null; wait' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM HUP; \
	begun=$$(date +%s); $(MAKE) -j2 lint unit && $(call TOOK,lint unit) && \
	begun=$$(date +%s) && $(MAKE) -j2 --output-sync=target browser $(if $(SUDO),,pool) && $(call TOOK,browser $(if $(SUDO),,pool)) && \
	begun=$$(date +%s) && tail -n +1 -f --pid=$$kernel build/kernel.log && wait $$kernel && $(call TOOK,kernel)
	@$(if $(SUDO),echo "make pool was left out: it needs root")
	@begun=$$(date +%s); $(MAKE) vm && $(call TOOK,vm)
	@begun=$$(date +%s); $(MAKE) chaos ROUNDS=12 SEED=11 && $(call TOOK,chaos)
	@begun=$$(date +%s); $(MAKE) matrix && $(call TOOK,matrix)
	@cat build/parts

setup: packages $(VENV)/.done

# Runs the playbook when it has changed, and when a package that it installed is gone. sudo -k: Ansible's workers have
# no terminal, and so none of the passwords that sudo remembers for one.
packages: $(VENV)/bin/ansible-playbook
	@if [ ! -e $(RECORD) ] || [ -n "$$(find $(ROLE) -newer $(RECORD))" ] || \
	    [ -n "$$(sh playbooks/roles/hypervisor/files/missing.sh <$(RECORD))" ]; then \
		[ -z "$(SUDO)" ] || sudo -kn true 2>/dev/null || ask=--ask-become-pass; \
		ANSIBLE_DISPLAY_OK_HOSTS=false ANSIBLE_DISPLAY_SKIPPED_HOSTS=false ANSIBLE_LOCALHOST_WARNING=false \
		ANSIBLE_PIPELINING=true \
		$(VENV)/bin/ansible-playbook $$ask -i inventory.ini --limit localhost playbooks/hypervisor.yml \
			--extra-vars '{"ansible_python_interpreter": "$(PYTHON)", "hypervisor_qemu": "$(QEMU)", "hypervisor_record": "$(abspath $(RECORD))"}' \
			--extra-vars '{"hypervisor_groups": ["$(subst $(space),"$(comma) ",$(strip $(PACKAGE_GROUPS) $(EXTRA)))"]}' \
		&& touch $(RECORD); \
	fi

$(VENV)/bin/ansible-playbook:
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
		if command -v apt-get >/dev/null; then \
			echo "set-up installs: python3-venv python3-apt"; \
			$(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive \
				apt-get install -qq -y --no-install-recommends python3-venv python3-apt >/dev/null; \
		else \
			echo "$(PYTHON): is missing or lacks venv: install Python 3.11 or later, then make setup" >&2; exit 1; \
		fi; }
	@echo "set-up installs ansible-core into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install -q --disable-pip-version-check "$$(sed -n 's/^  "\(ansible-core[^"]*\)".*/\1/p' pyproject.toml)"

$(VENV)/.done: pyproject.toml | packages
	@echo "set-up installs the Python packages of pyproject.toml into $(VENV)"
	$(VENV)/bin/pip install -q --disable-pip-version-check -e '.[dev]'
	touch $@

image: setup
	$(LAB) image build debian12

# The image is half waiting: 6.1, which does not need it, is compiled meanwhile.
kernel: setup
	$(LAB) image build debian12 --kernel 6.1

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/mypy numalab lab.py tests testcases benchmarks tools
	$(VENV)/bin/yamllint -s -d "$(YAMLLINT)" images kernels playbooks reference testcases topologies
	$(VENV)/bin/ansible-lint -q --offline playbooks
	shellcheck .ci/run playbooks/roles/guest/files/make-initrd playbooks/roles/bootloader/files/*.sh playbooks/roles/kernel/files/*.sh playbooks/roles/hypervisor/files/*.sh
	shellcheck -s sh numalab/guest/slow_disks.sh playbooks/roles/tuning/files/tune.sh playbooks/roles/guest/files/root/usr/local/sbin/lab-init
	@packer=$$($(VENV)/bin/python -c '$(PACKER)') || exit 1; \
	for template in images/*.pkr.hcl; do $$packer fmt -check $$template >/dev/null || { echo "$$template: packer fmt"; exit 1; }; done

# Some of these tests wait for limits to pass: so more workers than CPUs.
unit: setup
	$(VENV)/bin/pytest -n $$((2 * $$(nproc))) tests/unit

# The verdicts' mathematics with the oldest scipy that pyproject.toml allows; the other tests have the newest.
oldest: setup
	rm -rf build/oldest
	$(PYTHON) -m venv build/oldest
	build/oldest/bin/pip install -q --disable-pip-version-check -e '.[dev]' \
		"$$(sed -n 's/^  "scipy>=\([0-9.]*\)".*/scipy==\1.*/p' pyproject.toml)"
	build/oldest/bin/pytest -n auto tests/unit/analysis

browser: setup
	@$(MAKE) --no-print-directory packages EXTRA="$(or $(EXTRA),browser)"
	$(VENV)/bin/pytest -n auto tests/browser

vm: kernel
	$(TESTS_IN) $(VENV)/bin/pytest -n auto --dist loadgroup --durations 20 tests/vm

# Topologies made by hypothesis: COUNT of them, as many as are possible started paused, BOOTS of the small ones booted.
# An hour or more under emulation; a failure prints its seed, and SEED=N repeats it. `make vm` has a short form.
shapes: COUNT ?= 1000
shapes: BOOTS ?= 30
shapes: SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
shapes: SEED := $(SEED)
shapes: kernel
	SEED=$(SEED) COUNT=$(COUNT) STARTS=$(COUNT) BOOTS=$(BOOTS) $(TESTS_IN) $(VENV)/bin/pytest -s tests/vm/test_shapes.py

# Two labs on one libvirt, one of which is always being killed. SEED=N repeats a run, as far as time lets it. `make test` has a short form.
chaos: ROUNDS ?= 200
chaos: kernel
	SEED=$(SEED) ROUNDS=$(ROUNDS) $(TESTS_IN) $(VENV)/bin/pytest -s tests/chaos

# The lab under KVM, on a host that has none: in a machine whose AMD SVM QEMU 10 emulates. Before a release; half an hour or more.
kvm: kernel
	$(VENV)/bin/pytest -s --durations 0 tests/kvm

# lab.py pool over three hypervisors in name spaces of this machine. As root; no guest boots, but with GUESTS=1, which
# builds what is missing and takes an hour more.
pool: $(if $(GUESTS),kernel,setup)
	@$(MAKE) --no-print-directory packages EXTRA="$(or $(EXTRA),pool)"
	$(VENV)/bin/pytest --ignore tests/pool/test_guests.py tests/pool
	$(if $(GUESTS),$(LAB) kernel build 6.1-slowscan-before)
	$(if $(GUESTS),$(VENV)/bin/pytest -s tests/pool/test_guests.py)

# What fits an hour: cases whose boots are limited to 32 minutes together. `pytest testcases` runs them all.
# AT_ONCE=2 is for the virtual clock, on which company changes no count: while one case builds a kernel, or waits for its
# last boot, the other has the CPU. Their boots share the CPUs out. The topologies, of up to 16 GiB each, follow one at a time.
MATRIX := --lab-size quick --lab-kernel 6.1 --lab-at-most 32 --durations 20
matrix: AT_ONCE ?= 1
matrix: kernel
	$(VENV)/bin/pytest $(if $(filter-out 1,$(AT_ONCE)),-n $(AT_ONCE)) $(MATRIX) --ignore testcases/test_topology.py testcases
	$(VENV)/bin/pytest $(MATRIX) testcases/test_topology.py

# Boots towards docs/statistics.md's goal, HOURS of them; run it again to go on. Commit benchmarks/boots.json afterwards.
rates: HOURS ?= 8
rates: kernel
	$(VENV)/bin/python benchmarks/rates.py --collect $(HOURS)

# The man page, from the help texts: man build/lab.py.1
man: setup
	@mkdir -p build
	$(VENV)/bin/python tools/manpage.py > build/lab.py.1.part
	@mv build/lab.py.1.part build/lab.py.1

# docs/report.png, the README's picture of a report, from recorded runs.
picture: setup
	@$(MAKE) --no-print-directory packages EXTRA="browser picture"
	$(VENV)/bin/python tools/picture.py

clean:
	rm -rf $(VENV)

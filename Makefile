# SPDX-License-Identifier: GPL-2.0-only
# make demo and make test are all that a person needs on a bare Debian 12; both set up what is missing.
# State (images, guests, runs) goes to LAB_STATE, or ~/.local/state/numalab.

VENV := .venv
LAB := ./lab.py
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

# Programs and libraries of the host, and why.
APT := python3 python3-venv \
	gcc libc6-dev python3-dev pkg-config libvirt-dev \
	qemu-system-x86 qemu-utils seabios \
	libvirt-daemon-system libvirt-clients \
	packer mmdebstrap fakeroot uidmap fdisk e2fsprogs xfsprogs \
	openssh-client busybox-static cpio \
	libxml2-utils shellcheck \
	make binutils bc bison flex libelf-dev libssl-dev xz-utils lz4 kmod git
# python3-dev to pkg-config: pip builds libvirt-python against libvirt-dev
# libvirt-clients: virsh console, virt-xml-validate (with libxml2-utils)
# packer to xfsprogs: images and disks;  busybox-static, cpio: the accelerator's probe
# shellcheck: make lint;  make to git: kernels are built (kmod: depmod of their modules), from sources that
# apt-get download or git brings

# For tests/browser alone: the HTML report on screen and on paper.
BROWSER := chromium chromium-driver poppler-utils

YAMLLINT := {extends: default, rules: {line-length: {max: 160}, document-start: disable, comments: {min-spaces-from-content: 1}, braces: {max-spaces-inside: 0}, truthy: {check-keys: false}}}

.PHONY: demo test setup packages qemu-backports image kernel lint unit browser vm kvm shapes chaos matrix man picture clean

demo: image
	$(LAB) run migratefail

test: setup lint unit browser image vm
	@$(MAKE) --no-print-directory chaos ROUNDS=20 SEED=11
	@$(MAKE) --no-print-directory matrix

setup: packages $(if $(QEMU),qemu-$(QEMU)) $(VENV)/.done

packages:
	@missing=$$(for package in $(APT) $(EXTRA); do \
		dpkg-query -W -f '$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed || echo $$package; done); \
	if [ -n "$$missing" ]; then \
		echo "set-up installs Debian packages:" $$missing; \
		$(SUDO) apt-get update -qq && \
		$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null; \
	fi

# make setup QEMU=backports: QEMU 10 on Debian 12, for `--clock virtual`. Nothing else is taken from backports.
qemu-backports: packages
	@if dpkg --compare-versions "$$(dpkg-query -W -f '$${Version}' qemu-system-x86)" lt 1:8.1; then \
		. /etc/os-release; suite=$$VERSION_CODENAME-backports; \
		echo "set-up installs QEMU from $$suite"; \
		if ! apt-cache policy | grep -q "n=$$suite"; then \
			printf 'Types: deb\nURIs: http://deb.debian.org/debian\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
				$$suite /usr/share/keyrings/debian-archive-keyring.gpg | \
				$(SUDO) tee /etc/apt/sources.list.d/numalab-backports.sources >/dev/null && \
			$(SUDO) apt-get update -qq || exit 1; \
		fi; \
		$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends -t $$suite \
			qemu-system-x86 qemu-utils >/dev/null; \
	fi

$(VENV)/.done: pyproject.toml
	@echo "set-up installs the Python packages of pyproject.toml into $(VENV)"
	/usr/bin/python3 -m venv $(VENV)
	$(VENV)/bin/pip install -q --disable-pip-version-check -e '.[dev]'
	touch $@

image: setup
	$(LAB) image build debian12

kernel: image
	$(LAB) kernel build 6.1

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/mypy numalab lab.py tests testcases benchmarks tools
	$(VENV)/bin/yamllint -s -d "$(YAMLLINT)" images kernels playbooks reference testcases topologies
	$(VENV)/bin/ansible-lint -q --offline playbooks
	shellcheck .ci/run playbooks/roles/kernel/files/*.sh
	shellcheck -s sh playbooks/roles/tuning/files/tune.sh playbooks/roles/guest/files/root/usr/local/sbin/lab-init
	@for template in images/*.pkr.hcl; do packer fmt -check $$template >/dev/null || { echo "$$template: packer fmt"; exit 1; }; done

unit: setup
	$(VENV)/bin/pytest -n auto tests/unit

browser: setup
	@$(MAKE) --no-print-directory packages EXTRA="$(BROWSER)"
	$(VENV)/bin/pytest tests/browser

vm: kernel
	$(VENV)/bin/pytest -n auto tests/vm/test_kernel_build.py
	$(VENV)/bin/pytest --durations 20 --ignore tests/vm/test_kernel_build.py tests/vm

# Topologies made by hypothesis: COUNT of them, as many as are possible started paused, BOOTS of the small ones booted.
# An hour or more under emulation; a failure prints its seed, and SEED=N repeats it. `make vm` has a short form.
shapes: COUNT ?= 1000
shapes: BOOTS ?= 30
shapes: SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
shapes: SEED := $(SEED)
shapes: kernel
	SEED=$(SEED) COUNT=$(COUNT) STARTS=$(COUNT) BOOTS=$(BOOTS) $(VENV)/bin/pytest -s tests/vm/test_shapes.py

# Two labs on one libvirt, one of which is always being killed. SEED=N repeats a run, as far as time lets it. `make test` has a short form.
chaos: ROUNDS ?= 200
chaos: kernel
	SEED=$(SEED) ROUNDS=$(ROUNDS) $(VENV)/bin/pytest -s tests/chaos

# The lab under KVM, on a host that has none: in a machine whose AMD SVM QEMU 10 emulates. Before a release; two hours or more.
kvm: kernel
	$(VENV)/bin/pytest -s --durations 0 tests/kvm

# What fits an hour: cases whose boots are limited to 32 minutes together. `pytest testcases` runs them all.
matrix: kernel
	$(VENV)/bin/pytest testcases --lab-size quick --lab-kernel 6.1 --lab-at-most 32

# The man page, from the help texts: man build/lab.py.1
man: setup
	@mkdir -p build
	$(VENV)/bin/python tools/manpage.py > build/lab.py.1.part
	@mv build/lab.py.1.part build/lab.py.1

# docs/report.png, the README's picture of a report, from recorded runs.
picture: setup
	@$(MAKE) --no-print-directory packages EXTRA="$(BROWSER) optipng"
	$(VENV)/bin/python tools/picture.py

clean:
	rm -rf $(VENV)

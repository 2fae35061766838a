# Everything builds itself: each target below needs Python >= 3.11 and make, and the JavaScript conformance clients
# need node and npm (without them those tests skip and say so).

usable = "$(1)" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3; do \
	$(call usable,$$name) && { echo $$name; break; }; done)
ARGS ?=
FUZZ_SECONDS ?= 600
# Tests wait as much as they compute: one more of them at a time than there are cores.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# A directory is rebuilt when its lock file changes: the name of the stamp inside it is a checksum of that file.
sum = $(shell cat $(1) 2>/dev/null | cksum | cut -d' ' -f1)
VENV := .venv/.built-$(call sum,requirements/dev.txt)
EDITABLE := .venv/.installed-$(call sum,pyproject.toml requirements/dev.txt)
BENCH := .venv-bench/.built-$(call sum,requirements/bench.txt)
FUZZ := .venv-fuzz/.built-$(call sum,requirements/fuzz.txt)
CLIENTS := .venv-clients/.built-$(call sum,requirements/clients.txt)
JS_DIR := tests/conformance/js
JS := $(JS_DIR)/node_modules/.built-$(call sum,$(JS_DIR)/package-lock.json)
JS_IF_NPM := $(if $(shell command -v npm),$(JS))

PIP_INSTALL := -m pip --disable-pip-version-check --quiet install

.DEFAULT_GOAL := help
.PHONY: help run test soak fuzz bench check fmt-check lint types fmt lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(EDITABLE) ## start a hub, a home with a sample agent, and an app on this machine; Ctrl-C ends all of it
	@exec .venv/bin/python -m deploy.local $(ARGS)

test: $(EDITABLE) $(CLIENTS) $(JS_IF_NPM) ## run the whole suite (ARGS="-k resume" for a part of it)
	@exec .venv/bin/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

soak: $(EDITABLE) ## run the long forms of tests, which `make test` leaves out (minutes)
	@exec .venv/bin/python -m pytest -m soak $(ARGS)

fuzz: $(FUZZ) ## search for input that breaks something, for ten minutes (FUZZ_SECONDS=60, ARGS="--target codec")
	@exec .venv-fuzz/bin/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(ARGS)

bench: $(BENCH) ## measure the hub, write docs/performance.md (ARGS="A B --rounds 1" for a part; needs cc and Linux)
	@exec .venv-bench/bin/python -m benchmarks --write $(ARGS)

check: fmt-check lint types test ## format check, lint, mypy --strict, then the whole suite

fmt-check: $(EDITABLE)
	.venv/bin/ruff format --check .

lint: $(EDITABLE)
	.venv/bin/ruff check .

types: $(EDITABLE)
	.venv/bin/mypy

fmt: $(EDITABLE) ## format the code and apply the safe lint fixes
	.venv/bin/ruff check --fix-only --quiet .
	.venv/bin/ruff format .

lock: ## renew the lock files (the newest versions that pyproject.toml, requirements/*.in and package.json allow)
	$(call need_python)
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python $(PIP_INSTALL) pip-tools
	.venv-lock/bin/pip-compile $(COMPILE) --output-file requirements/dev.txt pyproject.toml requirements/dev.in
	.venv-lock/bin/pip-compile $(COMPILE) --output-file requirements/run.txt pyproject.toml
	.venv-lock/bin/pip-compile $(COMPILE) --output-file requirements/clients.txt requirements/clients.in
	.venv-lock/bin/pip-compile $(COMPILE) --output-file requirements/bench.txt pyproject.toml requirements/bench.in
	.venv-lock/bin/pip-compile $(COMPILE) --output-file requirements/fuzz.txt pyproject.toml requirements/fuzz.in
	rm -rf .venv-lock
	cd $(JS_DIR) && npm update --package-lock-only --ignore-scripts --no-audit --no-fund

# Hashes of every file of a release, so that the locks serve every platform; no address of any index in them.
COMPILE := --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header --newline lf \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options

clean: ## remove what the other targets built
	rm -rf .venv .venv-clients .venv-bench .venv-fuzz .venv-lock .fuzz $(JS_DIR)/node_modules
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

need_python = @$(if $(PYTHON),$(call usable,$(PYTHON)),false) || { \
	echo "Session Bridge needs Python >= 3.11 with venv (Debian: apt install python3-venv); make PYTHON=/path/to/python names one" >&2; \
	exit 1; }

$(VENV):
	$(call need_python)
	@echo "first run: fetching Python packages into .venv (about a minute, more on a slow line)"
	@rm -rf .venv && $(PYTHON) -m venv .venv
	@.venv/bin/python $(PIP_INSTALL) --require-hashes --no-deps -r requirements/dev.txt
	@touch $@

$(EDITABLE): $(VENV)
	@.venv/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(CLIENTS):
	$(call need_python)
	@echo "building .venv-clients"
	@rm -rf .venv-clients && $(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/python $(PIP_INSTALL) --require-hashes --no-deps -r requirements/clients.txt
	@touch $@

$(BENCH):
	$(call need_python)
	@echo "building .venv-bench"
	@rm -rf .venv-bench && $(PYTHON) -m venv .venv-bench
	@.venv-bench/bin/python $(PIP_INSTALL) --require-hashes --no-deps -r requirements/bench.txt
	@touch $@

$(FUZZ):
	$(call need_python)
	@echo "building .venv-fuzz"
	@rm -rf .venv-fuzz && $(PYTHON) -m venv .venv-fuzz
	@.venv-fuzz/bin/python $(PIP_INSTALL) --require-hashes --no-deps -r requirements/fuzz.txt
	@touch $@

$(JS):
	@echo "building $(JS_DIR)/node_modules"
	@cd $(JS_DIR) && npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

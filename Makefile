# Two commands are enough: `make dev` runs the whole service, `make test` runs all tests.
# Both install what they need into .venv and nowhere else. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.capstan
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Shows how far pip is, one line for all packages; its errors go to the terminal as they are.
PROGRESS := awk '/^Collecting/ {count++; printf "\r    %d packages", count; fflush()} /^Installing collected/ {printf "\r    installing %d packages", count; fflush()} END {if (count) print ""}'
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup setup-test dev test check format bench contracts geth docs screenshots lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: $(STAMP)-setup ## install the service and the development chain, start nothing

setup-test: $(STAMP)-test ## install what the tests need as well

$(STAMP)-python:
	@command -v $(PYTHON) >/dev/null || { echo "capstan needs Python 3.11 or newer: install python3, or name one with make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "capstan needs Python 3.11 or newer, $$($(PYTHON) --version) is too old: name another with make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "this Python cannot make virtual environments: install the package python3-venv"; exit 1; }
	@echo "==> making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(STAMP)-setup: $(STAMP)-python requirements.lock pyproject.toml src/capstan/devnet/node/package-lock.json
	@echo "==> installing the service's packages"
	@$(PIP) install --require-hashes --no-deps -r requirements.lock | $(PROGRESS)
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src
	@echo "==> installing the development chain"
	@$(BIN)/python -m capstan.devnet.install
	@touch $@

$(STAMP)-test: $(STAMP)-setup requirements-test.lock tools/browser.py tests/clients/package-lock.json
	@echo "==> installing the packages and the JavaScript clients of the tests, and a browser"
	@$(BIN)/python tools/browser.py & browser=$$!; \
	$(BIN)/python -m tests.clients.install & clients=$$!; \
	$(PIP) install --require-hashes --no-deps -r requirements-test.lock | $(PROGRESS); failed=$$?; \
	wait $$browser || failed=1; \
	wait $$clients || failed=1; \
	exit $$failed
	@touch $@

dev: $(STAMP)-setup ## run the whole service and a development chain
	@exec $(BIN)/capstan dev $(ARGS)

test: $(STAMP)-test ## run all tests, two at a time; make test ARGS=tests/unit for some, one by one
	@$(BIN)/python -m pytest $(or $(ARGS),--numprocesses 2 --dist loadfile --no-loadscope-reorder --tb native)

check: $(STAMP)-test ## format, lint, types, import rules, file lengths, generated files
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy src tests tools bench contracts
	@$(BIN)/lint-imports
	@$(BIN)/python tools/lengths.py
	@$(BIN)/python -m capstan.settings_docs --check
	@$(BIN)/python contracts/build.py --check

format: $(STAMP)-test ## put the code into its standard form
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP)-test ## run the benchmarks; each prints ratios against a baseline of the same run
	@for file in bench/*.py; do echo "==> $$file"; $(BIN)/python $$file || exit 1; done

contracts: $(STAMP)-test ## compile our contracts
	@$(BIN)/python contracts/build.py

geth: $(STAMP)-test ## build geth with the Go on PATH, for the tests that compare its tracer with our EVM
	@$(BIN)/python tools/geth.py

docs: $(STAMP)-test ## write the generated pages of docs/
	@$(BIN)/python -m capstan.settings_docs
	@$(BIN)/python -m tests.docs.generated

screenshots: $(STAMP)-test ## take pictures of every page of the dashboard, into screenshots/
	@$(BIN)/python tools/screenshots.py $(ARGS)

lock: ## choose versions anew and write the lock files
	@$(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/pip install --quiet uv
	@$(VENV)-lock/bin/uv pip compile --universal --python-version 3.11 --extra dev --group build --group test --generate-hashes --no-header --no-annotate --quiet pyproject.toml -o requirements-test.lock
	@$(VENV)-lock/bin/uv pip compile --universal --python-version 3.11 --extra dev --group build --generate-hashes --no-header --no-annotate --quiet pyproject.toml -c requirements-test.lock -o requirements.lock
	@$(VENV)-lock/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet pyproject.toml -c requirements-test.lock -o deploy/requirements.lock
	@rm -rf $(VENV)-lock

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

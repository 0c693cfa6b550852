# Every target makes what it needs: `make demo` or `make test` may be the first command in a fresh clone.
# The tools live in .venv. Linux, make, and Python 3.11 or newer are all that must be there.

.DEFAULT_GOAL := help
.PHONY: help install lint format types services test test-fast test-floors chaos demo bench-log bench-observe mutants celery-suite clean
.SUFFIXES:

ROOMS := engine tasks beat
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
# Strict: the installed packages hold exactly the files that a wheel would hold, as links to the sources.
EDITABLE := --config-settings editable_mode=strict
CHECKED := $(wildcard tests examples bench)

# Most tests wait for real processes, so there are more test processes than cores. Which tests
# stay in one: tests/kit/spread.py. `make test TESTERS=1` runs all in one process, as plain pytest does.
TESTERS ?= 4
ALONE = $(filter 1,$(TESTERS)) $(findstring no:xdist,$(ARGS))
PYTEST = -m pytest $(if $(strip $(ALONE)),,--numprocesses $(TESTERS))

# The first interpreter that is new enough; `make PYTHON=/path/to/python3 ...` chooses another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo "$$python" && break; done)

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed  ## make .venv and install everything into it
	@$(call list_files) > $(VENV)/.files.now
	@cmp -s $(VENV)/.files.now $(VENV)/.files || { \
		echo "== a file came or went: linking the packages again"; \
		$(PIP) install --no-deps --no-build-isolation $(EDITABLE) --editable . \
		&& mv $(VENV)/.files.now $(VENV)/.files; }

lint: install  ## ruff: rules and formatting
	@echo "== ruff"
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: install  ## let ruff repair what it can
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

types: install  ## mypy --strict, over the packages as installed and over the tests
	@echo "== mypy"
	@$(BIN)/mypy $(ROOMS:%=-p celery_commander.%)
	@$(BIN)/mypy $(CHECKED)

services: install  ## install missing servers where CI=true; elsewhere just say which are missing
	@$(BIN)/python -m tests.kit.provision

test: lint types services  ## lint, types, all tests; real Redis, RabbitMQ, PostgreSQL where installed   [TESTERS=1]
	@echo "== tests (a missing server: skipped at home, a failure where CI=true)"
	@$(BIN)/python $(PYTEST) $(ARGS)

test-fast: install  ## the tests that need no patience and no worker
	@$(BIN)/python $(PYTEST) -m "not slow and not celery" $(ARGS)

test-floors: $(VENV)-floors/.installed  ## the tests again, with the oldest supported dependencies
	@$(VENV)-floors/bin/python $(PYTEST) $(ARGS)

chaos: install  ## go on breaking the log, the power cuts too   [SECONDS=600] [SEED=17: that round again]
	@$(BIN)/python -W error -m tests.crash.chaos --seconds $(or $(SECONDS),600) $(if $(SEED),--seed "$(SEED)")

demo: install  ## kill real workers, see every run finish right   [BROKER=redis://...] [SEED=1]
	@$(BIN)/python -m examples.demo $(if $(BROKER),--broker "$(BROKER)") $(if $(SEED),--seed "$(SEED)")

bench-log: install  ## measure the log against the bare write + fdatasync loop on this disk
	@$(BIN)/python -m bench.log $(ARGS)

bench-observe: install  ## measure what observing plain tasks costs a worker, in CPU time; needs Redis
	@$(BIN)/python -m bench.observe $(ARGS)

mutants: install  ## delete each sync, lock and check in turn; a test must notice (an hour)   [ARGS=--list]
	@$(BIN)/python -m tests.kit.mutation $(ARGS)

celery-suite: install  ## Celery's own canvas and task tests, every task durable   [ARGS=--without: Celery alone]
	@$(BIN)/python -m tests.kit.celery_suite $(ARGS)

clean:  ## remove .venv and all that was built; the next command installs anew
	rm -rf $(VENV) $(VENV)-floors build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(ROOMS) $(CHECKED) -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------------------------------------

define list_files
find $(ROOMS) -type f -not -path '*/__pycache__/*' | LC_ALL=C sort
endef

define make_venv
	@test -n "$(PYTHON)" || { \
		echo "Python 3.11 or newer is needed and was not found. On Debian or Ubuntu:"; \
		echo "    sudo apt-get install python3 python3-venv"; exit 1; }
	@echo "== making $(1) with $(PYTHON)"
	@"$(PYTHON)" -m venv --clear $(1) || { rm -rf $(1); \
		echo; echo "$(PYTHON) cannot make a virtual environment. On Debian or Ubuntu this line mends it:"; \
		echo "    sudo apt-get install python3-venv"; exit 1; }
endef

$(VENV)/.made:
	$(call make_venv,$(VENV))
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	@echo "== installing into $(VENV) (a minute, the first time)"
	@$(PIP) install "setuptools>=77"
	@$(PIP) install --no-build-isolation $(EDITABLE) --editable '.[dev]'
	@$(call list_files) > $(VENV)/.files
	@touch $@

$(VENV)-floors/.installed: tests/floors.txt pyproject.toml
	$(call make_venv,$(VENV)-floors)
	@echo "== installing the oldest supported versions into $(VENV)-floors"
	@$(VENV)-floors/bin/python -m pip --disable-pip-version-check --quiet --quiet install \
		--constraint tests/floors.txt $(EDITABLE) --editable '.[dev]'
	@touch $@

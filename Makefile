# Everything a person needs: `make setup`, `make demo`, `make test`. `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The built wheel is tested in an environment of its own, so that a file missing from it shows.
WHEEL := .cache/wheel
# The program alone, as a user has it, so that a dependency taken from the development tools shows.
BARE := .cache/bare
PYTEST_ARGS ?= -n auto
export RUFF_CACHE_DIR := .cache/ruff
export UV_NO_PROGRESS := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo kafka test lint types check wheel bench docs lock clean

help: ## list what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

$(READY): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(READY) ## make .venv with gpu-ledger and all that its development needs

demo: $(READY) ## make a synthetic capture, run the main job on it, show the result
	@rm -rf demo && mkdir -p demo
	@echo '$$ gpu-ledger synth demo/capture.sqlite'
	@$(BIN)/gpu-ledger synth demo/capture.sqlite
	@echo '$$ gpu-ledger run demo/capture.sqlite --config examples/world_model.toml --out demo/ledger'
	@$(BIN)/gpu-ledger run demo/capture.sqlite --config examples/world_model.toml --out demo/ledger

kafka: $(READY) ## start a Kafka broker to try things on, until Ctrl-C (needs Java 17 and Maven)
	@$(BIN)/python tests/kafka_broker.py

test: lint types check ## lint, strict types, and every test against the built wheel

lint: $(READY) ## ruff, everything on
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy --strict
	$(BIN)/mypy

wheel: $(READY) ## build the wheel into dist/
	@rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null

check: wheel # the tests, run against the installed wheel alone
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(WHEEL)
	@$(BIN)/uv pip install --quiet --python $(WHEEL)/bin/python --require-hashes -r requirements-dev.lock
	@$(BIN)/uv pip install --quiet --python $(WHEEL)/bin/python --no-deps dist/*.whl
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(BARE)
	@$(BIN)/uv pip install --quiet --python $(BARE)/bin/python --constraint requirements-dev.lock dist/*.whl
	GPU_LEDGER_INSTALLED=1 GPU_LEDGER_BARE=$(BARE)/bin/gpu-ledger $(WHEEL)/bin/pytest $(PYTEST_ARGS)

bench: $(READY) ## measure; figures with machine, versions and ratios
	$(BIN)/python benchmarks/run.py

docs: $(READY) ## write docs/configuration.md and docs/ledger.md anew from the types
	$(BIN)/python docs/generate.py

lock: ## resolve requirements-dev.lock anew (needs a network)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--upgrade --custom-compile-command 'make lock' --group dev --extra parquet pyproject.toml \
		--output-file requirements-dev.lock

clean: ## remove all that was made
	rm -rf $(VENV) .cache dist build demo bench

# The two commands of the README are `make demo` and `make test`; the rest is for those who work on GPACK.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := .demo
SCHEMAS := --schema schema/gpack.yaml --schema schema/gguf.yaml --schema schema/safetensors.yaml

.PHONY: help demo test test-rest test-all codegen codegen-check lint types format soak bench ci clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# What `make demo` needs: the package with what running a model takes.
$(VENV)/.base: pyproject.toml
	@echo "installing gpack into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[run,chat]'
	@touch $@

$(VENV)/.installed: $(VENV)/.base
	@echo "installing the tools for development into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(VENV)/.base  ## install, take a real model, convert, verify, inspect, let it answer
	@$(BIN)/python -m demo --python $(BIN)/python --place $(DEMO)

# A worker gets tests in a row, which share fixtures, and takes others' when it has done its own.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

test: $(VENV)/.installed  ## run the tests, but of repetitions so many as matter most
	$(PYTEST)

test-rest: $(VENV)/.installed  ## run what `make test` leaves out (see tests/exhaustive.py)
	GPACK_EXHAUSTIVE=1 $(PYTEST) -m exhaustive

test-all: $(VENV)/.installed  ## run both
	GPACK_EXHAUSTIVE=1 $(PYTEST)

codegen: $(VENV)/.installed  ## regenerate everything from schema/*.yaml
	$(BIN)/python -m codegen $(SCHEMAS)
	$(BIN)/python -m codegen.vectors

codegen-check: $(VENV)/.installed  ## fail where generated files differ from the schema
	$(BIN)/python -m codegen $(SCHEMAS) --check
	$(BIN)/python -m codegen.vectors --check

lint: $(VENV)/.installed  ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed  ## mypy, strict
	$(BIN)/mypy

format: $(VENV)/.installed  ## let ruff fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: $(VENV)/.installed  ## ten minutes of requests to a server on this machine, with aborts at random
	$(BIN)/python tests/serve/soak.py

bench: $(VENV)/.installed  ## measure against peers in the same run
	$(BIN)/python -m bench

ci: lint types codegen-check test  ## all that CI runs

clean:  ## remove what the targets made
	rm -rf $(VENV) $(DEMO) .mypy_cache .pytest_cache .ruff_cache .hypothesis

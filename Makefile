# The two commands of the README are `make demo` and `make test`; the rest is for those who work on GPACK.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := .demo
SCHEMAS := --schema schema/gpack.yaml --schema schema/gguf.yaml --schema schema/safetensors.yaml --schema schema/prompt_cache.yaml

.PHONY: help demo locked lock audit test test-rest test-all codegen codegen-check kernels kernels-report test-cuda lint types format wheels soak fuzz fuzz-smoke bench ci clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# What `make demo` needs: the package with what running a model takes.
$(VENV)/.base: pyproject.toml
	@echo "installing gpack into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[run]'
	@touch $@

$(VENV)/.installed: $(VENV)/.base
	@echo "installing the tools for development into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# What CI installs: the versions of the lock file, each file with a hash that is known. Nothing is built but GPACK itself.
locked: requirements-dev.lock pyproject.toml  ## install the tools for development, exactly as CI has them
	@$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(VENV)/.base $(VENV)/.installed

# Newest versions that pyproject.toml allows, for all systems and Pythons at once, with the hashes of all their files.
lock: $(VENV)/.installed  ## renew requirements-dev.lock and sbom.cdx.json
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --only-binary :all: --generate-hashes \
	  --no-emit-index-url --no-header --upgrade --quiet --output-file requirements-dev.lock
	$(BIN)/python -m codegen.sbom

audit: $(VENV)/.base  ## look for known vulnerabilities in the versions of requirements-dev.lock
	@$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --requirement requirements-dev.lock --require-hashes --disable-pip

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
	$(BIN)/python -m codegen.sbom

codegen-check: $(VENV)/.installed  ## fail where generated files differ from the schema
	$(BIN)/python -m codegen $(SCHEMAS) --check
	$(BIN)/python -m codegen.vectors --check
	$(BIN)/python -m codegen.sbom --check
	$(BIN)/python -m codegen.cuda_kernels --check

kernels: $(VENV)/.installed  ## compile the kernels of the CUDA backend to PTX; no device is needed
	$(BIN)/python -m codegen.cuda_kernels

kernels-report: $(VENV)/.installed  ## registers, spills and instructions of the CUDA kernels for each architecture
	$(BIN)/python -m codegen.cuda_report

test-cuda: $(VENV)/.installed  ## all tests of the CUDA backend, in the simulator: some minutes
	GPACK_EXHAUSTIVE=1 $(PYTEST) tests/cuda

lint: $(VENV)/.installed  ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed  ## mypy, strict
	$(BIN)/mypy

format: $(VENV)/.installed  ## let ruff fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheels: $(VENV)/.installed demo  ## build wheel and sdist, and try them outside of the checkout
	$(BIN)/python .ci/wheels.py "$$(find $(DEMO)/packages -name '*.gguf')"

soak: $(VENV)/.installed  ## ten minutes of requests to a server on this machine, with aborts at random
	$(BIN)/python tests/serve/soak.py

fuzz: $(VENV)/.installed  ## fuzz all readers or TARGET=name, for SECONDS (default 60) or RUNS executions each
	$(BIN)/python -m fuzz $(TARGET) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(RUNS),--runs $(RUNS))

# From the published vectors alone, so that no corpus of an earlier run decides.
fuzz-smoke: $(VENV)/.installed  ## fuzz all readers for five minutes together, as CI does
	@rm -rf .fuzz/smoke
	$(BIN)/python -m fuzz --seconds 300 --folder .fuzz/smoke

bench: $(VENV)/.installed  ## measure against peers in the same run
	$(BIN)/python -m bench

ci: lint types codegen-check test  ## all that CI runs

clean:  ## remove what the targets made
	rm -rf $(VENV) $(DEMO) .fuzz .mypy_cache .pytest_cache .ruff_cache .hypothesis

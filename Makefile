# One target sets everything up, the others lean on it. `make` alone says what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup plan test check lint bench accuracy gpu-truth clean

help: ## what can be done here
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## a virtual environment with the tested versions
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -c 'import planner.paper'
	@touch $@

plan: $(READY) ## plan the example in which DDP's buckets decide (it does not fit: exit code 3 is expected)
	@$(BIN)/planner plan examples/nemotron-4b-ddp.yaml; code=$$?; test $$code -eq 3 || exit $$code
	@echo
	$(BIN)/planner check examples/nemotron-4b-ddp-bucket-view.yaml

test: $(READY) ## every test
	$(BIN)/python -m pytest

lint: $(READY) ## style, types, and the house's layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test ## what CI runs

bench: $(READY) ## speeds, as ratios within one run
	$(BIN)/python benchmarks/run.py

accuracy: $(READY) ## predicted against recorded, for every truth at hand
	$(BIN)/python tests/accuracy.py

gpu-truth: ## measure the matrix of cases on the GPU of this machine (torch, transformers, PyYAML are enough)
	$(PYTHON) -m planner.measuring.gpu_truth --out $(or $(OUT),tests/data/gpu)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

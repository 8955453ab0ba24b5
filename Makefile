# One target sets everything up, the others lean on it. `make` alone says what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup plan test check lint bench accuracy gpu-truth validate-gpu clean

help: ## what can be done here
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

# What starts clusters and kills them has the machine to itself.
CLUSTERS := tests/chart/test_on_a_read_only_system.py tests/faults tests/journey tests/service tests/validation
test: $(READY) ## every test, on two cores where they can be shared
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(CLUSTERS:%=--ignore=%)
	$(BIN)/python -m pytest $(CLUSTERS)

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

validate-gpu: $(READY) ## run JOB's step on the GPUs of this machine through Ray, beside its plan (GPU: catalog name)
	$(BIN)/python -m planner.validation.here $(or $(JOB),examples/gpt2-xl.yaml) $(if $(GPU),--gpu $(GPU))

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

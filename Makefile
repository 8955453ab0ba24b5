# `make plan` sets up what planning needs, the others all of it. `make` alone says what there is.
PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
VENV := .venv
BIN := $(VENV)/bin
PLANS := $(VENV)/.plans
READY := $(VENV)/.ready
BESIDE := tests/tracing/running/beside.txt

.DEFAULT_GOAL := help
.PHONY: help setup plan answers test test-fast test-timed test-computed test-clusters test-wheel test-readme soak test-torch torch-versions fuzz cpu-runs clients screenshots opinfo check check-in-turn test-of-wheel lint bench accuracy programs step-times gpu-truth gpu-facts rehearse-gpu-truth validate-gpu clean

help: ## what can be done here
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## a virtual environment with the tested versions
$(PLANS): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	.ci/install '--editable .[plan]'
	$(BIN)/python -c 'from planner.planning.trace_source import build_paper_gpu; build_paper_gpu()'
	@touch $@
$(READY): $(PLANS) $(BESIDE)
	.ci/install '--editable .[dev]'
	.ci/install '--no-compile-bytecode --no-deps --target $(VENV)/beside --requirement $(BESIDE)'
	@touch $@

plan: $(PLANS) ## plan the example in which DDP's buckets decide (it does not fit: exit code 3 is expected)
	@$(BIN)/planner plan examples/nemotron-4b-ddp.yaml; code=$$?; test $$code -eq 3 || exit $$code
	@echo
	$(BIN)/planner check examples/nemotron-4b-ddp-bucket-view.yaml

# The clusters, which mostly wait, run beside what only computes.
COMPUTED := $(addprefix tests/,allocator cli/test_measure_and_compare_commands.py cli/test_run_command.py hardware house \
  job paper planning report runtime/environments searching/test_brute_force.py timing tracing/records tracing/running tracing/traces \
  training truth/calibrations truth/facts truth/failures truth/gpu_truth)
# What starts servers meets the deadlines of others (a port, a raylet that must answer) on a machine that is full: a test
# that fails is run once more, and said to have been.
ONCE_MORE := --reruns 1 --rerun-show-tracebacks -r fER
# The slowest are listed: CI has to stay short.
LOG = --durations=30 --durations-min=2 2>&1 | tee $(VENV)/$@.log
test: test-timed ## the tests that CI runs
	@$(MAKE) --no-print-directory --jobs 2 test-computed test-clusters
test-timed: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(ONCE_MORE) -n 2 --dist loadfile -m "not cluster and not soak" $(COMPUTED:%=--ignore=%) $(ELSEWHERE:%=--ignore=%) $(LOG)
test-computed: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not cluster and not soak" $(filter-out $(ELSEWHERE),$(COMPUTED)) $(ELSEWHERE:%=--ignore=%) $(LOG)
CLUSTERS := $(sort $(dir $(shell grep -rlE 'mark\.cluster|def ray_session' tests/*/)))
test-clusters: $(READY)
	$(BIN)/python -m pytest $(ONCE_MORE) -m "cluster and not soak" $(CLUSTERS) $(LOG)

# What needs no server, no cluster and no browser.
FAST := $(addprefix tests/,allocator/replays cli hardware house job/layouts job/specs paper/decisions report \
  searching timing tracing/records truth/calibrations truth/failures)
test-fast: $(READY) ## the share of the tests that takes two minutes and needs only Python
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not cluster and not soak" $(FAST)

# With planner as its wheel has it.
WHEEL := .venv-wheel
OF_WHEEL := $(addprefix tests/,house/installed allocator/replays \
  $(addprefix tracing/running/test_,readme.py on_cuda.py drawn_numbers.py triton_in_eager_mode.py compiled_programs.py \
  programs_in_a_world.py) tracing/traces/test_cpu_runs.py tracing/traces/test_architectures.py)
$(WHEEL)/.ready: $(READY) constraints.txt $(shell find planner -type f -not -name '*.pyc')
	rm -rf $(WHEEL) && mkdir $(WHEEL)
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir $(WHEEL)/dist .
	$(call copy_environment,$(WHEEL))
	.ci/install "--exact $$(ls $(WHEEL)/dist/*.whl)[service] pytest pytest-rerunfailures hypothesis httpx deepspeed" $(WHEEL)
	@touch $@
# By hard links, with the paths of the copy: uv then leaves in it exactly what is asked for (`--exact`). Of torch, which
# takes most of a minute to install and compile, nothing is done again.
copy_environment = cp -al $(wildcard $(addprefix $(VENV)/,bin lib lib64 pyvenv.cfg)) $(1) && \
  sed -i 's|$(abspath $(VENV))|$(abspath $(1))|g' $$(grep -lIF '$(abspath $(VENV))' $(1)/bin/* $(1)/pyvenv.cfg)
test-wheel: $(WHEEL)/.ready ## a share of the tests with planner's wheel
	OMP_NUM_THREADS=1 $(WHEEL)/bin/pytest $(ONCE_MORE) -p no:cacheprovider -m "not soak" --ignore=$(OF_README) $(OF_WHEEL) $(LOG)

# In what README's install makes: the extra `plan` alone, from the same wheel.
README := .venv-readme
OF_README := tests/house/installed/test_commands_of_pages.py
$(README)/.ready: $(WHEEL)/.ready
	rm -rf $(README) && mkdir $(README) && $(call copy_environment,$(README))
	.ci/install "--exact $$(ls $(WHEEL)/dist/*.whl)[plan] pytest hypothesis httpx" $(README)
	@touch $@
test-readme: $(README)/.ready ## the commands of README and docs in the environment that README's install makes
	OMP_NUM_THREADS=1 $(README)/bin/python -m pytest -p no:cacheprovider $(OF_README) $(LOG)

soak: $(READY) ## the rest of the tests, and all cases of those of which CI takes a share (half an hour)
	PLANNER_SOAK=whole OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "soak and not cluster"
	PLANNER_SOAK=whole OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/service/fuzz
	PLANNER_SOAK=whole $(BIN)/python -m pytest -m cluster

CORE := $(addprefix tests/,allocator/replays hardware/overheads job/bound job/layouts job/specs planning/plans report tracing/traces training)
TORCH ?= 2.9.1
test-torch: ## the core of the suite with another torch (TORCH=2.9.1, any from 2.6 on)
	$(PYTHON) -m venv .venv-torch-$(TORCH)
	.ci/install '--editable .[dev]' .venv-torch-$(TORCH) $(TORCH)
	OMP_NUM_THREADS=1 .venv-torch-$(TORCH)/bin/python -m pytest -n 2 --dist loadfile -m "not cluster" $(CORE)

answers: $(READY) ## what planner answers to examples, programs, faulty specs, HTTP (OUT: where; AGAINST: an earlier folder; ONLY, JOBS)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/answers.py $(if $(OUT),--out $(OUT)) $(if $(AGAINST),--against $(AGAINST)) \
	  $(if $(ONLY),--only $(ONLY)) $(if $(JOBS),--jobs $(JOBS))

torch-versions: $(READY) ## plan eighteen examples with the torch of each of PYTHONS, for docs/results/torch-versions.md and what versions differ by
	PYTHONPATH=$(CURDIR) $(BIN)/python benchmarks/torch_versions.py $(PYTHONS)
	$(BIN)/python tests/house/test_torch_page.py

fuzz: $(READY) ## every reader with many more hostile inputs than CI takes (EXAMPLES: how many, other ones each time)
	PLANNER_FUZZ_EXAMPLES=$(or $(EXAMPLES),100000) $(BIN)/python -m pytest tests/service/fuzz

CPU_RUNS := $(wildcard tests/tracing/traces/test_*cpu_runs.py) $(addprefix tests/tracing/traces/test_,$(addsuffix .py,adapters divided_optimizers optimizer_variants))
cpu-runs: $(READY) ## measure the recorded CPU runs again (tests/data/cpu_runs), as other software than theirs needs
	PLANNER_CPU_RUNS=record OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(CPU_RUNS)

CLIENTS := .venv-clients
CLIENTS_READY := $(CLIENTS)/.ready
$(CLIENTS_READY): $(READY) benchmarks/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)
	ls -d $(abspath $(VENV))/lib/python3*/site-packages >$$(echo $(CLIENTS)/lib/python3*/site-packages)/tested.pth
	$(CLIENTS)/bin/python -m pip install --quiet --no-deps -r benchmarks/clients/requirements.txt
	$(CLIENTS)/bin/python -m pip install --quiet --no-deps --upgrade --target $(CLIENTS)/beside/triton triton==3.7.1
	$(CLIENTS)/bin/python -m pip install --quiet --no-deps --upgrade --target $(CLIENTS)/beside/torchao torchao==0.15.0
	@touch $@

clients: $(CLIENTS_READY) ## run rank 0 of other people's programs on paper (benchmarks/clients), for docs/results/programs.md: 1 GB, 15 minutes
	PYTHONPATH=$(CURDIR) OMP_NUM_THREADS=1 $(CLIENTS)/bin/python benchmarks/clients/run_clients.py $(CLIENTS)/materials

screenshots: $(READY) ## pictures of the page for docs/images, as its tests see it (needs chromium and chromium-driver)
	PLANNER_SCREENSHOTS=yes OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/service/page

opinfo: $(READY) ## all of torch's operator database on the paper GPU beside the host (three minutes)
	PLANNER_OPINFO=whole OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/paper/opinfo

lint: $(READY) ## style, types, and the house's layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

check: $(READY) ## what CI runs: the tests, some with the wheel, and lint
	@rm -f $(VENV)/test-*.log
	@$(MAKE) --no-print-directory --keep-going --jobs 3 ELSEWHERE="$(OF_WHEEL)" check-in-turn test-computed test-of-wheel; code=$$?; \
	  grep -E '^(FAILED|ERROR|RERUN) |allowed_skips|^[0-9]+ [a-z]+.* in [0-9.]+s' $(VENV)/test-*.log | cut -c-500; exit $$code
check-in-turn: $(READY)
	@$(MAKE) --no-print-directory test-timed; code=$$?; $(MAKE) --no-print-directory test-clusters && exit $$code
test-of-wheel:  # one after the other: the second is installed from the wheel of the first
	@$(MAKE) --no-print-directory --keep-going test-wheel test-readme lint

bench: $(READY) ## speeds, as ratios within one run
	$(BIN)/python benchmarks/run.py

accuracy: $(READY) ## predicted against recorded, for every truth at hand
	$(BIN)/python benchmarks/accuracy.py

programs: $(READY) ## recorded programs on paper beside their peaks (FAMILIES, ROWS; CHECKOUTS: folder of git directories; PYTHONS: 2.9=/a/bin/python,...; RECORD=yes for docs/results/recorded-runs.md)
	$(BIN)/python benchmarks/recorded_programs/run_programs.py $(ROWS) $(if $(FAMILIES),--families $(FAMILIES)) \
	  $(if $(CHECKOUTS),--checkouts $(CHECKOUTS)) $(if $(PYTHONS),--pythons $(PYTHONS)) $(if $(RECORD),--record)

step-times: $(READY) ## published times of steps beside planner's model (COUNT: of each family), for docs/results/step-times.md
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/step_times.py $(if $(COUNT),--count $(COUNT))

CAMPAIGN := $(CURDIR):$(CURDIR)/benchmarks
gpu-truth: ## measure the matrix of cases on the GPU of this machine (torch, transformers, PyYAML are enough)
	PYTHONPATH=$(CAMPAIGN) $(PYTHON) -m gpu_truth --out $(or $(OUT),tests/data/gpu) --minutes $(or $(MINUTES),9) --jobs $(or $(JOBS),8)

FACTS := planner/hardware/measured
gpu-facts: $(READY) ## what was measured (OUT, default tests/data/gpu) beside paper, as facts; with the torch of the GPU (BIN)
	PYTHONPATH=$(CAMPAIGN) $(BIN)/python -m gpu_truth --out $(or $(OUT),tests/data/gpu)-paper --device paper:sm_90 --against $(or $(OUT),tests/data/gpu) --minutes 60 --jobs 2
	PYTHONPATH=$(CAMPAIGN) $(BIN)/python -m gpu_truth --out $(or $(OUT),tests/data/gpu) --against $(or $(OUT),tests/data/gpu)-paper --learn $(FACTS)

rehearse-gpu-truth: $(READY) ## the whole matrix at small sizes on this machine's CPU, then on paper beside it (OUT: where; half an hour)
	PYTHONPATH=$(CAMPAIGN) OMP_NUM_THREADS=1 $(BIN)/python -m gpu_truth --out $(or $(OUT),.rehearsal)/cpu --device cpu --small --minutes 60 --jobs 2
	PYTHONPATH=$(CAMPAIGN) OMP_NUM_THREADS=1 $(BIN)/python -m gpu_truth --out $(or $(OUT),.rehearsal)/paper --device paper:sm_90 --small --minutes 60 --jobs 2 --against $(or $(OUT),.rehearsal)/cpu

validate-gpu: $(READY) ## run JOB's step on the GPUs of this machine through Ray, beside its plan (GPU: catalog name)
	$(BIN)/planner validate $(or $(JOB),examples/gpt2-xl.yaml) $(if $(GPU),--gpu $(GPU))

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .rehearsal .venv-torch-* .venv-wheel .venv-readme .venv-clients .mypy_cache .ruff_cache .pytest_cache .hypothesis

# `make run` and `make test` set everything up on a machine that has only python3 and make.
PYTHON ?= python3
VENV ?= .venv
NEWEST ?= .venv-newest
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Hundreds of processes import the package: compiling it in each takes a third of a campaign's start-up.
unexport PYTHONDONTWRITEBYTECODE

# Measurements that do not ship, for `make refitted`.
REFERENCE ?= ../shared/reference
# Tests of what must hold whatever is killed, damaged or typed; those of acceptance are among them.
ATTACKS := $(addprefix tests/, workflow/test_campaign_workflow.py cli/test_fuzzed_inputs.py cli/test_absurd_numbers.py \
	cli/test_bad_inputs.py cli/test_fork_server.py artifacts verify plans/test_check_stage.py plans/test_plan_outputs.py \
	export/test_exports.py partition/test_trace_cache.py report/test_vega.py device/test_claims.py launch/test_watch.py \
	launch/test_restarts.py training/test_checkpoint.py training/test_rank_failures.py training/test_training_stage.py)
.DEFAULT_GOAL := help
.PHONY: help run test tests newest lint format docs bench-pipeline bench-search refitted attack acceptance clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

run: $(VENV)/run.stamp ## set up, plan the default workload, say what the plan saves and where it is
	@snakemake

# Beside the tests, whose collection and mypy keep one core busy each.
test: $(VENV)/test.stamp ## set up, check the code, run all tests
	$(MAKE) --no-print-directory --jobs 2 lint tests

# Tests of ranks, signals and clusters wait for others: on two cores three more workers compute meanwhile.
tests: $(VENV)/test.stamp
	pytest -n 5 --dist loadfile --no-loadscope-reorder

newest: $(NEWEST)/test.stamp ## test adapters and runtime with the newest PyTorch that is permitted, in an environment of its own
	PATH="$(CURDIR)/$(NEWEST)/bin:$$PATH" pytest -n 2 --dist loadfile tests/adapters tests/runtime

lint: $(VENV)/test.stamp ## ruff, mypy, import-linter, snakefmt, snakemake --lint
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	snakefmt --check Snakefile workflow
	snakemake --lint

format: $(VENV)/test.stamp ## format the code
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow

docs: $(VENV)/test.stamp ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 mkdocs build --quiet
	@echo "$(CURDIR)/site/index.html"

bench-pipeline: $(VENV)/bench.stamp ## compare the solver of iteration frontiers with lowtime (minutes)
	python benchmarks/pipeline.py

bench-search: $(VENV)/bench.stamp ## compare strategies of the search on simulated partitions (under 20 minutes on 2 cores)
	python benchmarks/search.py

# Errors of dense models in fp8 are of fits to the rows of other models in bf16, so the profile is fitted anew as well.
refitted: $(VENV)/run.stamp ## after GPU files were changed: software, errors, pictures and tables that depend on them (20 CPU minutes)
	if [ -f $(REFERENCE)/fp8_iterations.csv ]; then for software in llm-foundry megatron-core; do \
	kareus fit --software $$software --reference kareus/evidence/data/training_iterations.csv.gz $(REFERENCE)/fp8_iterations.csv \
	--errors kareus/prediction/data/iteration_errors.csv --output config/software/$$software.yaml --force || exit; done; fi
	kareus fit --software megatron-2022 --reference kareus/evidence/data/training_iterations.csv.gz \
	--errors kareus/prediction/data/iteration_errors.csv --output config/software/megatron-2022.yaml --force
	if [ -f $(REFERENCE)/moe_iterations.csv ]; then \
	kareus fit --software megatron-core --reference $(REFERENCE)/moe_iterations.csv --errors kareus/prediction/data/iteration_errors.csv; fi
	python benchmarks/kernel_uncertainty.py --write
	python benchmarks/fidelity_tables.py --write
	python benchmarks/fidelity_pictures.py $(wildcard $(REFERENCE)/a100_planned_frontiers.csv $(REFERENCE)/paper_rows.csv)
	python benchmarks/trainers.py --write
	if [ -f $(REFERENCE)/expert_sm_allocations.csv ]; then \
	python benchmarks/expert_allocations.py $(REFERENCE)/expert_sm_allocations.csv --write; fi

attack: $(VENV)/test.stamp ## attack everything: kills, damage, hostile input, drawn anew each time (an hour)
	pytest -n 2 --dist loadfile --no-loadscope-reorder --hypothesis-profile=exploring -m "acceptance or not acceptance" $(ATTACKS)

acceptance: $(VENV)/bench.stamp $(VENV)/test.stamp ## measure what is promised of whole runs: campaigns, kills, a clone, attacks, the benchmarks (over 3 hours)
	python benchmarks/pipeline.py
	python benchmarks/search.py --quick
	python benchmarks/engine.py
	python benchmarks/adapters.py
	python benchmarks/acceptance.py
	pytest -n 2 --dist loadfile --no-loadscope-reorder --hypothesis-profile=exploring
	pytest -m acceptance

clean: ## remove the environment and the caches, not the results (and .snakemake, which says what they were made from)
	find kareus snakemake_logger_plugin_kareus tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
	rm -rf $(VENV) $(NEWEST) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info

# Without compiling, which pip does on one core, 345 MB of it: Python compiles what it imports.
$(VENV)/run.stamp: pyproject.toml constraints.txt
	@echo "installing into $(VENV): a minute or two, without output"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable .
	touch $@

# All that a run needs as well: one installation instead of two on a fresh clone. Compiled on all cores before the tests,
# which take warnings of the compiler for errors; some packages have files for other Pythons, which cannot be compiled.
$(VENV)/test.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[test]'
	$(BIN)/python -W ignore -m compileall -qq -j 0 $(VENV)/lib || true
	touch $(VENV)/run.stamp $@

# All but PyTorch and what comes with it is as in the usual environment.
$(NEWEST)/test.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(NEWEST)
	grep --invert-match --extended-regexp '^(torch|triton)==' constraints.txt > $(NEWEST)/constraints.txt
	$(NEWEST)/bin/pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
	--constraint $(NEWEST)/constraints.txt --editable '.[test]'
	touch $@

$(VENV)/bench.stamp: $(VENV)/run.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	touch $@

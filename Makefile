# The project's verbs. `make` lists ten of them, and `make help-all` all.

# Which one makes the environment, instead of the first on PATH that can.
PYTHON :=
VENV := $(or $(POSENC_VENV),.venv)
BIN := "$(VENV)"/bin
MODEL := demo
CONFIG ?=
PORT :=
ARGS ?=

# timed NAME, COMMAND: says what runs, runs it, says how long it took, and keeps its exit status.
define timed
@echo '$(1): ...'; start=$$(date +%s); $(2); status=$$?; \
took=$$(( $$(date +%s) - start )); \
printf '%s: %s, %dm%02ds\n' "$(1)" "$$([ $$status -eq 0 ] && echo passed || echo "FAILED ($$status)")" \
	$$(( took / 60 )) $$(( took % 60 )); \
exit $$status
endef

# These two choose the environment; the server would take them for misspelt settings of its own.
unexport POSENC_DEVICE POSENC_VENV
MAKE_ENVIRONMENT := POSENC_DEVICE='$(POSENC_DEVICE)' POSENC_VENV='$(POSENC_VENV)' PYTHON='$(PYTHON)' sh deploy/environment.sh

# Resolved for the oldest Python, and for the oldest Linux that has wheels of everything: newer ones take the same
# releases. torch is left to vLLM, which names it to the last digit, and setuptools too, which it names by the Python.
COMPILE = UV_CUSTOM_COMPILE_COMMAND='make constraints' $(or $(shell command -v uv),$(BIN)/uv) pip compile --quiet --upgrade \
	pyproject.toml --extra dev --override deploy/companions.txt --python-version 3.11 \
	--python-platform x86_64-manylinux_2_31 --only-binary :all: --no-annotate \
	--no-emit-package torch --no-emit-package setuptools $(ARGS)
# Where torch for the CPU is read from: --find-links DIR, if a mirror has it.
CPU_TORCH := --extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match

# Material for MkDocs tells its readers of its successor otherwise, at every build.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Hundreds of processes import the same modules, and would compile them anew where the shell wants no bytecode.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# -v names each test as it begins: most take seconds, some a minute. To read the tests of other folders takes longer.
ENGINE_TESTS = $(PYTEST) -v -rsfE -n auto --dist loadfile --no-loadscope-reorder --timeout 900 tests/engine

.DEFAULT_GOAL := help
# Test runs follow each other even under -j: engines and the fast tests together would starve each other. Tests run in
# the order of their files: by size, the default, the longest would come last.
.NOTPARALLEL:
.PHONY: help help-all setup environment constraints fuzz soak serve test test-all test-fast test-promises test-slow test-compiled test-engine test-release tools test-gpu test-page test-clients newcomer faults check docs format matrix bench bench-scheduler bench-budget bench-gpu accuracy growth counting picture screenshots architectures combinations routes train-demo train-counting zoo lengths clean clean-env

# `## ` begins what make says of a verb, and `#: ` what make help-all says beside it.
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  make help-all lists the others.'

help-all:
	@awk -F ':.*#[#:] ' '/^[a-z-]+:.*#[#:] /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  POSENC_DEVICE=cpu|cuda chooses the device instead of detecting it. POSENC_VENV=DIR is a folder instead of .venv.'

setup: ## make the environment in .venv (a second run does nothing)
	@$(MAKE_ENVIRONMENT)

environment:
	@$(MAKE_ENVIRONMENT) --quiet

# Without this bound cuda-python would be one for CUDA 12, which lets the newest cuda-bindings in; torch brings CUDA 13.
# The environment is no prerequisite: it cannot be made while pins contradict pyproject.toml. What it left of uv will do.
constraints: #: pin the newest releases that work together, for `make setup`: CPU_TORCH=... ARGS=...
	@$(COMPILE) --extra cpu $(CPU_TORCH) --output-file deploy/constraints-cpu.txt
	@echo 'cuda-python>=13' | $(COMPILE) - --extra cuda --output-file deploy/constraints-cuda.txt

# The server imports everything itself: no trial before.
serve: ## serve the demo model, or MODEL=smollm2, or CONFIG=configs/demo.yaml; PORT=8001
	@$(MAKE_ENVIRONMENT) --quiet --no-trial
	@$(BIN)/posenc serve $(if $(CONFIG),--config $(CONFIG),$(MODEL))$(if $(PORT), --port $(PORT))

test: test-fast test-promises ## the fast tests, then an engine test for each promise of the docs

# Each run reads its tests and imports vLLM: all that start an engine are one run, and those that start none are two.
test-all: test-fast test-slow test-engine ## every test, the fast ones first, but those of a release

test-fast: environment #: tests that start no engine and take no seconds: ARGS=...
	$(call timed,fast tests,$(PYTEST) -m "not engine and not slow and not compiled and not release" -rsfE -n 2 --dist loadfile --no-loadscope-reorder $(ARGS))

test-promises: environment #: an engine test for each promise of the docs: ARGS=...
	$(call timed,promises,$(ENGINE_TESTS) -m "engine and promise" $(ARGS))

test-slow: environment #: kernels interpreted and compiled, our commands as processes, planted faults: ARGS=...
	$(call timed,slow tests,$(PYTEST) -m "(slow or compiled) and not release" -rsfE -n 2 --dist loadfile $(ARGS))

test-compiled: environment #: of the slow tests, kernels as Triton compiles them for an H100, inspected and run on the CPU: ARGS=...
	$(call timed,compiled kernels,$(PYTEST) -m "compiled and not release" -rsfE -n 2 --dist loadfile $(ARGS))

test-engine: environment #: tests that start a vLLM engine, those of the promises among them: ARGS=...
	$(call timed,engine tests,$(ENGINE_TESTS) -m "engine and not release" $(ARGS))

test-release: environment #: what is left for a release, when .ci/run has passed: ARGS=...
	$(call timed,tests of a release,$(PYTEST) -v -rsfE -n auto --dist loadfile --no-loadscope-reorder --timeout 900 -m release $(ARGS))

tools: environment #: install Helm and promtool beside the environment, for tests of deploy/ that are otherwise skipped
	@$(BIN)/python -m tests.deploy.tools

test-gpu: environment ## kernels on an NVIDIA GPU, then the engine tests there: ARGS=...
	$(call timed,kernels on the GPU,$(BIN)/python -m pytest -m "gpu and not engine" -rs $(ARGS))
	$(call timed,engine tests,$(BIN)/python -m pytest -m engine -rs --timeout 900 $(ARGS))

test-page: environment #: the page in Chromium, without an engine and over the demo: ARGS=...
	$(call timed,page,OMP_NUM_THREADS=1 $(BIN)/python -m pytest -v -rs --timeout 900 tests/page tests/engine/test_start_page.py $(ARGS))

test-clients: environment #: clients of others, each in an environment of its own, against our server: ARGS="LiteLLM"
	$(call timed,clients,$(BIN)/python -m tests.clients $(ARGS))

matrix: environment #: test every supported vLLM, each in an environment of its own: ARGS="0.32.0 --engine"
	$(call timed,matrix,$(BIN)/python -m tests.matrix $(ARGS))

check: environment ## lint, formatting, types, import rules and docs
	$(call timed,check,failed=0; \
	$(BIN)/ruff check . || failed=1; \
	$(BIN)/ruff format --check . || failed=1; \
	$(BIN)/mypy --strict || failed=1; \
	$(BIN)/lint-imports || failed=1; \
	$(MKDOCS) || failed=1; \
	[ $$failed -eq 0 ])

docs: environment ## build the pages of docs into site/, warnings are errors
	@$(MKDOCS) $(ARGS)
	@echo 'open $(CURDIR)/site/index.html'

format: environment #: rewrite the sources the way `make check` wants them
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: environment ## measure speed, the cost of crossings, and attention: ARGS=... UNSCALED_ARGS=... CROSSING_ARGS=... ATTENTION_ARGS=... READ_TIME_ARGS=...
	@$(BIN)/python -m tests.benchmarks $(ARGS)
	@$(BIN)/python -m tests.benchmarks --against unscaled --prefill-tokens 480 --decode-tokens 96 $(UNSCALED_ARGS)
	@$(BIN)/python -m tests.benchmarks.crossings $(CROSSING_ARGS)
	@$(BIN)/python -m tests.benchmarks.attention $(ATTENTION_ARGS)
	@$(BIN)/python -m tests.benchmarks.read_time $(READ_TIME_ARGS)

bench-scheduler: environment #: measure the time that Posenc adds to a scheduler step, without a model: ARGS=...
	@OMP_NUM_THREADS=1 VLLM_LOGGING_LEVEL=ERROR $(BIN)/python -m tests.benchmarks.scheduler $(ARGS)

bench-budget: environment #: simulate budgets for the re-rotation before a step, without a model: ARGS=...
	@OMP_NUM_THREADS=1 VLLM_LOGGING_LEVEL=ERROR $(BIN)/python -m tests.benchmarks.budget $(ARGS)

bench-gpu: environment #: measure kernels and the engine on an NVIDIA GPU: ARGS=... ENGINE_ARGS=... (--rehearse on the CPU)
	@$(BIN)/python -m tests.benchmarks.gpu $(ARGS)
	@$(BIN)/python -m tests.benchmarks.gpu_engine $(ENGINE_ARGS)

fuzz: environment #: send mutated requests to a server, ARGS="--requests 10000"
	@$(BIN)/python -m tests.fuzz $(ARGS)

soak: environment #: load a server with 5,000 requests, and look at what is left of them: ARGS=...
	@$(BIN)/python -m tests.soak $(ARGS)

accuracy: environment ## measure answers beyond the trained length: ARGS=...
	@$(BIN)/python -m tests.benchmarks.accuracy $(ARGS)

growth: environment #: measure answers of requests that outgrew their scale: ARGS=...
	@$(BIN)/python -m tests.benchmarks.growth $(ARGS)

counting: environment #: measure each position encoding on the counting task: ARGS=...
	@$(BIN)/python -m tests.benchmarks.counting $(ARGS)

lengths: environment #: measure each position encoding beyond the trained length: ARGS=...
	@$(BIN)/python -m tests.benchmarks.lengths $(ARGS)

newcomer: environment #: walk through a newcomer's first hour in a fresh clone, and print seconds: ARGS="--short"
	@$(BIN)/python -m tests.newcomer $(ARGS)

faults: environment #: kill, freeze, starve and damage servers, and print what their clients saw: ARGS=...
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.engine.faults $(ARGS)

picture: environment #: draw the picture of README and docs
	@$(BIN)/python -m tests.benchmarks.picture $(ARGS)

screenshots: environment #: take the pictures of the page, with Chromium: ARGS=...
	@$(BIN)/python -m tests.page.screenshots $(ARGS)

architectures: environment #: write docs/architectures.md from the installed vLLM and unpacked ones: ARGS="FOLDER ..."
	@$(BIN)/python -m posenc_runtime.vllm_adapter.checkpoint.model_code $(ARGS) > docs/architectures.md.new
	@mv docs/architectures.md.new docs/architectures.md

combinations: environment #: write the tables of features in docs/limits.md from what start-up refuses
	@$(BIN)/python -m tests.combinations

routes: environment #: write the table of routes in docs/security.md from a running server
	@$(BIN)/python -m tests.engine.route_table

train-demo: environment #: train the demo checkpoint again: ARGS=...
	@$(BIN)/python -m posenc_runtime.zoo.train $(ARGS)

train-counting: environment #: train a decoder on the counting task: ARGS="--encoding cope --out DIR"
	@$(BIN)/python -m posenc_runtime.zoo.counting.train $(ARGS)

zoo: environment #: train what the zoo of encodings lacks, and go on where it was: ARGS="--encoding rope --minutes 3"
	@$(BIN)/python -m posenc_runtime.zoo.lengths.train $(ARGS)

clean: ## remove caches and build leftovers, keep the environment
	rm -rf build site *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path "./$(VENV)/*" -prune -exec rm -rf {} +

clean-env: clean #: remove the environment too
	rm -rf "$(VENV)" "$(VENV).lock" .matrix .clients

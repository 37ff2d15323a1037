# Baton. `make help` lists the targets. No target reads standard input.

PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
SERVES := $(VENV)/.serves
STAMP := $(VENV)/.tests

# A service and its tests are dozens of processes: without bytecode, each compiles Ray and torch again (8 s).
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup serve check test test-vllm test-real real-pair bench gpu clients docs redis-server chromium

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 13

# vLLM's pins are not ours, so on a machine with GPUs the two have an environment of their own.
FOR_GPU := .venv-gpu

setup: $(if $(filter 1,$(GPU)),$(FOR_GPU)/.installed,$(SERVES)) ## make .venv with what serving needs (GPU=1: .venv-gpu with vLLM, 10 GB)

# Makes the environment $(1), after a check of what makes it.
define environment
@test -x $(1)/bin/python || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    || { echo "Baton needs Python 3.11 or newer: install it, or name one with PYTHON=" >&2; exit 1; }; \
	  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	    || { echo "Baton needs Python's venv module: apt-get install python3-venv" >&2; exit 1; }; \
	  $(PYTHON) -m venv $(1); }
endef

INSTALL := pyproject.toml requirements.lock deploy/install.py

$(SERVES): $(INSTALL)
	$(call environment,$(VENV))
	@$(BIN)/python deploy/install.py engine
	@touch $@

$(STAMP): $(INSTALL) | $(SERVES)
	@$(BIN)/python deploy/install.py dev
	@touch $@

$(FOR_GPU)/.installed: pyproject.toml requirements-vllm.lock deploy/install_vllm.sh
	$(call environment,$(FOR_GPU))
	@sh deploy/install_vllm.sh $(FOR_GPU)/bin/python
	@touch $@

serve: $(SERVES) ## serve the embedded pair at http://127.0.0.1:8000 (PORT= changes the port)
	@exec $(BIN)/baton serve --port $(PORT)

check: $(STAMP) ## lint and type-check
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# Tests of real processes share a machine with whatever else it does: in CI what fails is tried once more, and
# the summary names it (RERUN).
RERUNS := $(if $(CI),--reruns 1 -r fER)

# One process has the tests of services, which mostly wait for processes to start, and two have the others.
test: check redis-server chromium ## lint, type-check and run the whole test suite
	@$(BIN)/python -m pytest -n 3 $(RERUNS) tests --ignore=tests/lab

# vLLM's pins are not ours, so it has an environment of its own. An engine of vLLM's belongs to one
# event loop, so all tests share one.
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.installed

test-vllm: $(VLLM_STAMP) ## the tests over vLLM's build for CPUs, in .venv-vllm (made the first time: 3 minutes)
	@TORCHDYNAMO_DISABLE=1 OMP_WAIT_POLICY=PASSIVE $(VLLM)/bin/python -m pytest $(RERUNS) -m vllm \
	  -o asyncio_default_test_loop_scope=session tests

$(VLLM_STAMP): pyproject.toml requirements-vllm.lock
	$(call environment,$(VLLM))
	@$(VLLM)/bin/python -m pip install --no-deps --requirement requirements-vllm.lock
	@$(VLLM)/bin/python -m pip install --no-deps --no-build-isolation --editable .
	@touch $@

real-pair: $(STAMP) ## fetch pretrained models to build/real-pair (3 minutes, 7 GB in ~/.cache/baton; quick the second time)
	@$(BIN)/python -m tests.real.templates
	@$(BIN)/python -m deploy.lab.fetch

# Frameworks for agents have pins of their own.
AGENTS := .venv-agents
AGENTS_STAMP := $(AGENTS)/.installed

test-real: real-pair $(AGENTS_STAMP) ## a short set over pretrained models (10 minutes)
	@$(BIN)/python -m pytest $(RERUNS) -m real tests/real --durations=5

$(AGENTS_STAMP): requirements-agents.lock
	$(call environment,$(AGENTS))
	@$(AGENTS)/bin/python -m pip install --no-deps --requirement requirements-agents.lock
	@touch $@

# Rows are kept in build/bench, so an interrupted run continues. REAL=1 takes the pretrained pair, QUICK=1 shows in
# minutes whether all of it runs, ROWS= names some rows, FRESH=1 measures all of them again.
bench: $(STAMP) $(VLLM_STAMP) ## Baton beside transformers, vLLM and llama.cpp, in build/bench.json (half an hour)
	@$(BIN)/python -m deploy.lab.peers.run $(if $(REAL),--real) $(if $(QUICK),--quick) $(if $(ROWS),--rows $(ROWS)) \
	  $(if $(FRESH),--fresh)

# Rows are kept in build/gpu, so an interrupted run continues. ARGS="--device cpu" tries all of it over tiny models.
gpu: $(FOR_GPU)/.installed ## one GPU in 15 minutes: our engine, costs of calls, and recorded dialogues, in build/gpu
	@$(FOR_GPU)/bin/python -m deploy.cli.main lab gpu $(ARGS)

# Each client's environment is of its own. URL= names a running service instead of the embedded pair, ARGS= says more:
# make clients URL=http://127.0.0.1:8000 ARGS="--model large-only --checks tools --timeout 300 --out build/clients/tools.md"
# asks for calls of tools alone, of a service over the real pair (baton serve deploy/lab/real_pair.yaml).
CLIENTS := build/clients

clients: $(STAMP) ## every client and tool of others against the service, build/clients.md (20 minutes, 6 GB)
	$(call environment,$(CLIENTS))
	@test -x $(CLIENTS)/bin/uv || $(CLIENTS)/bin/pip install --quiet uv==0.13.9
	@$(BIN)/python -m tests.clients.run $(if $(URL),--url $(URL)) $(ARGS)

DOCS := .venv-docs

docs: $(DOCS)/.installed ## the pages as a site that can be searched, in build/docs; a broken link is an error
	@$(DOCS)/bin/python deploy/lab/site.py

$(DOCS)/.installed: requirements-docs.lock
	$(call environment,$(DOCS))
	@$(DOCS)/bin/python -m pip install --quiet --no-deps --requirement requirements-docs.lock
	@touch $@

# The tests want a real redis-server and Chromium. Installing them needs root; nothing is started by us.
redis-server chromium:
	@command -v $@ >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ]; then as=; elif sudo -n true 2>/dev/null; then as="sudo -n"; \
	else echo "the tests need $@: apt-get install $@" >&2; exit 1; fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	{ $$as apt-get update -qq && $$as apt-get install -y -qq --no-install-recommends $@; } >/dev/null 2>&1 </dev/null \
	  || { echo "the tests need $@: apt-get install $@" >&2; exit 1; }

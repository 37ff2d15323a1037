# Baton. `make help` lists the targets. No target reads standard input.

PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMMA := ,
SOURCES := orchestrator policies workers deploy tests

.DEFAULT_GOAL := help
.PHONY: help setup setup-gpu serve test test-services test-others test-lab test-vllm test-real real-pair check bench bench-real clients constrained constrained-real tool-tasks load load-real fuzz-api experiments-calibration results results-vllm bench-vllm test-real-vllm results-real regrade-real times-real calibrate-real gate-real gate-curve decoding decoding-real experiments screenshots alerts redis-server chromium

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 13

setup: $(STAMP) ## make .venv and install the pinned dependencies (quick the second time)

# vLLM's pins are not ours, so on a machine with GPUs the two have an environment of their own.
GPU := .venv-gpu

setup-gpu: $(GPU)/.installed ## make .venv-gpu with vLLM and Baton, for a machine with GPUs (10 GB)

$(GPU)/.installed: pyproject.toml requirements-vllm.lock deploy/install_vllm.sh
	@test -x $(GPU)/bin/python || $(PYTHON) -m venv $(GPU)
	@echo "Installing vLLM into $(GPU): many minutes the first time" >&2
	@sh deploy/install_vllm.sh $(GPU)/bin/python
	@touch $@

serve: $(STAMP) ## serve the embedded pair at http://127.0.0.1:8000 (PORT= changes the port)
	@exec $(BIN)/baton serve --port $(PORT)

# The tests of services mostly wait for processes to start, so the others run beside them.
SERVICES := $(addprefix tests/deploy/,cli launch service telemetry) tests/clients

# Tests of real processes share a machine with whatever else it does: in CI what fails is tried once more, and
# the summary names it (RERUN).
RERUNS := $(if $(CI),--reruns 1 -r fER)

test: check redis-server chromium ## lint, type-check and run the whole test suite (12 minutes)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line test-services test-others

test-services:
	@$(BIN)/python -m pytest $(RERUNS) $(SERVICES)

test-others:
	@$(BIN)/python -m pytest $(RERUNS) tests $(SERVICES:%=--ignore=%) --ignore=tests/lab

test-lab: $(STAMP) ## the tests of the laboratory (5 minutes)
	@$(BIN)/python -m pytest tests/lab

# vLLM's pins are not ours, so it has an environment of its own. An engine of vLLM's belongs to one
# event loop, so all tests share one.
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.installed

test-vllm: $(VLLM_STAMP) ## the tests over vLLM's build for CPUs, in .venv-vllm (made the first time: 3 minutes)
	@TORCHDYNAMO_DISABLE=1 OMP_WAIT_POLICY=PASSIVE $(VLLM)/bin/python -m pytest $(RERUNS) -m vllm \
	  -o asyncio_default_test_loop_scope=session tests

$(VLLM_STAMP): pyproject.toml requirements-vllm.lock
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip install --quiet --no-deps --requirement requirements-vllm.lock
	@$(VLLM)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
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
	@test -x $(AGENTS)/bin/python || $(PYTHON) -m venv $(AGENTS)
	@$(AGENTS)/bin/python -m pip install --quiet --no-deps --requirement requirements-agents.lock
	@touch $@

test-real-vllm: $(VLLM_STAMP) real-pair ## pretrained models over vLLM in the actor (10 minutes)
	@TORCHDYNAMO_DISABLE=1 OMP_WAIT_POLICY=PASSIVE $(VLLM)/bin/python -m pytest $(RERUNS) -m real tests/real/test_vllm.py

# Each client's environment is of its own. URL= names a running service instead of the embedded pair, ARGS= says more:
# make clients URL=http://127.0.0.1:8000 ARGS="--model large-only --checks tools --timeout 300 --out build/clients/tools.md"
# asks for calls of tools alone, of a service over the real pair (baton serve deploy/lab/real_pair.yaml).
CLIENTS := build/clients

clients: $(STAMP) ## every client and tool of others against the service, build/clients.md (20 minutes, 6 GB)
	@test -x $(CLIENTS)/bin/uv || { $(PYTHON) -m venv $(CLIENTS) && $(CLIENTS)/bin/pip install --quiet uv==0.13.9; }
	@$(BIN)/python -m tests.clients.run $(if $(URL),--url $(URL)) $(ARGS)

# Rows are kept in build/bench: a run that was broken off goes on where it stopped. QUICK=1 shows in
# minutes whether all of it runs; ROWS= names some rows, FRESH=1 measures them all again.
BENCH := $(BIN)/python -m deploy.lab.peers.run $(if $(QUICK),--quick) $(if $(ROWS),--rows $(ROWS)) $(if $(FRESH),--fresh)

bench: $(STAMP) $(VLLM_STAMP) ## what Baton costs beside transformers, vLLM and llama.cpp, build/bench-page.md (half an hour)
	@$(BENCH) $(if $(QUICK)$(ROWS),,--page build/bench-page.md)

bench-real: $(STAMP) $(VLLM_STAMP) real-pair ## servers on the pretrained models, build/bench-real.md (an hour)
	@$(BENCH) --real $(if $(QUICK)$(ROWS),,--rows decode,baton,chain,transformers,vllm,llama_cpp --page build/bench-real.md)

fuzz-api: $(STAMP) ## 10,000 requests made from /openapi.json, right and wrong ones (5 minutes)
	@FUZZ_CASES=15000 $(BIN)/python -m pytest -s tests/orchestrator/http/test_fuzz.py

experiments-calibration: $(STAMP) ## how often experiments claim what is not so, build/false-claims.md (5 minutes)
	@mkdir -p build
	@$(BIN)/python -m tests.lab.false_claims --out build/false-claims.md

constrained: $(STAMP) ## 1,000 answers of the embedded pair held to schemas, by method and policy (10 minutes)
	@$(BIN)/python -m tests.lab.constrained

tool-tasks: $(STAMP) real-pair ## 50 small tasks that take a tool, by policy, of pretrained models (an hour and a half; resumable)
	@$(BIN)/python -m tests.lab.tool_tasks $(if $(POLICIES),--policies $(POLICIES))

load: $(STAMP) ## requests a second by policy, 8 clients at once, of the embedded pair, build/load.md (10 minutes; resumable)
	@$(BIN)/python -m deploy.lab.load --pair embedded --page build/load.md

load-real: $(STAMP) real-pair ## requests a second by policy, 16 clients at once, of pretrained models, build/load-real.md (half an hour; resumable)
	@$(REAL_UNPACKED)
	@$(BIN)/python -m deploy.lab.load --pair real --page build/load-real.md
	@$(REAL_PACK)

constrained-real: $(STAMP) real-pair ## 100 of pretrained models (20 minutes)
	@$(BIN)/python -m tests.lab.constrained --pair real --answers 100 --max-tokens 120

check: $(STAMP) ## lint and type-check
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# Measured rows lie in build/results: an interrupted run goes on where it stopped. The seed is drawn anew for each
# release and written down before anything is measured with it.
RESULTS := build/results
PROBLEMS ?= 1000
SEED := 20261126
HELD_OUT := $(BIN)/baton eval --problems builtin:heldout --seed $(SEED)
SHARING := small-only,specreason,surprise-takeover,bild,learned-gate
# The fastest lossless method, on both sides.
SPECULATION := chain:gamma=16:threshold=0.6

results: $(STAMP) ## measure every policy on held-out problems, in build/results (an hour; URL= adds a service)
	@$(HELD_OUT) --limit $(PROBLEMS) --policies all --recordings $(RESULTS)/vanilla --json $(RESULTS)/vanilla.json
	@$(HELD_OUT) --limit $(PROBLEMS) --policies $(SHARING) --speculation $(SPECULATION) --rows $(RESULTS)/chain.jsonl --json $(RESULTS)/chain.json
	@$(HELD_OUT) --limit $$(($(PROBLEMS) / 4)) --budget 16,48 --policies small-only,specreason,bild,learned-gate \
	  --rows $(RESULTS)/budgets.jsonl --json $(RESULTS)/budgets.json
	@test -z "$(URL)" || $(HELD_OUT) --limit $(PROBLEMS) --url $(URL) --policies small-only,specreason,bild,learned-gate \
	  --rows $(RESULTS)/http.jsonl --json $(RESULTS)/http.json

# Correctness, no times: a busy machine is fine. The service is to be `baton serve` of ENGINES/vllm.yaml.
ENGINES := build/results-vllm

VLLM_FILE = mkdir -p $(ENGINES) && sed 's/^\( *\)device: cpu.*/&\n\1engine: vllm/' deploy/local.yaml >$(ENGINES)/vllm.yaml

results-vllm: $(STAMP) $(VLLM_STAMP) ## answers over vLLM beside those over our own engine, in build/results-vllm (15 minutes; URL= adds a service)
	@$(VLLM_FILE)
	@$(BIN)/baton eval --problems builtin:heldout --limit 100 --policies all --recordings $(ENGINES)/builtin
	@TORCHDYNAMO_DISABLE=1 $(VLLM)/bin/baton eval --problems builtin:heldout --limit 100 --policies all \
	  --config $(ENGINES)/vllm.yaml --recordings $(ENGINES)/vllm
	@test -z "$(URL)" || $(BIN)/baton eval --problems builtin:heldout --limit 100 --policies all \
	  --url $(URL) --concurrency 4 --rows $(ENGINES)/service/rows.jsonl

# `vllm serve` asks for a distribution named vllm, which the build for CPUs is not: its module does not.
VLLM_PORT := 8123
SERVER := --model workers/embedded/large --served-model-name large --host 127.0.0.1 --port $(VLLM_PORT) --dtype float32 \
  --enforce-eager --max-num-seqs 8 --block-size 32 --enable-prompt-tokens-details

bench-vllm: $(VLLM_STAMP) ## a call by our own engine, by vLLM in the worker, by vLLM over HTTP, in build/results-vllm (5 minutes)
	@$(VLLM_FILE); cp deploy/local.yaml $(ENGINES)/builtin.yaml
	@echo '{http_options: {host: 127.0.0.1}, applications: [{name: baton, route_prefix: /, import_path: "deploy.app:build", args: {workers:' \
	  '{small: {model: "embedded:small"}, large: {model: large, tokenizer: "embedded:large",' \
	  'url: "http://127.0.0.1:$(VLLM_PORT)/v1"}}}}]}' >$(ENGINES)/http.yaml
	@export TORCHDYNAMO_DISABLE=1 OMP_WAIT_POLICY=PASSIVE; \
	OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CPU_KVCACHE_SPACE=1 \
	  $(VLLM)/bin/python -m vllm.entrypoints.openai.api_server $(SERVER) >$(ENGINES)/server.log 2>&1 & server=$$!; \
	trap 'kill $$server; wait $$server' EXIT; \
	until curl -sf http://127.0.0.1:$(VLLM_PORT)/v1/models >/dev/null; do \
	  kill -0 $$server || { tail -5 $(ENGINES)/server.log; exit 1; }; sleep 1; done; \
	$(VLLM)/bin/baton lab bench-calls $(ENGINES)/builtin.yaml $(ENGINES)/vllm.yaml $(ENGINES)/http.yaml --repeats 8 \
	  --markdown $(ENGINES)/calls.md

# The same of the pretrained large model, in bfloat16 on two threads, as tokens a second.
REAL_LARGE := $(CURDIR)/build/real-pair/large
REAL_SERVER := --model $(REAL_LARGE) --served-model-name large --host 127.0.0.1 --port $(VLLM_PORT) --dtype bfloat16 \
  --enforce-eager --max-num-seqs 8 --max-model-len 2048
WORKERS = {http_options: {host: 127.0.0.1}, applications: [{name: baton, route_prefix: /, import_path: "deploy.app:build", \
  args: {workers: {small: {model: "embedded:small"}, large: $(1)}}}]}
LOADED := device: cpu, dtype: bfloat16, rows: 8, max_len: 2048, threads: 2

bench-vllm-real: $(VLLM_STAMP) real-pair ## tokens a second of the pretrained large model, 1 and 8 streams, three engines (10 minutes)
	@mkdir -p $(ENGINES)/real
	@echo '$(call WORKERS,{model: "$(REAL_LARGE)"$(COMMA) $(LOADED)})' >$(ENGINES)/real/builtin.yaml
	@echo '$(call WORKERS,{model: "$(REAL_LARGE)"$(COMMA) engine: vllm$(COMMA) $(LOADED)})' >$(ENGINES)/real/vllm.yaml
	@echo '$(call WORKERS,{model: large$(COMMA) tokenizer: "$(REAL_LARGE)"$(COMMA) url: "http://127.0.0.1:$(VLLM_PORT)/v1"})' >$(ENGINES)/real/http.yaml
	@export TORCHDYNAMO_DISABLE=1 OMP_WAIT_POLICY=PASSIVE; \
	OMP_NUM_THREADS=2 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CPU_KVCACHE_SPACE=1 \
	  $(VLLM)/bin/python -m vllm.entrypoints.openai.api_server $(REAL_SERVER) >$(ENGINES)/real/server.log 2>&1 & server=$$!; \
	trap 'kill $$server; wait $$server' EXIT; \
	until curl -sf http://127.0.0.1:$(VLLM_PORT)/v1/models >/dev/null; do \
	  kill -0 $$server || { tail -5 $(ENGINES)/real/server.log; exit 1; }; sleep 1; done; \
	$(VLLM)/bin/baton lab bench-calls $(ENGINES)/real/builtin.yaml $(ENGINES)/real/vllm.yaml $(ENGINES)/real/http.yaml --repeats 3 \
	  --streams 1,8 --markdown $(ENGINES)/real/streams.md

# Chosen before anything was measured: word problems, arithmetic and algebra of reasoning-gym, one seed
# for tuning (thresholds), another for figures, and questions as strangers write them. Coins span the
# shares of large tokens; the policies' parameters stand in the deployment file. Rows are kept: an
# interrupted run goes on where it stopped.
REAL := build/results-real
REAL_KEPT := docs/real-pair.tar.xz
# Kinds of which the large model solves more than the small one on the seed for tuning.
REAL_KINDS := gsm_symbolic chain_sum simple_equations
REAL_SEED := 20261201
REAL_TUNING := 20261202
REAL_SETS := builtin:strangers $(REAL_KINDS:%=gym:%:$(REAL_SEED))
REAL_PROBLEMS ?= 50
REAL_TIMED ?= 40
REAL_TOKENS ?= 400
REAL_METHOD ?= chain
REAL_POLICIES ?= small-only,large-only,specreason,bild,coin:large_probability=0.3
# Added later, beside large-only's first answers; rollback=0 keeps the large model's own text (greedy).
REAL_OTHERS ?= bild:rollback=0,bild:rollback=1.5
# Probabilities that 60, 40 and 25 % of the drafts exceed in the gate's reliability table (tuning seed).
REAL_GATED := learned-gate:risk=0:hopeless=0:correct_above=
REAL_CALIBRATED ?= surprise-takeover,cascade,route,$(REAL_GATED)0.25,$(REAL_GATED)0.45,speculative-thinking:begin=60:every_delimiter=true
# Added later, likewise.
REAL_HALF ?= $(REAL_GATED)0.1
REAL_TIMED_POLICIES ?= small-only,large-only,specreason,bild,bild:rollback=0
# Added later, beside large-only once more.
REAL_TIMED_MORE ?= bild:rollback=1.5
# What it costs in answers to accept drafts that are likely enough; its time: decoding-real.
REAL_RELAXED ?= relaxed:gamma=12:threshold=0.6:thoughts_only=false
# The policy that comes nearest to large-only is measured on more questions, so that its interval is narrower.
REAL_BEST ?= bild:rollback=1.5
REAL_FURTHER_SEED := 20261203
REAL_FURTHER ?= 70
REAL_ALL := gym:$(subst $() ,$(COMMA),$(REAL_KINDS)):$(REAL_SEED)
REAL_COSTS := r1-1.5b-32b-h100 qwen3-8b-32b-h100
REAL_EVAL = $(BIN)/baton eval --config deploy/lab/real_pair.yaml --max-tokens $(REAL_TOKENS)
REAL_BATCHED = $(subst pair.yaml,pair_batched.yaml,$(REAL_EVAL))

# $(call REAL_MORE,GROUP,POLICIES,N) measures more policies on the questions of a set, N at once.
REAL_MORE = $(REAL_BATCHED) --problems $$set --limit $(REAL_PROBLEMS) --concurrency $(3) --policies "$(2)" \
  --beside $(REAL)/$$name --recordings $(REAL)/$$name-$(1) || exit 1

REAL_UNPACKED = test -f $(REAL)/gsm_symbolic/rows.jsonl || { mkdir -p build && tar -xJf $(REAL_KEPT) -C build --skip-old-files; }
REAL_PACK = tar -cJf $(REAL_KEPT) -C build results-real
REAL_REGRADE = $(BIN)/python -m deploy.lab.regrade $(REAL)
REAL_PAGE = $(REAL_REGRADE) && $(BIN)/python -m deploy.lab.real_pair $(REAL) build/real-pair.md $(REAL_COSTS) && $(REAL_PACK)

results-real: $(STAMP) real-pair ## measure policies on pretrained models, write build/real-pair.md (many hours; resumable)
	@$(REAL_UNPACKED)
	@for set in $(REAL_SETS); do name=$${set#*:}; name=$${name%%:*}; \
	  $(REAL_BATCHED) --problems $$set --limit $(REAL_PROBLEMS) --concurrency 48 \
	    --policies "$(REAL_POLICIES)" --recordings $(REAL)/$$name || exit 1; \
	  $(call REAL_MORE,others,$(REAL_OTHERS),48); \
	  $(call REAL_MORE,calibrated,$(REAL_CALIBRATED),96); \
	  $(call REAL_MORE,gate,$(REAL_HALF),96); \
	  $(REAL_BATCHED) --problems $$set --limit $(REAL_PROBLEMS) --concurrency 48 --policies large-only \
	    --speculation $(REAL_RELAXED) --rows $(REAL)/relaxed-$$name/rows.jsonl || exit 1; \
	done
	@for kind in $(REAL_KINDS); do \
	  $(REAL_BATCHED) --problems gym:$$kind:$(REAL_FURTHER_SEED) --limit $(REAL_FURTHER) --concurrency 96 \
	    --policies "large-only,$(REAL_BEST)" --recordings $(REAL)/$$kind-further || exit 1; \
	done
	@$(REAL_EVAL) --problems $(REAL_ALL) --limit $(REAL_TIMED) \
	  --policies "$(REAL_TIMED_POLICIES)" --recordings $(REAL)/latency
	@$(REAL_EVAL) --problems $(REAL_ALL) --limit $(REAL_TIMED) \
	  --policies "large-only,$(REAL_TIMED_MORE)" --recordings $(REAL)/latency-more
	@$(REAL_EVAL) --problems $(REAL_ALL) --limit $(REAL_TIMED) \
	  --policies large-only --speculation $(REAL_METHOD) --rows $(REAL)/speculation/rows.jsonl
	@$(REAL_PAGE)

regrade-real: $(STAMP) ## grade the answers of build/real-pair.md again, without asking the models
	@$(REAL_UNPACKED)
	@$(REAL_PAGE)

# Where a pass over several tokens costs hardly more than one, speculation gains more than on the machine of the page.
REAL_TIMES ?= small-only,bild:rollback=1.5
REAL_TIMES_METHOD ?= chain:gamma=12:threshold=0.6
REAL_TIMES_LIMIT ?= 18
REAL_ELSEWHERE = $(REAL_EVAL) --problems $(REAL_ALL) --limit $(REAL_TIMES_LIMIT)

times-real: $(STAMP) real-pair ## wall times of the pretrained pair on another machine, a table of build/real-pair.md (35 minutes; NAME= is the machine's)
	@test -n "$(NAME)" || { echo "NAME= is to say what machine this is, as NAME=xeon-amx" >&2; exit 2; }
	@$(REAL_UNPACKED)
	@$(REAL_ELSEWHERE) --policies "large-only,$(REAL_TIMES)" --recordings $(REAL)/latency.$(NAME)
	@$(REAL_ELSEWHERE) --policies large-only \
	  --speculation $(REAL_TIMES_METHOD) --rows $(REAL)/speculation.$(NAME)/rows.jsonl
	@$(REAL_ELSEWHERE) --policies large-only \
	  --speculation $(REAL_RELAXED) --rows $(REAL)/relaxed.$(NAME)/rows.jsonl
	@$(REAL_PAGE)

REAL_CALIBRATION := deploy/lab/real_pair_calibration.json
REAL_CALIBRATE = $(BIN)/baton calibrate --config deploy/lab/real_pair_batched.yaml --limit 24 --concurrency 24 \
  --problems $(REAL_ALL:$(REAL_SEED)=$(REAL_TUNING)) --max-tokens $(REAL_TOKENS) --target-large-share 0.46 \
  --out build/real-calibration/pair.json

# A calibration keeps the policies of its file that it does not search. Ranges leave out where nothing is rejected.
calibrate-real: $(STAMP) real-pair ## thresholds of the pretrained pair, in deploy/lab/real_pair_calibration.json (20 minutes; resumable)
	@mkdir -p build/real-calibration
	@test -f build/real-calibration/pair.json || cp $(REAL_CALIBRATION) build/real-calibration/pair.json
	@$(REAL_CALIBRATE) --policy route --policy cascade
	@$(REAL_CALIBRATE) --policy surprise-takeover --range 2,12
	@cp build/real-calibration/pair.json $(REAL_CALIBRATION)

REAL_GATE := build/real-gate

gate-real: $(STAMP) real-pair ## learn a gate of the pretrained pair, in deploy/lab/real_pair_calibration.json (1.5 hours; resumable)
	@$(REAL_BATCHED) --problems $(REAL_ALL:$(REAL_SEED)=$(REAL_TUNING)) --limit 96 --concurrency 48 \
	  --policies specreason --recordings $(REAL_GATE)/recorded
	@$(BIN)/baton learn gate $(REAL_GATE)/recorded --out $(REAL_CALIBRATION) \
	  --plot $(REAL_GATE)/gate.png --concurrency 48 --config deploy/lab/real_pair_batched.yaml

# Nothing here is timed, so questions are asked side by side. Both seeds are for tuning; the largest size comes last.
CURVE := build/gate-curve
CURVE_SIZES ?= 200 1000 3000 5000
CURVE_PROBLEMS ?= 1000
CURVE_EVAL := $(BIN)/baton eval --problems builtin:dev --concurrency 8

gate-curve: $(STAMP) ## gates learned from more and more requests, in build/gate-curve (an hour; resumable)
	@$(CURVE_EVAL) --seed 20261127 --limit $(lastword $(CURVE_SIZES)) --policies specreason --recordings $(CURVE)/recorded
	@$(CURVE_EVAL) --seed 77 --limit $(CURVE_PROBLEMS) --policies specreason --recordings $(CURVE)/measured
	@for size in $(CURVE_SIZES); do \
	  $(BIN)/baton learn gate $(CURVE)/recorded --limit $$size --out $(CURVE)/gate.json --concurrency 8 || exit 1; \
	  cp $(CURVE)/gate.json $(CURVE)/$$size.json; \
	  sed "s|^\( *\)default: specreason.*|&\n\1calibration: $(CURDIR)/$(CURVE)/$$size.json|" deploy/local.yaml >$(CURVE)/$$size.yaml; \
	  $(CURVE_EVAL) --config $(CURVE)/$$size.yaml --seed 77 --limit $(CURVE_PROBLEMS) --policies specreason,learned-gate \
	    --beside $(CURVE)/measured --rows $(CURVE)/$$size.jsonl --json $(CURVE)/$$size.measured.json || exit 1; \
	done

# Heads of several seeds, for which there is no room here, take part where HEADS names their run folder.
DECODE := $(BIN)/baton lab bench-decode --threads 1
DECODED := build/decoding

decoding: $(STAMP) ## time token-level methods, write build/decoding (half an hour on a quiet machine)
	@mkdir -p $(DECODED)
	@$(DECODE) --prompts 16 --markdown $(DECODED)/pair.md
	@$(DECODE) --prompts 48 --rounds 2 --temperature 1 --draft embedded:draft \
	  --methods chain,spectr,recursive-s,recursive-c,greedy-multi,hf-assisted \
	  --markdown $(DECODED)/weak-draft.md
	@methods=chain:gamma=16:threshold=0.6; for delta in 0.1 0.5 0.9; do \
	  methods="$$methods,relaxed:gamma=16:threshold=0.6:delta=$$delta"; done; \
	for tokens in 48 128; do \
	  $(DECODE) --prompts 150 --rounds 1 --temperature 0 --max-new $$tokens --methods "$$methods" \
	    --markdown $(DECODED)/relaxed-$$tokens.md || exit 1; \
	done
	@methods=chain:gamma=6; for alpha in 0 0.05 0.1 0.2 0.3 0.5; do \
	  methods="$$methods,reflective:gamma=6:alpha=$$alpha"; done; \
	$(DECODE) --prompts 150 --rounds 1 --methods "$$methods" --markdown $(DECODED)/reflective.md
	@$(DECODE) --prompts 32 --rounds 2 --streams 1,4,16 --temperature 0 \
	  --methods chain:gamma=2,chain:gamma=6,auto --markdown $(DECODED)/streams.md
	@$(DECODE) --prompts 48 --rounds 1 --temperature 0 --dtype bfloat16 \
	  --methods chain:gamma=8,recursive-s:width=4:gamma=4,kangaroo,fspad,hf-assisted --markdown $(DECODED)/bfloat16.md
	@methods=; test -z "$(HEADS)" || { for shape in depth=6:nodes=12 depth=12:nodes=16; do for seed in 0 1 2; do \
	  methods="$$methods,fspad:head=$(HEADS)/fspad-$$seed:$$shape"; \
	  methods="$$methods,fspad:variant=eagle2:head=$(HEADS)/eagle2-$$seed:$$shape"; done; done; \
	$(DECODE) --prompts 100 --rounds 1 --draft none --methods "$${methods#,}" --markdown $(DECODED)/heads.md; }

REAL_DECODE := $(BIN)/baton lab bench-decode --model build/real-pair/large --draft build/real-pair/small \
  --problems gym:gsm_symbolic:$(REAL_TUNING) --prompts 4 --rounds 1
REAL_METHODS := chain:gamma=4,chain:gamma=7,chain:gamma=12:threshold=0.6,lookup,spectr:count=4:gamma=4,recursive-s:width=4:gamma=4,reflective:gamma=4:alpha=0.1,relaxed:gamma=12:threshold=0.6:thoughts_only=false

decoding-real: $(STAMP) real-pair ## time token-level methods on pretrained models, write build/decoding/real-pair-*.md (an hour)
	@mkdir -p $(DECODED)
	@$(REAL_DECODE) --dtype bfloat16 --temperature 0 --methods $(REAL_METHODS),hf-generate,hf-assisted \
	  --rows $(REAL)/decode-bfloat16.jsonl --markdown $(DECODED)/real-pair-bfloat16.md
	@$(REAL_DECODE) --dtype bfloat16 --temperature 1 --methods $(REAL_METHODS),hf-assisted:drafts=8 \
	  --rows $(REAL)/decode-sampled.jsonl --markdown $(DECODED)/real-pair-sampled.md
	@$(REAL_DECODE) --dtype int8 --temperature 0 --methods chain:gamma=2,chain:gamma=4,chain:gamma=12:threshold=0.6,hf-generate,hf-assisted \
	  --rows $(REAL)/decode-int8.jsonl --markdown $(DECODED)/real-pair-int8.md
	@$(BIN)/python -m deploy.lab.peers.llama_cpp_speed --markdown $(DECODED)/real-pair-llama-cpp.md
	@$(BIN)/baton lab bench-weights --model build/real-pair/large --dtypes bfloat16,int8 --limit 120

screenshots: $(STAMP) chromium ## pictures of the console in every state, in build/console (2 minutes)
	@$(BIN)/python -m tests.house.console_pictures

RULES := deploy/prometheus/alerts.yaml
MANIFEST := deploy/kubernetes/components/monitoring/alerts.yaml

alerts: ## write the PrometheusRule again, after a change of deploy/prometheus/alerts.yaml
	@{ printf '%s\n' '# Made from $(RULES) by `make alerts`: change that file.' \
	  'apiVersion: monitoring.coreos.com/v1' 'kind: PrometheusRule' 'metadata:' '  name: baton' \
	  'spec:'; sed -n '/^groups:/,$$p' $(RULES) | sed 's/^./  &/'; } >$(MANIFEST)

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "Baton needs Python 3.11 or newer: install it, or name one with PYTHON=" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Baton needs Python's venv module: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the pinned dependencies into $(VENV): minutes the first time" >&2
	@$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[dev]'
	@touch $@

# A service runs already: `make serve` in another terminal.
experiments: $(STAMP) ## an A/B test on a running service, deploy/lab/results (URL= names it)
	@set -e; failed=0; export BATON_URL=$(or $(URL),http://127.0.0.1:$(PORT)); \
	$(BIN)/baton experiment start deploy/experiments/thresholds.yaml; \
	$(BIN)/baton lab drive --problems builtin:heldout --limit 2000 --concurrency 8 --every 200 || failed=1; \
	$(BIN)/baton experiment report thresholds; \
	$(BIN)/baton experiment stop thresholds; exit $$failed

# The tests want a real redis-server and Chromium. Installing them needs root; nothing is started by us.
redis-server chromium:
	@command -v $@ >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ]; then as=; elif sudo -n true 2>/dev/null; then as="sudo -n"; \
	else echo "the tests need $@: apt-get install $@" >&2; exit 1; fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	{ $$as apt-get update -qq && $$as apt-get install -y -qq --no-install-recommends $@; } >/dev/null 2>&1 </dev/null \
	  || { echo "the tests need $@: apt-get install $@" >&2; exit 1; }

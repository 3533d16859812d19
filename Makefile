# fitrouter: `make help` lists the verbs. The first verb that needs it sets up .venv.
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
SOURCES := router evaluators dashboards integrations tests benchmarks examples
export HF_HUB_OFFLINE := 1
export TRANSFORMERS_OFFLINE := 1
export LITELLM_LOCAL_MODEL_COST_MAP := True

.DEFAULT_GOAL := help
.PHONY: help install demo test check format bench bench-acceptance bench-agents bench-crash bench-labs bench-matrix bench-policies bench-pool bench-reward \
	bench-replay bench-scorer bench-sweep bench-watch clean

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  \1\t/' | expand -t 20

install: $(VENV)/.installed ## make .venv with everything that the demo, the tests and the checks need

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "pip>=25.3"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[gateway,reward,int8,langchain,crewai,replay]" --group dev
	touch $@

demo: install ## simulated users and models over real HTTP; ARGS="--exit --json demo.json"
	$(BIN)/fitrouter demo $(ARGS)

test: install ## run the tests, JOBS=2 at a time; ARGS="tests/posterior/test_gaussian.py -k law"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

check: install ## lint, types, import layers
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: install ## rewrite the sources in the house style
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: install ## quick benchmarks, JSON on standard output
	$(BIN)/python -m benchmarks.stores.journal
	$(BIN)/python -m benchmarks.policies.decide

bench-acceptance: install ## 2,000 requests of the openai client against the recorded models
	$(BIN)/python -m benchmarks.gateway.acceptance $(ARGS)

bench-agents: install ## what each adapter costs a call, near and far, beside the frameworks' own clients
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.gateway.agents $(ARGS)

bench-crash: install ## 50 kills of the gateway under load
	$(BIN)/python -m benchmarks.gateway.crash $(ARGS)

bench-reward: install ## every development target of the reward models, in one table
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.scoring.reward --out docs/results/reward.json --table docs/results/reward_table.md $(ARGS)

bench-replay: install ## what replay says against what is true: intervals, labels, the gate, Open Bandit Data, speed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.replay.intervals --jobs 2 --json docs/results/replay_intervals.json $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.replay.coverage --json docs/results/replay_coverage.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.replay.gate --jobs 2 > docs/results/replay_gate.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.replay.obd --json docs/results/replay_obd.json $(ARGS)
	$(BIN)/python -m benchmarks.replay.speed

bench-scorer: install ## what an answer costs to score, beside the device's own limits
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.scoring.scorer $(ARGS)

bench-pool: install ## the personal pool: 20 seeds of every row and world
	$(BIN)/python -m benchmarks.simulation.personal_pool $(ARGS)

bench-policies: install ## speed and regret beside other bandit libraries, in an environment of the benchmark's own
	$(BIN)/python -m benchmarks.policies.libraries $(ARGS)

bench-matrix: install ## budgets beside ParetoBandit on its own matrix
	$(BIN)/python -m benchmarks.policies.matrix $(ARGS)

bench-labs: install ## late labels, newcomers, silent changes, prices, people
	$(BIN)/python -m benchmarks.simulation.labs $(ARGS)

bench-watch: install ## how often the watchers cry wolf, and the audit of 100,000 decisions
	$(BIN)/python -m benchmarks.monitors.watch $(ARGS)
	$(BIN)/python -m benchmarks.monitors.audit

bench-sweep: install ## the sweep that chose the defaults
	$(BIN)/python -m benchmarks.policies.sweep $(ARGS)

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

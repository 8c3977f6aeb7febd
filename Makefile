# One command for each job. Everything runs in .venv, which `make setup` builds from constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.bench-installed
# Four at a time, whatever the machine: tests start brokers, browsers and Spark of their own, and many of them wait for
# those. One file stays together, and the order is that of tests/conftest.py.
IN_PARALLEL := --numprocesses 4 --dist loadfile --no-loadscope-reorder
# Tests start hundreds of processes, and each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run demo examples test test-fast simulate chaos check format docs bench bench-report clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## build .venv with everything the project needs

.PHONY: test-tools
test-tools:
	@tools/system-packages strace
	@tools/system-packages chromium || echo "The tests of the dashboard in a browser will be skipped." >&2
	@tools/system-packages java=openjdk-17-jre-headless || echo "The tests with Spark will be skipped." >&2
	@command -v etcd >/dev/null || if tools/system-packages etcd=etcd-server; then \
	  { systemctl disable --now etcd || service etcd stop; } >/dev/null 2>&1 || true; \
	else echo "The tests with a real etcd will be skipped." >&2; fi
	@tools/system-packages faketime || echo "The chaos tests will leave out clock steps." >&2
	@tools/system-packages ip=iproute2 || echo "The chaos tests will leave out faults of the network." >&2

.PHONY: bench-tools
bench-tools: $(BENCH_STAMP)
	@tools/system-packages redis-server || echo "The benchmarks will leave Redis Streams out." >&2
	@command -v rabbitmq-server >/dev/null || if tools/system-packages rabbitmq-server; then \
	  { systemctl disable --now rabbitmq-server || service rabbitmq-server stop; epmd -kill; } >/dev/null 2>&1 || true; \
	else echo "The benchmarks will leave RabbitMQ out." >&2; fi
	@tools/system-packages java=openjdk-17-jre-headless || echo "The benchmarks will leave Spark out." >&2

$(BENCH_STAMP): $(STAMP)
	@$(BIN)/pip install --quiet --editable '.[bench]' --constraint constraints.txt && touch $@ || \
	  echo "The clients of other brokers could not be installed: the benchmarks will leave them out." >&2

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "penstock needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]' --constraint constraints.txt
	@touch $@

run: setup  ## start the broker on this machine, with its data in ./data
	$(BIN)/penstock serve --data data

demo: setup  ## a small shop on a broker of its own: orders, a poison message, kill -9, traces, replay
	$(BIN)/penstock demo

examples: setup  ## all examples: queue, order, delays, dead letters, traces, a killed process, a damaged log
	$(BIN)/python examples/all.py

test: setup test-tools  ## all tests
	$(BIN)/pytest $(IN_PARALLEL)

test-fast: setup  ## the tests of daily work: no Spark, browsers, simulations, faults, benchmarks
	$(BIN)/pytest $(IN_PARALLEL) --fast

SEEDS ?= 1000
simulate: setup  ## SEEDS=1000 SECONDS=20: clusters in simulation, with faults; each failure with the command to replay it
	$(BIN)/python -m tests.simulation.world 0 $(SEEDS) --seconds $(or $(SECONDS),20) --jobs $$(nproc)

ROUNDS ?= 40
FIRST ?= 1000
chaos: setup test-tools  ## ROUNDS=40 SECONDS=60: real clusters under load and faults of all kinds, each round checked
	$(BIN)/python -m tests.chaos $(FIRST) $$(($(FIRST) + $(ROUNDS))) --seconds $(or $(SECONDS),60)

check: setup test-tools  ## formatting, lint, types, layers, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest $(IN_PARALLEL)

format: setup  ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup  ## build the documentation as HTML in build/docs, and check its links
	$(BIN)/python tools/docs.py

bench: setup bench-tools  ## the benchmarks, each figure beside its physical limit, or beside other brokers
	$(BIN)/python benchmarks/run.py

bench-report: setup $(BENCH_STAMP)  ## docs/benchmarks.md and its plots, from what `make bench` left in bench-results
	$(BIN)/python benchmarks/report.py

clean:  ## remove .venv and everything generated
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache bench-results

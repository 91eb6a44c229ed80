# `make help` lists what there is. Every target builds what it needs first; all may be repeated and run side by side.
.DEFAULT_GOAL := help
.PHONY: help demo dev docs test check nightly pythons chaos bench clean distclean lock lint types quick slow
SHELL := /bin/sh
BIN := .venv/bin
ENV := .venv/.built
PYTEST := $(BIN)/python -m pytest
ARGS ?=
EXAMPLES ?= penstock

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

demo: $(ENV) ## run the example application from end to end; `make demo ARGS=--once` ends by itself
	$(BIN)/python -m examples.flight_board.demo $(ARGS)

dev: $(ENV) ## Dagster's UI on the declared applications, with the embedded Kafka
	$(BIN)/penstock dev $(ARGS)

docs: $(ENV) ## the documentation as a site, build/site/index.html; a dead link is an error
	$(BIN)/sphinx-build -W --keep-going -q -c docs -d build/doctrees . build/site

test: check docs pythons slow ## `check`, the links of the docs, the quick tests on the other Pythons, then those on a real broker, Dagster, Spark, a browser, with kill -9

check: $(ENV) ## style, types, import direction and the quick tests; about 2 minutes on two cores
	$(MAKE) -j2 --no-print-directory lint types quick

lint: $(ENV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(ENV)
	$(BIN)/mypy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

quick: $(ENV)
	$(PYTEST) -n 3 --hypothesis-profile=$(EXAMPLES) tests/unit tests/contracts tests/cases tests/simulation tests/formats $(ARGS)

pythons: $(ENV) ## the quick tests on the other Pythons that are claimed and here; says which are not
	$(BIN)/python scripts/quick-tests-on-every-python $(ARGS)

slow: $(ENV) check
	$(BIN)/python scripts/slow-tests $(ARGS)

nightly: export EXAMPLES := thorough
nightly: quick ## what takes too long for `test`: fleets, clusters, Dagster's processes over minutes; all examples of property tests, other inputs for Kafka Streams
	$(BIN)/python scripts/slow-tests --nightly $(ARGS)
	PENSTOCK_DIFFERENTIAL_INPUTS=12 $(PYTEST) tests/differential

chaos: $(ENV) ## kill an application and its broker again and again, and look at what is left; a fleet of them: `make chaos ARGS=fleet`; three brokers: ARGS=cluster
	$(BIN)/python -m tests.chaos $(ARGS)

bench: $(ENV) ## measure the engine against the same by hand; also ARGS=restore, commits, checkpoints, gaps, history, latency, many, quotas, workers
	$(BIN)/python -m benchmarks $(ARGS)

lock: $(ENV) ## write requirements.txt: `all` and the group `dev` of pyproject.toml (names no index, so it fits any mirror)
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-header --no-emit-index-url \
		--quiet --extra all --group dev --output-file requirements.txt pyproject.toml

clean: ## stop instances and the embedded Kafka, and delete what was built and kept, but for .venv
	@if [ -d .penstock ]; then $(BIN)/python -m examples.flight_board.demo --clear && \
		$(BIN)/penstock stop --kill --timeout 20 && $(BIN)/penstock broker stop; fi
	rm -rf .penstock .dagster build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis \
		spark-warehouse test-artefacts
	find . -name __pycache__ -not -path './.venv/*' -not -path './.pythons/*' -prune -exec rm -rf {} +

distclean: clean ## `clean`, and delete .venv and the environments of other Pythons
	rm -rf .venv .pythons

$(ENV): requirements.txt scripts/build-env
	@scripts/build-env
	@touch $@

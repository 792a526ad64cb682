# Every command of the project; `make help` lists them. Each sets up first what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
BIN := .venv/bin
PYTEST := $(BIN)/pytest
WORKERS ?= 6
SECONDS ?= 600
ROUNDS ?= 10
LOAD ?= 8
OURS := decoders,demo,formats,kafka,lake,postgres,sinks,spark,streams,transforms,types,yugabyte
TYPED := framework/src plugins/decoders/src plugins/postgres/src plugins/types/src plugins/kafka/src plugins/lake/src plugins/streams/src plugins/yugabyte/src \
  plugins/sinks/src plugins/formats/src plugins/transforms/src plugins/spark/src plugins/testing/src plugins/demo/src benchmarks scripts tests/harness/servers tests/differential

.PHONY: help setup setup-test demo test test-all check fmt test-unit flaky mutants test-times test-integration test-fault snapshot-kills s3-trial conformance \
  differential differential-nightly fuzz hunt soak golden bench docs site dist audit clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 22

setup: ## virtual environment, Java: what the demo needs
	@scripts/setup demo

setup-test: ## and PostgreSQL with output plugins, Kafka, a registry: what the tests need
	@scripts/setup test

demo: setup ## PostgreSQL to live Spark tables on real data, compared row by row at the end
	@$(BIN)/waltap demo

# A clone has no bytecode yet: it is made beside mypy, or each worker would make all of it.
test: setup-test ## style, types, imports and every test that a green run needs
	@$(PYTEST) -qq --collect-only -p no:cacheprovider >/dev/null 2>&1 & $(MAKE) --no-print-directory check; checked=$$?; wait; exit $$checked
	@$(PYTEST) -n $(WORKERS) --dist loadgroup -m "not exhaustive"

test-all: setup-test ## and what is slow or rare: full matrices, long kills, generated cases; before an issue is done
	@$(MAKE) --no-print-directory check
	@WALTAP_FUZZ_INPUTS=20000 $(PYTEST) -n $(WORKERS) --dist loadgroup

flaky: setup-test ## run the tests ROUNDS=10 times in random order under LOAD=8; list what did not always pass
	@$(BIN)/python -m tests.harness.tiers.flaky --rounds $(ROUNDS) --load $(LOAD) --workers $(WORKERS) -m "not exhaustive"

mutants: setup-test ## plant each fault of tests/mutants, run the tests that cover it; MUTANTS="assembler-*"
	@$(BIN)/python -m tests.mutants $(MUTANTS)

test-times: setup-test ## run each tier, and write its tests and minutes into CONTRIBUTING.md; TIERS="unit test"
	@$(BIN)/python -m tests.harness.tiers.times --workers $(WORKERS) $(TIERS)

check: setup ## ruff, formatting, mypy --strict, import contracts, names and prose
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy $(TYPED)
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m scripts.prose

fmt: setup ## format, and fix what ruff can fix
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

test-unit: setup ## unit and property tests: no server, seconds
	@$(PYTEST) -n 2 -m "not exhaustive" tests/unit tests/property

conformance: setup-test ## the conformance kit on every plugin of ours
	@$(PYTEST) tests/conformance

test-integration: setup-test ## against real servers
	@$(PYTEST) -n $(WORKERS) tests/integration

test-fault: setup-test ## kills, restarts, cut links
	@$(PYTEST) -n $(WORKERS) tests/fault

snapshot-kills: setup-test ## 200 snapshots, killed at random points with writers beside them
	@WALTAP_SNAPSHOT_KILLS=100 $(PYTEST) -n $(WORKERS) tests/integration/test_snapshot_resumed.py -k random

s3-trial: setup-test ## files and a change log in S3, 5 % of requests failing, KILLS=50 of the engine
	@WALTAP_TEST_S3_KILLS=$(KILLS) $(PYTEST) -s tests/fault/test_object_store_kill.py

differential: setup-test ## against Debezium: its recorded events, and 20 generated cases live
	@$(PYTEST) -n $(WORKERS) --dist worksteal tests/differential

differential-nightly: setup-test ## 200 generated cases, and the recordings themselves against Debezium
	@$(BIN)/python -m tests.differential check --engine debezium
	@WALTAP_GENERATED_CASES=200 $(PYTEST) tests/differential

fuzz: setup ## damaged input through every decoder, 200,000 each; 5,000 odd command lines
	@WALTAP_FUZZ_INPUTS=200000 WALTAP_FUZZ_COMMANDS=5000 $(PYTEST) -n $(WORKERS) tests/fuzz

hunt: setup-test ## random work on a real server under a judge, for SECONDS=600; failing seeds repeat
	@$(BIN)/python -m tests.hunt --seconds $(SECONDS)

soak: setup-test ## 20 tables under writers, snapshots on demand and kills, for SECONDS=600
	@$(BIN)/python -m tests.hunt.soak --seconds $(SECONDS)

golden: setup-test ## record the corpora anew with the Debezium peer; review the difference as code
	@$(BIN)/python -m tests.differential record
	@$(BIN)/python -m tests.differential check
	@$(BIN)/python -m tests.differential.connect_transforms record

bench: setup-test ## waltap, the server's limit and Debezium in one run; writes benchmarks/results/
	@$(BIN)/python -m benchmarks all

docs: setup ## write the generated pages under docs/reference again
	@WALTAP_PLUGINS=$(OURS) $(BIN)/waltap docs
	@$(BIN)/python -m tests.differential docs

site: setup ## build the documentation as a site, build/site/index.html; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q
	@echo build/site/index.html

dist: setup ## wheels and sdists of every distribution, the same bytes each time, their SBOM and hashes: dist/
	@$(BIN)/python -m scripts.distributions build

audit: dist ## known vulnerabilities of what a release may install, by the index, or ADVISORIES=folder
ifdef ADVISORIES
	@$(BIN)/python -m scripts.distributions audit --advisories $(ADVISORIES)
else
	@[ -x .venv-audit/bin/pip-audit ] || { python3 -m venv .venv-audit && .venv-audit/bin/pip -q install pip-audit==2.10.1; }
	@$(BIN)/python -m scripts.distributions audit --program .venv-audit/bin/pip-audit
endif

clean: ## remove caches and output, not the virtual environment
	@rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist demo-output
	@rm -rf metastore_db derby.log spark-warehouse .setup.log
	@find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

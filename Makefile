# Every target sets up what it needs: the virtualenv follows the lock files and pyproject.toml, and only them.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo ui drill drills test test-system lint bench simulate chaos mutants promises docs minio s3a lock clean kafka postgres

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
DOCS := .venv-docs

SEEDS ?= 2000
START ?= 0
QUICK ?=
N ?= 150
SEED ?= 1
AGAIN ?=

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{ printf "  make %-11s %s\n", $$1, $$2 }'

demo: $(STAMP) ## kill a worker of the page-view job under three guarantees, and count what is lost or doubled
	@$(BIN)/python -m assets.pageviews.demo

ui: $(STAMP) ## start Dagster's UI on this machine; the first start also runs and drills the page-view job
	@$(BIN)/python -m orchestration.ui

drill: $(STAMP) ## kill a worker of the page-view job at a random moment, then audit every row
	@$(BIN)/weir drill assets.pageviews.job:job

drills: $(STAMP) ## drill a job N times with random faults, and print recovery p50 and p99 of each (N=10 SEED=1 FAULTS=1 JOB=…)
	@$(BIN)/weir drill $(or $(JOB),assets.pageviews.job:job) --seed $(SEED) --times $(if $(filter command\ line environment,$(origin N)),$(N),10) \
	  $(foreach n,$(shell seq $(or $(FAULTS),1)),--fault random)

# The archive of Spark's classes takes half a minute, and each start of Spark is seconds shorter.
# Jobs on Spark run one at a time: two of them would starve each other on a small machine. Audits, which wait for no
# deadline, run beside them, and then the simulator, which has a clock of its own: it takes what the jobs leave of the
# processors (nice). The output of both is shown at the end.
# Exit code 5 is pytest's "no tests were collected": not a failure of a folder that is still empty.
test: minio postgres s3a kafka ## run all tests: the quick ones in parallel, then those that start Spark, beside audits and the simulator
	@run() { $$NICE $(BIN)/python -m pytest -q "$$@"; local code=$$?; [ $$code -eq 5 ] || return $$code; }; \
	NICE=; status=0; beside=$$(mktemp); trap 'rm -f "$$beside"' EXIT; \
	run -n 2 --dist worksteal $(addprefix --ignore=tests/,cluster checks simulation system browser) tests || status=1; \
	$(BIN)/python -m engine.spark.archive >/dev/null 2>&1; \
	{ run tests/checks; audits=$$?; NICE="nice -n 19"; run -n 2 --dist worksteal tests/simulation && [ $$audits = 0 ]; } >"$$beside" 2>&1 & \
	run tests/cluster || status=1; \
	wait $$! || status=1; \
	cat "$$beside"; \
	exit $$status

test-system: $(STAMP) ## run the tests with Dagster's real daemon and webserver, and in a real browser
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  echo "installing chromium" && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  { echo "The browser test needs chromium on PATH (Debian: apt-get install chromium)." >&2; exit 1; }
	@$(BIN)/python -m pytest -q tests/system tests/browser

lint: $(STAMP) ## run ruff, mypy, the import contracts, and an audit of the dependencies where advisories can be had
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy engine checks orchestration
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tests.audit

bench: $(STAMP) ## measure Weir beside its peers, fifteen minutes (QUICK=1: one minute; ONLY=scale: only that bench)
	@$(BIN)/python -m benchmarks.run $(if $(filter 1,$(QUICK)),--quick) $(if $(ONLY),--only $(ONLY))

simulate: $(STAMP) ## run simulated jobs with faults, one per seed (SEEDS=2000 START=0)
	@$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) --start $(START)

chaos: $(STAMP) ## break every process and the store of a real job at random, then judge every row (SEED=1 MINUTES=5)
	@$(BIN)/python -m tests.chaos.run --seed $(SEED) --minutes $(or $(MINUTES),5)

mutants: $(STAMP) ## change the engine in N small ways, and see which changes no test notices (N=150 SEED=1; AGAIN=1: the survivors)
	@$(BIN)/python -m tests.mutants.run --count $(N) --seed $(SEED) $(if $(filter 1,$(AGAIN)),--again)

promises: $(STAMP) ## print which tests show which promise of docs/promises.md
	@$(BIN)/python -m tests.promises

docs: $(DOCS)/.stamp ## build the site of all pages and of the API reference into build/site; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet && echo "build/site/index.html"

minio: $(STAMP) ## find MinIO's server on PATH, or build it once from its Go module, in a cache outside of the tree (minutes)
	@$(BIN)/python -m tests.servers.minio

postgres: $(STAMP) ## find PostgreSQL's server on PATH or where Debian puts it, or install it with apt-get (as root)
	@$(BIN)/python -m tests.servers.postgres

s3a: $(STAMP) ## fetch the jars with which Spark reads s3a:// once, with Maven, into its own repository (650 MB)
	@$(BIN)/python -m tests.servers.s3a >/dev/null

kafka: $(STAMP) ## fetch the jars of a Kafka broker once, with Maven, into its own repository (43 MB)
	@$(BIN)/python -m tests.servers.kafka >/dev/null

# uv keeps the pins that a lock already has: delete a lock, or add --upgrade-package by hand, to move them.
lock: ## pin requirements*.in into requirements*.lock
	@work=$$(mktemp -d) && trap 'rm -rf "$$work"' EXIT && \
	python=$$($(FIND_PYTHON)) && "$$python" -m venv "$$work" && "$$work/bin/pip" -q install uv && \
	for name in requirements requirements-dev requirements-docs; do \
	  "$$work/bin/uv" pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --no-emit-index-url --no-strip-extras $$name.in -o $$name.lock || exit 1; \
	done

clean: ## delete the virtualenv, caches and build output (not .weir: it holds jobs)
	@rm -rf $(VENV) $(DOCS) build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache benchmarks/work
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Prints the first Python of a supported version; a pyenv shim that answers "command not found" is skipped by running it.
define FIND_PYTHON
for candidate in python3.11 python3.12 python3; do \
  if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; then \
    echo "$$candidate"; exit 0; \
  fi; \
done; \
echo "Weir needs Python 3.11 or 3.12, and none is on PATH: install python3.11 (with its venv module) and try again." >&2; \
exit 1
endef

$(STAMP): requirements.lock requirements-dev.lock pyproject.toml
	@echo "[1/3] virtualenv in $(VENV)"
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  python=$$($(FIND_PYTHON)) || exit 1; \
	  "$$python" -m venv --clear $(VENV) || { echo "$$python has no working venv module (Debian: apt install python3-venv)." >&2; exit 1; }; \
	fi
	@echo "[2/3] libraries of requirements-dev.lock (about a minute; pyspark is the large one)"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --use-pep517 \
	  --require-hashes -r requirements-dev.lock | sed -un -E "s/ \(from .*//; /^(Collecting|Building|Installing|Successfully)/s/^/      /p" | cut -c1-110
	@echo "[3/3] weir itself, editable"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --config-settings editable_mode=compat -e .
	@touch $@

# The site is built in a virtualenv of its own. It reads the sources and imports none of them.
$(DOCS)/.stamp: requirements-docs.lock
	@echo "virtualenv in $(DOCS)"
	@python=$$($(FIND_PYTHON)) && "$$python" -m venv --clear $(DOCS)
	@$(DOCS)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

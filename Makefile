# The front door. `make` alone lists the targets; CONTRIBUTING.md says which tier proves what.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed-for-pyproject
COMPILED := $(VENV)/compiled-for-sources
# What machine code is made of: SOURCES in src/tranlog/compiled/__init__.py.
COMPILED_FROM := setup.py $(addprefix src/tranlog/,$(shell grep -o '"[a-z_/0-9]*[.]py"' src/tranlog/compiled/__init__.py | tr -d '"'))
# What `make plain` runs: the tests of these modules, and of what walks their bytes.
PLAIN_TESTS := tests/test_compiled.py tests/test_disk.py tests/test_payload.py tests/test_row_touches.py $(addprefix tests/property/test_,payload_bytes.py record_bytes.py) \
  $(addprefix tests/log/test_,arrow.py cursor.py ends.py failing_disk.py format.py gate.py group_commit.py hashing.py index.py index_fill.py index_flush.py index_machine.py index_reader.py index_table.py log.py ownership.py pending.py publishing.py reader.py recovery.py scan.py spill.py verify.py) \
  $(addprefix tests/crash/test_,interrupted_writer.py sqlite_writer_crash.py) $(addprefix tests/source/sqlite/test_,buffer.py calls.py hook.py writer.py) tests/source/test_packer.py $(addprefix tests/source/postgres/test_,rows.py small.py) \
  $(addprefix tests/queues/test_,records.py recovery.py store.py transaction.py)
PACKAGES := PYTHON=$(PYTHON) scripts/install-packages
# For one run of some tests: make unit TESTS=tests/log ARGS='-k torn -x'. For make bench: ARGS='--record append'
TESTS ?= tests
ARGS ?=
# Many tests start a process: without stored bytecode each would compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Of each tier of `make test`: the ten slowest, and the seconds by folder.
PYTEST := $(BIN)/pytest -q --durations=10
# More than processors, since some tests wait.
WORKERS := -n $(shell expr $$(nproc) \* 3 / 2) --dist worksteal
# Each starts servers of its own, and a module's fixtures once where its tests stay together.
SERVERS := -n $(shell expr $$(nproc) \* 3 / 2) --dist loadfile
# What CI runs repeats a test that failed, once, and names it at the end: RERUN.
TWICE := --twice -r fER --rerun-show-tracebacks
# For `make soak` and `make kill`: examples per Hypothesis test, rounds of kill -9.
EXAMPLES ?= 10000
ROUNDS ?= 50
DIR ?= tests/golden/tungsten
FILE ?= tests/golden/index/vlsn-traces.jsonl
SEED ?= 1
SEEDS ?= 200

# $(call verdict,COMMAND): run it, and end with one line that says how it went.
verdict = @if $(1); then echo "make $@: passed"; else code=$$?; echo "make $@: FAILED (exit code $$code)" >&2; exit 1; fi
# $(call within,LIMIT,COMMAND): a tier that hangs is ended, and its servers with it.
within = timeout --foreground --verbose --signal=INT --kill-after=30 $(1) $(2)

.DEFAULT_GOAL := help
.PHONY: help install check unit plain long servers test soak kill queue-kill group-kill replica-diff pg-regress order sim small sim-mutants traces golden bench lines demo demo-mariadb demo-postgres clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r name text; do \
	  printf '  make %-14s %s\n' "$$name" "$$text"; done

install: $(STAMP) $(COMPILED) ## create .venv with the package and everything that Python needs
	@echo "make install: $(VENV) is ready"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make install: $(PYTHON) is missing or older than 3.11; name another: make install PYTHON=python3.12" >&2; exit 4; }
	@$(PACKAGES) venv
	@$(PACKAGES) compiler || echo "make install: going on without a C compiler; the hot modules then run as plain Python"
	@echo "make install: installing tranlog and its libraries into $(VENV) (PySpark among them, 900 MB; minutes the first time)"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --use-pep517 --constraint constraints.txt --editable '.[spark,mariadb,postgres,fast,cert,bench,dev]' || { \
	  echo "make install: FAILED: pip's reason is above; mend it and start again" >&2; exit 4; }
	@touch $@

# Nothing that is edited is shadowed by old machine code, see tranlog.compiled; this makes it anew.
$(COMPILED): $(STAMP) $(COMPILED_FROM)
	@form=$$($(BIN)/python -m tranlog.compiled) && [ "$$form" = compiled ] || \
	  $(BIN)/python setup.py -q build_ext --inplace || echo "make install: going on; what is not compiled runs as plain Python"
	@echo "make install: the hot modules are $$($(BIN)/python -m tranlog.compiled)"
	@touch $@

check: install ## style, types, layers and tidiness: ruff, mypy, two test modules
	$(call verdict,$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/mypy --config-file tests/mypy.ini \
	  && $(BIN)/pytest -q $(ARGS) tests/test_layers.py tests/test_tidy.py)

unit: install ## tests that need neither Java nor a server, and take no seconds, few cases of what explores: a minute
	$(call verdict,$(call within,15m,$(PYTEST) $(WORKERS) $(TWICE) --few -m "not integration and not spark and not e2e and not long and not slow" \
	  $(ARGS) $(TESTS)))

plain: install ## the tests of what is compiled once more, with the plain sources in its place: 5 minutes
	$(call verdict,TRANLOG_PLAIN=1 $(call within,10m,$(PYTEST) $(WORKERS) $(TWICE) --few -m "not integration and not spark and not e2e and not long and not slow" \
	  $(ARGS) $(PLAIN_TESTS)))

long: install ## what explores, with more seeds and examples than `make unit`, and what takes seconds: 10 minutes
	$(call verdict,$(call within,20m,$(PYTEST) $(WORKERS) $(TWICE) -m "long and not integration and not spark and not e2e and not slow" $(ARGS) $(TESTS)))

servers: install ## tests at real MariaDB and PostgreSQL servers, without Spark: 8 minutes
	@$(PACKAGES) mariadb mariadb-test postgres sysbench
	$(call verdict,$(call within,30m,$(PYTEST) $(SERVERS) $(TWICE) -m "integration and not spark and not e2e and not slow" $(ARGS) $(TESTS)))

test: install ## everything that CI runs: 50 minutes
	@$(PACKAGES) java mariadb mariadb-test postgres sysbench
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory plain
	@$(MAKE) --no-print-directory long
	@$(MAKE) --no-print-directory servers
	$(call verdict,$(call within,60m,$(PYTEST) $(TWICE) -m "(spark or e2e) and not slow" $(ARGS) $(TESTS)))

soak: install ## hours: the slow tests, then all others with many more examples and rounds
	@$(PACKAGES) java mariadb mariadb-test postgres sysbench
	$(call verdict,$(BIN)/pytest -q --soak --examples=$(EXAMPLES) --rounds=$(ROUNDS) --timeout=14400 $(ARGS) $(TESTS))

kill: install ## ROUNDS=50 rounds of kill -9 of everything, under load, from SEED=1: nothing lost, nothing doubled
	@$(PACKAGES) java mariadb postgres
	$(call verdict,PYTHONPATH=examples $(BIN)/python tests/kill/kill_rounds.py --rounds $(ROUNDS) --seed $(SEED) $(ARGS))

queue-kill: install ## ROUNDS=50 processes with a message store killed at work or while they recover, from SEED=1: nothing lost, doubled or split
	$(call verdict,$(BIN)/python tests/kill/queue_rounds.py --rounds $(ROUNDS) --seed $(SEED) $(ARGS))

group-kill: install ## ROUNDS=50 rounds of harms to a group of three: processes, links, disks, orders, under commits and reads, from SEED=1
	$(call verdict,d=$$(mktemp -d) && $(BIN)/python tests/kill/group_kill.py $$d --rounds $(ROUNDS) --seed $(SEED) $(ARGS))

replica-diff: install ## FILES=n of the server's regression files (default: all), drawn by SEED=1, against a native replica
	@$(PACKAGES) mariadb mariadb-test postgres
	$(call verdict,$(BIN)/python tests/e2e/replica_diff.py $(if $(FILES),--files $(FILES)) --seed $(SEED) $(ARGS))

pg-regress: install ## DIR=src/test/regress of PostgreSQL's sources: FILES=n of its files (default: all), drawn by SEED=1, as a workload
	@$(PACKAGES) postgres
	$(call verdict,$(BIN)/python tests/e2e/pg_regress.py $(DIR) $(if $(FILES),--files $(FILES)) --seed $(SEED) $(ARGS))

order: install ## ROUNDS=50 seeded rounds of a pipeline that is killed and re-planned: the log's order is the target's, and each mutant is found
	@$(PACKAGES) postgres
	$(call verdict,cd tests && ../$(BIN)/python -m mutants.check_order --rounds $(ROUNDS) --seed $(SEED) $(ARGS))

sim: install ## SEEDS=200 groups of nodes in one thread, from SEED=1, under faults; seeds that failed once are played first
	$(call verdict,PYTHONPATH=tests $(BIN)/python -m sim.swarm --seeds $(SEEDS) --seed $(SEED) --kept tests/sim/seeds.txt $(ARGS))

small: install ## a small group in every order of events: states, depth, violations
	$(call verdict,PYTHONPATH=tests $(BIN)/python -m sim.small_scope $(ARGS))

sim-mutants: install ## each rule of replication taken out: how many seeds find it, and what did
	$(call verdict,cd tests && ../$(BIN)/python -m mutants.check_replication $(ARGS))

traces: install ## FILE=path: replay traces of the ancestor's index against ours, the 150 of tests/golden by default
	$(call verdict,PYTHONPATH=tests $(BIN)/python -m log.traces $(FILE))

golden: install ## DIR=path: hold the Tungsten codec against directories that the real Java replicator wrote
	$(call verdict,PYTHONPATH=tests $(BIN)/python -m tungsten.golden $(DIR))

bench: install ## the programs in bench/, one question each, and one table; fails where a must is missed
	@$(PACKAGES) java mariadb postgres
	$(call verdict,$(BIN)/python bench $(ARGS))

lines: ## lines of code in src by folder: blank lines, comments and docstrings apart
	@$(PYTHON) scripts/count_lines.py src

demo: install ## SQLite to log to Spark to SQLite, with another plan and a kill in the middle: 2 minutes
	@$(PACKAGES) java
	$(call verdict,$(BIN)/python examples/shop_demo.py)

demo-mariadb: install ## MariaDB under sysbench to log to Spark to PostgreSQL, with kill -9 of both ends
	@$(PACKAGES) java mariadb postgres sysbench
	$(call verdict,$(BIN)/python examples/mariadb_demo.py)

demo-postgres: install ## PostgreSQL under pgbench to log to Spark to MariaDB, loaded while it is written, all ends killed
	@$(PACKAGES) java mariadb postgres
	$(call verdict,$(BIN)/python examples/postgres_demo.py)

clean: ## remove what builds and tests left (not .venv)
	@rm -rf build dist src/*.egg-info src/tranlog/compiled/*.so $(COMPILED) .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
	@find src tests examples bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
	@echo "make clean: done"

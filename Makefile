# Two commands do everything on a fresh machine: `make up` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
INSTALL := $(PIP) install -qq --require-hashes --no-deps --only-binary :all:
PROJECTS := pyproject.toml packaging/server/pyproject.toml
EDITABLE := $(PIP) install --quiet --no-deps --no-build-isolation --no-index --editable . --editable packaging/server
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-emit-package event-workbench

POSTGRES ?= /usr/lib/postgresql/15/bin
ON_ANY_POSTGRES := tests/store tests/auth tests/query/test_isolation.py tests/segments/test_definition.py tests/engine/test_waiting.py
WITH_POSTGRES := $(addprefix tests/,auth automations backtest canvas catalog channels cli contacts display engine git imports inapp ingest metrics openapi promises query routes segments store workbench)

.DEFAULT_GOAL := help
.PHONY: help up test retest lint advice postgres citus browser picture chain schedules canvas docs notebooks node bench torture fidelity mutants format lock wheels clean

help:  ## show this help
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# make passes TERM on to the shell, which passes it on to what it started. A signal ends `wait` early.
up: $(VENV)/up.stamp | build  ## run everything on this machine: Postgres, API, engine, JupyterLab (options: ARGS="--port 9000")
	@trap : INT; trap 'kill $$up' TERM HUP; \
	$(BIN)/workbench up $(ARGS) & up=$$!; \
	nice -n 19 $(MAKE) --silent docs >build/docs.log 2>&1 & docs=$$!; \
	status=0; while wait $$up; status=$$?; kill -0 $$up 2>/dev/null; do :; done; \
	kill $$docs 2>/dev/null; exit $$status

test: lint  ## everything a change must pass: lint, then the tests
	$(BIN)/python -m pytest -m "not browser and not chain and not node and not schedules" --numprocesses auto

retest: $(VENV)/dev.stamp  ## run the tests that failed in the last run
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

lint: $(VENV)/dev.stamp  ## format, lint, imports, types, glossary; then a report on readability
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_glossary.py
	$(BIN)/python tools/readability.py

advice: $(VENV)/dev.stamp  ## hints for a review: unused code, dependencies, prose
	-$(BIN)/vulture api workbench --min-confidence 80
	-$(BIN)/deptry workbench
	-$(BIN)/deptry api --config packaging/server/pyproject.toml
	-$(BIN)/python tools/readability.py --list prose

postgres: $(VENV)/dev.stamp  ## the tests that depend on the version of Postgres, with the programs in POSTGRES
	WORKBENCH_POSTGRES_BIN=$(POSTGRES) $(BIN)/python -m pytest --numprocesses auto $(ON_ANY_POSTGRES)

citus: $(VENV)/dev.stamp  ## the tests that use Postgres, on the Citus coordinator in DATABASE_URL (ARGS="tests/query")
	$(BIN)/python -m pytest -m "not browser and not chain and not node and not schedules and not plain" $(or $(ARGS),$(WITH_POSTGRES))

browser: $(VENV)/dev.stamp tests/browser/node_modules docs  ## test JupyterLab in a real Chromium (needs npm, which installs axe-core and VS Code)
	$(BIN)/python -m pytest -m browser

picture: $(VENV)/dev.stamp tests/browser/node_modules  ## take the pictures of the docs from the running product
	WORKBENCH_PICTURES=docs $(BIN)/python -m pytest -m browser tests/browser/test_docs_picture.py \
		tests/browser/test_hosts.py::test_vscode_shows_a_stored_notebook

node: $(VENV)/dev.stamp clients/node/node_modules  ## build and test the Node client, and Segment's (needs Node 20.15 and npm)
	cd clients/node && npm run --silent build && npm test
	$(BIN)/python -m pytest -m node

chain: $(VENV)/dev.stamp tests/chain/node_modules  ## test with a real EVM node (needs npm, which installs it)
	$(BIN)/python -m pytest -m chain

schedules: $(VENV)/dev.stamp  ## run engines and API in orders that seeds choose, with crashes (SCHEDULES=1000)
	SCHEDULES=$(or $(SCHEDULES),1000) $(BIN)/python -m pytest -o faulthandler_timeout=0 tests/schedules

%/node_modules: %/package-lock.json
	cd $(@D) && npm ci --ignore-scripts --silent
	@touch $@

canvas:  ## build the canvas from workbench/canvas_src (needs Node 20 and npm; the result is committed)
	cd workbench/canvas_src && npm ci --no-audit --no-fund && npm run build

docs: build/site/index.html  ## build the site of the documentation, which the API serves at /help; a dead link is an error

# Complete or not at all: a site that is being built, or has a dead link, is not served. make passes a signal on only to a
# program that it runs without a shell, so the variable is not set in the command.
build/site/index.html: export NO_MKDOCS_2_WARNING := 1
build/site/index.html: $(VENV)/docs.stamp mkdocs.yml $(shell find actions api docs notebooks sql tools/site workbench CHANGELOG.md CONTRIBUTING.md -type f -not -path '*/node_modules/*' -not -name '*.pyc' -not -name '* *')
	@$(BIN)/python -m mkdocs build --strict
	@rm -rf build/site && mv build/site.new build/site

notebooks: $(VENV)/dev.stamp tests/chain/node_modules  ## execute the notebooks whose code has changed, and store their outputs (ARGS="--all")
	$(BIN)/python -m tests.notebooks $(ARGS)

bench: $(VENV)/dev.stamp tests/chain/node_modules  ## measure every figure, in a quarter of an hour (ARGS="singles --quick", "growth --millions 10")
	$(BIN)/python -m bench $(ARGS)

torture: $(VENV)/dev.stamp  ## ten minutes of load, kills and misuse, then a verdict on each invariant (ARGS="--seed 7")
	$(BIN)/python -m tests.torture $(ARGS)

fidelity: $(VENV)/dev.stamp  ## compare all interpreters on 10,000 random worlds (ARGS="--cases 1000 --seed 7")
	$(BIN)/python -m tests.fidelity --cases 10000 --seed now $(ARGS)

mutants: build/mutmut.stamp  ## mutate the code that decides; print mutants that no test kills (MUTANTS="workbench.language.advance")
	PYTHONPATH=build/mutmut $(BIN)/python -m tests.mutants $(MUTANTS)

build/mutmut.stamp: requirements/mutants.txt $(VENV)/dev.stamp
	@$(INSTALL) --upgrade --target build/mutmut -r $<
	@touch $@

format: $(VENV)/dev.stamp  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(VENV)/dev.stamp  ## lock the newest versions of all requirements that fit
	$(LOCK) --upgrade $(PROJECTS) requirements/build.in --extra notebook --extra engine --extra lab --extra lake --extra mcp --extra otel --extra docs --extra dev -o requirements/dev.txt
	$(LOCK) $(PROJECTS) requirements/build.in --extra notebook --extra engine --extra lab -c requirements/dev.txt -o requirements/up.txt
	$(LOCK) pyproject.toml --extra notebook -c requirements/dev.txt -o requirements/notebook.txt
	$(LOCK) pyproject.toml --extra docs -c requirements/dev.txt -o requirements/docs.txt
	$(LOCK) requirements/mutants.in -c requirements/dev.txt -o requirements/mutants.txt

wheels: $(VENV)/dev.stamp docs  ## build the two distributions into dist/
	@$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . ./packaging/server

clean:  ## remove the virtual environment (data stays)
	rm -rf $(VENV)

$(VENV)/up.stamp: requirements/up.txt $(PROJECTS) | $(BIN)/python
	@echo "installing what requirements/up.txt locks …"
	@$(INSTALL) -r requirements/up.txt
	@$(EDITABLE)
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(PROJECTS) | $(BIN)/python
	@echo "installing what requirements/dev.txt locks …"
	@$(INSTALL) -r requirements/dev.txt
	@$(EDITABLE)
	@touch $@ $(VENV)/up.stamp

$(VENV)/docs.stamp: requirements/docs.txt $(VENV)/up.stamp
	@$(INSTALL) -r requirements/docs.txt
	@touch $@

build:
	@mkdir -p $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 …")'
	@$(PYTHON) -m venv $(VENV)

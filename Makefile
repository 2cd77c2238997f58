# Two commands: `make demo` and `make test`. Each installs what it needs in .venv first. `make help` lists the others.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported: compiling all of them takes longer than installing them.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check

.PHONY: help env demo kernels test coverage slow all properties torch devices fuzz fuzz-planners docs man lint format proto bench vulnerabilities sbom clean

help: ## list these commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '%-16s %s\n' "$$name" "$$text"; done

# Stamps say which files an environment was made from; an install is redone when one of them changes.
$(VENV)/.demo: pyproject.toml constraints.txt
	@echo "Installing what the demo needs into $(VENV): about half a minute, plus the downloads (200 MB) the first time"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing what the demo, tests, benchmarks and pages need into $(VENV): some minutes, the downloads included"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -c constraints.txt -e '.[dev,bench]'
	@touch $(VENV)/.demo $@

env: $(VENV)/.installed ## make .venv with everything, at the versions of constraints.txt

demo: $(VENV)/.demo ## run the complete workflow once; `.venv/bin/python -m demo --serve` keeps the server
	$(BIN)/python -m demo

kernels: env ## compile the kernels, once for all processes of the tests
	$(BIN)/python -m demo._kernels

# Four processes for two CPUs, because many tests wait: for servers, ticks and the disk.
test: kernels ## run the tests, without those marked slow
	$(BIN)/python -Im pytest -m 'not slow' -n 4 --dist loadfile --no-loadscope-reorder

coverage: kernels ## run the tests as `make test` does, and print their branch coverage
	$(BIN)/python -Im pytest -m 'not slow' -n 4 --dist loadfile --no-loadscope-reorder --cov --cov-report=
	@printf 'Branch coverage: %s %%\n' "$$($(BIN)/python -m coverage report --format=total --precision=1)"

slow: kernels ## run the long tests
	$(BIN)/python -Im pytest -m slow -n 4 --dist loadfile --no-loadscope-reorder

# Long tests wait while short ones compute, so that both together end minutes before one after the other.
all: kernels ## run all tests, short and long
	$(BIN)/python -Im pytest -n 5 --dist loadfile --no-loadscope-reorder

TIMES ?= 10
properties: kernels ## draw other examples for the tests of properties, which `make test` runs on the same ones; TIMES=10
	for i in $$(seq $(TIMES)); do EXAMPLES=fresh $(BIN)/python -Im pytest -q -m hypothesis -n 3 || exit 1; done

# Its build for processors, which the common index has not got: pip takes it from a folder or an index that it was told of.
# What it depends on is not needed for arrays, and partly older than what the tests have.
torch: env ## install torch for CPUs, where pip finds its build
	$(INSTALL) --no-deps 'torch==2.13.0+cpu'

# Kernels in terms of the array API: DEVICES=torch, torch:cuda or cupy, which has to be there.
DEVICES ?= torch
devices: env ## compare the kernels on an array library with the compiled ones; DEVICES=torch, torch:cuda or cupy
	DEVICES=$(DEVICES) $(BIN)/python -Im pytest tests/server/fits/test_device_kernels.py

MINUTES ?= 30
fuzz: env ## send made-up calls and files to a real server; MINUTES=30
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

CALLS ?= 1000000
fuzz-planners: env ## call validators and planners with edge numbers; CALLS=1000000
	$(BIN)/python -m tests.fuzz --planners --calls $(CALLS) --jobs 2

# The theme's notice of other programs is no warning of ours.
docs: env ## build the site into site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

man: env ## write a man page for each command into dist/man/
	$(BIN)/python -m deploy.man dist/man

lint: env ## ruff, mypy (strict) and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: env ## let ruff change what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: env ## generate the code of the contract again
	$(BIN)/python proto/generate.py

# Quick sizes, about forty minutes; FULL=1 for all of them. Ends with 1 if a ratio became worse than in the last record.
# PGM=PYTHON names an interpreter that has private-pgm (package mbi 1.1), which bench/peers.py then runs beside ours.
bench: env ## run the comparisons and update the record; FULL=1 for all sizes
	$(BIN)/python bench/run.py $(if $(FULL),--full)

# Asks the index about every locked version; deploy/vulnerabilities.py says what it does where there is none.
vulnerabilities: env ## look for known vulnerabilities of the locked versions
	$(BIN)/python deploy/vulnerabilities.py

# What the image has beside its base, for scanners and for whoever has to say what is installed.
sbom: env ## write the bill of materials of the image
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements deploy/requirements.lock --pyproject pyproject.toml --mc-type application \
		--output-reproducible --spec-version 1.6 --output-file dist/bursar.cdx.json

clean: ## remove .venv
	rm -rf $(VENV)

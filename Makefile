# Two commands: `make demo` and `make test`. Each makes its own environment in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow torch devices fuzz docs lint format proto bench env clean vulnerabilities sbom

# The stamp says which files the environment was made from; the install is redone when one of them changes.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	touch $@

env: $(VENV)/.installed

demo: env
	$(BIN)/python -m demo

test: env
	$(BIN)/python -Im pytest -m 'not slow' -n 2 --dist loadfile

slow: env
	$(BIN)/python -Im pytest -m slow -n 2 --dist worksteal

# Its build for processors, which the common index has not got: pip takes it from a folder or an index that it was told of.
# What it depends on is not needed for arrays, and partly older than what the tests have.
torch: env
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'torch==2.13.0+cpu'

# Kernels in terms of the array API: DEVICES=torch, torch:cuda or cupy, which has to be there.
DEVICES ?= torch
devices: env
	DEVICES=$(DEVICES) $(BIN)/python -Im pytest tests/server/fits/test_device_kernels.py

MINUTES ?= 30
fuzz: env
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

# The theme's notice of other programs is no warning of ours.
docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: env
	$(BIN)/python proto/generate.py

# Quick sizes, about twenty minutes; FULL=1 for all of them. Ends with 1 if a ratio became worse than in the last record.
# PGM=PYTHON names an interpreter that has private-pgm (package mbi 1.1), which bench/peers.py then runs beside ours.
bench: env
	$(BIN)/python bench/run.py $(if $(FULL),--full)

# Asks the index about every locked version; deploy/vulnerabilities.py says what it does where there is none.
vulnerabilities: env
	$(BIN)/python deploy/vulnerabilities.py

# What the image has beside its base, for scanners and for whoever has to say what is installed.
sbom: env
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements deploy/requirements.lock --pyproject pyproject.toml --mc-type application \
		--output-reproducible --spec-version 1.6 --output-file dist/bursar.cdx.json

clean:
	rm -rf $(VENV)

# Two commands: `make demo` and `make test`. Each makes its own environment in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow docs lint format proto bench env clean

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

bench: env
	$(BIN)/python bench/dpem.py
	$(BIN)/python bench/bounds.py
	$(BIN)/python bench/sketch.py
	$(BIN)/python bench/gradient_em.py
	$(BIN)/python bench/mrf.py
	$(BIN)/python bench/separated_gmm.py
	$(BIN)/python bench/ledger.py
	$(BIN)/python bench/chaos.py

clean:
	rm -rf $(VENV)

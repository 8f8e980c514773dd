# Every target bootstraps .venv by itself: on a fresh machine `make demo` is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: install demo test coverage lint format bench federation clean

install: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/fedac demo --out demo

test: $(READY)
	$(BIN)/pytest -q --numprocesses=auto --dist=loadscope

# The same tests, slower, and the lines they did not reach.
coverage: $(READY)
	$(BIN)/pytest -q --numprocesses=auto --dist=loadscope --cov --cov-report=term:skip-covered

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/fedac bench

federation: $(READY)
	$(BIN)/python scripts/federation.py

clean:
	rm -rf $(VENV) demo .coverage .pytest_cache .mypy_cache .ruff_cache

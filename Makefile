# Every target sets up .venv by itself: on a fresh machine `make demo` is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Modules are byte-compiled when first imported; most never are. So the bytecode must be kept.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
PYTEST := $(BIN)/pytest -q --numprocesses=auto --dist=loadscope

.PHONY: install demo test quick coverage lint format bench federation clean

install: $(VENV)/.dev

# The package alone, for the demo.
$(VENV)/.package: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

# With PyTorch, Flower, Ray and the tools, for the tests.
$(VENV)/.dev: $(VENV)/.package
	$(PIP) --editable '.[dev]'
	touch $@

demo: $(VENV)/.package
	$(BIN)/fedac demo --out demo

test: $(VENV)/.dev
	$(PYTEST)

# Without what is marked slow: servers, browsers, kills, statistics. Under 90 seconds when warm.
quick: $(VENV)/.dev
	$(PYTEST) -m 'not slow'

# The same tests as `make test`, slower, and the lines they did not reach.
coverage: $(VENV)/.dev
	$(PYTEST) --cov --cov-report=term:skip-covered

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.package
	$(BIN)/fedac bench

federation: $(VENV)/.dev
	$(BIN)/python scripts/federation.py

clean:
	rm -rf $(VENV) demo .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

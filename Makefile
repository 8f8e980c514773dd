# Every target sets up .venv by itself: on a fresh machine `make demo` is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Modules are byte-compiled when first imported; most never are. So the bytecode must be kept.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
# One process more than cores: many tests wait for servers and workers that they have started.
PROCESSES := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST := $(BIN)/pytest -q --numprocesses=$(PROCESSES) --dist=loadscope --no-loadscope-reorder

.PHONY: install demo test quick coverage lowest lint format docs notebooks bench federation clean

install: $(VENV)/.dev

# The package alone, for the demo.
$(VENV)/.package: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

# With PyTorch, Flower, Ray and the tools, for the tests.
$(VENV)/.dev: pyproject.toml
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	touch $(VENV)/.package $@

# What makes the site reads our sources; it does not import them.
$(VENV)/.docs: pyproject.toml
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[docs]'
	touch $@

demo: $(VENV)/.package
	$(BIN)/fedac demo --out demo

# Threads only wait, spinning, for cores that other processes of the tests are using.
test quick coverage: export OPENBLAS_NUM_THREADS := 1
test quick coverage: export OMP_WAIT_POLICY := passive
test: $(VENV)/.dev
	$(PYTEST)

# Without what is marked slow: servers, browsers, kills, statistics. Under a minute when warm.
quick: $(VENV)/.dev
	$(PYTEST) -m 'not slow'

# The same tests as `make test`, slower, and the lines they did not reach.
coverage: $(VENV)/.dev
	$(PYTEST) --cov --cov-report=term:skip-covered

# The core with the lowest versions that pyproject.toml allows, in an environment and a cache of its
# own. Old packages meet new ones there that deprecate what they use.
lowest:
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) scripts/lowest.py > .venv-lowest/lowest.txt
	.venv-lowest/bin/pip install --quiet --constraint .venv-lowest/lowest.txt \
	  --editable . hypothesis pytest pytest-xdist scikit-learn
	FEDAC_CACHE=$(CURDIR)/.venv-lowest/cache .venv-lowest/bin/pytest -q --numprocesses=auto \
	  --dist=loadscope -m 'not slow' -W ignore::DeprecationWarning tests/algorithms tests/cli \
	  tests/data tests/experiments tests/objectives tests/simulation tests/theory

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The site, into site/; open site/index.html.
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

# Runs all notebooks of docs/ and stores what they print and draw.
notebooks: $(VENV)/.dev
	$(BIN)/python scripts/run_notebooks.py

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/bench.py

federation: $(VENV)/.dev
	$(BIN)/python scripts/federation.py

clean:
	rm -rf $(VENV) .venv-lowest demo site .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

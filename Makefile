# Set up and run: `make up`, `make test`. Everything is built below .venv and var.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.bench-installed
NAME ?= quality

.PHONY: up down test check bench clean

up: $(STAMP)
	$(BIN)/recpool up

# What was never installed runs nothing.
down:
	test ! -x $(BIN)/recpool || $(BIN)/recpool down

# Unit tests run side by side, those that share a trained model in one worker; the others share one cluster.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/unit -n logical --maxprocesses 4 --dist loadgroup $(ARGS)
	$(BIN)/python -m pytest tests --ignore tests/unit $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest tests/unit/test_imports.py

bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.$(NAME)

# The stamp is newer than what it was installed from, so a second run does nothing.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

# Only benchmarks need what they compare with.
$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,bench]'
	touch $@

clean: down
	rm -rf $(VENV) var build

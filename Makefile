# Every target works from a fresh clone: the first one used also makes .venv.
#   PYTHON              the interpreter that .venv is made from, 3.11 or newer
#   TORCH_INSTALL_ARGS  extra arguments for installing torch, e.g. the index of a CPU-only build
#   ARGS                extra arguments for train.py or pytest
PYTHON ?= python3
TORCH_INSTALL_ARGS ?=
ARGS ?=

TORCH := torch==2.13.0
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup train test test-slow lint bench clean

setup: $(STAMP)

# torch first and by itself, so that its build can be chosen without changing where the rest comes from
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(TORCH) $(TORCH_INSTALL_ARGS)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

train: $(STAMP)
	$(BIN)/python train.py algo=grpo env=sokoban $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest --cov --cov-report=term $(ARGS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m 'slow and not gpu and not oracle' $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	for script in benchmarks/*.py; do $(BIN)/python $$script $(ARGS) || exit 1; done

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Every target works from a fresh clone: the first one used also makes .venv.  `make train` installs what training needs,
# every other target what tests, docs and all extras need as well.
#   PYTHON              the interpreter that .venv is made from, 3.11 or newer
#   TORCH_INSTALL_ARGS  extra arguments for installing torch, e.g. the index of a CPU-only build
#   VLLM_BUILD          cuda or cpu for `make engine-vllm`; auto looks for a GPU
#   ARGS                extra arguments for train.py or pytest
PYTHON ?= python3
TORCH_INSTALL_ARGS ?=
VLLM_BUILD ?= auto
ARGS ?=

TORCH := torch==2.13.0
BIN := .venv/bin
TRAIN_STAMP := .venv/.installed-train
STAMP := .venv/.installed
ORACLE := .venv-oracle
ORACLE_STAMP := $(ORACLE)/.installed
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.installed
OPENENV := .venv-openenv
OPENENV_STAMP := $(OPENENV)/.installed
AGENTS := .venv-agents
AGENTS_STAMP := $(AGENTS)/.installed
PEER := .venv-trl
PEER_STAMP := $(PEER)/.installed
CHECK_PYTHON := $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'

.PHONY: setup train test coverage test-slow oracle engine-vllm test-vllm test-openenv test-agents lint docs bench bench-trl real gpu gpu-wheels dist clean

setup: $(STAMP)

# torch first and by itself, so that its build can be chosen without changing where the rest comes from
$(TRAIN_STAMP): pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(TORCH) $(TORCH_INSTALL_ARGS)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(STAMP): $(TRAIN_STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	# without its dependency jericho; where there is no wheel, its tests are skipped
	$(BIN)/python -m pip install --quiet --no-deps --only-binary=:all: -c constraints.txt textworld || true
	touch $@

train: $(TRAIN_STAMP)
	$(BIN)/python train.py algo=grpo env=sokoban $(ARGS)

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

coverage: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report=term $(ARGS)

# two at a time: the sweeps dealt one by one, then file by file what shares its fixtures; one thread each, or they would fight
SLOW := slow and not long and not gpu and not oracle and not vllm
test-slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m 'sweep and $(SLOW)' $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m 'not sweep and $(SLOW)' $(ARGS)

oracle: $(ORACLE_STAMP)
	$(ORACLE)/bin/python -m pytest -m oracle tests/oracle $(ARGS)

# verl and trl have an environment of their own; verl's wheel brings a top-level package `tests`, which hides ours
$(ORACLE_STAMP): pyproject.toml constraints.txt tests/oracle/requirements.txt
	$(CHECK_PYTHON)
	test -x $(ORACLE)/bin/python || $(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install --quiet $(TORCH) $(TORCH_INSTALL_ARGS)
	$(ORACLE)/bin/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(ORACLE)/bin/python -m pip install --quiet --no-deps -r tests/oracle/requirements.txt
	rm -rf $(ORACLE)/lib/python*/site-packages/tests
	touch $@

test-vllm: $(VLLM_STAMP)
	$(VLLM)/bin/python -m pytest -m vllm tests/vllm $(ARGS)

engine-vllm: $(VLLM_STAMP)

test-openenv: $(STAMP) $(OPENENV_STAMP)
	$(BIN)/python -m pytest -m slow tests/envs/test_openenv_server.py tests/experimental/test_gateway_capture.py $(ARGS)

# a server of OpenEnv has an environment of its own: its dependencies clash with ours
$(OPENENV_STAMP): tests/envs/requirements-openenv.txt
	$(CHECK_PYTHON)
	test -x $(OPENENV)/bin/python || $(PYTHON) -m venv $(OPENENV)
	$(OPENENV)/bin/python -m pip install --quiet -r tests/envs/requirements-openenv.txt
	touch $@

test-agents: $(STAMP) $(AGENTS_STAMP)
	$(BIN)/python -m pytest -m slow tests/experimental/test_gateway_frameworks.py $(ARGS)

# agents of frameworks run in processes of their own, with an environment of their own
$(AGENTS_STAMP): tests/experimental/requirements-agents.txt
	$(CHECK_PYTHON)
	test -x $(AGENTS)/bin/python || $(PYTHON) -m venv $(AGENTS)
	$(AGENTS)/bin/python -m pip install --quiet -r tests/experimental/requirements-agents.txt
	touch $@

# vLLM asks for other packages than constraints.txt has, so it has an environment of its own
$(VLLM_STAMP): pyproject.toml tests/vllm/requirements.txt scripts/install_vllm.py scripts/name_vllm.py
	$(CHECK_PYTHON)
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python scripts/install_vllm.py --build $(VLLM_BUILD) --torch $(TORCH) --torch-args="$(TORCH_INSTALL_ARGS)"
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the documentation as a site, site/index.html; a link that leads nowhere, or an option that nothing explains, fails
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# all that need neither a peer, which has an environment of its own, nor the data of an earlier run
BENCHES := branching busy_machine gateway_clients gateway_overhead monitor_cost overlap rollout_parts rollout_speed roofline scaling slow_worlds startup update_speed workers
bench: $(STAMP)
	for name in $(BENCHES); do $(BIN)/python -m scripts.bench.$$name $(ARGS) || exit 1; done

bench-trl: $(PEER_STAMP)
	$(PEER)/bin/python -m scripts.bench.vs_trl_single_turn $(ARGS)
	$(PEER)/bin/python -m scripts.bench.vs_trl_multi_turn $(ARGS)

# ours and trl in one environment, which is not that of the oracle: that one holds the trl whose losses it compares
$(PEER_STAMP): pyproject.toml constraints.txt scripts/bench/requirements-trl.txt
	$(CHECK_PYTHON)
	test -x $(PEER)/bin/python || $(PYTHON) -m venv $(PEER)
	$(PEER)/bin/python -m pip install --quiet $(TORCH) $(TORCH_INSTALL_ARGS)
	$(PEER)/bin/python -m pip install --quiet -c constraints.txt -e .
	$(PEER)/bin/python -m pip install --quiet --no-deps -r scripts/bench/requirements-trl.txt
	touch $@

# a pretrained model imitates best play and is then reinforced; ends in one table.  Continues where it was interrupted
real: $(STAMP)
	$(BIN)/python -m scripts.real $(ARGS)

# all that waits for a GPU, in slices, at most 6 minutes a call; a further call goes on with what is left.  Any Python
# that has the packages will do: the one that is named, else .venv where there is one.  Nothing is downloaded; WHEELS
# names a folder of wheels to install below outputs/ first, which gpu-wheels packs where there is a network
GPU_PYTHON := $(if $(filter file,$(origin PYTHON)),$(or $(wildcard $(BIN)/python),$(PYTHON)),$(PYTHON))
WHEELS ?=
gpu:
	$(GPU_PYTHON) -m scripts.bench.gpu $(if $(WHEELS),--wheels $(WHEELS)) $(ARGS)

gpu-wheels:
	$(GPU_PYTHON) -m scripts.bench.pack_wheels $(or $(WHEELS),wheels) $(ARGS)

# what is published: the wheel is made from the source archive, so that neither lacks a file
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -c 'from hatchling.build import build_sdist; build_sdist("dist")'
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz

clean:
	rm -rf .venv $(ORACLE) $(VLLM) $(OPENENV) $(AGENTS) $(PEER) dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

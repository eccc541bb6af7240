# Each target makes its own environment in .venv, from nothing.
PYTHON ?= python3
# One process more than there are cores: some tests wait, for processes that they start, locks and clocks.
WORKERS := $(shell $(PYTHON) -c "import os; print(min((os.cpu_count() or 1) + 1, 4))")
PYTEST_ARGS ?= -n $(WORKERS) --dist=worksteal
BENCH_ARGS ?= cpu

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)

# A machine with a GPU gets torch with CUDA, any other gets torch without it.
ifeq ($(GPU),yes)
CONSTRAINTS := constraints.txt
EXTRAS := test,demo,docs,cuda13
else
CONSTRAINTS := constraints-cpu.txt
EXTRAS := test,demo,docs
endif
TORCH := $(PIP) install --quiet --no-compile --constraint $(CONSTRAINTS) torch
TORCH_INDEX := https://download.pytorch.org/whl/cpu

# Large libraries that tests use where they are installed: the habits of their users, and their results.
OTHERS := transformers peft accelerate torchao hdbscan geomloss array-api-strict onnx onnxscript onnxruntime
OF_OTHERS := $(addprefix tests/integration/test_,model_libraries.py kron_algebra.py density_clusters.py \
	compat_pykeops.py array_libraries.py decompositions.py)

.PHONY: demo test others lint bench docs clean

demo: .venv/ready
	$(BIN)/python -m kernmantle demo

test: .venv/ready
	$(BIN)/python -m pytest $(PYTEST_ARGS)

others: .venv/others
	$(BIN)/python -m pytest -rs $(OF_OTHERS)

lint: .venv/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: .venv/ready
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

docs: .venv/ready
	$(BIN)/sphinx-build -W --keep-going -j auto -b html docs docs/_build/html

clean:
	rm -rf .venv build dist docs/_build docs/gallery docs/api .pytest_cache .ruff_cache .hypothesis

# The build without CUDA may not be in the configured index: then it is taken from PyTorch's own. pip would compile files
# to bytecode one after the other; compileall does so on all cores. Some packages hold files that are not Python 3.
.venv/ready: pyproject.toml constraints.txt constraints-cpu.txt
	$(PYTHON) -m venv --clear .venv
	$(TORCH) || $(TORCH) --index-url $(TORCH_INDEX)
	$(PIP) install --quiet --no-compile --constraint $(CONSTRAINTS) --editable '.[$(EXTRAS)]'
	$(BIN)/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true
	touch $@

.venv/lint: .venv/ready
	$(PIP) install --quiet --constraint $(CONSTRAINTS) ruff
	touch $@

.venv/others: .venv/ready
	$(PIP) install --quiet --constraint $(CONSTRAINTS) $(OTHERS)
	touch $@

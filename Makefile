# Every target sets itself up on a fresh machine and needs only Python >= 3.11 (a C++ compiler makes it fast).
PYTHON ?= python3
BIN := .venv/bin
KERNEL := $(wildcard src/torchscn/kernels/cpu/*)

.PHONY: test demo bench fuzz results lint format clean help

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

test: .venv/ready lint  ## lint, types and tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8

demo: .venv/ready  ## the main job: train a small network on the embedded digits, and show what it and a dictionary learn
	rm -rf demo
	$(BIN)/scn train digits --run-dir demo/digits-scn1
	$(BIN)/scn eval demo/digits-scn1
	$(BIN)/scn inspect demo/digits-scn1
	$(BIN)/python examples/digits_dictionary.py --output demo

bench: .venv/ready  ## measure everything side by side with alternatives (half an hour; run nothing else meanwhile)
	$(BIN)/scn bench all --threads 2 --output benchmarks/results --draw docs/benchmarks

fuzz: .venv/ready  ## try hard to break every promise, and write docs/trust.md (about a quarter of an hour)
	$(BIN)/python -m tools.fuzz

results: .venv/ready  ## update the tables and pictures of docs and README from the recorded runs
	$(BIN)/python -m tools.results
	$(BIN)/python -m tools.study

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: .venv/ready  ## reformat the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# torch is pinned: an unpinned one pulls in gigabytes of CUDA packages that no target here needs.
.venv/ready: pyproject.toml setup.py constraints.txt $(KERNEL)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@if $(BIN)/python -m pip list 2>/dev/null | grep -i '^nvidia'; then \
		echo 'set-up failed: CUDA packages were installed; is torch pinned in constraints.txt to a CPU build?' >&2; exit 1; fi
	touch $@

clean:  ## remove everything the targets created
	rm -rf .venv build dist demo src/torchscn/kernels/*.so src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

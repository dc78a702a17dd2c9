# `make demo`, `make test` and `make docs` set up .venv first, once, and again when its inputs change.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all test-portable lint types docs clean

help:
	@echo "make demo   compare PFGE and Star with SWA, FGE and SWAG and make a report, in one to three minutes"
	@echo "make test   lint, types and the fast tests, in about five minutes"
	@echo "make test-all  the same and the slow tests: kills, launchers, browser, trainers, exports"
	@echo "make docs   build the site in docs/_build/html; runs the tutorials, needs no network"
	@echo "make clean  remove the virtual environment"

# torch goes first and alone: resolved together with the rest, pip may pick another build of it.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[lab,mnist1d,models,figures,export,lightning,transformers,accelerate,peft,ray,slurm,dev,docs]'
	@touch $@

demo: $(READY)
	$(BIN)/pfge compare configs/demo.toml
	$(BIN)/pfge report runs/demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Three processes: tests of several processes often wait.
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal

test: lint types
	$(PYTEST) -m "not slow"

test-slow: $(READY)
	$(PYTEST) -m slow

test-all: test test-slow

# Numerical decisions must not depend on the instruction set: the numeric tests with the oldest one.
NUMERIC := calibration cascade collectors compression export metrics packed tasks test_averages.py test_batch_norm.py \
	test_ensemble.py test_rounding.py test_trajectory.py test_weights.py
test-portable: $(READY)
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(PYTEST) -m "not slow" $(addprefix tests/,$(NUMERIC))

docs: $(READY)
	rm -rf docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -j 2 -q -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html

clean:
	rm -rf $(VENV)

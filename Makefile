# The two commands of the README. Each makes .venv, installs what is needed, and does its job.
PYTHON ?= python3
SHAPE ?= 4096x4096x4096
GPU ?= h100
DB ?= tuning.db
BIN := .venv/bin

.PHONY: search test clean

search: .venv/installed
	$(BIN)/tuner search --shape $(SHAPE) --gpu $(GPU) --db $(DB)

test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q --numprocesses logical --maxprocesses 4 --dist loadfile

.venv/pip:
	$(PYTHON) -m venv .venv
	touch $@

.venv/installed: .venv/pip pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-dev: .venv/pip pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build ./*.egg-info

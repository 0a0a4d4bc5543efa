# make demo    install into .venv and train on real handwritten digits
# make test    install into .venv and run lint, types and tests: what CI runs
#
# Installing happens once, and again when pyproject.toml or constraints.txt has changed.

PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
STEPS := lint types unit

# Tests measure calls and order, not speed; more threads than free cores make small steps many times slower.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test $(STEPS) format benchmark clean
.DELETE_ON_ERROR:

demo: $(VENV)/demo.installed
	$(BIN)/python examples/digits.py

test: $(STEPS)

lint: $(VENV)/dev.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev.installed
	$(BIN)/mypy

unit: $(VENV)/dev.installed
	$(BIN)/python -m pytest --numprocesses 2

format: $(VENV)/dev.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(VENV)/benchmark.installed
	$(BIN)/python benchmarks/step_overhead.py --write
	$(BIN)/python benchmarks/log_call.py --write
	$(BIN)/python benchmarks/progress_bar.py --write
	$(BIN)/python benchmarks/csv_rows.py --write
	$(BIN)/python benchmarks/startup.py --write
	$(BIN)/python benchmarks/memory.py --write
	$(BIN)/python benchmarks/compile.py --rounds 6 --write
	$(BIN)/python benchmarks/checkpoint_stall.py --write
	$(BIN)/python benchmarks/resume.py --write
	$(BIN)/python benchmarks/crash.py --write

$(VENV)/%.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing gpulayer[$*] into $(VENV): some minutes the first time"
	@$(INSTALL) --editable '.[$*]'
	@touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache src/*.egg-info

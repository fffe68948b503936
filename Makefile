# Everything a newcomer types.  Each target sets up its own virtual environment first.
PYTHON ?= python3.11
VENV   ?= .venv
OUT    ?= out
TESTS  ?= not slow
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: paper test slow bench lint check setup clean
.DEFAULT_GOAL := paper

paper: setup            ## the main job: the paper's table and figures, computed, in out/
	$(BIN)/synchronoise paper all --out $(OUT)/

test: setup             ## the suite, but for its long tests
	$(BIN)/python -m pytest -m "$(TESTS)"

slow: setup             ## the long tests
	$(BIN)/python -m pytest -m slow

bench: setup            ## speed against NumPy, diffrax, torchsde and PyTorch, in one run (about 5 minutes)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(BIN)/python benchmarks/bench.py

lint: setup             ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

check: lint test slow        ## all of it

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group dev -e .
	touch $@

clean:
	rm -rf $(VENV) $(OUT) dist build

# With nothing but Python 3.11, 3.12 or 3.13, git and make:
#   make train        set everything up, train DCPG for a few minutes, evaluate, make a video and a picture
#   make test         set everything up, run linters, types and tests (under 10 minutes)
#   make test-faults  the longer tests: kills, faults, slow tests of the ablations (under 25 minutes)
#   make docs         set everything up, build the documentation as a site in the folder site

# make PYTHON=python3.13 ... uses another Python. Each has a virtual environment of its own: .venv belongs to the Python
# that it was made with, others have .venv-3.13 and so on.
USUAL := $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
PYTHON ?= $(USUAL)
version = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VERSION := $(call version,$(PYTHON))
MADE_WITH := $(or $(shell sed -n 's/^version = \([0-9]*\.[0-9]*\).*/\1/p' .venv/pyvenv.cfg 2>/dev/null),$(call version,$(USUAL)))
VENV := .venv$(addprefix -,$(filter-out $(MADE_WITH),$(VERSION)))
BIN := $(VENV)/bin
GAME ?= starpilot
STEPS ?= 400000
SEED ?= 0
OUT ?= runs/$(GAME)-dcpg-$(SEED)

.PHONY: setup python train test test-faults docs lint format clean

setup: python $(VENV)/.installed

python:
	@case "$(VERSION)" in 3.11|3.12|3.13) ;; \
	*) echo "dcpg needs Python 3.11, 3.12 or 3.13 and cannot use $(PYTHON); set PYTHON=/path/to/python3.11" >&2; exit 2;; esac

$(VENV)/.installed: pyproject.toml constraints.txt dcpg/__init__.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

train: setup
	@if [ -f $(OUT)/config.json ]; then $(BIN)/dcpg resume $(OUT); \
	else $(BIN)/dcpg train dcpg --game $(GAME) --preset laptop --steps $(STEPS) --seed $(SEED) --out $(OUT); fi
	@echo "Untrained:"
	@$(BIN)/dcpg eval $(OUT) --levels train --at 0
	@echo "Trained:"
	@$(BIN)/dcpg eval $(OUT) --levels train
	@$(BIN)/dcpg eval $(OUT) --levels test
	@$(BIN)/dcpg record $(OUT) --levels test
	@echo "Curves: $(OUT)/curves.png   Video: $(OUT)/replay.mp4   TensorBoard: $(BIN)/tensorboard --logdir $(OUT)/tb"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

test-faults: setup
	$(BIN)/python -m pytest -m faults -n auto --maxprocesses 8 --dist loadscope --durations=25

docs: setup
	@rm -rf site
	@$(BIN)/python docs/build_site.py site
	@echo "Site: site/index.html   With search: $(BIN)/python -m http.server -d site -b 127.0.0.1 8000"

clean:
	rm -rf .venv .venv-3.* .mypy_cache .ruff_cache .pytest_cache .hypothesis build site *.egg-info

# The verbs of the house; `make` alone lists them. The environment lives in .venv and is set up by the first verb that
# needs it. A stamp notes what was installed, so a second run installs nothing.

PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
VENV ?= .venv
ARGS ?=
NEEDED := Dragoman needs Python 3.11 or newer; install it, or name it: make PYTHON=/path/to/python3.11 ...
BIN := $(VENV)/bin
NATIVE := model/runtime/native
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable

.DEFAULT_GOAL := help
.PHONY: help serve test check format bench soak clean

help: ## list the verbs
	@awk -F ': .*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.serve $(VENV)/.operators ## set up what serving needs (no torch) and serve on 127.0.0.1:8000; Ctrl-C ends it
	@exec $(BIN)/dragoman serve $(ARGS)

test: $(VENV)/.dev $(VENV)/.operators ## set up everything and run the whole suite; ARGS goes to pytest instead
ifeq ($(strip $(ARGS)),)
	@mkdir -p build; $(BIN)/python -m pytest tests/system >build/system.log 2>&1 & system=$$!; \
	  $(BIN)/python -m pytest --ignore tests/system; rest=$$?; wait $$system; system=$$?; cat build/system.log; \
	  exit $$((rest | system))
else
	@exec $(BIN)/python -m pytest $(ARGS)
endif

check: $(VENV)/.dev ## lint, formatting, types; alert rules too where promtool is installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if command -v promtool >/dev/null; then \
	  promtool check config deploy/prometheus/prometheus.yml && promtool test rules deploy/prometheus/alerts_test.yml; \
	else echo 'promtool is not installed: deploy/prometheus is left unchecked.'; fi

format: $(VENV)/.dev ## put every file into the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev $(VENV)/.operators ## measure the engine, alone and against CTranslate2, the whole service, and training on this machine
	@for bench in stepper bandwidth ctranslate2 arrivals service training; do $(BIN)/python -m tests.benchmarks.bench_$$bench || exit; done
	@$(BIN)/python -m tests.benchmarks.collect

soak: $(VENV)/.dev $(VENV)/.operators ## ten minutes of mixed load, and what memory it leaves behind
	@SOAK_SECONDS=600 $(BIN)/python -m pytest -s tests/system/test_soak.py

clean: ## remove the environment and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist $(NATIVE)/operators.so

$(VENV)/.serve: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) '.[cpu]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) '.[cpu,train,dev,bench]'
	@touch $@ $(VENV)/.serve

# The library of our own operators; without a compiler the stock ones run, and a library that cannot be built ends nothing.
$(VENV)/.operators: $(wildcard $(NATIVE)/*.cpp $(NATIVE)/*.h $(NATIVE)/build.py) | $(BIN)/pip
	@$(BIN)/python -m model.runtime.native.build || true
	@touch $@

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { echo '$(PYTHON) is not there. $(NEEDED)' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$($(PYTHON) --version 2>&1) is too old. $(NEEDED)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

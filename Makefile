# fedvlm: every target sets up what it needs. `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
FLOWER ?= .venv-flower
STAMP  := $(VENV)/.installed
PAGES  := $(VENV)/.docs
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar off

JOBS   ?= 2
PLANS  ?= $(sort $(wildcard configs/results/*.yaml))
MORE   := $(sort $(wildcard configs/results/more/*.yaml))
TUNED  ?= $(wildcard docs/results/tuned.json)

FAST   := tests/test_house.py tests/test_packaging.py $(addprefix tests/,core config console evaluation federation runs report/statistics report/tables report/pages)

# Python may keep what it compiled, also where the environment says no: without, each process of
# the tests compiles the package, and each worker all tests.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo test fast test-all test-flower mutants share wheel-test check docs results results-more publish bench gpu-hour clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

$(PAGES): $(STAMP)
	$(PIP) -c constraints.txt -e '.[docs]'
	@touch $@

install: $(STAMP) ## make .venv with the pinned packages and fedvlm itself

demo: $(STAMP) ## a head plus FedTV on the embedded tiny CLIP and built-in images: no download, about fifteen seconds
	$(BIN)/python federated_main.py --demo

test: $(STAMP) ## the tests that CI runs; ends with the ten slowest files
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -q -m "not slow and not flower" -n 2 --dist loadfile

fast: $(STAMP) ## in less than a minute: the rules of the package, and the parts that need no run
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow and not flower" -n 2 --dist loadfile $(FAST)

test-all: $(STAMP) ## all tests, the slow ones too
	$(BIN)/python -m pytest -q -m "not flower"

test-flower: $(STAMP) $(FLOWER)/.installed ## a real federation on this machine: TLS, keys, kills
	FEDVLM_FLOWER=$(abspath $(FLOWER)) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m flower

$(FLOWER)/.installed: constraints-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar off -r $<
	@touch $@

mutants: $(STAMP) ## every planted bug in a copy, and the test that catches it; two at a time
	$(BIN)/python tests/mutants/run.py

wheel-test: $(STAMP) ## build the wheel, install it into a venv of its own, use it from an empty folder
	tests/wheel.sh $(BIN)/python

share: $(STAMP) ## the next tenth of slow tests, of Flower's and of mutants, as CI runs it
	$(BIN)/python .ci/share.py $(if $(PART),--part $(PART))

check: $(STAMP) ## lint and types
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(PAGES) ## the documentation as a site in build/site; a dead link or an unknown name fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean

results: $(STAMP) ## docs/results from the runs of configs/results (about 1.9 hours on 2 cores); PAGE_ONLY=1 from its cells
ifndef PAGE_ONLY
	for plan in $(PLANS); do OMP_NUM_THREADS=1 $(BIN)/python -m fedvlm sweep $$plan \
	--jobs $(JOBS) $(if $(TUNED),--tuned $(TUNED)) || test $$? -eq 1 || exit 2; done
endif
	$(BIN)/python scripts/evidence publish docs/results $(if $(PAGE_ONLY),,--from output/results --keep)

results-more: ## the same from configs/results/more: all methods side by side, local work chosen, ablations, prompts on sets of a hundred classes (about 3.5 hours more)
	$(MAKE) results PLANS="$(MORE)"

publish: $(STAMP) ## docs/results from its cells alone; TAKE=PACK ROOT=DATA/ takes runs of fedvlm reproduce after a replay
ifdef TAKE
	$(BIN)/python scripts/evidence publish docs/results --take $(TAKE) $(if $(ROOT),--root $(ROOT)) $(if $(WEIGHTS),--weights $(WEIGHTS))
else
	$(MAKE) results PAGE_ONLY=1
endif

bench: $(STAMP) ## speed of FedTV against the reference recipe (ViT-B/16, 50 classes)
	$(BIN)/python scripts/evidence bench fedtv --backbone ViT-B/16 --classes 50

gpu-hour: $(STAMP) ## on a machine with a GPU: does it work, are the bits equal, how fast is it; build/gpu has the table
	$(BIN)/python scripts/evidence gpu-hour build/gpu

clean: ## remove .venv and caches (never runs or data)
	rm -rf $(VENV) $(FLOWER) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info

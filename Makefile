# `make demo` and `make test` need Python 3.11 or later and git; everything else goes into .venv and .nox.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready-$(notdir $(PYTHON))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo check lint types test cases faults figures integrations releases release gpu clean tools python version

help:  ## show this help
	@echo "make demo      show bytes, seconds and gradients of well-known models, with and without wrap_blocks"
	@echo "make check     lint, types and the tests of the static half, in under two minutes"
	@echo "make lint      the rules and the formatting of ruff alone"
	@echo "make types     mypy alone"
	@echo "make test      lint, types, the pages and all tests, with transformers 5 and with transformers 4"
	@echo "make cases     run trainings that went wrong for somebody, by each command, and print what differs from what is right"
	@echo "make faults    count which reported faults our checks and other tools find: docs/coverage/faults.md"
	@echo "make figures   count lines, definitions and docstrings of the source, beside those of three libraries"
	@echo "make integrations  run trainings of TRL, Lightning, sentence-transformers and diffusers under the guard"
	@echo "make releases  try the most used classes under six releases of transformers: docs/coverage/releases.md"
	@echo "make release   VERSION=5.24.0: try everything on that release of transformers, and write its page in"
	@echo "               docs/coverage with what differs from the one before (TORCH=2.14.1: with another torch)"
	@echo "make gpu       measure and test on a CUDA GPU with the torch and transformers of PYTHON, and write docs/gpu.md"
	@echo "               (DRY=1: toy sizes on the CPU; MINUTES=9: the most important checks, in 9 minutes instead of 20)"
	@echo "make clean     remove .venv, .nox, out and the tools' caches"
	@echo "               PYTHON=python3.12 picks another interpreter (3.11 or later)"

tools: python
	@command -v git >/dev/null || { echo "git was not found: install it, then run make again." >&2; exit 1; }

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "$(PYTHON) is not Python 3.11 or later: name one that is, as in 'make test PYTHON=python3.12'." >&2; exit 1; }

$(READY): pyproject.toml constraints/base.txt | tools
	@$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: python3-venv)." >&2; exit 1; }
	$(VENV)/bin/python -m pip install --quiet --constraint constraints/base.txt setuptools nox
	$(VENV)/bin/python -m pip install --quiet --constraint constraints/base.txt --no-build-isolation --editable .
	@touch $@

demo: tools $(READY)  ## show bytes, seconds and gradients of well-known models
	$(VENV)/bin/python -m nox --session demo

gpu: python  ## measure and test on a CUDA GPU, and write docs/gpu.md
	@$(PYTHON) -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("rich", "torch", "transformers"))))' || { \
	  echo "make gpu runs with the packages of $(PYTHON): install torch 2.8, transformers 4.52.4 and rich 13.7, or later." >&2; exit 2; }
	@$(PYTHON) -m benchmarks.gpu $(if $(DRY),--dry) $(if $(MINUTES),--minutes $(MINUTES))

lint: tools $(READY)  ## what .pre-commit-config.yaml runs before a commit
	$(VENV)/bin/python -m nox --session lint

types: tools $(READY)  ## what .pre-commit-config.yaml runs before a push
	$(VENV)/bin/python -m nox --session types

check: tools $(READY)  ## lint, types and the tests of the static half
	$(VENV)/bin/python -m nox --session lint types static

test: tools $(READY)  ## lint, types and all tests
	$(VENV)/bin/python -m nox

cases: tools $(READY)  ## run trainings that went wrong for somebody, with transformers 5 and 4
	$(VENV)/bin/python -m nox --session cases

figures: tools $(READY)  ## how dense the source is
	$(VENV)/bin/python -m nox --session figures

faults: tools $(READY)  ## which tool finds which reported fault
	$(VENV)/bin/python -m nox --session faults

integrations: tools $(READY)  ## run trainings of other packages under the guard
	$(VENV)/bin/python -m nox --session integrations

releases: tools $(READY)  ## try the most used classes under six releases of transformers
	$(VENV)/bin/python -m nox --session releases

release: version tools $(READY)  ## try everything on one release of transformers
	$(VENV)/bin/python -m nox --session release -- $(VERSION) $(TORCH)

version:
	@test -n "$(VERSION)" || { echo "name the release, as in 'make release VERSION=5.24.0'." >&2; exit 1; }

clean:  ## remove everything that these commands made
	rm -rf $(VENV) .nox out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

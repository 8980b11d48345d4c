# `make run` and `make test` need only Python >= 3.11, make and git: everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOWEST := .venv-lowest

.PHONY: run reproduce bench test test-fast test-lowest fuzz lint types layers check package dist coverage docs pages digests clean
.DEFAULT_GOAL := run

run: $(STAMP)
	$(BIN)/fvnce reproduce --out out

# The whole paper on MNIST with one seed: about an hour on two cores. Stopped and started again, it goes on.
reproduce: $(STAMP)
	$(BIN)/fvnce reproduce --data mnist --seeds 1 --out out/mnist

# What the benchmarks measure and how long they take; each is a program of its own.
bench:
	@$(PYTHON) benchmarks

test: lint types layers check package

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks experiments tools
	$(BIN)/ruff format --check src tests benchmarks experiments tools
	$(BIN)/python -m tools.prose

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

# Two processes of one thread each fill two cores better than one process of two threads.
check: $(STAMP) $(VENV)/lightning
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

# For development: what is not marked slow, about a minute on two idle cores. `make test` leaves nothing out.
test-fast: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m "not slow"

# The fast tests with the oldest versions that pyproject.toml allows, in an environment of their own. The page of commands
# is not compared: its words are those of the typer that constraints.txt pins.
test-lowest: $(LOWEST)/.installed
	OMP_NUM_THREADS=1 $(LOWEST)/bin/pytest -n 2 --dist worksteal -m "not slow" tests \
		--deselect "tests/repository/test_docs.py::test_a_page_that_is_made_is_what_it_is_made_from[docs/reference/commands.md]"

# Ten thousand inputs that nobody would make on purpose: how many end in anything but a result or a clear sentence?
fuzz: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.fuzz

# The wheel alone, in an environment of its own that borrows only the dependencies, not this source.
package: $(STAMP)
	$(BIN)/python -m tools.release.check_package

# What a release consists of, in build/dist, examined as above.
dist: $(STAMP)
	$(BIN)/python -m tools.release.check_package build/dist

# Which lines no test reaches, as a page in build/coverage. Slower than the tests alone.
coverage: $(STAMP) $(VENV)/lightning
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --cov=fvnce --cov-report=term --cov-report=html:build/coverage

# Strict: a broken link, an equation that is not defined or a page without a place fails. Nothing is fetched by a reader.
docs: $(VENV)/.docs
	$(BIN)/python -m tools.pages --check
	$(BIN)/python -m tools.release.build_site

# Whether seeded results are those that `python -m tools.release.digests write` recorded on this machine, to the bit.
digests: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.release.digests check

# Pages that are made from results or from the program, and what the code of pages prints and draws.
pages: $(STAMP) $(VENV)/lightning
	$(BIN)/python -m tools.pages
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.pages.run_page docs/quickstart-*.md docs/detector/*.md docs/models/*.md docs/theory/*.md

# For one page, in a folder of its own: where torchmetrics can be imported, Fabric does so at every start.
$(VENV)/lightning: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --upgrade --target $@ \
		pytorch-lightning torchmetrics tqdm PyYAML
	touch $@

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

$(STAMP): pyproject.toml constraints.txt src/fvnce/_version.py
	$(PYTHON) -c 'import sys; sys.exit("fvnce needs Python 3.11 or newer, found " + sys.version.split()[0] + ": set PYTHON=python3.x") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

# Linters and builders are of no use here, and have bounds of their own.
$(LOWEST)/.installed: pyproject.toml constraints-lowest.txt src/fvnce/_version.py
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt \
		-e ".[flows]" pytest pytest-xdist hypothesis pandas polars playwright sympy
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) out dist build site

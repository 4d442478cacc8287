# The commands for working on windeck. `make help` lists them.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
DATA   ?=
ARGS   ?=
# Processes that run tests at the same time; a file of tests runs in one of them. One more than
# cores, usually: some tests wait for servers and for processes that they start.
WORKERS ?= 3
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

# The installation is editable: changed Python files need no new one.
SOURCES := $(shell find cpp -type f -name '*.?pp' 2>/dev/null)
BUILD_TOOLS := scikit-build-core pybind11 cmake ninja

.PHONY: help build demo demo-text check test test-slow test-cpp lint format stubs sanitize docs docs-test bench wheel wheels test-wheels test-cpp-aarch64 clean

help:  ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# --- environments: one virtual environment, filled step by step ------------------------------

$(VENV)/.tools: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "windeck needs Python >= 3.10")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) 'pip>=25.1'  # earlier ones know no --group
	$(PIP) $(BUILD_TOOLS)
	@touch $@

comma := ,
# $(call installed,EXTRAS,GROUPS): the extension built, what has changed of it, and the requirements
# of extras and of dependency groups installed.
define installed
	@echo "building and installing windeck[$(1)] into $(VENV) (the first time takes minutes)"
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-build-isolation --editable '.[$(1)]' $(addprefix --group ,$(2))
	@touch $@
endef

$(VENV)/.demo: $(VENV)/.tools $(SOURCES) CMakeLists.txt pyproject.toml
	$(call installed,cli$(comma)rocksdb)

$(VENV)/.test: $(VENV)/.tools $(SOURCES) CMakeLists.txt pyproject.toml
	$(call installed,all,test frameworks)

$(VENV)/.lint: $(VENV)/.tools $(SOURCES) CMakeLists.txt pyproject.toml
	$(call installed,all,test frameworks lint)
	@touch $(VENV)/.test  # that too: `make test` after `make lint` builds nothing anew

$(VENV)/.bench: $(VENV)/.tools $(SOURCES) CMakeLists.txt pyproject.toml
	$(call installed,all,bench)

$(VENV)/.docs: $(VENV)/.test pyproject.toml
	$(PIP) --group docs
	@touch $@

$(VENV)/.wheels: $(VENV)/.tools pyproject.toml
	$(PIP) --group wheels
	@touch $@

# --- what users run ------------------------------------------------------------------------------

demo: $(VENV)/.demo  ## the main job, on a synthetic load curve or on DATA=file.parquet
	$(BIN)/windeck demo $(DATA) $(ARGS)

demo-text: $(VENV)/.demo  ## documents, packed and mixed, under torchrun; or DATA=a corpus of yours
	$(BIN)/python examples/text_demo.py $(addprefix --data ,$(DATA)) $(ARGS)

build: $(VENV)/.test  ## the extension, incrementally, with what the tests need

# A worker has one core, and its files in the order of tests/conftest.py: the longest first.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: test-cpp $(VENV)/.test  ## all tests but the slow ones; ARGS=tests/loader for some
	$(PYTEST) $(ARGS)

test-slow: test-cpp $(VENV)/.test  ## all tests
	$(PYTEST) -m "slow or not slow" $(ARGS)

CMAKE_CPP = PATH="$(abspath $(BIN)):$$PATH" cmake -G Ninja -DWINDECK_PYTHON=OFF -DWINDECK_TESTS=ON -S .

test-cpp: $(VENV)/.tools  ## the core's own tests, built without Python and with warnings as errors
	$(CMAKE_CPP) -B build/cpp -DWINDECK_WERROR=ON > /dev/null
	$(BIN)/cmake --build build/cpp
	$(BIN)/ctest --test-dir build/cpp --output-on-failure

sanitize: $(VENV)/.tools  ## the core's own tests under AddressSanitizer and UBSan
	$(CMAKE_CPP) -B build/sanitize -DWINDECK_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo > /dev/null
	$(BIN)/cmake --build build/sanitize
	# A test asks for more memory than there is: that has to throw here as it does elsewhere.
	ASAN_OPTIONS=allocator_may_return_null=1 $(BIN)/ctest --test-dir build/sanitize --output-on-failure

# --- what we run ---------------------------------------------------------------------------------

# mypy keeps its results in .mypy_cache, and checks the files that have changed with those that
# depend on them. A third process of tests would take longer to begin than it saves.
check: WORKERS := 2
check: $(VENV)/.lint  ## what a commit has to pass, in about 80 seconds: style, types, layers, some tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(PYTEST) @tests/check.txt

CPP_FILES = $(shell find cpp -name '*.?pp')

lint: $(VENV)/.lint  ## style, types and layers: ruff, mypy, import-linter, clang-format, C++ warnings, workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(CMAKE_CPP) -B build/cpp -DWINDECK_WERROR=ON > /dev/null
	$(BIN)/cmake --build build/cpp

format: $(VENV)/.lint  ## format all sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

stubs: $(VENV)/.test  ## regenerate src/windeck/_core.pyi from the built extension
	$(BIN)/python tests/stubs.py > build/_core.pyi && mv build/_core.pyi src/windeck/_core.pyi

docs: $(VENV)/.docs  ## the site, in build/site; warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/site

docs-test: $(VENV)/.test  ## every code block of every page, as written; ARGS="-k quickstart" for some
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -rA --no-header -q tests/test_docs_code.py $(ARGS)

bench: $(VENV)/.bench  ## every figure, as ratios, into benchmarks/RESULTS.md; ARGS="orders gather" for some
	$(BIN)/python benchmarks/run.py $(ARGS)

wheel: $(VENV)/.wheels  ## a wheel of this machine's compiler in dist/, tested as `make test-wheels` does
	rm -rf dist
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .
	$(BIN)/python packaging/wheels.py test --arguments $(ARGS)

# With pyenv: PYENV_VERSION=3.10:3.11:3.12 make wheels
# The last command succeeds: make takes nothing from a shell whose status is 127.
PYTHONS ?= $(shell for minor in 10 11 12 13 14; do python3.$$minor -c '' 2>/dev/null && echo python3.$$minor; done; true)

wheels: $(VENV)/.wheels  ## Linux wheels in dist/ for the Pythons of the PATH or PYTHONS, against an old glibc
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python packaging/wheels.py build $(PYTHONS)

test-wheels: $(VENV)/.wheels  ## the tests with each wheel in dist/, installed, without compiler and sources
	$(BIN)/python packaging/wheels.py test --arguments $(ARGS)

# Needs qemu-user and a C library for it to load, as of Debian's libc6-arm64-cross.
ZIG = $(shell $(BIN)/python -c 'import ziglang; print(ziglang.__path__[0])')/zig
QEMU_LD_PREFIX ?= /usr/aarch64-linux-gnu

test-cpp-aarch64: $(VENV)/.wheels  ## the core's own tests, cross-compiled by zig, under qemu-user
	ZIG=$(ZIG) ZIG_TARGET=aarch64-linux-gnu.2.28 $(CMAKE_CPP) -B build/aarch64 \
		--toolchain packaging/zig.cmake -DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64 > /dev/null
	$(BIN)/cmake --build build/aarch64
	QEMU_LD_PREFIX=$(QEMU_LD_PREFIX) WINDECK_EMULATED=1 $(BIN)/ctest --test-dir build/aarch64 --output-on-failure

clean:  ## remove what was built, the environment excepted
	rm -rf build dist out

# Two commands from a fresh clone: `make demo` and `make test`. They create the environment .venv, once.

NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 12))'
PYTHON ?= $(shell for p in python3.12 python3.13 python3.14 python3; do $$p $(NEW_ENOUGH) 2>/dev/null && echo $$p && exit; done; echo python3)
OLDEST_JAX := 0.11.1
IN_VENV := .venv/bin/python
# Without cached bytecode, each test process compiles all packages again.
export PYTHONDONTWRITEBYTECODE :=
THIS := $(firstword $(MAKEFILE_LIST))

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-rare test-oldest test-oldest-quick test-installs test-accelerators mutants campaign bench docs site native-sanitize native-fuzz native-test-arm native-test-avx512 test-arm-python test-avx512-python lint notebooks clean

help:  ## show this help
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

demo: .venv/.demo .venv/.native  ## run a real int8 network and check every bit of it
	$(IN_VENV) -m jaxdml

test: .venv/.test .venv/.native  ## run the tests
	$(IN_VENV) -m pytest

test-all: .venv/.test-all .venv/.native  ## run all tests, including the slow and rare ones
	$(IN_VENV) -m pytest -m 'rare or not rare'

test-rare: .venv/.test-all .venv/.native
	$(IN_VENV) -m pytest -m rare

test-oldest: .venv-oldest/.test .venv-oldest/.native  ## run the tests, and the rare ones with the mark oldest, on the oldest supported jax
	.venv-oldest/bin/python -m pytest -m 'not rare or oldest'

test-oldest-quick: .venv-oldest/.test .venv-oldest/.native
	.venv-oldest/bin/python -m pytest -m 'oldest and not rare'

test-installs:  ## build both packages, and install each extra into an empty environment
	$(PYTHON) tests/commands/installs.py $(INSTALLS)

# ACCELERATORS=--quick compiles a few cases of each kind.
test-accelerators: .venv-accelerators/.test  ## compile for GPUs and TPUs without such devices, and check the compiled programs
	PYTHONPATH=tests .venv-accelerators/bin/python -m accelerators $(ACCELERATORS)

mutants: .venv/.test .venv/.native  ## change the library in one place at a time, and see whether its tests notice
	$(IN_VENV) tests/commands/mutants.py

# CAMPAIGN="--seed 5" repeats a campaign.
SECONDS ?= 60
campaign: .venv/.test .venv/.native  ## compare random calls in random modes with NumPy, for 60 s or SECONDS=600
	$(IN_VENV) tests/commands/campaign.py --seconds $(SECONDS) $(CAMPAIGN)

bench: .venv/.bench .venv/.native  ## time everything against onnxruntime and lax, on an idle machine
	$(IN_VENV) -m benchmarks

docs: .venv/.docs .venv/.native  ## run all snippets and notebooks, and build the site in build/docs
	$(IN_VENV) -m pytest -m 'rare or not rare' tests/documents/test_snippets.py
	$(MAKE) site
	$(IN_VENV) -m pytest -m rare tests/documents/test_browse.py
	$(IN_VENV) docs/browse.py build/docs build/pictures

# SITE=-Dnb_execution_mode=off runs no notebook and shows saved outputs, which tests/documents/test_notebooks.py checks.
site: .venv/.docs .venv/.native
	$(IN_VENV) -m pytest -m rare tests/documents/test_built_site.py
	$(IN_VENV) -m sphinx --fail-on-warning --keep-going --jobs auto --quiet $(SITE) --conf-dir docs . build/docs
	$(IN_VENV) docs/check.py build/docs

# Needs a C++ compiler and CMake, but no Python.
CMAKE = $(shell for c in cmake .venv/bin/cmake; do $$c --version >/dev/null 2>&1 && echo $$c && exit; done; echo cmake)

native-sanitize:  ## run the native kernels on random shapes under sanitizers
	$(CMAKE) -S native -B build/native-sanitize -DJAXDML_SANITIZE=ON
	$(CMAKE) --build build/native-sanitize --parallel
	build/native-sanitize/random_shapes
	build/native-sanitize/waiting_threads
	$(CMAKE) -S native -B build/native-tsan -DJAXDML_TSAN=ON
	$(CMAKE) --build build/native-tsan --parallel
	build/native-tsan/random_shapes 1500
	build/native-tsan/waiting_threads

# Needs jaxlib's headers. CALLS is a number of calls, or a time such as 60s. SEED repeats a run, whose output has its
# seed. CALLS=1 SEED="5 123" repeats and prints call 123 of seed 5.
CALLS ?= 60s
SEED ?=
native-fuzz: .venv/.tools  ## call the native library as XLA does, validly and invalidly, under sanitizers
	$(CMAKE) -S native -B build/native-sanitize -DJAXDML_SANITIZE=ON -DPython_EXECUTABLE=$(CURDIR)/$(IN_VENV)
	$(CMAKE) --build build/native-sanitize --parallel --target hostile_calls
	build/native-sanitize/hostile_calls $(CALLS) $(SEED)

# Needs Debian's packages g++-aarch64-linux-gnu and qemu-user. CASES=6000 runs more cases; SANITIZE=ON adds sanitizers.
CASES ?= 200
SANITIZE ?= OFF
ARM_BUILD = build/native-arm$(if $(filter ON,$(SANITIZE)),-sanitize)
native-test-arm:  ## run the native kernels of 64-bit ARM on random shapes under an emulator
	@for tool in aarch64-linux-gnu-g++ qemu-aarch64; do command -v $$tool >/dev/null || { \
	  echo "$$tool is missing: apt-get install g++-aarch64-linux-gnu qemu-user"; exit 1; }; done
	$(CMAKE) -S native -B $(ARM_BUILD) -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/native/aarch64.cmake -DJAXDML_SANITIZE=$(SANITIZE) -DJAXDML_TESTS_ONLY=ON
	$(CMAKE) --build $(ARM_BUILD) --parallel
	for set in max:neon_i8mm neoverse-n1:neon_dotprod cortex-a72:neon; do \
	  ASAN_OPTIONS=detect_leaks=0 qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu $${set%:*} $(ARM_BUILD)/random_shapes \
	    $(CASES) 1 0 $${set#*:} || exit 1; done

# Needs Debian's package libsimde-dev. Loops emulate AMX tiles.
native-test-avx512:  ## run the native kernels of AVX512-VNNI on random shapes, with emulated instructions
	@$(HAS_SIMDE) || { echo "SIMDe is missing: apt-get install libsimde-dev"; exit 1; }
	$(CMAKE) -S native -B build/native-avx512 -DJAXDML_EMULATE_AVX512=ON -DJAXDML_TESTS_ONLY=ON
	$(CMAKE) --build build/native-avx512 --parallel
	build/native-avx512/random_shapes $(CASES) 1 0 amx_int8 avx512_vnni
HAS_SIMDE = c++ -E -include simde/x86/avx512.h -x c++ /dev/null >/dev/null 2>&1

lint: .venv/.dev  ## run ruff and mypy, as pre-commit does
	.venv/bin/pre-commit run --all-files

notebooks: .venv/.notebooks  ## open the notebooks in JupyterLab
	.venv/bin/jupyter lab notebooks

clean:  ## remove the environments and caches
	rm -rf .venv .venv-oldest .venv-accelerators .pytest_cache .mypy_cache .ruff_cache build dist

%/bin/python:
	@$(PYTHON) $(NEW_ENOUGH) 2>/dev/null || { \
	  echo "jaxdml needs Python 3.12 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not to be found)."; \
	  echo "Install Python 3.12 (python.org, your package manager, pyenv or uv), or say where it is:"; \
	  echo "  make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; \
	  exit 1; }
	@echo "Making the environment $* with $(PYTHON)"
	@$(PYTHON) -m venv $* || { rm -rf $*; exit 1; }

.venv/.demo: pyproject.toml | .venv/bin/python
	@echo "Installing jaxdml into .venv"
	@$(IN_VENV) -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[onnx]'
	@touch $@

# An extra takes about as long to install as the kernels take to compile, so the two run in parallel.
.venv/.test .venv/.test-all .venv/.bench .venv/.dev .venv/.docs .venv/.notebooks: .venv/.%: pyproject.toml | .venv/bin/python .venv/.tools
	@echo "Installing jaxdml and its '$*' extra into .venv"
	@$(MAKE) --silent -f $(THIS) .venv/.wheel & \
	  $(IN_VENV) -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[$*]'; \
	  status=$$?; wait; exit $$status
	@touch $@ .venv/.demo

# Without a compiler, or if the build fails, jaxdml runs on XLA's kernels: make prints a message and does not fail.
COMPILER := $(shell for c in "$$CXX" c++ g++ clang++; do command -v "$$c" >/dev/null 2>&1 && echo "$$c" && exit; done)
# --no-build-isolation takes the headers of the environment's own jaxlib: nothing else is downloaded, and the wheel
# is for that environment alone. `pip install ./native` builds with the oldest supported jaxlib, for every jaxlib.
NATIVE_SOURCES := native/CMakeLists.txt native/pyproject.toml $(wildcard native/src/* native/jaxdml_cpu/*)
QUIETLY := --quiet --disable-pip-version-check --no-compile
.venv/.tools: | .venv/bin/python
.venv-oldest/.tools: JAXLIB := ==$(OLDEST_JAX)
.venv-oldest/.tools: | .venv-oldest/bin/python
.venv/.tools .venv-oldest/.tools: %/.tools:
	@[ -z "$(COMPILER)" ] || \
	  $*/bin/python -m pip install $(QUIETLY) jaxlib$(JAXLIB) scikit-build-core cmake ninja >$*/.native.log 2>&1 || true
	@touch $@

# This file exists if the kernels could be built.
.venv/.wheel: | .venv/.tools
.venv-oldest/.wheel: | .venv-oldest/.tools
.venv/.wheel .venv-oldest/.wheel: %/.wheel: $(NATIVE_SOURCES)
	@if [ -z "$(COMPILER)" ]; then echo "There is no C++ compiler to build native kernels with; without them the bits are the same"; \
	else \
	  echo "Building the native kernels with $(COMPILER)"; \
	  { rm -rf $@ $@s && $*/bin/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	      --config-settings=cmake.define.JAXDML_FOR_THIS_PROCESSOR=ON --wheel-dir $@s ./native && touch $@; \
	  } >>$*/.native.log 2>&1 || echo "They could not be built, see $*/.native.log; XLA's give the same bits"; \
	fi

.venv/.native: | .venv/.demo
.venv-oldest/.native: | .venv-oldest/.test
.venv/.native .venv-oldest/.native: %/.native: $(NATIVE_SOURCES)
	@$(MAKE) --silent -f $(THIS) $*/.wheel
	@if [ -e $*/.wheel ]; then $*/bin/python -m pip install $(QUIETLY) --no-deps --force-reinstall $*/.wheels/*.whl && touch $@; \
	elif [ -n "$(COMPILER)" ]; then $*/bin/python -m pip uninstall --quiet --yes jaxdml-cpu >>$*/.native.log 2>&1; fi
	@$*/bin/python -c "import jaxdml; print(f'Kernels: {jaxdml.kernels()}')"

.venv-oldest/.test: pyproject.toml | .venv-oldest/bin/python
	@echo "Installing jaxdml with jax $(OLDEST_JAX) into .venv-oldest"
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[test]' jax==$(OLDEST_JAX) jaxlib==$(OLDEST_JAX)
	@touch $@

# The compilers for GPUs and TPUs, in one environment. --no-deps leaves out libraries that are only needed to run on a GPU.
.venv-accelerators/.test: pyproject.toml | .venv-accelerators/bin/python
	@echo "Installing jaxdml and the compilers for GPUs and TPUs into .venv-accelerators"
	@.venv-accelerators/bin/python -m pip install $(QUIETLY) --editable '.[onnx]' 'jax[tpu]'
	@jax=$$(.venv-accelerators/bin/python -c 'import importlib.metadata as m; print(m.version("jax"))') && \
	  .venv-accelerators/bin/python -m pip install $(QUIETLY) --no-deps \
	    jax-cuda12-plugin==$$jax jax-cuda12-pjrt==$$jax nvidia-cuda-nvcc-cu12
	@touch $@

# Needs Debian's mmdebstrap, g++-aarch64-linux-gnu and qemu-user, and downloads Debian's Python for ARM. Under the
# emulator, importing jax takes a minute, each compiled program takes seconds, and XLA's own float product crashes.
ARM_PYTHON := build/arm-python
ARM_TESTS ?= tests/_exact/test_function.py tests/_arithmetic/test_subnormals.py -k 'not float_products'
test-arm-python: $(ARM_PYTHON)/.packages  ## run some of the tests with a Python and a jaxlib for 64-bit ARM under an emulator
	PYTHONPATH=$(ARM_PYTHON)/packages:tests qemu-aarch64 -L $(ARM_PYTHON)/debian $(ARM_PYTHON)/debian/bin/python3.13 \
	  -m pytest -o addopts=--import-mode=importlib -m 'not rare' -p no:cacheprovider $(ARM_TESTS)

# For processors with AVX2 but without AVX512-VNNI.
AVX512_PYTHON := build/avx512-python
AVX512_TESTS ?= $(wildcard tests/_arithmetic/test_native*.py) tests/_exact/test_attention.py tests/_exact/test_rows.py tests/_exact/test_chains.py \
  tests/_operators/test_matrix_multiply_blocks.py tests/_operators/test_prepared_blocks.py tests/_onnx/test_products_by_blocks.py
test-avx512-python: $(AVX512_PYTHON)/.packages .venv/.test  ## run some of the tests on the kernels of AVX512-VNNI with emulated instructions
	JAXDML_TESTS_SKIP_NOTHING=1 JAXDML_KERNELS=avx512_vnni PYTHONPATH=$(AVX512_PYTHON)/packages $(IN_VENV) -m pytest -p no:cacheprovider $(AVX512_TESTS)

$(AVX512_PYTHON)/.packages: $(NATIVE_SOURCES) native/tests/emulated_avx512.h .venv/.tools
	@$(HAS_SIMDE) || { echo "SIMDe is missing: apt-get install libsimde-dev"; exit 1; }
	$(CMAKE) -S native -B $(AVX512_PYTHON)/native -DJAXDML_EMULATE_AVX512=ON -DPython_EXECUTABLE=$(CURDIR)/$(IN_VENV)
	$(CMAKE) --build $(AVX512_PYTHON)/native --parallel
	$(CMAKE) --install $(AVX512_PYTHON)/native --prefix $(AVX512_PYTHON)/packages
	cp native/jaxdml_cpu/__init__.py $(AVX512_PYTHON)/packages/jaxdml_cpu
	touch $@

$(ARM_PYTHON)/.debian:
	@for tool in mmdebstrap aarch64-linux-gnu-g++ qemu-aarch64; do command -v $$tool >/dev/null || { \
	  echo "$$tool is missing: apt-get install mmdebstrap g++-aarch64-linux-gnu qemu-user"; exit 1; }; done
	rm -rf $(ARM_PYTHON)/debian && mkdir -p $(ARM_PYTHON)
	mmdebstrap --quiet --architectures=arm64 --variant=extract --include=python3.13,libpython3.13-stdlib,libstdc++6 \
	  trixie $(ARM_PYTHON)/debian
	cd $(ARM_PYTHON)/debian && ln -s usr/* .  # extracted packages have their programs in one folder
	touch $@

# The headers are those of this machine's jaxlib, which has the same version.
$(ARM_PYTHON)/.packages: $(ARM_PYTHON)/.debian $(NATIVE_SOURCES) .venv/.tools
	$(IN_VENV) -m pip install $(QUIETLY) --upgrade --target $(ARM_PYTHON)/packages --only-binary=:all: --python-version 3.13 \
	  $(addprefix --platform manylinux,2014_aarch64 _2_27_aarch64 _2_28_aarch64) \
	  jax jaxlib==$$($(IN_VENV) -c 'import importlib.metadata as m; print(m.version("jaxlib"))') numpy chex pytest
	$(CMAKE) -S native -B $(ARM_PYTHON)/native -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/native/aarch64.cmake -DPython_EXECUTABLE=$(CURDIR)/$(IN_VENV)
	$(CMAKE) --build $(ARM_PYTHON)/native --parallel
	$(CMAKE) --install $(ARM_PYTHON)/native --prefix $(ARM_PYTHON)/packages
	cp native/jaxdml_cpu/__init__.py $(ARM_PYTHON)/packages/jaxdml_cpu
	touch $@

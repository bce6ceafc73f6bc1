# Builds, tests and measures the project; `make help` lists the goals.
#
#   BACKEND=cuda|cpu    NVIDIA's libraries, or cpu/'s (default: cuda if this machine has nvcc and an NVIDIA GPU)
#   MARCH=...           the CPU's instruction set (default -march=native)
#   CUDA_ARCH=...       nvcc -gencode flags (default: for this machine's GPU, or for all architectures)
#   CXX=...             the C++ compiler, also nvcc's (default g++ or, if nvcc refuses it, the newest g++-N that it
#                       permits); "ccache g++" reuses what it compiled before
#   OPT=...             optimization of the code that a step spends its time in (default -O3)
#   MPICC=...           the C compiler of an MPI, which the build then uses (default mpicc; none: one rank on CPUs)
#   EXTRA=...           more flags for the C++ compiler
#   BUILD=DIR           where to build (default: build/BACKEND)
#   DEPS_INCLUDE=DIR    extra folder of header-only dependencies (default: build/deps/include, from `make deps-headers`)
#   CATCH2_INCLUDE=DIR  extra folder with Catch2's header
#   JOBS=N              compile N files at a time (default: one per core, but at most one per 600 MB of free memory)
#   SETUP=0             never install anything

SHELL := /bin/bash
ifndef JOBS
JOBS := $(shell awk -v cores="$$(nproc)" '/^MemAvailable/ { n = int($$2 / 600000); if (n > cores) n = cores } \
    END { print (n > 1 ? n : 1) }' /proc/meminfo)
endif
ifndef INNER  # a make that dev/builds.mk starts shares the jobs of the one above
MAKEFLAGS += -j$(JOBS)
endif
MAKEFLAGS += -rR
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:

FIND_CUDA    = CXX='$(if $(filter command%,$(origin CXX)),$(CXX))' dev/find_cuda.sh
ifndef BACKEND
BACKEND := $(shell $(FIND_CUDA) backend)
endif
override BACKEND := $(BACKEND:host=cpu)
ifeq ($(filter $(BACKEND),cuda cpu),)
$(error BACKEND=$(BACKEND): it is cuda or cpu)
endif
BUILD  ?= build/$(BACKEND)
DEPS_INCLUDE ?= $(wildcard build/deps/include)
PYTHON := $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)

# ---- sources -------------------------------------------------------------------------------------------------------
# Wildcards find all sources. Each *.cu in this folder is a program. A file belongs to both backends unless ONLY_cpu or
# ONLY_cuda matches it.
FOLDERS   := base cpu runtime files kernels model optim data options checkpoint generation plan train
in         = $(wildcard $(foreach f,$1,$f/*.cu $f/*.cpp $f/*/*.cu $f/*/*.cpp))
LIBRARY   := $(call in,$(FOLDERS))
TESTS     := $(call in,$(wildcard test/*))
GPUSIM    := $(wildcard gpusim/*.cpp gpusim/*/*.cpp)  # has a Makefile of its own (docs/modelled_gpu.md)
PROGRAMS  := $(basename $(wildcard *.cu))
BENCHES   := $(basename $(wildcard bench/bench_*.cu))
ALL       := $(TESTS) $(LIBRARY) $(GPUSIM) $(addsuffix .cu,$(PROGRAMS) $(BENCHES))
ONLY_cpu  := $(filter-out cpu/cgroup.cpp cpu/system_memory.cpp,$(wildcard cpu/*.cpp)) gpusim/% test/cpu/% \
             runtime/linalg/tiles% kernels/attention/tiled%
ONLY_cuda := test/model_gpu/%
OTHER     := $(if $(filter cpu,$(BACKEND)),cuda,cpu)
objects    = $(patsubst %,$(BUILD)/%.o,$(filter-out $(ONLY_$(OTHER)),$1))

# ---- compilers -----------------------------------------------------------------------------------------------------
# $$(...) is left to the shell of a recipe, which runs it after packages were installed.
CXX         := g++
OPT         := -O3
MARCH        = $$($(CXX) -march=native -E -x c++ /dev/null >/dev/null 2>&1 && echo -march=native)
CATCH2_LIBS  = $$(dev/find_catch2.sh "$(CATCH2_INCLUDE) $(DEPS_INCLUDE)")
# Without MPI, programs for the CPU run as a single rank, and mpirun cannot start programs for the GPU.
MPICC       := mpicc
MPI          = $$(MPICC='$(MPICC)' dev/find_mpi.sh $1)
MPI_INCLUDE  = $(call MPI,include)
MPI_LIBS     = $(call MPI,libs)
# Warnings are errors only with the compiler of CI, because others warn about other code; a switch that lacks a case of
# its enum is an error with every compiler. g++ does not know nvcc's "pragma unroll".
WERROR       = $$($(CXX) -dumpversion 2>/dev/null | grep -q '^12' && echo -Werror)
WARN         = -Wall -Wextra -Werror=switch $(WERROR) -Wno-unknown-pragmas -Wno-stringop-overflow -Wno-psabi \
               $(if $(findstring clang,$(CXX)),-Werror=comma)
INCLUDES    := -I. $(patsubst %,-isystem %,$(DEPS_INCLUDE) $(CATCH2_INCLUDE))

FLAGS_cpu    = -std=c++20 $(OPT) $(MARCH) -ffp-contract=fast -fno-math-errno -fno-trapping-math -fopenmp $(WARN) \
               $(INCLUDES) -isystem cpu/include $(EXTRA)
LIBS_cpu     = -llapacke -ldnnl -lgomp -lboost_context -lfmt $(MPI_LIBS)
CU_cpu       = $(CXX) @$(BUILD)/flags $(FASTER) -x c++

ifeq ($(BACKEND),cuda)
NVCC        := $(shell $(FIND_CUDA) nvcc)
CXX         := $(shell $(FIND_CUDA) cxx)
CUDA_ARCH   := $(shell $(FIND_CUDA) arch)
CUDA_INCLUDE := $(shell $(FIND_CUDA) include)
CUDA_LIBS   := $(shell $(FIND_CUDA) libs)
NVCC_EXTRA  := -lineinfo
endif
# fmt is used header-only, so that a GPU machine needs no library. Under nvcc, fmt turns constexpr off by default, which
# fails to compile. With constexpr on, nvcc warns about fmt's long double functions in device code (20208), although no
# kernel calls them.
DEFINE_cuda  = $(INCLUDES) -DTEON_CUDA -DFMT_HEADER_ONLY -DFMT_USE_CONSTEXPR=1 $(CUDA_INCLUDE)
FLAGS_cuda   = -std=c++20 $(OPT) $(WARN) $(DEFINE_cuda) $(EXTRA)
LIBS_cuda    = $(filter-out $(WITHOUT),$(CUDA_LIBS)) $(MPI_LIBS)
CU_cuda      = $(NVCC) -std=c++20 $(or $(FASTER),$(OPT)) --expt-relaxed-constexpr -diag-suppress 20208 \
               $(subst -Werror,-Werror all-warnings,$(WERROR)) \
               -Xcompiler -Wall,-Wextra,-Werror=switch,-Wno-stringop-overflow $(DEFINE_cuda) $(CUDA_ARCH) $(NVCC_EXTRA)
CU           = $(CU_$(BACKEND))

# ---- rules ---------------------------------------------------------------------------------------------------------
# dev/compile.sh FOLDER FILE COMMAND says which of the files of this make it compiles, and how long the others take.
MAKE_ID     := $(shell echo "$$PPID $$EPOCHSECONDS")
COMPILE      = @MAKE_ID='$(MAKE_ID)' GOALS='$(MAKECMDGOALS)' JOBS=$(JOBS) dev/compile.sh $(BUILD) $<
NAME        := $(notdir $(BUILD))
# $(call keep,TEXT,COMMAND) writes TEXT to the target unless it has it, and then runs the command. Its rule is always
# tried, but not when dev/compile.sh counts what is to be compiled.
keep         = @mkdir -p $(@D); text="$1"; [ -e $@ ] && [ "$$text" = "$$(cat $@)" ] || \
                   { echo "$$text" >$@$(if $2,; $2); }
ALWAYS      := $(if $(COUNTING),,FORCE)

$(BUILD)/%.cpp.o: %.cpp $(BUILD)/flags $(BUILD)/compilers
	@mkdir -p $(@D)
	$(COMPILE) $(CXX) @$(BUILD)/flags $(FASTER) $(PRECOMPILED) $(MORE) -MD -MP -c $< -o $@
$(BUILD)/%.cu.o: %.cu $(BUILD)/flags $(BUILD)/compilers
	@mkdir -p $(@D)
	$(COMPILE) $(CU_$(BACKEND)) $(PRECOMPILED) -MD -MP -MF $(@:.o=.d) -c $< -o $@ 2>$@.log || \
	    { cat $@.log >&2; exit 1; }

$(addprefix $(BUILD)/,$(PROGRAMS) $(BENCHES)): $(BUILD)/%: $(BUILD)/%.cu.o $(call objects,$(LIBRARY)) $(BUILD)/libs
	@echo "  $(NAME)  $*"
	@$(CXX) @$(BUILD)/flags $(filter %.o,$^) -o $@ @$(BUILD)/libs
$(BUILD)/tests: $(call objects,$(TESTS) $(LIBRARY)) $(BUILD)/libs
	@echo "  $(NAME)  tests"
	@$(CXX) @$(BUILD)/flags $(filter %.o,$^) -o $@ $(CATCH2_LIBS) @$(BUILD)/libs

# These files compile slowly and their speed matters little: tests, and the host code around the kernels, which take
# almost all of a step's time. It has -O1 where it reads or writes data, else -Og, which compiles faster.
BULK        := files data checkpoint generation
STEERING    := $(filter-out base cpu runtime kernels $(BULK),$(FOLDERS))
$(addprefix $(BUILD)/,test/%.o $(BULK:%=%/%.cpp.o)): private FASTER := -O1
$(patsubst %,$(BUILD)/%/%.cpp.o,$(STEERING)): private FASTER := -Og
$(BUILD)/test/support/main.cpp.o: private FASTER := -O0

# Headers of libraries that most files include, compiled once.
ifeq ($(BACKEND),cpu)
HEADERS     := base/precompiled.h test/support/precompiled.h
$(BUILD)/%.o: private PRECOMPILED = -include $(BUILD)/base/precompiled.h
$(BUILD)/test/%.o: private PRECOMPILED = -include $(BUILD)/test/support/precompiled.h
$(BUILD)/test/support/main.cpp.o: private PRECOMPILED =
$(call objects,$(LIBRARY) $(addsuffix .cu,$(PROGRAMS) $(BENCHES))): $(BUILD)/base/precompiled.h.gch
$(call objects,$(TESTS)): $(BUILD)/test/support/precompiled.h.gch
$(HEADERS:%=$(BUILD)/%.gch): $(BUILD)/%.gch: % $(BUILD)/flags $(BUILD)/compilers
	@mkdir -p $(@D)
	@echo '#include "$<"' >$(BUILD)/$*
	$(COMPILE) $(CXX) @$(BUILD)/flags -MD -MP -MF $(BUILD)/$*.d -x c++-header -c $(BUILD)/$* -o $@
export CCACHE_SLOPPINESS := pch_defines,time_macros
endif

$(BUILD)/options/version.cpp.o: build/version
$(BUILD)/options/version.cpp.o: private MORE = -DTEON_SOURCE_VERSION='"'"$$(cat build/version)"'"'
USE_MPI     := $(addprefix $(BUILD)/,runtime/cuda/exchange.cpp.o cpu/nccl.cpp.o)
$(USE_MPI): $(BUILD)/mpi
$(USE_MPI): private MORE = @$(BUILD)/mpi

# These goals install missing packages before they build; the others only name them.
SETUP_FIRST := $(if $(filter demo test test-cpus test-sanitize soak bench,$(MAKECMDGOALS)),packages,\
    $(if $(filter 0,$(SETUP)),,check-packages))
# What g++ is called with, and the compilers. A change compiles everything. Without nvcc nothing is compiled;
# find_cuda.sh has said why.
$(BUILD)/flags: $(ALWAYS) | $(SETUP_FIRST)
	$(call keep,$(FLAGS_$(BACKEND)))
$(BUILD)/compilers: $(ALWAYS) | $(SETUP_FIRST)
	@$(if $(filter cuda,$(BACKEND)),$(if $(NVCC),,exit 1))
	$(call keep,$(CXX) $(CU_$(BACKEND)))
$(BUILD)/mpi: $(ALWAYS) | $(SETUP_FIRST)
	$(call keep,$(MPI_INCLUDE),echo "  $(NAME)  $(call MPI,name)")
# What the linker is called with. A change links everything.
$(BUILD)/libs: $(ALWAYS) | $(SETUP_FIRST)
	$(call keep,$(LIBS_$(BACKEND)))
# The source version, for --version and each run's config.json: the newest version in CHANGELOG.md, and the commit.
build/version: $(ALWAYS)
	$(call keep,$$(sed -n "s/^## \([0-9][0-9.]*\).*/\1/p" CHANGELOG.md | head -1)$\
	    $$(git describe --always --exclude='*' --dirty=+changes 2>/dev/null | sed 's/.*/ (&)/'))
-include $(patsubst %,$(BUILD)/%.d,$(ALL) $(HEADERS))

# ---- goals ---------------------------------------------------------------------------------------------------------
all: $(PROGRAMS)  ## Build ./train_gpt2 and the other programs for this machine
tests: $(BUILD)/tests  ## Build the C++ tests

$(PROGRAMS): %: $(BUILD)/% FORCE
	@[ "$$(readlink $@)" = $< ] || ln -sf $< $@

demo: $(PROGRAMS) build/corpus/manifest.json | venv  ## Train on Shakespeare, or on your text (TEXT=notes.txt MINUTES=5)
	@$(if $(TEXT),$(PYTHON) scripts/train_text.py '$(TEXT)' $(MINUTES:%=--minutes %),scripts/demo.sh)

HOUSE_TESTS := $(if $(filter cpu,$(BACKEND)),build/model-gpu/tests)
test: $(BUILD)/tests $(HOUSE_TESTS) $(PROGRAMS) | venv  ## Run every test; skipped ones are named
	@$(PYTHON) dev/run_tests.py $< $(HOUSE_TESTS) $(wildcard test/*/test_*.py gpusim/test/test_*.py)

test-docs: $(PROGRAMS) $(BUILD)/tests | venv  ## Run the commands of README and docs; check links and flags
	@TEON_BUILD=$(BUILD) $(PYTHON) dev/run_tests.py test/dev/test_docs.py

# With BACKEND=cpu, the soak reads damaged files under the sanitizers.
SOAK_FUZZ   := $(if $(filter cpu,$(BACKEND)),build/cpu-asan,$(BUILD))/tests
soak: $(SOAK_FUZZ) $(PROGRAMS) | venv  ## Attack training for MINUTES (30): kills, signals, damaged files
	@TEON_BUILD=$(BUILD) $(PYTHON) test/programs/soak.py --minutes $(or $(MINUTES),30) --fuzz $(SOAK_FUZZ) $(SOAK_FLAGS)

test-source-faults: build/cpu/tests $(PROGRAMS) $(HOUSE_TESTS) | venv  ## Plant faults in the sources (WORD=ranks); slow
	@$(PYTHON) test/plant_source_faults.py $(WORD)

BENCH_HERE  := $(patsubst %,$(BUILD)/%,$(filter-out bench/bench_gpu,$(BENCHES)))
bench: build/corpus/manifest.json
bench: $(PROGRAMS) $(BENCH_HERE) | venv  ## Measure this machine: each program in bench/, and training beside PyTorch
	@set -o pipefail; { for b in $(BENCH_HERE); do echo "$$b"; $$b || exit; done; \
	    for b in optimizers train shared checkpoint; do echo "bench/bench_$$b.py"; $(PYTHON) bench/bench_$$b.py || exit; \
	    done; } | tee build/bench.txt
	@$(PYTHON) bench/compare_output.py build/bench.txt

# SECONDS limits a call with its build; the next call goes on behind it. FIRST_FLAGS: others of dev/gpu_first.py.
FIRST       := tests train_gpt2 train_llama bench/bench_gpu
FIRST_BEGAN := $(lastword $(MAKE_ID))
gpu-first: $(FIRST:%=$(BUILD)/%)  ## Test and measure this GPU in stages (STAGES="a b", SECONDS=520)
	@$(PYTHON) dev/gpu_first.py --build $(BUILD) --began $(FIRST_BEGAN) $(SECONDS:%=--seconds %) \
	    $(FIRST_FLAGS) $(STAGES)

build/corpus/manifest.json: dev/make_corpus.py | $(SETUP_FIRST)
	@$(PYTHON) dev/make_corpus.py $(@D)

# These goals build cpu/ with either backend and need its libraries.
SETUP_BACKEND := $(if $(filter test-cpus test-sanitize soak cuda-run-tests test-faults build/model-gpu/%,\
    $(MAKECMDGOALS)),cpu,$(BACKEND))
setup: packages venv  ## Install what is missing: packages, and .venv for plots and tokenizers
packages:
	@BACKEND=$(SETUP_BACKEND) INCLUDES='$(INCLUDES)' scripts/setup.sh packages
check-packages:
	@BACKEND=$(SETUP_BACKEND) INCLUDES='$(INCLUDES)' TESTS=$(if $(filter-out all $(PROGRAMS),$(MAKECMDGOALS)),1,0) \
	    scripts/setup.sh check
venv: | packages
	@scripts/setup.sh venv

# For a GPU machine without packages.
deps-headers:  ## Copy header-only dependencies to build/deps/include, to carry to another machine
	@mkdir -p build/deps/include
	@cp -rL $(wildcard $(addprefix /usr/include/,fmt nlohmann catch2 xxhash.h)) build/deps/include
	@du -sh build/deps/include

clean:  ## Remove everything that was built
	rm -rf build $(PROGRAMS)

help:  ## Print this list
	@sed -n 's/^#   \([A-Z0-9_]*=.*\)/  \1/p' Makefile
	@echo
	@cat Makefile dev/*.mk | sed -n 's/^\([a-z_.-]*\):.*## \(.*\)/  make \1\t\2/p' | expand -t 30

FORCE:
.PHONY: FORCE all tests demo test test-docs soak test-source-faults bench gpu-first setup packages check-packages venv \
        deps-headers clean help

include dev/checks.mk
ifndef INNER
include dev/builds.mk
endif

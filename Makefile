# Builds, tests and measures the project; `make help` lists the goals.
#
#   BACKEND=cuda|cpu    NVIDIA's libraries, or cpu/'s (default: cuda if this machine has nvcc and an NVIDIA GPU)
#   MARCH=...           the CPU's instruction set (default -march=native)
#   CUDA_ARCH=...       nvcc -gencode flags (default: for this machine's GPU, or for all architectures)
#   DEPS_INCLUDE=DIR    extra folder of header-only dependencies (default: build/deps/include, from `make deps-headers`)
#   CATCH2_INCLUDE=DIR  extra folder with Catch2's header
#   JOBS=N              compile N files at a time (default: one per core, but at most one per 600 MB of free memory)
#   SETUP=0             never install anything

SHELL := /bin/bash
ifndef JOBS
JOBS := $(shell awk -v cores="$$(nproc)" '/^MemAvailable/ { n = int($$2 / 600000); if (n > cores) n = cores } \
    END { print (n > 1 ? n : 1) }' /proc/meminfo)
endif
MAKEFLAGS += -rR -j$(JOBS)
# `make -j` without a number starts all compilers at once. Each then waits for one of JOBS locks. Only recipes know.
BOUND = $(if $(filter -j,$(MAKEFLAGS)),flock build/lock$$((RANDOM % $(JOBS))))
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:

# $(call once,NAME,COMMAND) defines NAME as the output of COMMAND. COMMAND runs once, at the first use of NAME: after
# `setup`, and never for `make help`. It expands to NAME = $(eval NAME := $(shell COMMAND))$(NAME).
once = $(eval $1 = $$(eval $1 := $$(shell $2))$$($1))

ifndef BACKEND
BACKEND := $(shell dev/find_cuda.sh backend)
endif
override BACKEND := $(BACKEND:host=cpu)
DEPS_INCLUDE ?= $(wildcard build/deps/include)
ifeq ($(filter $(BACKEND),cuda cpu),)
$(error BACKEND=$(BACKEND): it is cuda or cpu)
endif
PYTHON = $(shell [ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)

# ---- sources -------------------------------------------------------------------------------------------------------
# Wildcards find all sources. Each *.cu in this folder is a program. A file belongs to both backends unless ONLY_cpu or
# ONLY_cuda matches it.
ONLY_cpu  := $(filter-out cpu/cgroup.cpp cpu/system_memory.cpp,$(wildcard cpu/*.cpp)) cpu/group% gpusim/% test/cpu/% \
             runtime/linalg/tiles% kernels/attention/tiled%
ONLY_cuda := test/model_gpu/%
SOURCES   := base cpu runtime runtime/cuda runtime/linalg runtime/tensor_cores files kernels kernels/attention \
             kernels/optimizers model optim data options checkpoint generation plan train
STEERING  := $(filter-out base cpu runtime% kernels%,$(SOURCES))
BULK      := files data checkpoint generation
LIBRARY   := $(wildcard $(SOURCES:%=%/*.cu) $(SOURCES:%=%/*.cpp))
# Five files of a folder at a time are compiled as one: most of the time of one file goes to headers that its neighbours
# include, too. For a GPU, nvcc compiles each .cu file by itself. APART: files with flags of their own, of one backend,
# large ones, and those whose unnamed functions are called as their neighbours' are. $(call fives,GROUP,FILES) returns
# the groups as files, and sets FILES_<group>.
APART     := options/version.cpp runtime/cuda/exchange.cpp runtime/linalg/tiles.cpp cpu/cgroup.cpp cpu/nccl.cpp \
             cpu/system_memory.cpp optim/soap.cpp \
             kernels/activation.cu kernels/attention/rows.cu kernels/attention/tiled.cu kernels/norm.cu \
             kernels/optimizers/teon.cu
fives      = $(if $2,$(eval FILES_$1$(words $3 x) := $(wordlist 1,5,$2))$1$(words $3 x).cpp \
             $(call fives,$1,$(wordlist 6,$(words $2),$2),$3 x))
groups     = $(strip $(foreach f,$1,$(call fives,$f/$2,$(filter-out $(APART),$(wildcard $f/*.$3)))))
GROUPS    := $(call groups,base cpu $(filter runtime%,$(SOURCES)) $(STEERING),group,cpp)
CU_GROUPS := $(call groups,$(filter runtime% kernels%,$(SOURCES)),cu_group,cu)
UNITS_cuda := $(filter-out $(foreach g,$(GROUPS),$(FILES_$(basename $g))),$(LIBRARY)) $(GROUPS)
UNITS_cpu  := $(filter-out $(foreach g,$(CU_GROUPS),$(FILES_$(basename $g))),$(UNITS_cuda)) $(CU_GROUPS)
# The modelled GPU has a Makefile of its own (docs/modelled_gpu.md). Here its sources are only checked.
GPUSIM    := $(wildcard gpusim/*.cpp gpusim/*/*.cpp)
MODEL_GPU := $(addprefix build/model-gpu/,libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libcusolver.so.12 \
             libnccl.so.2)
TESTS     := $(wildcard test/*/*.cu test/*/*.cpp test/*/*/*.cu test/*/*/*.cpp)
PROGRAMS  := $(basename $(wildcard *.cu))
BENCHES   := $(basename $(wildcard bench/bench_*.cu))

# ---- compilers -----------------------------------------------------------------------------------------------------
CXX        := g++
$(call once,MARCH,$(CXX) -march=native -E -x c++ /dev/null >/dev/null 2>&1 && echo -march=native)
$(call once,NVCC,dev/find_cuda.sh nvcc)
$(call once,CUDA_ARCH,dev/find_cuda.sh arch)
$(call once,CUDA_INCLUDE,dev/find_cuda.sh include)
$(call once,CUDA_LIBS,dev/find_cuda.sh libs)
$(call once,CATCH2_LIBS,dev/find_catch2.sh "$(CATCH2_INCLUDE) $(DEPS_INCLUDE)")
# Without MPI, programs for the CPU run as a single rank, and mpirun cannot start programs for the GPU.
$(call once,MPI_INCLUDE,mpicxx --showme:incdirs 2>/dev/null | sed 's/[^ ]\+/-isystem &/g')
$(call once,MPI_LIBS,mpicxx --showme:libdirs 2>/dev/null | sed 's/[^ ]\+/-L&/g; s/.*/& -lmpi/')
ARCH_all   := -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a
PTX_both   := -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90a,code=compute_90a

INCLUDES   := -I. $(patsubst %,-isystem %,$(DEPS_INCLUDE) $(CATCH2_INCLUDE))
# g++ does not know nvcc's "pragma unroll". Warnings are errors only with the compiler of CI, because others warn about
# other code; a switch that lacks a case of its enum is an error with every compiler.
$(call once,WERROR,$(CXX) -dumpversion 2>/dev/null | grep -q '^12' && echo -Werror)
WARN        = -Wall -Wextra -Werror=switch $(WERROR) -Wno-unknown-pragmas -Wno-stringop-overflow
VERSION     = -DTEON_SOURCE_VERSION='"$(shell cat build/version)"'
OPT        := -O3
CXX_cpu     = $(CXX) -std=c++20 $(OPT) $(MARCH) -ffp-contract=fast -fno-math-errno -fno-trapping-math -fopenmp $(WARN) \
              $(INCLUDES) -isystem cpu/include
# With sanitizers, g++ 12 takes members of <regex> for uninitialized.
SANITIZE   := -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
              -Wno-maybe-uninitialized
CXX_asan    = $(subst -O3,-O1,$(CXX_cpu)) $(SANITIZE)
# fmt is used header-only, so that a GPU machine needs no library. Under nvcc, fmt turns constexpr off by default, which
# fails to compile. With constexpr on, nvcc warns about fmt's long double functions in device code (20208), although no
# kernel calls them.
FMT_cuda   := -DFMT_HEADER_ONLY -DFMT_USE_CONSTEXPR=1
FMT_nvcc   := -diag-suppress 20208
CXX_cuda    = $(CXX) -std=c++20 $(OPT) $(WARN) $(INCLUDES) -DTEON_CUDA $(FMT_cuda) $(CUDA_INCLUDE)
NVCC_cuda   = $(NVCC) -std=c++20 $(OPT) --expt-relaxed-constexpr -lineinfo $(WERROR:%=% all-warnings) $(FMT_nvcc) \
              -Xcompiler -Wall,-Wextra,-Werror=switch,-Wno-stringop-overflow $(INCLUDES) -DTEON_CUDA $(FMT_cuda) \
              $(CUDA_INCLUDE)
LIBS_cpu    = -llapacke -ldnnl -lgomp -lboost_context -lfmt $(MPI_LIBS)
LIBS_cuda   = $(filter-out $(WITHOUT),$(CUDA_LIBS)) $(MPI_LIBS)

# ---- build folders -------------------------------------------------------------------------------------------------
# One folder per kind of build. CPP_NAME compiles .cpp files and links, CU_NAME compiles .cu files. The name begins with
# the backend. cuda-model: programs that nvcc compiles for the modelled GPU.
# cuda-bundle: for another machine.
FOLDERS := cpu cpu-asan cpu-v2 cpu-v3 cuda cuda-check cuda-model cuda-bundle
CPP_cpu        = $(CXX_cpu)
CPP_cpu-asan   = $(CXX_asan)
CPP_cpu-v2     = $(filter-out $(MARCH),$(CXX_cpu)) -march=x86-64-v2
CPP_cpu-v3     = $(filter-out $(MARCH),$(CXX_cpu)) -march=x86-64-v3
CPP_cuda       = $(CXX_cuda)
CPP_cuda-check = $(CXX_cuda)
CPP_cuda-model = $(CXX_cuda)
CPP_cuda-bundle = $(CXX_cuda) -static-libstdc++ -static-libgcc
CU_cpu         = $(CPP_cpu) -x c++
CU_cpu-asan    = $(CPP_cpu-asan) -x c++
CU_cpu-v2      = $(CPP_cpu-v2) -x c++
CU_cpu-v3      = $(CPP_cpu-v3) -x c++
CU_cuda        = $(NVCC_cuda) $(CUDA_ARCH)
CU_cuda-check  = $(NVCC_cuda) $(ARCH_all) -Xptxas -v
CU_cuda-bundle = $(filter-out -lineinfo,$(NVCC_cuda)) $(ARCH_all)
CU_cuda-model  = $(NVCC_cuda) $(PTX_both) --no-compress

backend = $(firstword $(subst -, ,$1))
units   = $(UNITS_$(call backend,$1))
objects = $(patsubst %,build/$1/%.o,$(filter-out $(ONLY_$(if $(filter cuda,$(call backend,$1)),cpu,cuda)),$2))

# The rules of folder $1. Each $$ is the $ of an ordinary rule: $(call folder,cpu) replaces $1 in this text and turns $$
# into $, and $(eval) reads the result as part of this file. For example, CPP_cpu compiles data/loader.cpp to
# build/cpu/data/loader.cpp.o.
define folder
build/$1/%.cpp.o: %.cpp build/$1/flags
	@mkdir -p $$(@D)
	@echo "  $1  $$<"
	@$$(BOUND) $$(CPP_$1) $$(EXTRA) -MD -MP -c $$< -o $$@

# A class may have a member of a type in an unnamed namespace of its file, which here is not the main file.
$(addprefix build/$1/,$(addsuffix .o,$(GROUPS) $(CU_GROUPS))): build/$1/%.cpp.o: build/groups/%.cpp build/$1/flags
	@mkdir -p $$(@D)
	@echo "  $1  $$(FILES_$$*)"
	@$$(BOUND) $$(CPP_$1) -Wno-subobject-linkage -MD -MP -c $$< -o $$@

build/$1/%.cu.o: %.cu build/$1/flags
	@mkdir -p $$(@D)
	@echo "  $1  $$<"
	@$$(BOUND) $$(CU_$1) -MD -MP -MF $$(@:.o=.d) -c $$< -o $$@ 2> $$@.log || { cat $$@.log >&2; exit 1; }

$(addprefix build/$1/,$(PROGRAMS) $(BENCHES)): build/$1/%: build/$1/%.cu.o $(call objects,$1,$(call units,$1))
	@echo "  $1  $$*"
	@$$(CPP_$1) $$^ -o $$@ $$(LIBS_$(call backend,$1))

build/$1/tests: $(call objects,$1,$(TESTS) $(call units,$1))
	@echo "  $1  tests"
	@$$(CPP_$1) $$^ -o $$@ $$(CATCH2_LIBS) $$(LIBS_$(call backend,$1))

# These files compile slowly and their speed matters little: tests, and the host code around the kernels, which take
# almost all of a step's time. It has -O1 where it reads or writes data, else -Og, which compiles faster.
build/$1/test/support/main.cpp.o: private OPT := -O0
$(if $(filter cuda-check cuda-model,$1),,\
build/$1/test/%.o $(addprefix build/$1/,$(BULK:%=%/%.cpp.o)): private OPT := -O1
$(addprefix build/$1/,$(patsubst %,%/%.cpp.o,$(filter-out $(BULK),$(STEERING)))): private OPT := -Og)
build/$1/options/version.cpp.o: private EXTRA = $$(VERSION)
build/$1/options/version.cpp.o: build/version
$(addprefix build/$1/,runtime/cuda/exchange.cpp.o cpu/nccl.cpp.o): private EXTRA = $$(MPI_INCLUDE)
$(addprefix build/$1/,runtime/cuda/exchange.cpp.o cpu/nccl.cpp.o): build/mpi

# A change of the compile commands rebuilds everything.
build/$1/flags: FORCE | $(SETUP_FIRST)
	@mkdir -p $$(@D)
	@echo '$$(CPP_$1)' '$$(CU_$1)' | cmp -s - $$@ || echo '$$(CPP_$1)' '$$(CU_$1)' > $$@
endef

build/cuda-bundle/runtime/cuda/comm.cu.o: private INCLUDES += -DTEON_WITHOUT_NCCL

# These goals install missing packages before they build; the others only name them.
SETUP_FIRST := $(if $(filter demo test test-cpus test-sanitize soak bench,$(MAKECMDGOALS)),packages,\
    $(if $(filter 0,$(SETUP)),,check-packages))
$(foreach f,$(FOLDERS),$(eval $(call folder,$f)))
# These builds only have to compile and link. nvcc optimizes kernels regardless of -O.
build/cuda-check/% build/cuda-model/%: private OPT := -O0
build/cuda-model/test/%: private OPT := -O1
ALL := $(TESTS) $(LIBRARY) $(GPUSIM) $(addsuffix .cu,$(PROGRAMS) $(BENCHES))
-include $(foreach f,$(FOLDERS),$(patsubst %.o,%.d,$(call objects,$f,$(ALL) $(GROUPS) $(CU_GROUPS))))

build/groups/%.cpp: FORCE
	@mkdir -p $(@D)
	@printf '#include "%s"\n' $(FILES_$*) | cmp -s - $@ || printf '#include "%s"\n' $(FILES_$*) >$@

# The modelled GPU's libraries and tests; its arguments come first, goals last.
house = $(MAKE) -s -C gpusim CXX='$(CXX)' MARCH='$(MARCH)' INCLUDES='$(patsubst -I.,,$(INCLUDES))' \
        WARN='$(WARN)' CATCH2_LIBS='$(CATCH2_LIBS)' $1
$(MODEL_GPU) &: FORCE | $(SETUP_FIRST)
	+@$(call house,BUILD=../build/model-gpu all)
build/model-gpu/tests: FORCE | $(MODEL_GPU)  # one after the other: both make the same objects
	+@$(call house,BUILD=../build/model-gpu tests)
build/model-gpu-asan/tests: FORCE | $(SETUP_FIRST)
	+@$(call house,BUILD=../build/model-gpu-asan OPT='-O1 $(SANITIZE)' tests)

# The source version, for --version and each run's config.json: the newest version in CHANGELOG.md, and the commit.
build/version: FORCE
	@mkdir -p build
	@v="$$(sed -n "s/^## \([0-9][0-9.]*\).*/\1/p" CHANGELOG.md | head -1)"; \
	    v="$$v$$(git describe --always --exclude='*' --dirty=+changes 2>/dev/null | sed 's/.*/ (&)/')"; \
	    [ "$$v" = "$$(cat $@ 2>/dev/null)" ] || echo "$$v" > $@

# Changes when MPI is installed.
build/mpi: FORCE
	@mkdir -p build
	@echo '$(MPI_INCLUDE)' | cmp -s - $@ || echo '$(MPI_INCLUDE)' > $@

# ---- goals ---------------------------------------------------------------------------------------------------------
all: $(PROGRAMS)  ## Build ./train_gpt2 and the other programs for this machine

$(PROGRAMS): %: build/$(BACKEND)/% FORCE
	@[ "$$(readlink $@)" = $< ] || ln -sf $< $@

demo: $(PROGRAMS) build/corpus/manifest.json | venv  ## Train a small GPT-2 on Shakespeare, three times
	@scripts/demo.sh

HOUSE_TESTS := $(if $(filter cpu,$(BACKEND)),build/model-gpu/tests)
test: build/$(BACKEND)/tests $(HOUSE_TESTS) $(PROGRAMS) | venv  ## Run every test; skipped ones are named
	@$(PYTHON) dev/run_tests.py $< $(HOUSE_TESTS) $(wildcard test/*/test_*.py gpusim/test/test_*.py)

test-sanitize: build/cpu-asan/tests build/model-gpu-asan/tests  ## Run the C++ tests under the sanitizers
	@$(PYTHON) dev/run_tests.py $^

# Runs the tests as on CPUs without the newest instructions. ISAS: the limit for oneDNN (DEFAULT: no limit). CORES: the
# kernels that OpenBLAS uses, if LAPACK is OpenBLAS. VERSIONS: the x86-64 levels for the compiler.
ISAS     ?= AVX2 AVX512_CORE AVX512_CORE_BF16 DEFAULT
CORES    ?= $(shell ldconfig -p | grep -q 'libopenblas' && echo Haswell Zen SkylakeX)
VERSIONS ?= v2 v3
test-cpus: build/cpu/tests $(VERSIONS:%=build/cpu-%/tests)  ## Run the C++ tests with the instruction sets of other CPUs
	@set -e; for isa in $(ISAS); do echo "oneDNN limited to $$isa:"; \
	    DNNL_MAX_CPU_ISA=$$isa $(PYTHON) dev/run_tests.py build/cpu/tests; done
	@set -e; for core in $(CORES); do echo "OpenBLAS for $$core:"; \
	    OPENBLAS_CORETYPE=$$core $(PYTHON) dev/run_tests.py build/cpu/tests \
	        --only runtime/linalg/linalg,runtime/linalg/decompositions,optim/; done
	@set -e; for version in $(VERSIONS); do echo "compiled for x86-64-$$version:"; \
	    $(PYTHON) dev/run_tests.py build/cpu-$$version/tests; done

# With BACKEND=cpu, the soak reads damaged files under the sanitizers.
MINUTES   ?= 30
SOAK_FUZZ := build/$(if $(filter cpu,$(BACKEND)),cpu-asan,$(BACKEND))/tests
soak: $(SOAK_FUZZ) $(PROGRAMS) | venv  ## Attack training for MINUTES (30): kills, signals, damaged files
	@TEON_BUILD=build/$(BACKEND) $(PYTHON) test/programs/soak.py --minutes $(MINUTES) --fuzz $(SOAK_FUZZ) $(SOAK_FLAGS)

# The program tests use the GPU's default options, with one GPU for each of up to eight ranks. They take half an hour.
# CHOICE=short omits the tests that other builds run as well; RUN_FLAGS="--only NAME" omits all program tests.
PROGRAM_TESTS := model_gpu gpu_first $(if $(filter short,$(CHOICE)),,\
                 train generate ranks sharding rank_failures resume best interrupted)
MODELLED := $(addprefix build/cuda-model/,tests $(PROGRAMS) bench/bench_gpu) $(MODEL_GPU) \
            $(addprefix build/cpu/,$(PROGRAMS))
cuda-run-tests: $(MODELLED) | venv  ## Run the tests that nvcc built, and programs, on a modelled GPU (CHOICE=short)
	@LD_LIBRARY_PATH=$(CURDIR)/build/model-gpu CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 $(PYTHON) dev/run_tests.py $< \
	    $(or $(RUN_FLAGS),$(PROGRAM_TESTS:%=test/programs/test_%.py))
	@echo "code compiled for sm_80:"
	@LD_LIBRARY_PATH=$(CURDIR)/build/model-gpu CUDA_DEVICE=A100 $(PYTHON) dev/run_tests.py $< \
	    $(or $(RUN_FLAGS),$(if $(filter short,$(CHOICE)),--only kernels/attention/flash))

foreign: $(MODEL_GPU) | venv  ## Run kernels of others on the modelled GPU (CUTLASS=DIR, ...: docs/modelled_gpu.md)
	+@$(call house,BUILD=../build/model-gpu NVCC='$(NVCC)' PYTHON='$(abspath $(PYTHON))' ONLY='$(ONLY)' \
	    CUTLASS='$(CUTLASS)' FLASH='$(FLASH)' LLMC='$(LLMC)' FASTCU='$(FASTCU)' SAMPLES='$(SAMPLES)' \
	    KITTENS='$(KITTENS)' foreign)

build/cuda-model/clusters: gpusim/examples/clusters.cu
	@mkdir -p $(@D)
	@echo "  cuda-model  $<"
	@$(NVCC) -std=c++17 -cudart shared -lineinfo --no-compress -gencode arch=compute_90a,code=compute_90a $< -o $@
PLANTED := build/cuda-model/tests build/cuda-model/clusters
test-faults: $(PLANTED) $(MODEL_GPU)  ## Plant faults in nvcc's output; the modelled GPU must find them
	@LD_LIBRARY_PATH=$(CURDIR)/build/model-gpu $(PYTHON) gpusim/test/plant_faults.py $(PLANTED)

test-source-faults: build/cpu/tests $(PROGRAMS) $(HOUSE_TESTS) | venv  ## Plant faults in the sources (WORD=ranks); slow
	@$(PYTHON) test/plant_source_faults.py $(WORD)

CHECK_CUDA := $(addprefix build/cuda-check/,tests $(PROGRAMS) $(BENCHES))
check-cuda: $(CHECK_CUDA)  ## Compile for every architecture with nvcc; report registers, spills and instructions
	@$(PYTHON) dev/ptxas_report.py build/cuda-check
	@$(PYTHON) bench/instruction_counts.py build/cuda-check

# SECONDS limits a call with its build; the next call goes on behind it. FIRST_FLAGS: others of dev/gpu_first.py.
FIRST_BEGAN := $(if $(filter gpu-first,$(MAKECMDGOALS)),$(shell date +%s))
FIRST := tests train_gpt2 train_llama bench/bench_gpu
gpu-first: $(FIRST:%=build/$(BACKEND)/%)  ## Test and measure this GPU in stages (STAGES="a b", SECONDS=520)
	@$(PYTHON) dev/gpu_first.py --build build/$(BACKEND) --began $(FIRST_BEGAN) $(SECONDS:%=--seconds %) \
	    $(FIRST_FLAGS) $(STAGES)

# Without MPI and NCCL, so that the programs need nothing but the driver and CUDA's libraries. The other make sets its
# own number of jobs, and would complain about this one's.
gpu-bundle: build/corpus/manifest.json  ## Pack gpu-first for a machine without nvcc (build/gpu-first.tar.xz)
	@MAKEFLAGS='$(filter-out -j% --jobserver-%,$(MAKEFLAGS))' $(MAKE) --no-print-directory MPI_INCLUDE= MPI_LIBS= \
	    WITHOUT=-l:libnccl.so% $(FIRST:%=build/cuda-bundle/%)
	@dev/gpu_bundle.sh build/cuda-bundle build/gpu-first.tar.xz

test-docs: $(PROGRAMS) build/$(BACKEND)/tests | venv  ## Run the commands of README and docs; check links and flags
	@TEON_BUILD=build/$(BACKEND) $(PYTHON) dev/run_tests.py test/dev/test_docs.py

lint:  ## Check how the C++ and CUDA code is written, and the Python code (ruff)
	@$(PYTHON) dev/check_statements.py
	@command -v $(RUFF) >/dev/null || { echo "SKIPPED: lint: needs ruff (scripts/setup.sh dev)"; exit 0; }; $(RUFF) check .

# Defined before the rule that uses it, because make expands prerequisites when it reads a rule.
TIDIED := $(if $(filter tidy,$(MAKECMDGOALS)),$(if $(shell command -v clang-tidy-16),$(filter %.cpp,$(LIBRARY))))
tidy: $(TIDIED:%=build/tidy/%.ok)  ## Check C++ for faults that compilers do not report (clang-tidy 16); slow
	@echo $(if $(TIDIED),"tidy: clean","SKIPPED: tidy: needs clang-tidy 16 (scripts/setup.sh dev)")
build/tidy/%.ok: %  .clang-tidy
	@mkdir -p $(@D)
	@echo "  tidy  $<"
	@clang-tidy-16 --quiet $< -- -std=c++20 -Wno-unknown-pragmas $(INCLUDES) -isystem cpu/include $(MPI_INCLUDE) \
	    2>$@.log || { cat $@.log; exit 1; }
	@touch $@

# Compiles a file again only after a change, and prints its first error without the candidates.
SYNTAX := $(filter-out $(ONLY_cuda),$(ALL))
syntax: $(SYNTAX:%=build/syntax/%.ok)  ## Compile everything without output, also with CXX=clang++-16
build/syntax/%.ok: private OPT := -O0
build/syntax/%.ok: % build/syntax/flags
	@mkdir -p $(@D)
	@$(BOUND) $(CXX_cpu) $(MPI_INCLUDE) -DTEON_SOURCE_VERSION='""' -fsyntax-only -x c++ -MD -MP -MF $(@:.ok=.d) -MT $@ \
	    $< 2>$@.log || { grep -m1 -A2 'error:' $@.log || cat $@.log; exit 1; }
	@touch $@
build/syntax/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CXX_cpu)' "$$($(CXX) --version | head -1)" >$@.new; cmp -s $@.new $@ && rm $@.new || mv $@.new $@
-include $(SYNTAX:%=build/syntax/%.d)

check-layers:  ## Check that backend names stay in runtime/, includes go one way and lines end at column 120
	@$(PYTHON) dev/check_layers.py

BENCH_HERE := $(patsubst %,build/$(BACKEND)/%,$(filter-out bench/bench_gpu,$(BENCHES)))
bench: build/corpus/manifest.json
bench: $(PROGRAMS) $(BENCH_HERE) | venv  ## Measure this machine: each program in bench/, and training beside PyTorch
	@set -o pipefail; { for b in $(BENCH_HERE); do echo "$$b"; $$b || exit; done; \
	    for b in optimizers train shared checkpoint; do echo "bench/bench_$$b.py"; $(PYTHON) bench/bench_$$b.py || exit; \
	    done; } | tee build/bench.txt
	@$(PYTHON) bench/compare_output.py build/bench.txt

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

RUFF := $(if $(wildcard .venv/bin/ruff),.venv/bin/ruff,ruff)
CLANG_FORMAT ?= $(shell command -v clang-format-14 || echo clang-format)
FORMATTED     = $(shell git ls-files '*.cu' '*.cpp' '*.h')
format:  ## Format the sources (clang-format 14)
	@$(CLANG_FORMAT) -i $(FORMATTED)
format-check:  ## Fail if a source is not formatted
	@$(CLANG_FORMAT) --version | grep -q 'version 14\.' || \
	    { echo "SKIPPED: format-check: needs clang-format 14"; exit 0; }; \
	    $(CLANG_FORMAT) --dry-run -Werror $(FORMATTED) && echo "format: clean"

compile_commands.json: FORCE  ## Write the command that compiles each file, for clangd and editors
	@for file in $(filter-out $(ONLY_$(if $(filter cuda,$(BACKEND)),cpu,cuda)),$(ALL)); do \
	    case $$file in *.cu) command='$(CU_$(BACKEND))' ;; *) command='$(CPP_$(BACKEND))' ;; esac; \
	    printf '{"directory": "%s", "file": "%s", "command": "%s -c %s"},\n' '$(CURDIR)' $$file "$$command" $$file; \
	done | sed '1s/^/[/; $$s/,$$/]/' >$@

build/corpus/manifest.json: dev/make_corpus.py | $(SETUP_FIRST)
	@$(PYTHON) dev/make_corpus.py $(@D)

FINDINGS = $(filter-out findings/lib.sh,$(wildcard findings/*.sh))
findings:  ## Run findings/, surprises of real libraries and tools: downloads 4 GB; outside CI
	@export FINDINGS_VENVS=$${FINDINGS_VENVS:-$$(mktemp -d /tmp/findings-XXXXXX)}; failed=0; \
	    for script in $(FINDINGS); do $$script || failed=1; done; \
	    case $$FINDINGS_VENVS in /tmp/findings-*) rm -rf "$$FINDINGS_VENVS" ;; esac; exit $$failed

clean:  ## Remove everything that was built
	rm -rf build $(PROGRAMS)

help:  ## Print this list
	@sed -n 's/^#   \([A-Z0-9_]*=.*\)/  \1/p' Makefile
	@echo
	@sed -n 's/^\([a-z_.-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 30

FORCE:
.PHONY: FORCE all demo test test-cpus test-sanitize soak cuda-run-tests test-faults test-source-faults foreign \
        check-cuda gpu-first gpu-bundle check-layers test-docs syntax lint tidy bench setup packages check-packages \
        venv deps-headers format format-check findings clean help

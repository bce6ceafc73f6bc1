# Every command a person types here; `make help` lists them.
#
#   BACKEND=cuda|host   which machine to build for (default: cuda where nvcc and an NVIDIA GPU are there, else host)
#   MARCH=...           host instruction set (default -march=native)
#   CUDA_ARCH=...       nvcc -gencode flags (default: those of the GPU here, or all)
#   DEPS_INCLUDE=DIR    extra folder of header-only dependencies (`make deps-headers` fills build/deps/include)
#   CATCH2_INCLUDE=DIR  extra folder with Catch2's header
#   JOBS=N              compile N files at a time (default: one per core)
#   SETUP=0             never install anything

SHELL := /bin/bash
JOBS ?= $(shell nproc)
MAKEFLAGS += -rR -j$(JOBS)
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:

# $(call once,NAME,COMMAND): NAME expands to what COMMAND prints, run at the first use (so after `setup`).
once = $(eval $1 = $$(eval $1 := $$(shell $2))$$($1))

ifndef BACKEND
BACKEND := $(shell scripts/find_cuda.sh backend)
endif
PYTHON = $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)

# ---- sources -------------------------------------------------------------------------------------------------------
# A file belongs to both backends unless its suffix names one.
ONLY_host := %_host.cpp %_mpi.cpp
ONLY_cuda := %_cuda.cu %_nccl.cu %_sm90.cu
ROOMS     := runtime kernels model optim data train
LIBRARY   := $(wildcard $(ROOMS:%=%/*.cu) $(ROOMS:%=%/*.cpp))
TESTS     := $(wildcard test/*.cu test/*.cpp test/oracle/*.cu test/oracle/*.cpp)
PROGRAMS  := $(basename $(wildcard train_gpt2.cu train_llama.cu generate.cu))
for_host   = $(filter-out $(ONLY_cuda),$1)
for_cuda   = $(filter-out $(ONLY_host),$1)

# ---- compilers -----------------------------------------------------------------------------------------------------
CXX        := g++
$(call once,MARCH,$(CXX) -march=native -E -x c++ /dev/null >/dev/null 2>&1 && echo -march=native)
$(call once,NVCC,scripts/find_cuda.sh nvcc)
$(call once,CUDA_ARCH,scripts/find_cuda.sh arch)
$(call once,CUDA_INCLUDE,scripts/find_cuda.sh include)
$(call once,CUDA_LIBS,scripts/find_cuda.sh libs)
$(call once,CATCH2_LIBS,scripts/find_catch2.sh "$(CATCH2_INCLUDE) $(DEPS_INCLUDE)")
ARCH_all   := -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a
ARCH_sm90  := -gencode arch=compute_90a,code=sm_90a

INCLUDES   := -I. -Ibuild $(patsubst %,-isystem %,$(DEPS_INCLUDE) $(CATCH2_INCLUDE))
WARN       := -Wall -Wextra -Werror
OPT        := -O3
CXX_host    = $(CXX) -std=c++20 $(OPT) $(MARCH) -ffp-contract=fast -fno-math-errno -fno-trapping-math -fopenmp $(WARN) $(INCLUDES)
CXX_asan    = $(subst -O3,-O1,$(CXX_host)) -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
# fmt inside the headers, so that a GPU machine needs no library; fmt turns constexpr off under nvcc, which then fails.
FMT_cuda   := -DFMT_HEADER_ONLY -DFMT_USE_CONSTEXPR=1
CXX_cuda    = $(CXX) -std=c++20 $(OPT) -fopenmp $(WARN) $(INCLUDES) -DTEON_CUDA $(FMT_cuda) $(CUDA_INCLUDE)
NVCC_cuda   = $(NVCC) -std=c++20 -O3 --expt-relaxed-constexpr -lineinfo -Werror all-warnings \
              -Xcompiler -Wall,-Wextra,-fopenmp $(INCLUDES) -DTEON_CUDA $(FMT_cuda) $(CUDA_INCLUDE)
LIBS_host   = -llapacke -lopenblas -lboost_context -lfmt
LIBS_cuda   = $(CUDA_LIBS)

# ---- build folders -------------------------------------------------------------------------------------------------
# One per way of building: how it compiles a .cpp (and links) and a .cu. The name begins with the backend.
FOLDERS := host host-asan cuda cuda-check
CPP_host       = $(CXX_host)
CPP_host-asan  = $(CXX_asan)
CPP_cuda       = $(CXX_cuda)
CPP_cuda-check = $(CXX_cuda)
CU_host        = $(CXX_host) -x c++
CU_host-asan   = $(CXX_asan) -x c++
CU_cuda        = $(NVCC_cuda) $(if $(filter %_sm90.cu,$<),$(ARCH_sm90),$(CUDA_ARCH))
CU_cuda-check  = $(NVCC_cuda) $(if $(filter %_sm90.cu,$<),$(ARCH_sm90),$(ARCH_all)) -Xptxas -v

backend = $(firstword $(subst -, ,$1))
objects = $(patsubst %,build/$1/%.o,$(call for_$(call backend,$1),$2))

define folder
build/$1/%.cpp.o: %.cpp build/$1/flags | build/version.h
	@mkdir -p $$(@D)
	@echo "  $1  $$<"
	@$$(CPP_$1) -MMD -MP -c $$< -o $$@

build/$1/%.cu.o: %.cu build/$1/flags | build/version.h
	@mkdir -p $$(@D)
	@echo "  $1  $$<"
	@$$(CU_$1) -MMD -MP -MF $$(@:.o=.d) -c $$< -o $$@ 2> $$@.log || { cat $$@.log >&2; exit 1; }

# Catch2's own code: slow to compile, and its speed does not matter.
build/$1/test/main.cpp.o: private OPT := -O0

build/$1/tests: $(call objects,$1,$(TESTS) $(LIBRARY))
	@echo "  $1  tests"
	@$$(CPP_$1) $$^ -o $$@ $$(CATCH2_LIBS) $$(LIBS_$(call backend,$1))

$(PROGRAMS:%=build/$1/%): build/$1/%: build/$1/%.cu.o $(call objects,$1,$(LIBRARY))
	@echo "  $1  $$*"
	@$$(CPP_$1) $$^ -o $$@ $$(LIBS_$(call backend,$1))

# Everything is built again when the commands change.
build/$1/flags: FORCE
	@mkdir -p $$(@D)
	@echo '$$(CPP_$1)' '$$(CU_$1)' | cmp -s - $$@ || echo '$$(CPP_$1)' '$$(CU_$1)' > $$@
endef
$(foreach f,$(FOLDERS),$(eval $(call folder,$f)))
-include $(foreach f,$(FOLDERS),$(patsubst %.o,%.d,$(call objects,$f,$(TESTS) $(LIBRARY) $(PROGRAMS:%=%.cu))))

all: $(PROGRAMS)  ## build ./train_gpt2 and the other programs for this machine

$(PROGRAMS): %: build/$(BACKEND)/% FORCE
	@[ "$$(readlink $@)" = $< ] || ln -sf $< $@

# The source version, for --version and each run's config.json.
build/version.h: FORCE
	@mkdir -p build
	@v='#define TEON_VERSION "'$$(git describe --always --dirty 2>/dev/null || echo unknown)'"'; \
	    [ "$$v" = "$$(cat $@ 2>/dev/null)" ] || echo "$$v" > $@

build/tests: build/$(BACKEND)/tests

FORCE:
.PHONY: FORCE all

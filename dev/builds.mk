# Builds with other arguments, each in a folder of its own, and the goals that use them; included by the Makefile.

# $(call inner,GOALS) FOLDER'S ARGUMENTS makes these goals by a make for their folder: those of them that were typed, if
# nothing else was.
inner = +@$(MAKE) --no-print-directory INNER=1 JOBS=$(JOBS) BUILD=build/$(word 2,$(subst /, ,$@)) \
        $(or $(if $(filter-out build/%,$(MAKECMDGOALS)),,$(filter $1,$(MAKECMDGOALS))),$1)

# The other backend's build.
OTHERS := $(addprefix build/$(OTHER)/,tests $(PROGRAMS))
$(OTHERS) &: FORCE | $(SETUP_FIRST)
	$(call inner,$(OTHERS)) BACKEND=$(OTHER)

# ---- sanitizers, and other CPUs ------------------------------------------------------------------------------------
# With sanitizers, g++ 12 takes members of <regex> for uninitialized.
SANITIZE := -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -Wno-maybe-uninitialized
build/cpu-asan/tests: FORCE | $(SETUP_FIRST)
	$(call inner,$@) BACKEND=cpu OPT=-O1 EXTRA='$(SANITIZE)'
test-sanitize: build/cpu-asan/tests build/model-gpu-asan/tests  ## Run the C++ tests under the sanitizers
	@$(PYTHON) dev/run_tests.py $^

build/cpu-v2/tests build/cpu-v3/tests: build/cpu-%/tests: FORCE | $(SETUP_FIRST)
	$(call inner,$@) BACKEND=cpu MARCH=-march=x86-64-$*
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

# ---- nvcc ----------------------------------------------------------------------------------------------------------
# These builds only have to compile and link, or run on the modelled GPU. nvcc optimizes kernels regardless of -O.
ARCH_all   := -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a
PTX_both   := -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90a,code=compute_90a
CHECK_CUDA := $(addprefix build/cuda-check/,tests $(PROGRAMS) $(BENCHES))
$(CHECK_CUDA) &: FORCE | $(SETUP_FIRST)
	$(call inner,$(CHECK_CUDA)) BACKEND=cuda OPT=-O0 FASTER= CUDA_ARCH='$(ARCH_all)' NVCC_EXTRA='-lineinfo -Xptxas -v'
check-cuda: $(CHECK_CUDA)  ## Compile for every architecture with nvcc; report registers, spills and instructions
	@$(PYTHON) dev/ptxas_report.py build/cuda-check
	@$(PYTHON) bench/instruction_counts.py build/cuda-check

compile-kernels: $(call objects,$(filter kernels/%.cu runtime/%.cu,$(LIBRARY)))  ## Compile kernels/ and runtime/ only

# Without MPI and NCCL, so that the programs need nothing but the driver and CUDA's libraries.
BUNDLED := $(FIRST:%=build/cuda-bundle/%)
$(BUNDLED) &: FORCE | $(SETUP_FIRST)
	$(call inner,$(BUNDLED)) BACKEND=cuda MPICC=none WITHOUT=-l:libnccl.so% CUDA_ARCH='$(ARCH_all)' \
	    NVCC_EXTRA=-DTEON_WITHOUT_NCCL EXTRA='-static-libstdc++ -static-libgcc'
gpu-bundle: $(BUNDLED) build/corpus/manifest.json  ## Pack gpu-first for a machine without nvcc (build/gpu-first.tar.xz)
	@dev/gpu_bundle.sh build/cuda-bundle build/gpu-first.tar.xz

# ---- the modelled GPU ----------------------------------------------------------------------------------------------
# Its libraries and tests; its arguments come first, goals last.
house     = $(MAKE) -s -C gpusim CXX='$(CXX)' MARCH="$(MARCH)" INCLUDES='$(patsubst -I.,,$(INCLUDES))' \
            WARN="$(WARN)" CATCH2_LIBS="$(CATCH2_LIBS)" $1
MODEL_GPU := $(addprefix build/model-gpu/,libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libcusolver.so.12 \
             libnccl.so.2)
$(MODEL_GPU) &: FORCE | $(SETUP_FIRST)
	+@$(call house,BUILD=../build/model-gpu all)
build/model-gpu/tests: FORCE | $(MODEL_GPU)  # one after the other: both make the same objects
	+@$(call house,BUILD=../build/model-gpu tests)
build/model-gpu-asan/tests: FORCE | $(SETUP_FIRST)
	+@$(call house,BUILD=../build/model-gpu-asan OPT='-O1 $(SANITIZE)' tests)

CUDA_MODEL := $(addprefix build/cuda-model/,tests $(PROGRAMS) bench/bench_gpu)
$(CUDA_MODEL) &: FORCE | $(SETUP_FIRST)
	$(call inner,$(CUDA_MODEL)) BACKEND=cuda OPT=-O0 CUDA_ARCH='$(PTX_both)' NVCC_EXTRA='-lineinfo --no-compress'
# The program tests use the GPU's default options, with one GPU for each of up to eight ranks. They take half an hour.
# CHOICE=short omits the tests that other builds run as well; RUN_FLAGS="--only NAME" omits all program tests.
PROGRAM_TESTS := model_gpu gpu_first $(if $(filter short,$(CHOICE)),,\
                 train generate ranks sharding rank_failures resume best interrupted)
MODELLED := $(CUDA_MODEL) $(MODEL_GPU) $(PROGRAMS:%=build/cpu/%)
cuda-run-tests: $(MODELLED) | venv  ## Run the tests that nvcc built, and programs, on a modelled GPU (CHOICE=short)
	@LD_LIBRARY_PATH=$(CURDIR)/build/model-gpu CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 $(PYTHON) dev/run_tests.py $< \
	    $(or $(RUN_FLAGS),$(PROGRAM_TESTS:%=test/programs/test_%.py))
	@echo "code compiled for sm_80:"
	@LD_LIBRARY_PATH=$(CURDIR)/build/model-gpu CUDA_DEVICE=A100 $(PYTHON) dev/run_tests.py $< \
	    $(or $(RUN_FLAGS),$(if $(filter short,$(CHOICE)),--only kernels/attention/flash))

foreign: $(MODEL_GPU) | venv  ## Run kernels of others on the modelled GPU (CUTLASS=DIR, ...: docs/modelled_gpu.md)
	+@$(call house,BUILD=../build/model-gpu NVCC="$$($(FIND_CUDA) nvcc)" PYTHON='$(abspath $(PYTHON))' \
	    ONLY='$(ONLY)' CUTLASS='$(CUTLASS)' FLASH='$(FLASH)' LLMC='$(LLMC)' FASTCU='$(FASTCU)' SAMPLES='$(SAMPLES)' \
	    KITTENS='$(KITTENS)' foreign)

build/cuda-model/clusters: gpusim/examples/clusters.cu
	@mkdir -p $(@D)
	@echo "  cuda-model  $<"
	@$$($(FIND_CUDA) nvcc) -std=c++17 -cudart shared -lineinfo --no-compress \
	    -gencode arch=compute_90a,code=compute_90a $< -o $@
PLANTED := build/cuda-model/tests build/cuda-model/clusters
test-faults: $(PLANTED) $(MODEL_GPU)  ## Plant faults in nvcc's output; the modelled GPU must find them
	@LD_LIBRARY_PATH=$(CURDIR)/build/model-gpu $(PYTHON) gpusim/test/plant_faults.py $(PLANTED)

.PHONY: test-sanitize test-cpus check-cuda compile-kernels gpu-bundle cuda-run-tests foreign test-faults

# Checks of the sources; included by the Makefile.

lint:  ## Check the Python code (ruff), and with clang's warnings the C++ and CUDA code that changed
	@command -v $(RUFF) >/dev/null || { echo "SKIPPED: lint: needs ruff (scripts/setup.sh dev)"; exit 0; }; $(RUFF) check .
	@command -v clang++-16 >/dev/null || { echo "SKIPPED: lint: needs clang++-16 (scripts/setup.sh dev)"; exit 0; }; \
	    $(MAKE) --no-print-directory -k INNER=1 SETUP=0 BACKEND=cpu CXX=clang++-16 syntax
RUFF := $(if $(wildcard .venv/bin/ruff),.venv/bin/ruff,ruff)

check-layers:  ## Check that backend names stay in runtime/, includes go one way and lines end at column 120
	@$(PYTHON) dev/check_layers.py

TIDIED := $(if $(filter tidy,$(MAKECMDGOALS)),$(if $(shell command -v clang-tidy-16),$(filter %.cpp %.cu,$(LIBRARY))))
tidy: $(TIDIED:%=build/tidy/%.ok)  ## Check C++ for faults that compilers do not report (clang-tidy 16); slow
	@echo $(if $(TIDIED),"tidy: clean","SKIPPED: tidy: needs clang-tidy 16 (scripts/setup.sh dev)")
build/tidy/%.ok: %  .clang-tidy
	@mkdir -p $(@D)
	@echo "  tidy  $<"
	@clang-tidy-16 --quiet $< -- -x c++ -std=c++20 -Wno-unknown-pragmas -Wno-gnu-inline-cpp-without-extern \
	    -Wno-undefined-inline $(INCLUDES) -isystem cpu/include $(MPI_INCLUDE) 2>$@.log || { cat $@.log; exit 1; }
	@touch $@

# Compiles a file again only after a change, and prints its first error without the candidates.
SYNTAX := $(filter-out $(ONLY_cuda),$(ALL))
syntax: $(SYNTAX:%=build/syntax/%.ok)  ## Compile everything without output, also with CXX=clang++-16
build/syntax/%.ok: % build/syntax/flags build/syntax/compilers
	@mkdir -p $(@D)
	@$(CXX) @build/syntax/flags -fsyntax-only -x c++ -MD -MP -MF $(@:.ok=.d) -MT $@ $< 2>$@.log || \
	    { grep -m1 -A2 'error:' $@.log || cat $@.log; exit 1; }
	@touch $@
build/syntax/flags: $(ALWAYS)
	$(call keep,$(FLAGS_cpu) -O0 $(MPI_INCLUDE))
build/syntax/compilers: $(ALWAYS)
	$(call keep,$$($(CXX) --version | head -1))
-include $(SYNTAX:%=build/syntax/%.d)

CLANG_FORMAT ?= $(shell command -v clang-format-14 || echo clang-format)
FORMATTED     = $(shell git ls-files '*.cu' '*.cpp' '*.h')
format:  ## Format the sources (clang-format 14)
	@$(CLANG_FORMAT) -i $(FORMATTED)
format-check:  ## Fail if a source is not formatted
	@$(CLANG_FORMAT) --version | grep -q 'version 14\.' || \
	    { echo "SKIPPED: format-check: needs clang-format 14"; exit 0; }; \
	    $(CLANG_FORMAT) --dry-run -Werror $(FORMATTED) && echo "format: clean"

compile_commands.json: $(BUILD)/flags FORCE  ## Write the command that compiles each file, for clangd and editors
	@for file in $(filter-out $(ONLY_$(OTHER)),$(ALL)); do \
	    case $$file in *.cu) command="$(CU_$(BACKEND))" ;; *) command="$(CXX) @$(BUILD)/flags" ;; esac; \
	    printf '{"directory": "%s", "file": "%s", "command": "%s -c %s"},\n' '$(CURDIR)' $$file \
	        "$${command/@$(BUILD)\/flags/$$(cat $(BUILD)/flags)}" $$file; \
	done | sed '1s/^/[/; $$s/,$$/]/' >$@

FINDINGS = $(filter-out findings/lib.sh,$(wildcard findings/*.sh))
findings:  ## Run findings/, surprises of real libraries and tools: downloads 4 GB; outside CI
	@export FINDINGS_VENVS=$${FINDINGS_VENVS:-$$(mktemp -d /tmp/findings-XXXXXX)}; failed=0; \
	    for script in $(FINDINGS); do $$script || failed=1; done; \
	    case $$FINDINGS_VENVS in /tmp/findings-*) rm -rf "$$FINDINGS_VENVS" ;; esac; exit $$failed

.PHONY: lint check-layers tidy syntax format format-check findings

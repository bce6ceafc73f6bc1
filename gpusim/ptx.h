// Parses the text of PTX into variables, functions and statements, without interpreting them. Names of sections, here
// and in the other files, refer to "PTX ISA" (docs.nvidia.com/cuda/parallel-thread-execution): "Syntax", "State Spaces,
// Types, and Variables", "Directives".
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace teon::gpusim {

enum class Space : uint8_t { generic, global, shared, local, param, constant };

struct Location {
    int file = 0, line = 0;  // from .loc; 0: unknown
    auto operator<=>(const Location&) const = default;
};

struct Variable {
    std::string_view name;
    Space space = Space::global;
    size_t align = 1, bytes = 0;  // 0 bytes: an array of unknown size, such as dynamic shared memory
    std::vector<uint8_t> init;    // if shorter than `bytes`, zeros follow
};

struct Statement {
    std::string_view guard;  // a predicate register, or empty
    bool guard_not = false;
    std::string_view opcode;
    std::vector<std::string_view> operands;
    Location at;
    Location inlined_at;  // the line of the kernel or of the function without inlining; unknown if it is `at`
    size_t scope = 0;     // index in Body::scopes
};

// Registers "%r<5>" are %r0 to %r4; `count` is 0 for a single one.
struct Registers {
    std::string_view name;
    int count = 0;
    int bytes = 0;  // per lane; 0: predicates
};

// A pair of braces. Its names hide equal names outside of it ("Directives: .reg", "Identifiers", "Labels").
struct Scope {
    size_t outer = 0;  // index in Body::scopes; of the first, which is the body, its own
    std::vector<Registers> registers;
    std::vector<Variable> variables;            // also the .param variables of calls
    std::map<std::string_view, size_t> labels;  // the index of the statement that follows
};

struct Body {
    std::vector<Scope> scopes;
    std::vector<Statement> statements;

    // Calls found(scope) for a scope and those around it, from the inside, until one returns true; returns whether one
    // did.
    template <typename Found>
    bool look_outwards(size_t scope, Found&& visit) const {
        for (;; scope = scopes[scope].outer) {
            if (visit(scope)) return true;
            if (scope == 0) return false;
        }
    }
};

struct Parameter {
    std::string_view name;
    size_t offset = 0, bytes = 0;
};

struct Function {
    std::string_view name;
    bool is_entry = false;
    std::vector<Parameter> results, parameters;
    int max_threads = 0;       // __launch_bounds__; 0: none
    std::vector<int> cluster;  // __cluster_dims__; empty: none
    int min_blocks = 1;        // per multiprocessor, from __launch_bounds__
    std::string_view body;     // text between its braces; empty if only declared
};

struct Module {
    std::string text;  // the views refer to it
    int target = 0;    // 80 for sm_80, 90 for sm_90a
    std::map<int, std::string> files;
    std::vector<Variable> variables;
    std::map<std::string_view, Function> functions;

    Module() = default;
    Module(const Module&) = delete;  // the views would refer to the original
};

// Both throw Error, which quotes the text that cannot be parsed.
void parse_module(Module& module, std::string text);
Body parse_body(std::string_view text);

// The bytes of a type such as "u32", "f64", "bf16x2" or "pred" (0).
int bytes_of_type(std::string_view type);

// Split "a, {b, c}, [d+4]" at the commas outside of brackets, and "add.rn.f32" at its dots.
std::vector<std::string_view> split_operands(std::string_view text);
std::vector<std::string_view> split_dots(std::string_view text);

// Parses an integer, or a float written as its bits: 0f3F800000 or 0d3FF0000000000000.
uint64_t parse_number(std::string_view text);

}  // namespace teon::gpusim

// A kernel, decoded: instructions with handlers in place of names and places of registers in place of theirs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpusim/ptx.h"

namespace teon::gpusim {

struct Warp;
struct Instruction;
using Lanes = uint32_t;  // bit l: lane l takes part
inline constexpr Lanes kAllLanes = ~Lanes{0};
using Handler = void (*)(Warp&, const Instruction&, Lanes);

// How the scheduler of a warp treats it. `collective` needs all lanes of its mask (the last operand) at once, `aligned`
// all 32; a `poll` waits until it is ready (gpusim/mbarrier.h). A `barrier` with operands is one of some warps.
enum class Kind : uint8_t { plain, branch, exit, barrier, collective, aligned, poll, trap };

inline constexpr int32_t kNone = -1;

struct Instruction {
    Handler run = nullptr;
    const uint32_t* operands = nullptr;  // where each is in a warp's registers, in bytes; destinations first
    int64_t offset = 0;                  // added to an address; or an immediate of the handler's own
    int32_t guard = kNone;               // where the guard predicate is; kNone: none
    int32_t target = kNone;              // of a branch
    Kind kind = Kind::plain;
    bool guard_not = false;
    Space space = Space::generic;
    uint16_t count = 0, destinations = 0;  // operands; the first are written
    uint8_t bytes = 0;                     // of memory instructions: an element's
    uint8_t vector = 1;                    // and elements
    uint8_t width = 0;                     // bytes of a data register
    uint8_t address_width = 8;             // and of the address register
    uint8_t variant = 0;                   // of the handler
    bool sign = false;                     // loads and conversions extend the sign
    uint16_t opcode = 0, file = 0;
    int32_t line = 0;
};

// A kernel or shared variable of a module once it has memory; set by the loader of the module.
struct Symbols {
    std::unordered_map<std::string_view, uint64_t> global;  // addresses of .global and .const variables
};

struct Constant {
    uint32_t place;
    int bytes;  // 0: a predicate
    uint64_t bits;
    bool from_dynamic;  // the launch adds the address of dynamic shared memory to `bits`
};

struct Program {
    std::string name;  // demangled, without namespaces
    const Module* module = nullptr;
    std::vector<Instruction> code;
    std::vector<uint32_t> operands;
    std::vector<Constant> constants;
    std::vector<Parameter> parameters;
    size_t parameter_bytes = 0;
    size_t register_bytes = 0;                    // of a warp
    size_t local_bytes = 0;                       // of a lane
    size_t static_shared = 0, dynamic_align = 0;  // 0: no dynamic shared memory
    int max_threads = 0;                          // __launch_bounds__; 0: none
    int registers = 0;                            // of a thread, at most, by __launch_bounds__
    bool asynchronous = false;                    // uses the asynchronous proxy

    std::string place(const Instruction& i) const;  // "gelu.cu:36"
};

// The instruction table: what computes an opcode, and the bytes of each of its operands (0: a predicate). It holds the
// instructions whose operands are registers and immediates; decode.cpp has the other forms.
struct Row {
    Handler run = nullptr;
    std::vector<uint8_t> bytes;
};
using Table = std::unordered_map<std::string, Row>;

}  // namespace teon::gpusim

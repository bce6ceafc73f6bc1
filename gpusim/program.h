// A decoded kernel: its instructions have handlers instead of opcode names, and byte offsets instead of register names.
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

struct Extent3 {
    uint32_t x = 1, y = 1, z = 1;
    uint64_t count() const { return uint64_t{x} * y * z; }
};

using Lanes = uint32_t;  // bit l: lane l participates
inline constexpr Lanes kAllLanes = ~Lanes{0};
using Handler = void (*)(Warp&, const Instruction&, Lanes);

// How the scheduler of a warp treats an instruction. A `collective` needs all lanes of its mask (the last operand) at
// the same time, an `aligned` instruction all 32 lanes. A `poll` waits until it is ready (gpusim/mbarrier.h). A
// `barrier` with operands is a named barrier.
enum class Kind : uint8_t { plain, branch, exit, barrier, collective, aligned, poll, trap };

inline constexpr int32_t kNone = -1;

struct Instruction {
    Handler run = nullptr;
    const uint32_t* operands = nullptr;  // byte offsets in a warp's registers; destinations first
    int64_t offset = 0;                  // added to an address, or an immediate for the handler
    int32_t guard = kNone;               // byte offset of the guard predicate, or kNone
    int32_t target = kNone;              // of a branch: an index in Program::code
    Kind kind = Kind::plain;
    bool guard_not = false;
    Space space = Space::generic;
    uint16_t count = 0, destinations = 0;  // number of operands, and of those that are written
    uint8_t bytes = 0;                     // memory instructions: bytes of an element
    uint8_t vector = 1;                    // memory instructions: elements per lane
    uint8_t width = 0;                     // bytes of a data register
    uint8_t address_width = 8;             // bytes of the address register
    uint8_t variant = 0;                   // selects a variant of the handler
    bool sign = false;                     // loads and conversions: sign-extend
    uint16_t opcode = 0, file = 0;
    int32_t line = 0;
};

// Addresses of a module's variables once they have memory. The loader of the module sets them.
struct Symbols {
    std::unordered_map<std::string_view, uint64_t> global;  // .global and .const variables
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
    size_t register_bytes = 0;                    // per warp
    size_t local_bytes = 0;                       // per lane
    size_t static_shared = 0, dynamic_align = 0;  // 0: no dynamic shared memory
    int max_threads = 0;                          // __launch_bounds__; 0: none
    int registers = 0;                            // maximum per thread, from __launch_bounds__
    bool asynchronous = false;                    // uses the asynchronous proxy
    bool joins_warps = false;                     // has named barriers, mbarriers or a barrier of the cluster
    Extent3 cluster = {0, 0, 0};                  // __cluster_dims__; 0: none

    std::vector<Location> inlined_at;  // by instruction; unknown if its function was not inlined

    std::string place(const Instruction& i) const;            // "gelu.cu:36"
    std::string place_in_kernel(const Instruction& i) const;  // "vec.h:12 (inlined at gelu.cu:36)"
};

// The instruction table maps an opcode to its handler and the bytes of each operand (0: a predicate). It contains the
// instructions whose operands are registers and immediates; Decoder (gpusim/decode/) decodes the other forms.
struct Row {
    Handler run = nullptr;
    std::vector<uint8_t> bytes;
};
using Table = std::unordered_map<std::string, Row>;

}  // namespace teon::gpusim

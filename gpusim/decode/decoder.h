// A method of Decoder decodes each form of instruction with operands of its own; the files beside this one have them
// by topic, gpusim/decode.cpp those that lead to another instruction. Rows of the instruction table are all others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "gpusim/atomic.h"
#include "gpusim/program.h"
#include "gpusim/registers.h"

namespace teon::gpusim {

template <typename T>
using Names = std::map<std::string_view, T>;

class Decoder {
public:
    Decoder(const Module& module, const Symbols& symbols, Program& program)
        : module_(module), symbols_(symbols), program_(program) {}

    void run(const Function& entry);

private:
    // The names that a scope of a function declares.
    struct Declared {
        Names<int> registers;     // indices in registers_
        Names<int> ranges;        // "%r" of %r0, %r1, ...: the index of the first
        Names<size_t> variables;  // offsets in local memory (with calls' parameters and results) or shared memory
    };
    // A function, for one place where it is decoded.
    struct Frame {
        Body body;
        std::vector<Declared> declared;                // by scope of the body
        std::vector<std::pair<size_t, size_t>> jumps;  // instruction, target statement
    };

    // ---- operands (gpusim/decode/operands.cpp) ----------------------------------------------------------------------

    [[noreturn]] void refuse(const std::string& why) const;
    int new_register(int bytes);
    // Returns the register of a constant. With from_dynamic, the launch adds the address of dynamic shared memory to
    // `bits`.
    int constant(int bytes, uint64_t bits, bool from_dynamic = false);
    size_t new_local(size_t bytes, size_t align);
    size_t new_shared(const Variable& v);
    // Returns the index of a register, or kNone if the name is not a register.
    int index_of(std::string_view name) const;
    // Returns the offset of a variable of the function; null if the function has none of this name.
    const size_t* find_variable(std::string_view name) const;
    int find_register(std::string_view name) const;
    void add(int index);
    // Returns the address or offset of a variable. Sets from_dynamic for dynamic shared memory: only the launch knows
    // its address.
    uint64_t symbol(std::string_view name, bool& from_dynamic);
    size_t variable(std::string_view name) const;
    int immediate(std::string_view text, int bytes);
    // Adds a register, or an immediate of `bytes` bytes. Returns the register's bytes.
    int operand(std::string_view text, int bytes);
    void exact(std::string_view text, int bytes);
    // Adds the operands of "{a, b}" or "a". Returns their number.
    int list(std::string_view text, int bytes);
    // Adds the address in "[a+8]".
    void address(std::string_view text);
    void need_operands(size_t minimum, size_t maximum);
    std::string_view op(size_t k) const;
    void emit(int destinations = 0);
    bool has(std::string_view part) const { return std::find(parts_.begin(), parts_.end(), part) != parts_.end(); }
    // Returns the variant that a part of the opcode names.
    template <typename T>
    T variant(const Names<T>& names, const T* otherwise = nullptr) {
        for (const std::string_view part : parts_)
            if (const auto it = names.find(part); it != names.end()) return it->second;
        if (!otherwise) refuse("the variant");
        return *otherwise;
    }

    // ---- functions and branches (gpusim/decode.cpp) -----------------------------------------------------------------

    void declare(const Scope& scope, Declared& declared);
    void function(const Function& f, const Names<size_t>& parameters);
    void decode(const Statement& s, bool outermost);
    void table_row();
    void branch();
    void exit();
    void trap();
    void system_call(std::string_view name, std::vector<std::string_view> results,
                     std::vector<std::string_view> parameters);
    void call();

    // ---- synchronization (gpusim/decode/synchronization.cpp) --------------------------------------------------------

    void cluster_barrier();
    void barrier();
    void fence();
    void map_();
    void rank_();
    void mbarrier();
    void max_registers();

    // ---- lanes (gpusim/decode/lanes.cpp) ----------------------------------------------------------------------------

    void shuffle_();
    void elect_();
    void match_();
    void redux_();
    void active();
    void vote_();

    // ---- tensor cores (gpusim/decode/tensor.cpp) --------------------------------------------------------------------

    void wgmma();
    void matrix();
    void mma();
    void wmma_();
    void wmma_mma(uint8_t shape);

    // ---- memory (gpusim/decode/memory.cpp) --------------------------------------------------------------------------

    static std::string_view inside(std::string_view text);
    void tile(std::string_view text);
    void bulk();
    void bulk_out(bool is_tensor);
    void copy();
    void memory();
    void atomic_();
    void window();
    static const Names<Space> kSpaces;
    static const Names<AtomicOp> kAtomics;

    // ---- moves (gpusim/decode/moves.cpp) ----------------------------------------------------------------------------

    void move();
    void convert();

    const Module& module_;
    const Symbols& symbols_;
    Program& program_;
    std::vector<Virtual> registers_;
    std::map<std::tuple<int, uint64_t, bool>, int> constants_;
    Names<size_t> shared_;
    std::map<const char*, size_t> shared_of_functions_;  // by the place of the declaration
    Frame* frame_ = nullptr;
    const Statement* statement_ = nullptr;
    std::vector<std::string_view> parts_;
    Instruction instruction_;
};

}  // namespace teon::gpusim

// Turns statements into instructions. A method of Decoder decodes each form with operands of its own (memory, branches,
// shuffles, ...); the rows of the instruction table decode all others.
//
// Each call is decoded in place, as if inlined. Few are left, as nvcc inlines all but a few functions of its own
// library.
#include "gpusim/decode.h"

#include <cxxabi.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/integer.h"
#include "gpusim/bulk.h"
#include "gpusim/cluster.h"
#include "gpusim/collective.h"
#include "gpusim/convert.h"
#include "gpusim/float.h"
#include "gpusim/half.h"
#include "gpusim/integer.h"
#include "gpusim/mbarrier.h"
#include "gpusim/memory.h"
#include "gpusim/move.h"
#include "gpusim/opcodes.h"
#include "gpusim/registers.h"
#include "gpusim/system_call.h"
#include "gpusim/warpgroup.h"

namespace teon::gpusim {

namespace {

// Demangles a name to "scale_kernel<float>", without namespaces and parameters.
std::string readable(std::string_view mangled) {
    int status = 0;
    char* text = abi::__cxa_demangle(std::string(mangled).c_str(), nullptr, nullptr, &status);
    std::string name = status == 0 ? text : std::string(mangled);
    std::free(text);
    for (const std::string_view scope : {"(anonymous namespace)::", "teon::"})
        for (size_t at = name.find(scope); at != name.npos; at = name.find(scope)) name.erase(at, scope.size());
    if (name.starts_with("void ")) name.erase(0, 5);
    int depth = 0;
    for (size_t i = 0; i < name.size(); ++i) {
        depth += (name[i] == '<') - (name[i] == '>');
        if (name[i] == '(' && depth == 0) name.resize(i);
    }
    constexpr size_t kMost = 160;  // template arguments may be pages long
    if (name.size() > kMost) name = name.substr(0, kMost) + "...";
    return name;
}

template <typename T>
using Names = std::map<std::string_view, T>;

const Names<Special> kSpecials = {{"%tid.x", Special::tid_x},
                                  {"%tid.y", Special::tid_y},
                                  {"%tid.z", Special::tid_z},
                                  {"%ntid.x", Special::ntid_x},
                                  {"%ntid.y", Special::ntid_y},
                                  {"%ntid.z", Special::ntid_z},
                                  {"%ctaid.x", Special::ctaid_x},
                                  {"%ctaid.y", Special::ctaid_y},
                                  {"%ctaid.z", Special::ctaid_z},
                                  {"%nctaid.x", Special::nctaid_x},
                                  {"%nctaid.y", Special::nctaid_y},
                                  {"%nctaid.z", Special::nctaid_z},
                                  {"%laneid", Special::laneid},
                                  {"%warpid", Special::warpid},
                                  {"%lanemask_lt", Special::lanemask_lt},
                                  {"%lanemask_le", Special::lanemask_le},
                                  {"%lanemask_gt", Special::lanemask_gt},
                                  {"%lanemask_ge", Special::lanemask_ge},
                                  {"%lanemask_eq", Special::lanemask_eq},
                                  {"%dynamic_smem_size", Special::dynamic_smem_size},
                                  {"%cluster_ctaid.x", Special::cluster_ctaid_x},
                                  {"%cluster_ctaid.y", Special::cluster_ctaid_y},
                                  {"%cluster_ctaid.z", Special::cluster_ctaid_z},
                                  {"%cluster_nctaid.x", Special::cluster_nctaid_x},
                                  {"%cluster_nctaid.y", Special::cluster_nctaid_y},
                                  {"%cluster_nctaid.z", Special::cluster_nctaid_z},
                                  {"%cluster_ctarank", Special::cluster_ctarank},
                                  {"%cluster_nctarank", Special::cluster_nctarank},
                                  {"%clusterid.x", Special::clusterid_x},
                                  {"%clusterid.y", Special::clusterid_y},
                                  {"%clusterid.z", Special::clusterid_z},
                                  {"%nclusterid.x", Special::nclusterid_x},
                                  {"%nclusterid.y", Special::nclusterid_y},
                                  {"%nclusterid.z", Special::nclusterid_z},
                                  {"%smid", Special::smid},
                                  {"%nsmid", Special::nsmid},
                                  {"%clock", Special::clock},
                                  {"%clock_hi", Special::clock_high},
                                  {"%clock64", Special::clock},
                                  {"%globaltimer", Special::clock}};
const Names<Space> kSpaces = {{"global", Space::global},      {"shared", Space::shared},
                              {"shared::cta", Space::shared}, {"shared::cluster", Space::shared},
                              {"local", Space::local},        {"param", Space::param},
                              {"const", Space::constant}};
const Names<AtomicOp> kAtomics = {{"add", AtomicOp::add},   {"min", AtomicOp::min}, {"max", AtomicOp::max},
                                  {"and", AtomicOp::and_},  {"or", AtomicOp::or_},  {"xor", AtomicOp::xor_},
                                  {"exch", AtomicOp::exch}, {"cas", AtomicOp::cas}, {"inc", AtomicOp::inc},
                                  {"dec", AtomicOp::dec}};
const Names<Shuffle> kShuffles = {
    {"bfly", Shuffle::bfly}, {"idx", Shuffle::idx}, {"up", Shuffle::up}, {"down", Shuffle::down}};
const Names<Vote> kVotes = {{"all", Vote::all}, {"any", Vote::any}, {"uni", Vote::uni}, {"ballot", Vote::ballot}};
// Instructions that do nothing here, except griddepcontrol.wait. Memory scopes and orders do not matter here, because
// blocks see each other's writes at once.
const std::set<std::string_view> kNothing = {"griddepcontrol", "membar", "nanosleep", "prefetch", "discard"};

class Decoder {
public:
    Decoder(const Module& module, const Symbols& symbols, Program& program)
        : module_(module), symbols_(symbols), program_(program) {}

    void run(const Function& entry) {
        function(entry, {});
        for (Instruction& i : program_.code) i.operands = nullptr;  // set below, after the last operand has been added
        if (program_.asynchronous) {
            std::vector<bool> is_constant;
            for (const Virtual& r : registers_) is_constant.push_back(r.is_constant);
            check_product_registers(program_, registers_.size(), is_constant);
        }
        place_registers(program_, registers_);
        const uint32_t* at = program_.operands.data();
        for (Instruction& i : program_.code) {
            i.operands = at;
            at += i.count;
        }
    }

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

    [[noreturn]] void refuse(const std::string& why) const {
        const Statement& s = *statement_;
        std::string text(s.opcode);
        for (size_t k = 0; k < s.operands.size(); ++k) text += fmt::format("{} {}", k ? "," : "", s.operands[k]);
        throw Error(fmt::format("{}: {}: the modelled GPU does not know \"{}\": {}", program_.name,
                                program_.place(instruction_), text, why));
    }

    int new_register(int bytes) {
        registers_.push_back({bytes});
        return static_cast<int>(registers_.size()) - 1;
    }

    // Returns the register of a constant. With from_dynamic, the launch adds the address of dynamic shared memory to
    // `bits`.
    int constant(int bytes, uint64_t bits, bool from_dynamic = false) {
        if (bytes == 0) bits = bits != 0;
        if (bytes > 0 && bytes < 8) bits &= (uint64_t{1} << 8 * bytes) - 1;
        const auto [it, fresh] = constants_.try_emplace({bytes, bits, from_dynamic}, 0);
        if (fresh) {
            it->second = new_register(bytes);
            registers_.back().is_constant = true;
            registers_.back().bits = bits;
            registers_.back().from_dynamic = from_dynamic;
        }
        return it->second;
    }

    size_t new_local(size_t bytes, size_t align) {
        const size_t at = round_up(program_.local_bytes, align);
        program_.local_bytes = at + bytes;
        return at;
    }

    size_t new_shared(const Variable& v) {
        const size_t at = round_up(program_.static_shared, v.align);
        program_.static_shared = at + v.bytes;
        return at;
    }

    // ---- functions -------------------------------------------------------------------------------------------------

    void declare(const Scope& scope, Declared& declared) {
        for (const Registers& r : scope.registers) {
            const int first = static_cast<int>(registers_.size());
            for (int k = 0; k < std::max(r.count, 1); ++k) new_register(r.bytes);
            (r.count ? declared.ranges : declared.registers)[r.name] = first;
        }
        for (const Variable& v : scope.variables) {
            if (v.space == Space::shared) {  // one for all places where the function is decoded
                const auto [it, is_new] = shared_of_functions_.try_emplace(v.name.data(), 0);
                if (is_new) it->second = new_shared(v);
                declared.variables[v.name] = it->second;
            } else {
                declared.variables[v.name] = new_local(v.bytes, v.align);
            }
        }
    }

    void function(const Function& f, const Names<size_t>& parameters) {
        Frame frame;
        frame.body = parse_body(f.body);
        frame.declared.resize(frame.body.scopes.size());
        frame.declared[0].variables = parameters;
        for (size_t k = 0; k < frame.declared.size(); ++k) declare(frame.body.scopes[k], frame.declared[k]);
        Frame* const outer = std::exchange(frame_, &frame);
        const std::vector<Statement>& statements = frame.body.statements;
        std::vector<size_t> begins;  // for each statement, its index in code
        for (const Statement& s : statements) {
            begins.push_back(program_.code.size());
            decode(s, outer == nullptr);
        }
        begins.push_back(program_.code.size());
        if (!outer) {  // after the last ret, for branches to the end
            instruction_ = {};
            instruction_.kind = Kind::exit;
            instruction_.opcode = opcode_index("ret");
            emit();
        }
        for (const auto& [from, to] : frame.jumps)
            program_.code[from].target = static_cast<int32_t>(begins[std::min(to, statements.size())]);
        frame_ = outer;
    }

    void decode(const Statement& s, bool outermost) {
        statement_ = &s;
        parts_ = split_dots(s.opcode);
        instruction_ = {};
        Instruction& i = instruction_;
        i.opcode = opcode_index(s.opcode);
        i.file = static_cast<uint16_t>(s.at.file);
        i.line = s.at.line;
        if (!s.guard.empty()) {
            i.guard = find_register(s.guard);
            i.guard_not = s.guard_not;
        }
        using Form = void (Decoder::*)();
        static const Names<Form> forms = {{"bra", &Decoder::branch},
                                          {"exit", &Decoder::exit},
                                          {"trap", &Decoder::trap},
                                          {"brkpt", &Decoder::trap},
                                          {"bar", &Decoder::barrier},
                                          {"barrier", &Decoder::barrier},
                                          {"shfl", &Decoder::shuffle_},
                                          {"vote", &Decoder::vote_},
                                          {"ldmatrix", &Decoder::matrix},
                                          {"mma", &Decoder::mma},
                                          {"cp", &Decoder::copy},
                                          {"ld", &Decoder::memory},
                                          {"ldu", &Decoder::memory},
                                          {"st", &Decoder::memory},
                                          {"atom", &Decoder::atomic_},
                                          {"red", &Decoder::atomic_},
                                          {"mov", &Decoder::move},
                                          {"cvta", &Decoder::window},
                                          {"call", &Decoder::call},
                                          {"cvt", &Decoder::convert},
                                          {"mbarrier", &Decoder::mbarrier},
                                          {"fence", &Decoder::fence},
                                          {"wgmma", &Decoder::wgmma},
                                          {"setmaxnreg", &Decoder::max_registers},
                                          {"elect", &Decoder::elect_},
                                          {"match", &Decoder::match_},
                                          {"redux", &Decoder::redux_},
                                          {"activemask", &Decoder::active},
                                          {"stmatrix", &Decoder::store_matrix_},
                                          {"mapa", &Decoder::map_},
                                          {"getctarank", &Decoder::rank_}};
        const std::string_view first = parts_[0];
        if (first == "ret" && !outermost) {
            i.kind = Kind::branch;
            frame_->jumps.push_back({program_.code.size(), SIZE_MAX});
            emit();
        } else if (first == "ret") {
            exit();
        } else if (const auto form = forms.find(first); form != forms.end()) {
            (this->*form->second)();
        } else if (kNothing.contains(first)) {
            i.run = s.opcode == "griddepcontrol.wait" ? &wait_for_grid : &nothing;
            emit();
        } else {
            table_row();
        }
    }

    // ---- operands --------------------------------------------------------------------------------------------------

    // Returns the index of a register, or kNone if the name is not a register.
    int index_of(std::string_view name) const {
        const size_t digits = name.find_last_not_of("0123456789") + 1;
        int index = kNone;
        frame_->body.look_outwards(statement_->scope, [&](size_t scope) {
            const Declared& declared = frame_->declared[scope];
            if (const auto it = declared.registers.find(name); it != declared.registers.end()) {
                index = it->second;
            } else if (digits < name.size()) {
                const auto range = declared.ranges.find(name.substr(0, digits));
                if (range != declared.ranges.end())
                    index = range->second + static_cast<int>(parse_number(name.substr(digits)));
            }
            return index != kNone;
        });
        return index;
    }
    // Returns the offset of a variable of the function; null if the function has none of this name.
    const size_t* find_variable(std::string_view name) const {
        const size_t* offset = nullptr;
        frame_->body.look_outwards(statement_->scope, [&](size_t scope) {
            const Names<size_t>& variables = frame_->declared[scope].variables;
            if (const auto it = variables.find(name); it != variables.end()) offset = &it->second;
            return offset != nullptr;
        });
        return offset;
    }
    int find_register(std::string_view name) const {
        const int index = index_of(name);
        if (index == kNone) refuse(fmt::format("{} is no register", name));
        return index;
    }

    void add(int index) {
        program_.operands.push_back(static_cast<uint32_t>(index));
        ++instruction_.count;
    }

    // Returns the address or offset of a variable. Sets from_dynamic for dynamic shared memory: only the launch knows
    // its address.
    uint64_t symbol(std::string_view name, bool& from_dynamic) {
        if (const size_t* const offset = find_variable(name)) return *offset;
        if (const auto it = shared_.find(name); it != shared_.end()) return it->second;
        for (const Parameter& p : program_.parameters)
            if (p.name == name) return p.offset;
        if (const auto it = symbols_.global.find(name); it != symbols_.global.end()) return it->second;
        for (const Variable& v : module_.variables) {
            if (v.name != name || v.space != Space::shared) continue;
            if (v.bytes > 0) return shared_[name] = new_shared(v);
            program_.dynamic_align = std::max(program_.dynamic_align, v.align);
            from_dynamic = true;
            return 0;
        }
        refuse(fmt::format("'{}' is no variable", name));
    }

    size_t variable(std::string_view name) const {
        const size_t* const offset = find_variable(name);
        if (!offset) refuse(fmt::format("'{}' is no variable", name));
        return *offset;
    }

    int immediate(std::string_view text, int bytes) {
        if (text == "WARP_SZ") return constant(bytes, 32);
        if (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-')
            return constant(bytes, parse_number(text));
        const size_t plus = text.find('+');
        bool from_dynamic = false;
        const uint64_t begin = symbol(text.substr(0, plus), from_dynamic);
        return constant(bytes, plus == text.npos ? begin : begin + parse_number(text.substr(plus + 1)), from_dynamic);
    }

    // Adds a register, or an immediate of `bytes` bytes. Returns the register's bytes.
    int operand(std::string_view text, int bytes) {
        int index = index_of(text);
        if (index == kNone) index = immediate(text, bytes);
        add(index);
        return registers_[index].bytes;
    }
    void exact(std::string_view text, int bytes) {
        if (const int is = operand(text, bytes); is != bytes)
            refuse(fmt::format("{} has {} bytes and not {}", text, is, bytes));
    }
    // Adds the operands of "{a, b}" or "a". Returns their number.
    int list(std::string_view text, int bytes) {
        const auto parts = split_operands(text[0] == '{' ? text.substr(1, text.size() - 2) : text);
        for (const std::string_view part : parts) instruction_.width = static_cast<uint8_t>(operand(part, bytes));
        return static_cast<int>(parts.size());
    }
    // Adds the address in "[a+8]".
    void address(std::string_view text) {
        if (text.size() < 3 || text[0] != '[') refuse(fmt::format("'{}' is no address", text));
        text = text.substr(1, text.find(']') - 1);
        const size_t plus = text.find('+');
        const std::string_view base = text.substr(0, plus);
        if (index_of(base) != kNone) {
            instruction_.address_width = static_cast<uint8_t>(operand(base, 8));
            instruction_.offset = plus == text.npos ? 0 : static_cast<int64_t>(parse_number(text.substr(plus + 1)));
        } else {
            instruction_.address_width = static_cast<uint8_t>(operand(text, 8));
        }
    }
    void need_operands(size_t minimum, size_t maximum) {
        if (const size_t n = statement_->operands.size(); n < minimum || n > maximum) refuse("the number of operands");
    }
    bool has(std::string_view part) const { return std::find(parts_.begin(), parts_.end(), part) != parts_.end(); }
    // Returns the variant that a part of the opcode names.
    template <typename T>
    T variant(const Names<T>& names, const T* otherwise = nullptr) {
        for (const std::string_view part : parts_)
            if (const auto it = names.find(part); it != names.end()) return it->second;
        if (!otherwise) refuse("the variant");
        return *otherwise;
    }
    std::string_view op(size_t k) const { return statement_->operands[k]; }

    void emit(int destinations = 0) {
        instruction_.destinations = static_cast<uint16_t>(destinations);
        program_.code.push_back(instruction_);
        program_.inlined_at.push_back(statement_ ? statement_->inlined_at : Location{});
    }

    // ---- forms -----------------------------------------------------------------------------------------------------

    void table_row() {
        const auto it = instruction_table().find(std::string(statement_->opcode));
        if (it == instruction_table().end()) refuse("it is in no table");
        const Row& row = it->second;
        need_operands(row.bytes.size(), row.bytes.size());
        for (size_t k = 0; k < row.bytes.size(); ++k) exact(op(k), row.bytes[k]);
        instruction_.run = row.run;
        emit(1);
    }

    void branch() {
        const Body& body = frame_->body;
        const bool is_known = body.look_outwards(statement_->scope, [&](size_t scope) {
            const auto it = body.scopes[scope].labels.find(op(0));
            if (it == body.scopes[scope].labels.end()) return false;
            frame_->jumps.push_back({program_.code.size(), it->second});
            return true;
        });
        if (!is_known) refuse("the label is not known");
        instruction_.kind = Kind::branch;
        emit();
    }
    void exit() {
        instruction_.kind = Kind::exit;
        emit();
    }
    void trap() {
        instruction_.kind = Kind::trap;
        emit();
    }

    void cluster_barrier() {
        if (has("arrive")) {
            instruction_.kind = Kind::aligned;
            instruction_.run = &cluster_arrive;
        } else if (has("wait")) {
            instruction_.kind = Kind::poll;
            instruction_.variant = static_cast<uint8_t>(Poll::cluster);
            instruction_.run = &cluster_wait;
        } else {
            refuse("the variant");
        }
        program_.joins_warps = true;
        emit();
    }

    void barrier() {
        if (has("cluster")) return cluster_barrier();
        if (has("warp")) {
            instruction_.kind = Kind::collective;
            instruction_.run = &sync_warp;
            exact(op(0), 4);
        } else {
            const bool all = statement_->operands.size() == 1;
            need_operands(1, 2);
            if (has("red") || (all && (!has("sync") || op(0) != "0"))) refuse("the variant");
            for (size_t k = 0; k < 2 && !all; ++k) exact(op(k), 4);
            instruction_.kind = has("arrive") ? Kind::aligned : Kind::barrier;
            instruction_.run = &barrier_arrive;
            program_.joins_warps |= !all;
        }
        emit();
    }

    void fence() {
        const bool proxy = has("proxy") && has("async") && !has("global");  // which orders device memory alone
        instruction_.run = proxy || has("mbarrier_init") ? &fence_proxy : &nothing;
        emit();
    }

    void map_() {  // d, a, rank
        need_operands(3, 3);
        const int bytes = bytes_of_type(parts_.back());
        instruction_.run = &map_address;
        instruction_.width = static_cast<uint8_t>(bytes);
        exact(op(0), bytes);
        exact(op(1), bytes);
        exact(op(2), 4);
        emit(1);
    }
    void rank_() {  // d, a
        need_operands(2, 2);
        instruction_.run = &rank_of_address;
        exact(op(0), 4);
        instruction_.width = static_cast<uint8_t>(operand(op(1), bytes_of_type(parts_.back())));
        emit(1);
    }

    // Waits identify a phase by its parity or by the state that an arrival returned.
    void mbarrier() {
        Instruction& i = instruction_;
        const std::string_view what = parts_[1];
        const bool arrives = what == "arrive";
        const bool waits = what == "try_wait" || what == "test_wait";
        program_.joins_warps = true;
        const bool expects = what == "expect_tx";
        if (!has("shared::cta") && !has("shared") && !has("shared::cluster")) refuse("the space");
        if (has("noComplete")) refuse("the variant");
        const bool returns = arrives && op(0) != "_";
        i.sign = waits && !has("parity");
        size_t k = arrives;
        if (returns) exact(op(0), 8);
        if (waits) exact(op(k++), 0);
        address(op(k++));
        if (i.address_width != 4) refuse("the address");
        const size_t count = statement_->operands.size();
        if (i.sign)
            exact(op(k++), 8);
        else if (what == "init" || waits || expects || count > k)
            exact(op(k++), 4);
        else if (arrives)
            add(constant(4, 1));
        k += waits && count == k + 1;  // the time after which a wait may give up
        if (count != k) refuse("the number of operands");
        if (waits) i.variant = static_cast<uint8_t>(what == "try_wait" ? Poll::try_wait : Poll::test_wait);
        if (arrives) i.variant = has("expect_tx");
        static const Names<Handler> handlers = {{"init", &mbarrier_init},     {"inval", &mbarrier_inval},
                                                {"arrive", &mbarrier_arrive}, {"expect_tx", &mbarrier_expect},
                                                {"try_wait", &mbarrier_wait}, {"test_wait", &mbarrier_wait}};
        const auto handler = handlers.find(what);
        if (handler == handlers.end()) refuse("the variant");
        i.run = handler->second;
        if (waits) i.kind = Kind::poll;
        emit(waits || returns);
    }

    static std::string_view inside(std::string_view text) { return text.substr(1, text.size() - 2); }

    // The tensor map and the coordinates of "[map, {x, y, ...}]".
    void tile(std::string_view text) {
        const auto parts = split_operands(inside(text));
        if (parts.size() != 2) refuse("the tensor map");
        exact(parts[0], 8);
        list(parts[1], 4);
    }

    // cp.async.bulk[.tensor.Nd].{shared::cluster, shared::cta}.global.mbarrier::complete_tx::bytes[.multicast::cluster]
    //     [to], [map, {x, y, ...}] or [from], bytes, [mbarrier] {, receivers} {, cache policy}
    // cp[.reduce].async.bulk[.tensor.Nd].global.shared::cta[.add].bulk_group [map, {x, y, ...}] or [to], [from], bytes
    void bulk() {
        Instruction& i = instruction_;
        const bool is_tensor = has("tensor");
        const bool multicasts = has("multicast::cluster");
        i.variant = static_cast<uint8_t>((is_tensor ? bulk::kTensor : 0) | (multicasts ? bulk::kMulticast : 0));
        program_.asynchronous = true;
        if (has("prefetch")) {
            i.run = &nothing;
            return emit();
        }
        if (has("commit_group") || has("wait_group")) {
            i.run = has("wait_group") ? &bulk_wait : &bulk_commit;
            if (has("wait_group")) i.offset = static_cast<int64_t>(parse_number(op(0)));
            return emit();
        }
        if (has("im2col") || has("im2col_no_offs") || has("cp_mask")) refuse("the variant");
        const size_t expected = is_tensor ? 2 : 3;
        const size_t policy = has("L2::cache_hint");
        if (has("bulk_group")) {
            need_operands(expected + policy, expected + policy);
            return bulk_out(is_tensor);
        }
        const bool loads = has("global") && has("mbarrier::complete_tx::bytes");
        if (!loads || (!has("shared::cluster") && !has("shared::cta"))) refuse("the variant");
        need_operands(expected + 1 + multicasts + policy, expected + 1 + multicasts + policy);
        i.run = &bulk_load;
        exact(inside(op(0)), 4);
        size_t k = 1;
        if (is_tensor) {
            tile(op(k++));
        } else {
            exact(inside(op(k++)), 8);
            exact(op(k++), 4);
        }
        exact(inside(op(k++)), 4);
        if (multicasts) exact(op(k++), 2);
        emit();
    }
    void bulk_out(bool is_tensor) {
        Instruction& i = instruction_;
        static const Names<Reduce> reductions = {{"add", Reduce::add},  {"min", Reduce::min}, {"max", Reduce::max},
                                                 {"and", Reduce::and_}, {"or", Reduce::or_},  {"xor", Reduce::xor_}};
        static const Names<TensorMap::Type> types = {
            {"u32", TensorMap::kU32}, {"s32", TensorMap::kS32}, {"u64", TensorMap::kU64}, {"s64", TensorMap::kS64},
            {"f32", TensorMap::kF32}, {"f64", TensorMap::kF64}, {"f16", TensorMap::kF16}, {"bf16", TensorMap::kBf16}};
        const bool reduces = parts_[1] == "reduce";
        i.vector = static_cast<uint8_t>(reduces ? variant(reductions) : Reduce::none);
        if (reduces && !is_tensor) {
            const TensorMap::Type type = variant(types);
            i.width = static_cast<uint8_t>(type);
            i.bytes = TensorMap::kBytesOf[type];
        }
        i.run = &bulk_store;
        if (is_tensor) {
            const uint8_t type = i.width;
            tile(op(0));
            i.width = type;
            exact(inside(op(1)), 4);
        } else {
            exact(inside(op(0)), 8);
            exact(inside(op(1)), 4);
            exact(op(2), 4);
        }
        emit();
    }

    void max_registers() {
        need_operands(1, 1);
        Instruction& i = instruction_;
        i.offset = static_cast<int64_t>(parse_number(op(0)));
        if (i.offset < 24 || i.offset > 256 || i.offset % 8 != 0) refuse("the number of registers");
        i.kind = has("inc") ? Kind::poll : Kind::aligned;
        i.run = &set_max_registers;
        i.variant = static_cast<uint8_t>(Poll::registers);
        emit();
    }

    // wgmma.mma_async.sync.aligned.m64nNk16.{f32.bf16.bf16, f32.f16.f16, f16.f16.f16} d, a, b, scale-d, imm-scale-a,
    // imm-scale-b, [imm-trans-a,] imm-trans-b
    void wgmma() {
        Instruction& i = instruction_;
        i.kind = Kind::aligned;
        program_.asynchronous = true;
        if (parts_[1] != "mma_async") {
            i.run = &wgmma_wait;
            if (parts_[1] == "fence") i.run = &wgmma_fence;
            if (parts_[1] == "commit_group") i.run = &wgmma_commit;
            if (i.run == &wgmma_wait) i.offset = static_cast<int64_t>(parse_number(op(0)));
            return emit();
        }
        const std::string_view shape = parts_[4];
        const bool half_sums = parts_.size() == 8 && parts_[5] == "f16";
        const bool f16 = has("f16");
        if (parts_.size() != 8 || !shape.starts_with("m64n") || !shape.ends_with("k16") ||
            (parts_[5] != "f32" && !half_sums) || parts_[6] != parts_[7] || (!f16 && parts_[6] != "bf16"))
            refuse("the variant");
        const auto N = parse_number(shape.substr(4, shape.size() - 7));
        const bool registers = op(1)[0] == '{';
        const size_t first = 4;  // index of the first immediate
        need_operands(registers ? 7 : 8, registers ? 7 : 8);
        const auto immediate_is = [&](size_t k, int64_t value) {
            return static_cast<int64_t>(parse_number(op(k))) == value;
        };
        i.run = &wgmma_product;
        i.offset = static_cast<int64_t>(N);
        const bool transposed_a = !registers && immediate_is(first + 2, 1);
        const bool transposed_b = immediate_is(first + (registers ? 2 : 3), 1);
        const auto flag = [](bool is_set, uint8_t bit) { return is_set ? bit : 0; };
        i.variant = static_cast<uint8_t>(
            flag(registers, product::kRegistersA) | flag(transposed_a, product::kTransposedA) |
            flag(transposed_b, product::kTransposedB) | flag(immediate_is(first, -1), product::kMinusA) |
            flag(immediate_is(first + 1, -1), product::kMinusB) | flag(f16, product::kF16) |
            flag(half_sums, product::kHalfSums));
        const int results = static_cast<int>(half_sums ? N / 4 : N / 2);
        for (int both = 0; both < 2; ++both)
            if (list(op(0), 4) != results) refuse("the number of registers of D");
        if (registers && list(op(1), 4) != 4) refuse("the number of registers of A");
        if (!registers) exact(op(1), 8);
        exact(op(2), 8);
        exact(op(3), 0);
        emit(results);
    }

    void shuffle_() {  // d[|p], a, b, c, mask
        need_operands(5, 5);
        instruction_.kind = Kind::collective;
        instruction_.run = &shuffle;
        instruction_.variant = static_cast<uint8_t>(variant(kShuffles));
        const size_t bar = op(0).find('|');
        exact(op(0).substr(0, bar), 4);
        if (bar != std::string_view::npos) exact(op(0).substr(bar + 1), 0);
        const int destinations = instruction_.count;
        for (size_t k = 1; k < 5; ++k) exact(op(k), 4);
        emit(destinations);
    }

    void elect_() {  // d|p, mask
        need_operands(2, 2);
        instruction_.kind = Kind::collective;
        instruction_.run = &elect;
        const size_t bar = op(0).find('|');
        if (bar == std::string_view::npos) refuse("the operands");
        const std::string_view leader = op(0).substr(0, bar);
        add(leader == "_" ? new_register(4) : find_register(leader));
        exact(op(0).substr(bar + 1), 0);
        exact(op(1), 4);
        emit(2);
    }
    void match_() {  // match.any: d, a, mask; match.all: d[|p], a, mask
        need_operands(3, 3);
        const int bytes = bytes_of_type(parts_.back());
        instruction_.kind = Kind::collective;
        instruction_.run = &match;
        instruction_.variant = has("all");
        instruction_.bytes = static_cast<uint8_t>(bytes);
        const size_t bar = op(0).find('|');
        exact(op(0).substr(0, bar), 4);
        if (bar != std::string_view::npos) exact(op(0).substr(bar + 1), 0);
        const int destinations = instruction_.count;
        exact(op(1), bytes);
        exact(op(2), 4);
        emit(destinations);
    }
    void redux_() {  // d, a, mask
        need_operands(3, 3);
        if (has("f32")) refuse("the type");
        instruction_.kind = Kind::collective;
        instruction_.run = &redux;
        instruction_.variant = static_cast<uint8_t>(variant(kAtomics));
        instruction_.sign = has("s32");
        for (size_t k = 0; k < 3; ++k) exact(op(k), 4);
        emit(1);
    }
    void active() {
        need_operands(1, 1);
        instruction_.run = &active_mask;
        exact(op(0), 4);
        emit(1);
    }
    void store_matrix_() {
        need_operands(2, 2);
        if (!has("sync") || !has("m8n8") || !has("b16")) refuse("the variant");
        instruction_.kind = Kind::aligned;
        instruction_.run = &store_matrix;
        instruction_.variant = has("trans");
        instruction_.space = Space::shared;
        address(op(0));
        instruction_.vector = static_cast<uint8_t>(list(op(1), 4));
        emit();
    }

    void vote_() {  // d, [!]p, mask
        need_operands(3, 3);
        instruction_.kind = Kind::collective;
        instruction_.run = &vote;
        const Vote v = variant(kVotes);
        instruction_.variant = static_cast<uint8_t>(v);
        exact(op(0), v == Vote::ballot ? 4 : 0);
        instruction_.sign = op(1)[0] == '!';
        exact(op(1).substr(instruction_.sign), 0);
        exact(op(2), 4);
        emit(1);
    }

    void matrix() {
        need_operands(2, 2);
        if (!has("sync") || !has("m8n8") || !has("b16")) refuse("the variant");
        instruction_.kind = Kind::aligned;
        instruction_.run = &load_matrix;
        instruction_.variant = has("trans");
        instruction_.space = Space::shared;
        instruction_.vector = static_cast<uint8_t>(list(op(0), 4));
        address(op(1));
        emit(instruction_.vector);
    }

    void mma() {
        instruction_.kind = Kind::aligned;
        const std::string_view opcode = statement_->opcode;
        if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
            instruction_.run = &mma_bf16;
        else if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
            instruction_.run = &mma_f16;
        else
            refuse("the variant");
        for (const std::string_view fragment : statement_->operands) list(fragment, 4);
        emit(4);
    }

    void copy() {  // cp.async.{ca,cg}.shared.global [to], [from], bytes {, filled}; or a group operation
        Instruction& i = instruction_;
        if (has("bulk")) return bulk();
        if (has("commit_group")) {
            i.run = &copy_commit;
        } else if (has("wait_group") || has("wait_all")) {
            i.run = &copy_wait;
            i.offset = has("wait_all") ? -1 : static_cast<int64_t>(parse_number(op(0)));
        } else if (has("async") && !has("mbarrier")) {
            need_operands(3, 4);
            i.run = &copy_async;
            address(op(0));
            if (i.offset || i.address_width != 4) refuse("the address in shared memory");
            address(op(1));
            i.bytes = static_cast<uint8_t>(parse_number(op(2)));
            if (statement_->operands.size() > 3) exact(op(3), 4);
        } else {
            refuse("the variant");
        }
        emit();
    }

    void memory() {
        need_operands(2, 2);
        Instruction& i = instruction_;
        constexpr Space none = Space::generic;
        const bool stores = parts_[0] == "st";
        i.space = variant(kSpaces, &none);
        i.bytes = static_cast<uint8_t>(bytes_of_type(parts_.back()));
        i.sign = parts_.back()[0] == 's';
        if (i.bytes == 0) refuse("the type");
        const std::string_view where = op(stores ? 0 : 1);
        // Parameters and results of calls are in local memory.
        if (i.space == Space::param) {
            const std::string_view name = where.substr(1, where.find_first_of("+]") - 1);
            if (find_variable(name)) i.space = Space::local;
        }
        i.run = i.space == Space::param ? &load_parameter : &load;
        if (stores) i.run = &store;
        if (stores) {
            if (i.space == Space::param) refuse("the space");
            address(where);
            i.vector = static_cast<uint8_t>(list(op(1), i.bytes));
            return emit();
        }
        i.vector = static_cast<uint8_t>(list(op(0), i.bytes));
        address(where);
        emit(i.vector);
    }

    void atomic_() {  // atom: d, [a], b {, c}; red: [a], b
        Instruction& i = instruction_;
        constexpr Space none = Space::generic;
        const bool returns = parts_[0] == "atom";
        need_operands(returns ? 3 : 2, returns ? 4 : 2);
        i.space = variant(kSpaces, &none);
        i.variant = static_cast<uint8_t>(variant(kAtomics));
        const std::string_view type = parts_.back();
        i.bytes = static_cast<uint8_t>(bytes_of_type(type));
        if (has("v2") || has("v4") || has("v8")) refuse("a vector");
        const bool pairs = type == "bf16x2" || type == "f16x2";
        const bool halves = type == "bf16" || type == "f16";
        if ((pairs || halves) && i.variant != static_cast<uint8_t>(AtomicOp::add)) refuse("the operation");
        if (!halves && !pairs && ((i.bytes != 4 && i.bytes != 8) || type.ends_with("x2"))) refuse("the type");
        i.sign = type[0] == 's';
        i.width = type[0] == 'f';  // whether the type is a float
        i.run = &atomic;
        if (pairs || halves) {
            i.run = &atomic_add_half;
            i.width = type[0] == 'b';  // whether it is bf16
        }
        size_t k = 0;
        if (returns) exact(op(k++), i.bytes);
        address(op(k++));
        for (; k < statement_->operands.size(); ++k) exact(op(k), i.bytes);
        emit(returns);
    }

    void move() {
        need_operands(2, 2);
        Instruction& i = instruction_;
        const int bytes = bytes_of_type(parts_.back());
        if (const auto it = kSpecials.find(op(1)); it != kSpecials.end()) {
            i.run = &move_special;
            i.variant = static_cast<uint8_t>(it->second);
            i.width = static_cast<uint8_t>(bytes);
            exact(op(0), bytes);
            return emit(1);
        }
        const bool splits = op(0)[0] == '{';
        const bool joins = op(1)[0] == '{';
        if (!splits && !joins) return table_row();
        const auto count = split_operands((splits ? op(0) : op(1)).substr(1)).size();
        const int part = bytes / static_cast<int>(count);
        i.run = splits ? &split : &join;
        i.bytes = static_cast<uint8_t>(part);
        if (joins) exact(op(0), bytes);
        list(splits ? op(0) : op(1), part);
        if (splits) exact(op(1), bytes);
        i.width = static_cast<uint8_t>(bytes);
        emit(splits ? static_cast<int>(count) : 1);
    }

    void window() {  // cvta.space d, a: to a generic address; cvta.to.space: from one
        need_operands(2, 2);
        const Space space = variant(kSpaces);
        uint64_t begin = 0;
        if (space == Space::shared) begin = kSharedWindow;
        if (space == Space::local) begin = kLocalWindow;
        if (space == Space::param) begin = kParameterWindow;
        instruction_.run = &to_window;
        instruction_.offset = static_cast<int64_t>(has("to") ? ~begin + 1 : begin);
        exact(op(0), 8);
        instruction_.width = static_cast<uint8_t>(operand(op(1), 8));
        emit(1);
    }

    // Registers of integers may be wider than the type; convert_width converts these.
    void convert() {
        const auto it = instruction_table().find(std::string(statement_->opcode));
        const std::string_view to = parts_[parts_.size() - 2];
        const std::string_view from = parts_.back();
        if (parts_.size() == 3 && std::strchr("us", to[0]) && std::strchr("us", from[0])) {
            const int d = operand(op(0), bytes_of_type(to));
            const int a = operand(op(1), bytes_of_type(from));
            if (it != instruction_table().end() && d == it->second.bytes[0] && a == it->second.bytes[1]) {
                instruction_.run = it->second.run;
            } else {
                instruction_.run = &convert_width;
                instruction_.bytes = static_cast<uint8_t>(bytes_of_type(from));
                instruction_.vector = static_cast<uint8_t>(bytes_of_type(to));
                instruction_.sign = from[0] == 's';
                instruction_.variant = to[0] == 's';
                instruction_.width = static_cast<uint8_t>(d);
                instruction_.address_width = static_cast<uint8_t>(a);
            }
            return emit(1);
        }
        table_row();
    }

    // A function that the device's system provides: parameters and results are in local memory.
    void system_call(std::string_view name, std::vector<std::string_view> results,
                     std::vector<std::string_view> parameters) {
        const bool prints = name == "vprintf";
        if (!prints && name != "__assertfail") refuse("the device's system has no such function here");
        if (parameters.size() != (prints ? 2 : 5) || results.size() != (prints ? 1 : 0)) refuse("the parameters");
        parameters.insert(parameters.end(), results.begin(), results.end());
        for (const std::string_view parameter : parameters) add(constant(8, variable(parameter)));
        instruction_.run = prints ? &print_formatted : &fail_assertion;
        emit();
    }

    void call() {  // call.uni [(results),] name, (parameters)
        const auto& all = statement_->operands;
        if (!statement_->guard.empty()) refuse("a guarded call");
        const bool returns = !all.empty() && all[0][0] == '(';
        if (all.size() < (returns ? 2u : 1u)) refuse("the operands");
        const std::string_view name = all[returns];
        const auto it = module_.functions.find(name);
        if (it == module_.functions.end()) refuse("the function is not known");
        const auto inside = [](std::string_view list) { return split_operands(list.substr(1, list.size() - 2)); };
        const auto actual_results = returns ? inside(all[0]) : std::vector<std::string_view>{};
        const auto actual_parameters =
            all.size() > size_t{1} + returns ? inside(all[1 + returns]) : std::vector<std::string_view>{};
        if (it->second.body.empty()) return system_call(name, actual_results, actual_parameters);
        Names<size_t> locals;
        const auto bind = [&](const std::vector<Parameter>& formal, const std::vector<std::string_view>& actual) {
            if (formal.size() != actual.size()) refuse("the number of parameters");
            for (size_t k = 0; k < formal.size(); ++k) locals[formal[k].name] = variable(actual[k]);
        };
        bind(it->second.results, actual_results);
        bind(it->second.parameters, actual_parameters);
        const Statement* const here = statement_;
        function(it->second, locals);
        statement_ = here;
    }

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

}  // namespace

const Table& instruction_table() {
    static const Table* const table = [] {
        auto* all = new Table;
        add_integer_rows(*all);
        add_float_rows(*all);
        add_conversion_rows(*all);
        add_move_rows(*all);
        add_half_rows(*all);
        return all;
    }();
    return *table;
}

std::string Program::place(const Instruction& i) const {
    const auto it = module->files.find(i.file);
    if (it == module->files.end()) return fmt::format("instruction {}", &i - code.data());
    const std::string& path = it->second;
    return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), i.line);
}

std::string Program::place_in_kernel(const Instruction& i) const {
    const Location& caller = inlined_at[static_cast<size_t>(&i - code.data())];
    const auto it = module->files.find(caller.file);
    if (it == module->files.end()) return place(i);
    return fmt::format("{} (inlined at {}:{})", place(i), it->second.substr(it->second.rfind('/') + 1), caller.line);
}

std::unique_ptr<Program> decode(const Module& module, const Symbols& symbols, std::string_view name) {
    const auto it = module.functions.find(name);
    CHECK(it != module.functions.end() && it->second.is_entry, "PTX: there is no kernel {}", name);
    auto program = std::make_unique<Program>();
    program->name = readable(name);
    program->module = &module;
    program->parameters = it->second.parameters;
    if (!program->parameters.empty())
        program->parameter_bytes = program->parameters.back().offset + program->parameters.back().bytes;
    program->max_threads = it->second.max_threads;
    if (std::vector<int> c = it->second.cluster; !c.empty()) {
        c.resize(3, 1);
        program->cluster = {static_cast<uint32_t>(c[0]), static_cast<uint32_t>(c[1]), static_cast<uint32_t>(c[2])};
    }
    constexpr int kRegisters = 65536;
    constexpr int kMost = 255;
    constexpr int kUnit = 8;  // per multiprocessor; most per thread; allocation unit
    const int threads = std::max(program->max_threads, 1) * it->second.min_blocks;
    program->registers = std::min(kRegisters / threads, kMost) / kUnit * kUnit;
    Decoder(module, symbols, *program).run(it->second);
    return program;
}

}  // namespace teon::gpusim

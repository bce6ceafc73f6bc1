// Turns the functions of a module into instructions. The instruction table has those whose operands are registers and
// immediates; methods of Decoder decode the other forms (gpusim/decode/).
//
// Each call is decoded in place, as if inlined. Few are left, as nvcc inlines all but a few functions of its own
// library.
#include "gpusim/decode.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/check.h"
#include "gpusim/collective.h"
#include "gpusim/convert.h"
#include "gpusim/decode/decoder.h"
#include "gpusim/float.h"
#include "gpusim/half.h"
#include "gpusim/integer.h"
#include "gpusim/mbarrier.h"
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

// Instructions that do nothing here, except griddepcontrol.wait. Memory scopes and orders do not matter here, because
// blocks see each other's writes at once.
const std::set<std::string_view> kNothing = {"griddepcontrol", "membar", "nanosleep", "prefetch", "discard"};

}  // namespace

void Decoder::run(const Function& entry) {
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

void Decoder::declare(const Scope& scope, Declared& declared) {
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

void Decoder::function(const Function& f, const Names<size_t>& parameters) {
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

void Decoder::decode(const Statement& s, bool outermost) {
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
                                      {"wmma", &Decoder::wmma_},
                                      {"setmaxnreg", &Decoder::max_registers},
                                      {"elect", &Decoder::elect_},
                                      {"match", &Decoder::match_},
                                      {"redux", &Decoder::redux_},
                                      {"activemask", &Decoder::active},
                                      {"stmatrix", &Decoder::matrix},
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

void Decoder::table_row() {
    const auto it = instruction_table().find(std::string(statement_->opcode));
    if (it == instruction_table().end()) refuse("it is in no table");
    const Row& row = it->second;
    need_operands(row.bytes.size(), row.bytes.size());
    for (size_t k = 0; k < row.bytes.size(); ++k) exact(op(k), row.bytes[k]);
    instruction_.run = row.run;
    emit(1);
}

void Decoder::branch() {
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

void Decoder::exit() {
    instruction_.kind = Kind::exit;
    emit();
}

void Decoder::trap() {
    instruction_.kind = Kind::trap;
    emit();
}

// A function that the device's system provides: parameters and results are in local memory.
void Decoder::system_call(std::string_view name, std::vector<std::string_view> results,
                          std::vector<std::string_view> parameters) {
    const bool prints = name == "vprintf";
    if (!prints && name != "__assertfail") refuse("the device's system has no such function here");
    if (parameters.size() != (prints ? 2 : 5) || results.size() != (prints ? 1 : 0)) refuse("the parameters");
    parameters.insert(parameters.end(), results.begin(), results.end());
    for (const std::string_view parameter : parameters) add(constant(8, variable(parameter)));
    instruction_.run = prints ? &print_formatted : &fail_assertion;
    emit();
}

void Decoder::call() {  // call.uni [(results),] name, (parameters)
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

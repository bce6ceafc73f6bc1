// The operands of instructions: registers, constants, symbols, addresses and lists.
#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "base/integer.h"
#include "gpusim/decode/decoder.h"

namespace teon::gpusim {

void Decoder::refuse(const std::string& why) const {
    const Statement& s = *statement_;
    std::string text(s.opcode);
    for (size_t k = 0; k < s.operands.size(); ++k) text += fmt::format("{} {}", k ? "," : "", s.operands[k]);
    throw Error(fmt::format("{}: {}: the modelled GPU does not know \"{}\": {}", program_.name,
                            program_.place(instruction_), text, why));
}

int Decoder::new_register(int bytes) {
    registers_.push_back({bytes});
    return static_cast<int>(registers_.size()) - 1;
}

int Decoder::constant(int bytes, uint64_t bits, bool from_dynamic) {
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

size_t Decoder::new_local(size_t bytes, size_t align) {
    const size_t at = round_up(program_.local_bytes, align);
    program_.local_bytes = at + bytes;
    return at;
}

size_t Decoder::new_shared(const Variable& v) {
    const size_t at = round_up(program_.static_shared, v.align);
    program_.static_shared = at + v.bytes;
    return at;
}

int Decoder::index_of(std::string_view name) const {
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

const size_t* Decoder::find_variable(std::string_view name) const {
    const size_t* offset = nullptr;
    frame_->body.look_outwards(statement_->scope, [&](size_t scope) {
        const Names<size_t>& variables = frame_->declared[scope].variables;
        if (const auto it = variables.find(name); it != variables.end()) offset = &it->second;
        return offset != nullptr;
    });
    return offset;
}

int Decoder::find_register(std::string_view name) const {
    const int index = index_of(name);
    if (index == kNone) refuse(fmt::format("{} is no register", name));
    return index;
}

void Decoder::add(int index) {
    program_.operands.push_back(static_cast<uint32_t>(index));
    ++instruction_.count;
}

uint64_t Decoder::symbol(std::string_view name, bool& from_dynamic) {
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

size_t Decoder::variable(std::string_view name) const {
    const size_t* const offset = find_variable(name);
    if (!offset) refuse(fmt::format("'{}' is no variable", name));
    return *offset;
}

int Decoder::immediate(std::string_view text, int bytes) {
    if (text == "WARP_SZ") return constant(bytes, 32);
    if (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-') return constant(bytes, parse_number(text));
    const size_t plus = text.find('+');
    bool from_dynamic = false;
    const uint64_t begin = symbol(text.substr(0, plus), from_dynamic);
    return constant(bytes, plus == text.npos ? begin : begin + parse_number(text.substr(plus + 1)), from_dynamic);
}

int Decoder::operand(std::string_view text, int bytes) {
    int index = index_of(text);
    if (index == kNone) index = immediate(text, bytes);
    add(index);
    return registers_[index].bytes;
}

void Decoder::exact(std::string_view text, int bytes) {
    if (const int is = operand(text, bytes); is != bytes)
        refuse(fmt::format("{} has {} bytes and not {}", text, is, bytes));
}

int Decoder::list(std::string_view text, int bytes) {
    const auto parts = split_operands(text[0] == '{' ? text.substr(1, text.size() - 2) : text);
    for (const std::string_view part : parts) instruction_.width = static_cast<uint8_t>(operand(part, bytes));
    return static_cast<int>(parts.size());
}

void Decoder::address(std::string_view text) {
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

void Decoder::need_operands(size_t minimum, size_t maximum) {
    if (const size_t n = statement_->operands.size(); n < minimum || n > maximum) refuse("the number of operands");
}

std::string_view Decoder::op(size_t k) const { return statement_->operands[k]; }

void Decoder::emit(int destinations) {
    instruction_.destinations = static_cast<uint16_t>(destinations);
    program_.code.push_back(instruction_);
    program_.inlined_at.push_back(statement_ ? statement_->inlined_at : Location{});
}

}  // namespace teon::gpusim

// Moves between registers, special registers, and conversions.
#include <cstring>

#include "gpusim/convert.h"
#include "gpusim/decode.h"
#include "gpusim/decode/decoder.h"
#include "gpusim/move.h"

namespace teon::gpusim {

void Decoder::move() {
    need_operands(2, 2);
    Instruction& i = instruction_;
    const int bytes = bytes_of_type(parts_.back());
    if (const int special = special_register(op(1)); special != kNone) {
        i.run = &move_special;
        i.variant = static_cast<uint8_t>(special);
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

// Registers of integers may be wider than the type; convert_width converts these.
void Decoder::convert() {
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

}  // namespace teon::gpusim

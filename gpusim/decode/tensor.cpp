// Tensor cores: mma, wgmma, and the loads and stores of their fragments.
#include "gpusim/collective.h"
#include "gpusim/decode/decoder.h"
#include "gpusim/memory.h"
#include "gpusim/warpgroup.h"

namespace teon::gpusim {

// wgmma.mma_async.sync.aligned.m64nNk16.{f32.bf16.bf16, f32.f16.f16, f16.f16.f16} d, a, b, scale-d, imm-scale-a,
// imm-scale-b, [imm-trans-a,] imm-trans-b
void Decoder::wgmma() {
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
    i.variant = static_cast<uint8_t>(flag(registers, product::kRegistersA) | flag(transposed_a, product::kTransposedA) |
                                     flag(transposed_b, product::kTransposedB) |
                                     flag(immediate_is(first, -1), product::kMinusA) |
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

void Decoder::store_matrix_() {
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

void Decoder::matrix() {
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

void Decoder::mma() {
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

}  // namespace teon::gpusim

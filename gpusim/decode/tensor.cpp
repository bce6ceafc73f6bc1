// Tensor cores: mma, wgmma, and the loads and stores of their fragments.
#include <bit>
#include "gpusim/collective.h"

#include "gpusim/decode/decoder.h"
#include "gpusim/memory.h"
#include "gpusim/warpgroup.h"
#include "gpusim/wmma.h"

namespace teon::gpusim {

// wgmma.mma_async.sync.aligned.m64nNk16.{f32.bf16.bf16, f32.f16.f16, f16.f16.f16} d, a, b, scale-d, imm-scale-a,
// imm-scale-b, [imm-trans-a,] imm-trans-b; m64nNk32.{f32, f16}.{e4m3, e5m2}.{e4m3, e5m2} without imm-trans
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
    if (parts_.size() != 8) refuse("the variant");
    const auto is_fp8 = [](std::string_view type) { return type == "e4m3" || type == "e5m2"; };
    const bool fp8 = is_fp8(parts_[6]) && is_fp8(parts_[7]);
    const bool f16 = parts_[6] == "f16";
    if (!shape.starts_with("m64n") || !shape.ends_with(fp8 ? "k32" : "k16") || (parts_[5] != "f32" && !half_sums) ||
        (!fp8 && (parts_[6] != parts_[7] || (!f16 && parts_[6] != "bf16"))))
        refuse("the variant");
    const auto N = parse_number(shape.substr(4, shape.size() - 7));
    const bool registers = op(1)[0] == '{';
    const size_t first = 4;  // index of the first immediate
    const size_t of_16_bits = registers ? 7 : 8;
    const size_t count = fp8 ? 6 : of_16_bits;
    need_operands(count, count);
    const auto immediate_is = [&](size_t k, int64_t value) {
        return static_cast<int64_t>(parse_number(op(k))) == value;
    };
    i.run = &wgmma_product;
    i.offset = static_cast<int64_t>(N);
    const bool bit_a = fp8 ? parts_[6] == "e5m2" : !registers && immediate_is(first + 2, 1);
    const bool bit_b = fp8 ? parts_[7] == "e5m2" : immediate_is(first + (registers ? 2 : 3), 1);
    const auto flag = [](bool is_set, uint8_t bit) { return is_set ? bit : 0; };
    i.variant =
        static_cast<uint8_t>(flag(registers, product::kRegistersA) | flag(bit_a, product::kTransposedA) |
                             flag(bit_b, product::kTransposedB) | flag(immediate_is(first, -1), product::kMinusA) |
                             flag(immediate_is(first + 1, -1), product::kMinusB) | flag(f16, product::kF16) |
                             flag(half_sums, product::kHalfSums) | flag(fp8, product::kFp8));
    const int results = static_cast<int>(half_sums ? N / 4 : N / 2);
    for (int both = 0; both < 2; ++both)
        if (list(op(0), 4) != results) refuse("the number of registers of D");
    if (registers && list(op(1), 4) != 4) refuse("the number of registers of A");
    if (!registers) exact(op(1), 8);
    exact(op(2), 8);
    exact(op(3), 0);
    emit(results);
}

void Decoder::matrix() {  // ldmatrix: registers, [a]; stmatrix: [a], registers
    need_operands(2, 2);
    if (!has("sync") || !has("m8n8") || !has("b16")) refuse("the variant");
    const bool stores = parts_[0] == "stmatrix";
    instruction_.kind = Kind::aligned;
    instruction_.run = stores ? &store_matrix : &load_matrix;
    instruction_.variant = has("trans");
    instruction_.space = Space::shared;
    if (stores) address(op(0));
    instruction_.vector = static_cast<uint8_t>(list(op(stores), 4));
    if (!stores) address(op(1));
    emit(stores ? 0 : instruction_.vector);
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

// wmma.load.{a, b, c}.sync.aligned.layout.shape{.space}.type registers, [a] {, stride}; wmma.store.d likewise with [a]
// first; wmma.mma.sync.aligned.layout.layout.shape.{d.c, f32.bf16.bf16.f32} d, a, b, c.
void Decoder::wmma_() {
    static const Names<uint8_t> shapes = {{"m16n16k16", 0}, {"m32n8k16", 1}, {"m8n32k16", 2}};
    Instruction& i = instruction_;
    i.kind = Kind::aligned;
    const uint8_t shape = variant(shapes);
    if (parts_[1] == "mma") return wmma_mma(shape);
    need_operands(2, 3);
    const std::string_view matrix = parts_[2];
    const std::string_view type = parts_.back();
    if (type != "f16" && type != "bf16" && (type != "f32" || matrix == "a" || matrix == "b")) refuse("the type");
    constexpr Space generic = Space::generic;
    i.space = variant(kSpaces, &generic);
    i.bytes = static_cast<uint8_t>(bytes_of_type(type));
    const bool by_columns = has("col");
    const bool is_sum = matrix == "c" || matrix == "d";
    const int rows = matrix == "b" ? wmma::kK : wmma::kShapes[shape].M;
    const int columns = matrix == "a" ? wmma::kK : wmma::kShapes[shape].N;
    const auto logarithm = [](int x) { return std::countr_zero(static_cast<unsigned>(x)) - 3; };
    const int length = logarithm(by_columns ? rows : columns);
    const int lines = logarithm(by_columns ? columns : rows);
    i.variant = static_cast<uint8_t>((is_sum && by_columns ? wmma::kByColumns : 0) | length << wmma::kLengthShift |
                                     lines << wmma::kLinesShift);
    const bool stores = parts_[1] == "store";
    i.run = stores ? &wmma_store : &wmma_load;
    if (stores) address(op(0));
    i.vector = static_cast<uint8_t>(list(op(stores), 4));
    if (!stores) address(op(1));
    if (statement_->operands.size() == 3) exact(op(2), 4);
    emit(stores ? 0 : i.vector);
}

void Decoder::wmma_mma(uint8_t shape) {
    need_operands(4, 4);
    Instruction& i = instruction_;
    const bool bf16 = has("bf16");
    const std::string_view d = parts_[bf16 ? parts_.size() - 4 : parts_.size() - 2];
    const std::string_view c = parts_.back();
    if (has("satfinite") || (d != "f32" && d != "f16") || (c != "f32" && c != "f16") || parts_[2] != "sync")
        refuse("the variant");
    i.run = &wmma_product;
    const auto flag = [](bool is_set, uint8_t bit) { return is_set ? bit : 0; };
    i.variant =
        static_cast<uint8_t>(flag(parts_[4] == "col", wmma::kColumnsA) | flag(parts_[5] == "col", wmma::kColumnsB) |
                             flag(bf16, wmma::kBf16) | flag(c == "f16", wmma::kHalfC) | flag(d == "f16", wmma::kHalfD) |
                             shape << wmma::kShapeShift);
    const int results = list(op(0), 4);
    for (size_t k = 1; k < 4; ++k) list(op(k), 4);
    emit(results);
}

}  // namespace teon::gpusim

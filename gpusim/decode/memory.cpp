// Loads, stores, atomics, copies, and generic addresses.
#include "gpusim/memory.h"
#include "gpusim/bulk.h"
#include "gpusim/decode/decoder.h"
#include "gpusim/move.h"

namespace teon::gpusim {

const Names<Space> Decoder::kSpaces = {{"global", Space::global},      {"shared", Space::shared},
                                       {"shared::cta", Space::shared}, {"shared::cluster", Space::shared},
                                       {"local", Space::local},        {"param", Space::param},
                                       {"const", Space::constant}};

const Names<AtomicOp> Decoder::kAtomics = {{"add", AtomicOp::add},   {"min", AtomicOp::min}, {"max", AtomicOp::max},
                                           {"and", AtomicOp::and_},  {"or", AtomicOp::or_},  {"xor", AtomicOp::xor_},
                                           {"exch", AtomicOp::exch}, {"cas", AtomicOp::cas}, {"inc", AtomicOp::inc},
                                           {"dec", AtomicOp::dec}};

std::string_view Decoder::inside(std::string_view text) { return text.substr(1, text.size() - 2); }

// The tensor map and the coordinates of "[map, {x, y, ...}]".
void Decoder::tile(std::string_view text) {
    const auto parts = split_operands(inside(text));
    if (parts.size() != 2) refuse("the tensor map");
    exact(parts[0], 8);
    list(parts[1], 4);
}

// cp.async.bulk[.tensor.Nd].{shared::cluster, shared::cta}.global.mbarrier::complete_tx::bytes[.multicast::cluster]
//     [to], [map, {x, y, ...}] or [from], bytes, [mbarrier] {, receivers} {, cache policy}
// cp[.reduce].async.bulk[.tensor.Nd].global.shared::cta[.add].bulk_group [map, {x, y, ...}] or [to], [from], bytes
void Decoder::bulk() {
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

void Decoder::bulk_out(bool is_tensor) {
    Instruction& i = instruction_;
    static const Names<TensorMap::Type> types = {
        {"u32", TensorMap::kU32}, {"s32", TensorMap::kS32}, {"u64", TensorMap::kU64}, {"s64", TensorMap::kS64},
        {"f32", TensorMap::kF32}, {"f64", TensorMap::kF64}, {"f16", TensorMap::kF16}, {"bf16", TensorMap::kBf16}};
    const bool reduces = parts_[1] == "reduce";
    i.vector = static_cast<uint8_t>(reduces ? variant(kAtomics) : AtomicOp::none);
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

void Decoder::copy() {  // cp.async.{ca,cg}.shared.global [to], [from], bytes {, filled}; or a group operation
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

void Decoder::memory() {
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

void Decoder::atomic_() {  // atom: d, [a], b {, c}; red: [a], b
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

void Decoder::window() {  // cvta.space d, a: to a generic address; cvta.to.space: from one
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

}  // namespace teon::gpusim

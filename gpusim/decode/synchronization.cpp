// Barriers, mbarriers, fences, and addresses in a cluster.
#include "gpusim/cluster.h"
#include "gpusim/collective.h"
#include "gpusim/decode/decoder.h"
#include "gpusim/mbarrier.h"
#include "gpusim/move.h"

namespace teon::gpusim {

void Decoder::cluster_barrier() {
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

void Decoder::barrier() {
    if (has("cluster")) return cluster_barrier();
    if (has("warp")) {
        instruction_.kind = Kind::collective;
        instruction_.run = &sync_warp;
        exact(op(0), 4);
    } else {
        need_operands(1, 2);
        const bool counts_all = statement_->operands.size() == 1;
        const bool all = counts_all && op(0) == "0";
        if (has("red") || (counts_all && !has("sync"))) refuse("the variant");
        if (!all) exact(op(0), 4);
        if (!all && !counts_all) exact(op(1), 4);
        if (!all && counts_all) add(constant(4, 0));
        instruction_.kind = has("arrive") ? Kind::aligned : Kind::barrier;
        instruction_.run = &barrier_arrive;
        program_.joins_warps |= !all;
    }
    emit();
}

void Decoder::fence() {
    const bool proxy = has("proxy") && has("async") && !has("global");  // which orders device memory alone
    instruction_.run = proxy ? &fence_proxy : &nothing;
    if (has("mbarrier_init")) instruction_.run = &fence_mbarriers;
    emit();
}

void Decoder::map_() {  // d, a, rank
    need_operands(3, 3);
    const int bytes = bytes_of_type(parts_.back());
    instruction_.run = &map_address;
    instruction_.width = static_cast<uint8_t>(bytes);
    exact(op(0), bytes);
    exact(op(1), bytes);
    exact(op(2), 4);
    emit(1);
}

void Decoder::rank_() {  // d, a
    need_operands(2, 2);
    instruction_.run = &rank_of_address;
    exact(op(0), 4);
    instruction_.width = static_cast<uint8_t>(operand(op(1), bytes_of_type(parts_.back())));
    emit(1);
}

// Waits identify a phase by its parity or by the state that an arrival returned.
void Decoder::mbarrier() {
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

void Decoder::max_registers() {
    need_operands(1, 1);
    Instruction& i = instruction_;
    i.offset = static_cast<int64_t>(parse_number(op(0)));
    if (i.offset < 24 || i.offset > 256 || i.offset % 8 != 0) refuse("the number of registers");
    i.kind = has("inc") ? Kind::poll : Kind::aligned;
    i.run = &set_max_registers;
    i.variant = static_cast<uint8_t>(Poll::registers);
    emit();
}

}  // namespace teon::gpusim

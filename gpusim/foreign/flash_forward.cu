// FlashAttention's forward pass, bf16. ARCH: 90 for FlashAttention-3, 80 for the kernels with mma; HEAD: the head's
// size; CAUSAL; CLUSTER: blocks of a cluster.
#include "flash_fwd_launch_template.h"

#include "attention.h"

using namespace foreign;

int main(int count, char** arguments) {
    const Attention a = {count > 1 ? std::atoi(arguments[1]) : 448, 2, 2, HEAD, CAUSAL};
    const auto q = random_values<bfloat16_t>(a.q_count(), 1);
    const auto k = random_values<bfloat16_t>(a.kv_count(), 2);
    const auto v = random_values<bfloat16_t>(a.kv_count(), 3);
    const Device<bfloat16_t> dq(q);
    const Device<bfloat16_t> dk(k);
    const Device<bfloat16_t> dv(v);
    const Device<bfloat16_t> o(a.q_count());
    const Device<float> lse(size_t(a.heads) * a.tokens);
    const Device<int> semaphore(1);
    auto p = parameters_of<Flash_fwd_params>(a, ARCH, 4);
    p.q_ptr = dq.data();
    p.k_ptr = dk.data();
    p.v_ptr = dv.data();
    p.o_ptr = o.data();
    p.softmax_lse_ptr = lse.data();
    p.tile_count_semaphore = semaphore.data();
    run_flash_fwd<ARCH, HEAD, HEAD, CLUSTER, bfloat16_t, bfloat16_t, CAUSAL, false, false, false, false, false, false,
                  false, false, false>(p, stream());
    const auto reference = attention(a, widened(q), widened(k), widened(v));
    char name[80];
    std::snprintf(name, sizeof name, "FlashAttention forward, sm_%d, head %d, %s, %d tokens", ARCH, HEAD,
                  CAUSAL ? "causal" : "full", a.tokens);
    // P is rounded to bf16 before the product with V, and O to bf16.
    const bool right =
        row(name, o.doubles(), reference.o, 0.006) & row("  log of the sum", lse.doubles(), reference.lse, 1e-5);
    return right ? 0 : 1;
}

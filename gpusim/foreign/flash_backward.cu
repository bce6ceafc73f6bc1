// FlashAttention's backward pass, bf16: its kernels before, in and after the main loop. ARCH: 90 for FlashAttention-3,
// 80 for the kernels with mma; HEAD: the head's size; CAUSAL.
#include "flash_bwd_launch_template.h"

#include "attention.h"

using namespace foreign;

int main(int count, char** arguments) {
    const Attention a = {count > 1 ? std::atoi(arguments[1]) : 256, 2, 2, HEAD, CAUSAL};
    const auto q = random_values<bfloat16_t>(a.q_count(), 1);
    const auto k = random_values<bfloat16_t>(a.kv_count(), 2);
    const auto v = random_values<bfloat16_t>(a.kv_count(), 3);
    const auto d_o = random_values<bfloat16_t>(a.q_count(), 4);
    const auto reference = attention(a, widened(q), widened(k), widened(v), widened(d_o));
    std::vector<bfloat16_t> o(a.q_count());
    for (size_t x = 0; x < o.size(); ++x) o[x] = bfloat16_t(float(reference.o[x]));
    std::vector<float> lse(reference.lse.begin(), reference.lse.end());
    const Device<bfloat16_t> device_q(q);
    const Device<bfloat16_t> device_k(k);
    const Device<bfloat16_t> device_v(v);
    const Device<bfloat16_t> device_o(o);
    const Device<bfloat16_t> device_do(d_o);
    const Device<float> device_lse(lse);
    const Device<bfloat16_t> dq(a.q_count());
    const Device<bfloat16_t> dk(a.kv_count());
    const Device<bfloat16_t> dv(a.kv_count());
    auto p = parameters_of<Flash_bwd_params>(a, ARCH, 4);
    // Each multiple of the blocks' heights 64, 80 and 128.
    p.seqlen_q_rounded = (a.tokens + 639) / 640 * 640;
    const size_t rows = size_t(a.heads) * p.seqlen_q_rounded;
    const Device<float> dq_sum(rows * HEAD);
    const Device<float> means(rows);
    const Device<float> lse_log2(rows);
    const Device<int> semaphore(1024);
    p.q_ptr = device_q.data();
    p.k_ptr = device_k.data();
    p.v_ptr = device_v.data();
    p.o_ptr = device_o.data();
    p.do_ptr = device_do.data();
    p.softmax_lse_ptr = device_lse.data();
    p.dq_ptr = dq.data();
    p.dk_ptr = dk.data();
    p.dv_ptr = dv.data();
    p.dq_accum_ptr = dq_sum.data();
    p.dsoftmax_sum = means.data();
    p.softmax_lse_log2_ptr = lse_log2.data();
    p.dq_semaphore = semaphore.data();
    p.tile_count_semaphore = semaphore.data();
    p.do_row_stride = p.dq_row_stride = p.q_row_stride;
    p.dk_row_stride = p.dv_row_stride = p.k_row_stride;
    p.do_head_stride = p.dq_head_stride = p.dk_head_stride = p.dv_head_stride = HEAD;
    p.do_batch_stride = p.dq_batch_stride = p.q_batch_stride;
    p.dk_batch_stride = p.dv_batch_stride = p.k_batch_stride;
#if ARCH == 80
    run_flash_bwd<80, 64, 128, 128, bfloat16_t, CAUSAL, false, false, false, false, false, 2, 2, false, false, false, 2,
                  4, 4, 4, false>(p, stream());
#elif HEAD == 64
    run_flash_bwd<90, 64, 128, 128, bfloat16_t, CAUSAL, false, false, false, false, false, 2, 2, true, false, false, 2,
                  1, 2, 2, false>(p, stream());
#elif CAUSAL
    run_flash_bwd<90, 128, 64, 128, bfloat16_t, true, false, false, false, false, false, 2, 2, true, false, false, 2, 1,
                  2, 1, false>(p, stream());
#else
    run_flash_bwd<90, 128, 80, 128, bfloat16_t, false, false, false, false, false, false, 2, 2, true, false, true, 2, 1,
                  2, 1, false>(p, stream());
#endif
    std::printf("FlashAttention backward, sm_%d, head %d, %s, %d tokens\n", ARCH, HEAD, CAUSAL ? "causal" : "full",
                a.tokens);
    // P, dS and O are rounded to bf16 before products, and results to bf16.
    const bool right = row("  dQ", dq.doubles(), reference.dq, 0.006) & row("  dK", dk.doubles(), reference.dk, 0.006) &
                       row("  dV", dv.doubles(), reference.dv, 0.006);
    return right ? 0 : 1;
}

// How a training step spends its time on this machine, in this process:  build/host/bench/bench_train
// GPT-2 with 256 channels, 4 layers, 8 sequences of 256 tokens, vocabulary 256 (bench/bench_train.py compares its
// tokens/s with PyTorch's). Prints the share of the step inside matrix products, and what they reach.
#include <algorithm>
#include <vector>

#include "kernels/ops.h"
#include "model/gpt2.h"
#include "optim/optimizer.h"
#include "test/device_batch.h"

using namespace teon;

namespace {

constexpr int B = 8, T = 256, kSteps = 12;

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

}  // namespace

int main() {
    DecoderConfig c = gpt2_config("tiny");
    c.C = 256;
    c.F = 4 * c.C;
    c.NH = c.NKV = 8;
    c.V = 256;
    c.max_T = T;
    Context ctx;
    std::unique_ptr<Model> model = make_decoder(c, {B, T, DType::f32}, ctx);
    ParamStore& params = model->params();
    params.initialize(1, ctx.stream);
    Optimizer optimizer(params, {}, ctx);
    std::vector<int> tokens(B * T), targets(B * T);
    for (int i = 0; i < B * T; ++i) tokens[i] = i * 37 % 251, targets[i] = i * 53 % 251;
    test::DeviceBatch batch(tokens, targets, B, T, ctx.stream);
    Buffer<float> losses(B * T), sums(2);
    Buffer<StepControl> control(1);
    Buffer<std::byte> scratch(static_cast<int64_t>(reduce_scratch_bytes()));
    zero(reinterpret_cast<std::byte*>(control.data()), sizeof(StepControl), ctx.stream);
    auto step = [&] {
        params.zero_grad(ctx.stream);
        model->forward_backward(losses.data(), *batch, 1.0f / (B * T));
        reduce_sum(sums.data(), scratch.data(), losses.data(), B * T, false, ctx.stream);
        reduce_sum_squares(sums.data() + 1, scratch.data(), params.grad_all(), params.table().size(), false,
                           ctx.stream);
        step_control(control.data(), sums.data() + 1, sums.data(), 1.0f, 0.0f, 0.9f, 0.95f, ctx.stream);
        optimizer.step(params, control.data(), 1.0f, ctx);
    };
    auto timed = [&] {
        std::vector<double> ms;
        for (int i = 0; i < kSteps; ++i) {
            Event begin, end;
            begin.record(ctx.stream);
            step();
            end.record(ctx.stream);
            end.synchronize();
            ms.push_back(Event::milliseconds(begin, end));
        }
        return median(ms);
    };
    timed();  // warm-up
    const double ms = timed();
    ctx.linalg.set_profiling(true);
    timed();
    const Linalg::Profile p = ctx.linalg.profile();
    const double gemm_ms = p.ms / kSteps;
    fmt::print("GPT-2 {:.2f}M, {} x {} tokens, float, AdamW: {:.1f} ms/step, {:.0f} tokens/s\n",
               static_cast<double>(params.table().logical_size()) / 1e6, B, T, ms, B * T / ms * 1000);
    fmt::print("in {} products {:.1f} ms ({:.0f}%, {:.0f} GFLOP/s), outside {:.1f} ms\n", p.calls / kSteps, gemm_ms,
               100 * gemm_ms / ms, p.flops / p.ms / 1e6, ms - gemm_ms);
}

// Compares the models with Hugging Face transformers and PyTorch in float64 (test/golden/make_models.py).
#include <string>

#include "kernels/reduce.h"
#include "optim/optimizer.h"
#include "test/model/golden_model.h"
#include "test/support/catch.h"
#include "test/support/whole_params.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr int B = kGoldenB;
constexpr int T = kGoldenT;

// Reasons for the bounds. In float, the longest chain of a result has some 30 roundings of 2^-24 and sums of at most 96
// terms; the largest measured distance is 2e-6 of a tensor's norm, and a wrong formula shows as 1e-2 or more. In bf16,
// every activation and every gradient between layers is rounded to 2^-9 about 20 times over two blocks. OLMo 2's norms
// follow the branches and scale each branch's output to the size of the stream, so that the branch's rounding errors
// reach the stream undiminished, while a pre-norm branch adds only a fraction of the stream. PyTorch's own ten steps in
// bf16 end 0.035 from those in float64 (Qwen3's: 0.004); the bound of losses is twice that.
double gradient_bound(const std::string& model, DType dtype) {
    if (dtype == DType::f32) return 1e-5;
    return model.starts_with("olmo2") ? 0.07 : 0.05;
}
double logit_bound(DType dtype) { return dtype == DType::f32 ? 3e-6 : 0.02; }
double loss_bound(const std::string& model, DType dtype) {
    // 64 roundings: in ten steps of AdamW the errors of all earlier steps add up (36 roundings on an H200).
    if (dtype == DType::f32) return 4e-6;
    return model.starts_with("olmo2") ? 0.07 : 0.02;
}

}  // namespace

TEST_CASE("model/decoder: logits, loss and every gradient match Hugging Face's") {
    for (const std::string& name : kGoldenModels)
        for (DType dtype : {DType::f32, DType::bf16}) {
            Golden g(name, dtype);
            INFO(name << " " << name_of(dtype));
            const int V = golden_config(name).V;
            Guarded<float> logits(int64_t{B} * T * V, g.runner.context.stream);
            g.runner.model->logits(logits.data(), *g.batch, 0, B * T);
            REQUIRE(relative_distance(logits.get(), g.file.read_float(g.file.at("logits"))) <= logit_bound(dtype));

            const double expected = g.file.read_float(g.file.at("loss"))[0];
            REQUIRE(std::abs(g.runner.loss(g.batch, true) - expected) <= loss_bound(name, dtype) * expected);

            const std::vector<float> grads = g.runner.gradients();
            const ParamTable& table = g.runner.model->table();
            for (const CheckpointTensor& t : checkpoint_tensors(table)) {
                INFO(t.name);
                std::vector<float> ours(static_cast<size_t>(t.elements()), NAN);
                for (int i : t.params) gather_param(table[i], grads.data() + table[i].offset, ours.data());
                REQUIRE(relative_distance(ours, g.file.read_float(g.file.at("grad." + t.name))) <=
                        gradient_bound(name, dtype));
            }
        }
}

TEST_CASE("model/decoder: padding has no gradient and the gaps between parameters stay zero") {
    for (const std::string& name : kGoldenModels) {
        Golden g(name, DType::f32);
        g.runner.loss(g.batch, true);
        std::vector<float> grads = g.runner.gradients();
        const ParamTable& table = g.runner.model->table();
        for (const ParamRow& row : table.rows()) {  // zero the values that may differ from zero
            for (int i = 0; i < row.logical_rows; ++i)
                std::fill_n(grads.begin() + row.offset + int64_t{i} * row.cols, row.logical_cols, 0.0f);
        }
        REQUIRE(same_bits(grads, std::vector<float>(grads.size(), 0.0f)));
    }
}

namespace {

// Runs ten clipped steps from the golden weights and compares the loss before each update with the fixture's `key`.
void check_ten_steps(const std::string& name, DType dtype, const OptimizerOptions& options, const char* key) {
    Golden g(name, dtype);
    INFO(name << " " << name_of(dtype) << " " << key);
    Context& ctx = g.runner.context;
    ParamStore& params = g.runner.model->params();
    Optimizer optimizer(params, options, ctx);
    Buffer<float> sums(2);
    Buffer<StepControl> control(1);
    Buffer<std::byte> scratch(static_cast<int64_t>(reduce_scratch_bytes()));
    zero(reinterpret_cast<std::byte*>(control.data()), sizeof(StepControl), ctx.stream);
    const std::vector<float> expected = g.file.read_float(g.file.at(key));
    REQUIRE(expected.size() == 10);
    for (float loss : expected) {
        const double ours = g.runner.loss(g.batch, true);
        REQUIRE(std::abs(ours - loss) <= loss_bound(name, dtype) * loss);
        reduce_sum(sums.data(), scratch.data(), g.runner.losses.data(), g.runner.N, false, ctx.stream);
        reduce_sum_squares(sums.data() + 1, scratch.data(), gradients_of(params), params.table().size(), false,
                           ctx.stream);
        step_control(control.data(), sums.data() + 1, sums.data(), 1.0f, 1.0f, 0.0f, options.beta1, options.beta2,
                     ctx.stream);
        optimizer.step(params, control.data(), ctx);
    }
}

}  // namespace

TEST_CASE("train/trainer: the losses of ten AdamW steps match PyTorch's") {
    OptimizerOptions options;
    options.method = Method::adamw;
    options.lr = options.adamw_lr = 1e-2f;
    for (const std::string& name : kGoldenModels)
        for (DType dtype : {DType::f32, DType::bf16}) check_ten_steps(name, dtype, options, "adamw_losses");
}

TEST_CASE("train/trainer: the losses of ten Teon steps match the paper's algorithm in float64") {
    OptimizerOptions options;
    options.method = Method::teon;
    options.lr = 2e-2f;
    options.adamw_lr = 1e-2f;
    options.ns_dtype = DType::f32;
    for (const char* name : {"llama", "llama_gqa", "olmo2", "olmo2_3"})
        for (DType dtype : {DType::f32, DType::bf16}) check_ten_steps(name, dtype, options, "teon_losses");
}

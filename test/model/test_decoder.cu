#include "model/decoder.h"

#include "test/model/small_decoder.h"
#include "test/support/catch.h"
#include "test/support/needs_fp8.h"
#include "test/support/os_threads.h"
#include "test/support/whole_params.h"

using namespace teon;
using namespace teon::test;

namespace {

DeviceBatch random_batch(int batch_size, uint64_t seed, int V, const Stream& stream) {
    std::vector<int> tokens = random_ints(int64_t{batch_size} * T, seed, V);
    std::vector<int> targets = random_ints(int64_t{batch_size} * T, seed + 1, V);
    targets[5] = -1;  // not counted
    return DeviceBatch(tokens, targets, batch_size, T, stream);
}

struct Outcome {
    double loss;
    std::vector<float> gradients;
};

Outcome run_once(const std::string& family, DType dtype, const RecomputePlan& recompute = {}) {
    DecoderRun run = small_run(dtype);
    run.recompute = recompute;
    ModelRunner r(small_config(family), run);
    DeviceBatch batch = random_batch(B, 11, small_config(family).V, r.context.stream);
    double loss = r.loss(batch, true);
    return {loss, r.gradients()};
}

// A model with widths that FP8 products support, and one batch.
struct Fp8Run {
    DecoderConfig config;
    ModelRunner runner;
    DeviceBatch batch;
    Fp8Run(const std::string& model, MatmulDType dtype, const RecomputePlan& recompute = {}, bool keeps = true)
        : config(fp8_config(model)), runner(config, fp8_run(dtype, recompute, keeps)), batch(make_batch()) {}
    Outcome once() {
        const double loss = runner.loss(batch, true);
        return {loss, runner.gradients()};
    }

private:
    static DecoderConfig fp8_config(const std::string& model) {
        DecoderConfig c = small_config(model);
        c.C = 64;
        c.F = 176;
        c.max_T = 32;
        c.head_size = 0;
        c.init_std = 0.1f;
        return c;
    }
    static DecoderRun fp8_run(MatmulDType dtype, const RecomputePlan& recompute, bool keeps) {
        DecoderRun run{B, 32, DType::bf16};
        run.seed = 1337;
        run.matmul_dtype = dtype;
        run.recompute = recompute;
        run.keeps_fp8_weights = keeps;
        return run;
    }
    DeviceBatch make_batch() const {
        return DeviceBatch(random_ints(B * 32, 11, config.V), random_ints(B * 32, 12, config.V), B, 32,
                           runner.context.stream);
    }
};

}  // namespace

TEST_CASE("model/decoder: FP8 products change the loss and the gradients little") {
    NEEDS_FP8();
    for (const std::string& model : kAllModels) {
        INFO(model);
        const Outcome exact = Fp8Run(model, MatmulDType::same).once();
        for (const MatmulDType dtype : {MatmulDType::fp8, MatmulDType::fp8_e4m3}) {
            INFO(name_of(dtype));
            Fp8Run r(model, dtype);
            const Outcome o = r.once();
            // Rounding either factor gives a product a random error of 2^-4 / sqrt(3) of it. The 4 products per layer
            // and pass add up to some tenths of a gradient, which keeps its direction.
            REQUIRE(std::abs(o.loss - exact.loss) < 0.01 * exact.loss);
            REQUIRE(relative_distance(o.gradients, exact.gradients) < 0.35);
            REQUIRE_FALSE(o.gradients == exact.gradients);
        }
    }
}

// A power of two in a tensor cancels in its scale, unless the tensor uses a wrong scale or none.
TEST_CASE("model/decoder: FP8 scales follow each tensor, so that powers of two change no bit") {
    NEEDS_FP8();
    for (const std::string& model : kModels) {
        INFO(model);
        Fp8Run r(model, MatmulDType::fp8);
        const Outcome once = r.once();
        r.runner.loss(r.batch, true, 0x1p-40f);
        std::vector<float> small = r.runner.gradients();
        for (float& g : small) g *= 0x1p40f;
        REQUIRE(same_bits(small, once.gradients));

        if (model != "gpt2" && model != "gpt2 relu2" && model != "llama") continue;
        std::vector<float> w = r.runner.masters();
        const auto scale = [&](auto which, float factor) {
            for (const ParamRow& row : r.runner.model->table().rows())
                if (row.layer >= 0 && which(row.role))
                    for (int64_t i = 0; i < row.size(); ++i) w[static_cast<size_t>(row.offset + i)] *= factor;
        };
        scale([](Role role) { return role == Role::norm; }, 0x1p-20f);
        scale([](Role role) { return role != Role::norm && role != Role::o && role != Role::mlp_down; }, 0x1p20f);
        if (model == "gpt2 relu2") {
            scale([](Role role) { return role == Role::mlp_up; }, 0x1p-20f);
            scale([](Role role) { return role == Role::mlp_down; }, 0x1p40f);
        }
        r.runner.set_masters(w);
        REQUIRE(r.runner.loss(r.batch) == once.loss);
    }
}

TEST_CASE("model/decoder: with FP8 products, neither recomputation nor the storage of FP8 weights changes a bit") {
    NEEDS_FP8();
    for (const std::string& model : kAllModels) {
        INFO(model);
        const Outcome all = Fp8Run(model, MatmulDType::fp8).once();
        for (const RecomputePlan& recompute : {RecomputePlan(Recompute::cheap), RecomputePlan(Recompute::block),
                                               RecomputePlan(Recompute::none, Recompute::block, 2)})
            for (const bool keeps : {true, false}) {
                const Outcome o = Fp8Run(model, MatmulDType::fp8, recompute, keeps).once();
                REQUIRE(o.loss == all.loss);
                REQUIRE(same_bits(o.gradients, all.gradients));
            }
    }
}

TEST_CASE("model/decoder: FP8 weights are cast at the first micro-batch of a step and at each evaluation") {
    NEEDS_FP8();
    std::vector<float> twice;  // as the first of the two computes them
    for (const bool keeps : {true, false}) {
        Fp8Run r("llama", MatmulDType::fp8, {}, keeps);
        const Outcome once = r.once();
        r.runner.loss(r.batch, true, 1.0f, /*accumulate=*/true);
        if (keeps) twice = r.runner.gradients();
        REQUIRE(same_bits(r.runner.gradients(), twice));
        std::vector<float> expected = once.gradients;
        for (float& g : expected) g *= 2;
        // Not the same bits: a product may begin its sums with what it adds to.
        REQUIRE(relative_distance(twice, expected) <= rounding_distance(r.config, B * 32));
        std::vector<float> w = r.runner.masters();
        for (float& x : w) x *= 0.5f;
        r.runner.set_masters(w);
        Fp8Run other("llama", MatmulDType::fp8);
        other.runner.set_masters(w);
        REQUIRE(r.runner.loss(r.batch) == other.runner.loss(other.batch));
        REQUIRE(r.runner.loss(r.batch, true) == other.runner.loss(other.batch, true));
        REQUIRE(same_bits(r.runner.gradients(), other.runner.gradients()));
    }
}

TEST_CASE("model/decoder: the gradient is the derivative of the loss along random directions") {
    for (const std::string& family : kAllModels) {
        INFO(family);
        ModelRunner r(small_config(family), small_run(DType::f32));
        DeviceBatch batch = random_batch(B, 11, small_config(family).V, r.context.stream);
        r.loss(batch, true);
        const std::vector<float> gradient = r.gradients();
        const std::vector<float> at = r.masters();
        for (int row = 0; row < r.model->table().count(); ++row) {
            const ParamRow& p = r.model->table()[row];
            INFO(p.name);
            std::vector<float> direction = random_values<float>(p.size(), 100 + row);
            double slope = 0;
            double size = 0;
            double steepest = 0;
            for (int i = 0; i < p.rows; ++i)
                for (int j = 0; j < p.cols; ++j) {
                    const size_t e = static_cast<size_t>(int64_t{i} * p.cols + j);
                    if (i >= p.logical_rows || j >= p.logical_cols) direction[e] = 0;
                    const double g = gradient[p.offset + e];
                    slope += g * direction[e];
                    size += double{direction[e]} * direction[e];
                    steepest += g * g;
                }
            auto loss_at = [&](double step) {
                std::vector<float> w = at;
                for (int64_t e = 0; e < p.size(); ++e) w[p.offset + e] += static_cast<float>(step * direction[e]);
                r.set_masters(w);
                return r.loss(batch, /*backward=*/true);  // which has dropout
            };
            // The error of central differences is step^2 * third derivative + 1e-6 (float losses) / step.
            const double step = 1e-3;
            const double tolerance = 0.02 * std::sqrt(steepest * size / static_cast<double>(p.size())) * 3 + 2e-3;
            const double measured = (loss_at(step) - loss_at(-step)) / (2 * step);
            REQUIRE(std::abs(measured - slope) <= tolerance + 0.02 * std::abs(slope));
        }
        r.set_masters(at);
    }
}

TEST_CASE("model/decoder: recomputation in any of the blocks changes no bit") {
    for (const std::string& family : kAllModels)
        for (DType dtype : {DType::f32, DType::bf16}) {
            INFO(family << " " << name_of(dtype));
            const Outcome kept = run_once(family, dtype);
            for (const RecomputePlan& recompute : recompute_plans(small_config(family).L)) {
                INFO(text(recompute));
                const Outcome again = run_once(family, dtype, recompute);
                REQUIRE(again.loss == kept.loss);
                REQUIRE(same_bits(again.gradients, kept.gradients));
            }
        }
}

TEST_CASE("model/decoder: offloaded blocks change no bit") {
    for (const std::string& family : kAllModels) {
        DecoderConfig c = small_config(family);
        c.L = 6;
        // Two micro-batches, the second one smaller, and an evaluation between them.
        const auto outcome = [&](const RecomputePlan& recompute, int offloaded) {
            DecoderRun run = small_run(DType::bf16);
            run.recompute = recompute;
            run.offloaded_blocks = offloaded;
            ModelRunner r(c, run);
            const DeviceBatch first = random_batch(B, 11, c.V, r.context.stream);
            const DeviceBatch second = random_batch(1, 12, c.V, r.context.stream);
            double loss = r.loss(first, true);
            loss += r.loss(second);
            loss += r.loss(second, true, 1.0f, true);
            return Outcome{loss, r.gradients()};
        };
        const Outcome kept = outcome({}, 0);
        for (const RecomputePlan& recompute : {RecomputePlan(),
                                               {Recompute::none, Recompute::cheap, 2},
                                               {Recompute::cheap, Recompute::block, 3},
                                               {Recompute::block}})
            for (const int offloaded : {1, 3, 4}) {
                INFO(family << ", " << text(recompute) << ", " << offloaded << " blocks");
                const Outcome other = outcome(recompute, offloaded);
                REQUIRE(other.loss == kept.loss);
                REQUIRE(same_bits(other.gradients, kept.gradients));
            }
    }
}

TEST_CASE("model/decoder: repetition gives the same bits with any number of threads") {
    for (const std::string& family : kAllModels)
        for (DType dtype : {DType::f32, DType::bf16}) {
            INFO(family << " " << name_of(dtype));
            const auto bytes = [&] {
                const Outcome o = run_once(family, dtype);
                return bytes_of(std::vector{o.loss}, o.gradients);
            };
            REQUIRE(same_with_any_threads(bytes, {1, 2, 4}));
        }
}

TEST_CASE("model/decoder: two accumulated batches of B equal one batch of 2B") {
    for (const std::string& family : kAllModels) {
        INFO(family);
        const DecoderConfig c = small_config(family);
        ModelRunner r(c, small_run(DType::f32, 2 * B));
        std::vector<int> tokens = random_ints(int64_t{2} * B * T, 21, c.V);
        std::vector<int> targets = random_ints(int64_t{2} * B * T, 22, c.V);
        DeviceBatch whole(tokens, targets, 2 * B, T, r.context.stream);
        const double loss = r.loss(whole, true);
        const std::vector<float> expected = r.gradients();
        double sum = 0;
        for (int half : {0, 1}) {
            auto part = [&](const std::vector<int>& v) {
                return std::vector<int>(v.begin() + half * B * T, v.begin() + (half + 1) * B * T);
            };
            DeviceBatch batch(part(tokens), part(targets), B, T, r.context.stream, {}, half * B);
            sum += 0.5 * r.loss(batch, true, 0.5f, half > 0);
        }
        REQUIRE(std::abs(sum - loss) <= 1e-6 * loss);  // one rounding per loss
        REQUIRE(relative_distance(r.gradients(), expected) <= rounding_distance(c, 2 * B * T));
    }
}

TEST_CASE(
    "model/decoder: a mask follows the sample, not the batch that it is in, and is new for each sample and seed") {
    for (const char* family : {"gpt2", "qwen3", "olmo2"}) {
        INFO(family);
        DecoderConfig c = small_config(family);
        c.dropout = 0.1f;
        // The losses of 4 samples from `first` on, in batches of `size`. All have the same tokens.
        const auto losses = [&](int size, int64_t first, uint64_t seed) {
            DecoderRun run{size, T, DType::f32};
            run.seed = seed;
            ModelRunner r(c, run);
            std::vector<std::vector<float>> of_sample;
            for (int begin = 0; begin < 4; begin += size) {
                const std::vector<int> tokens(size * T, 5);
                const std::vector<int> next(size * T, 6);
                r.loss(DeviceBatch(tokens, next, size, T, r.context.stream, {}, first + begin), true);
                const std::vector<float> all = r.losses.get();
                for (int b = 0; b < size; ++b)
                    of_sample.emplace_back(all.begin() + int64_t{b} * T, all.begin() + int64_t{b + 1} * T);
            }
            return of_sample;
        };
        // Products of another number of rows may sum in another order, which moves a loss by a few units in the last
        // place (1e-6); another mask moves some token's loss by much more.
        const auto same_masks = [](const std::vector<float>& a, const std::vector<float>& b) {
            REQUIRE(a.size() == b.size());
            float largest = 0;
            for (size_t i = 0; i < a.size(); ++i) {
                REQUIRE(std::isfinite(a[i] - b[i]));
                largest = std::max(largest, std::abs(a[i] - b[i]));
            }
            REQUIRE((largest <= 1e-5f || largest >= 1e-2f));
            return largest <= 1e-5f;
        };
        const int64_t first = (int64_t{3} << 32) - 2;  // samples on both sides of 32 bits
        const auto at_once = losses(4, first, 1);
        const auto one_by_one = losses(1, first, 1);
        const auto other_seed = losses(4, first, 2);
        for (size_t b = 0; b < 4; ++b) REQUIRE(same_masks(one_by_one[b], at_once[b]));
        for (size_t b = 1; b < 4; ++b) REQUIRE_FALSE(same_masks(at_once[b], at_once[0]));
        for (size_t b = 0; b < 4; ++b) REQUIRE_FALSE(same_masks(other_seed[b], at_once[b]));
        REQUIRE(same_masks(losses(2, first + 2, 1)[0], at_once[2]));
    }
}

TEST_CASE("model/decoder: an evaluation has the bits of the same model without dropout") {
    for (const DType dtype : {DType::f32, DType::bf16})
        for (const char* family : {"gpt2", "qwen3", "olmo2", "gpt2 post"}) {
            INFO(family << " " << name_of(dtype));
            const auto losses = [&](float dropout, bool backward) {
                DecoderConfig c = small_config(family);
                c.dropout = dropout;
                ModelRunner r(c, small_run(dtype));
                const DeviceBatch batch = random_batch(B, 11, c.V, r.context.stream);
                r.loss(batch, backward);
                return r.losses.get();
            };
            REQUIRE(same_bits(losses(0.5f, false), losses(0, false)));
            REQUIRE_FALSE(losses(0.5f, true) == losses(0, true));
            REQUIRE(same_bits(losses(0, true), losses(0, false)));
        }
}

TEST_CASE("model/decoder: gradients are overwritten or accumulated") {
    for (const std::string& family : kAllModels)
        for (const bool tied : {true, false}) {
            INFO(family << (tied ? " tied" : ""));
            DecoderConfig c = small_config(family);
            c.tied_head = tied;
            c.max_T = T + 3;  // positions beyond every batch
            ModelRunner r(c, small_run(DType::bf16));
            DeviceBatch batch = random_batch(B, 11, c.V, r.context.stream);
            // The gradients of all rows, without the gaps between them.
            auto gradients_after = [&](float before, bool accumulate) {
                const std::vector<float> all(static_cast<size_t>(r.model->table().size()), before);
                upload(gradients_of(r.model->params()), all.data(), std::ssize(all), r.context.stream);
                r.context.stream.synchronize();
                r.loss(batch, true, 1.0f, accumulate);
                const std::vector<float> gradients = r.gradients();
                std::vector<float> rows;
                for (const ParamRow& p : r.model->table().rows())
                    rows.insert(rows.end(), gradients.begin() + p.offset, gradients.begin() + p.offset + p.size());
                return rows;
            };
            REQUIRE((gradients_after(NAN, false) == gradients_after(0.0f, true)));
        }
}

TEST_CASE("model/decoder: a batch of more or longer sequences than planned is refused, even if its tokens are fewer") {
    ModelRunner r(small_config("gpt2"), small_run(DType::f32));
    const Stream& stream = r.context.stream;
    const int more = 2 * B;  // attention's scratch depends on the number of sequences, not only of tokens
    const DeviceBatch sequences(std::vector<int>(more * 3), std::vector<int>(more * 3), more, 3, stream);
    const DeviceBatch tokens(std::vector<int>(T + 1), std::vector<int>(T + 1), 1, T + 1, stream);
    REQUIRE(contains(error_of([&] { r.loss(sequences); }), "a batch of 4 x 3 tokens"));
    REQUIRE(contains(error_of([&] { r.loss(tokens, true); }), "a batch of 1 x 34 tokens"));
}

TEST_CASE("model/decoder: masked documents give the results of separate documents") {
    for (const std::string& family : kModels) {
        INFO(family);
        const DecoderConfig c = small_config(family);
        ModelRunner r(c, small_run(DType::f32, 1));
        const std::vector<int> tokens = random_ints(T, 31, c.V);
        const std::vector<int> targets = random_ints(T, 32, c.V);
        const std::vector<int> begins = {0, 1, 9, 20, T};  // the documents; the first has a single token
        std::vector<int> doc_start(T);
        std::vector<float> separate;
        for (size_t d = 0; d + 1 < begins.size(); ++d) {
            const int from = begins[d];
            const int n = begins[d + 1] - from;
            std::fill_n(doc_start.begin() + from, n, from);
            DeviceBatch batch({tokens.begin() + from, tokens.begin() + from + n},
                              {targets.begin() + from, targets.begin() + from + n}, 1, n, r.context.stream);
            r.loss(batch, true, static_cast<float>(n) / T, d > 0);
            const std::vector<float> losses = r.losses.get();
            separate.insert(separate.end(), losses.begin(), losses.begin() + n);
        }
        const std::vector<float> expected = r.gradients();
        DeviceBatch batch(tokens, targets, 1, T, r.context.stream, doc_start);
        r.loss(batch, true);
        // The sums have the same terms in another order.
        REQUIRE(relative_distance(r.losses.get(), separate) <= rounding_distance(c, T));
        REQUIRE(relative_distance(r.gradients(), expected) <= rounding_distance(c, T));
    }
}

// Through L layers, a token reaches the L (window - 1) rows behind it.
TEST_CASE("model/decoder: with a window, a token changes the logits of exactly the rows that it reaches") {
    for (const ModelFamily& family : families())
        for (const int window : {1, 2, 5}) {
            INFO(family.name << ", window " << window);
            DecoderConfig c = small_config(family.name);
            c.window = window;
            ModelRunner r(c, small_run(DType::f32, 1));
            std::vector<int> tokens = random_ints(T, 61, c.V);
            const auto logits = [&] {
                const Buffer<float> out(int64_t{T} * c.V);
                r.model->logits(out.data(), *DeviceBatch(tokens, tokens, 1, T, r.context.stream), 0, T);
                return fetch(out, r.context.stream);
            };
            const std::vector<float> before = logits();
            const int changed = 4;
            tokens[changed] = (tokens[changed] + 1) % c.V;
            const std::vector<float> after = logits();
            for (int t = 0; t < T; ++t) {
                INFO("row " << t);
                const bool same =
                    std::equal(after.begin() + t * c.V, after.begin() + (t + 1) * c.V, before.begin() + t * c.V);
                REQUIRE(same == (t < changed || t > changed + c.L * (window - 1)));
            }
        }
}

// Both attentions round to bf16, at different places. Compared with float, flash must not be much worse. Most of the
// error comes from rounding outside of the attention, which is the same for both.
TEST_CASE("model/decoder: flash attention is about as accurate as gemm attention, with and without documents") {
    for (const std::string& family : kModels)
        for (bool documents : {false, true}) {
            INFO(family << (documents ? ", documents" : ""));
            DecoderConfig c = small_config(family);
            c.L = 2;
            c.C = 128;
            c.NH = 2;
            c.NKV = family.starts_with("gpt2") ? 2 : 1;
            c.max_T = 70;
            if (family == "qwen3") c.head_size = 64;
            c.init_std = 0.15f;
            std::vector<int> doc_start(2 * 70);
            for (int i = 0; i < 2 * 70; ++i) doc_start[i] = i % 70 >= 41 ? 41 : 0;
            const std::vector<int> tokens = random_ints(2 * 70, 51, c.V);
            const std::vector<int> targets = random_ints(2 * 70, 52, c.V);

            std::vector<float> weights;
            auto outcome = [&](DType dtype, AttentionKind attention) {
                DecoderRun run = small_run(dtype, 2, 70);
                run.attention = attention;
                ModelRunner r(c, run);
                if (weights.empty()) {
                    weights = r.masters();
                    for (float& w : weights) w = static_cast<float>(bf16(w));
                }
                r.set_masters(weights);
                DeviceBatch batch(tokens, targets, 2, 70, r.context.stream, documents ? doc_start : std::vector<int>{});
                const double loss = r.loss(batch, true);
                return Outcome{loss, r.gradients()};
            };
            const Outcome exact = outcome(DType::f32, AttentionKind::gemm);
            const Outcome gemm = outcome(DType::bf16, AttentionKind::gemm);
            const Outcome flash = outcome(DType::bf16, AttentionKind::flash);
            const double error = relative_distance(gemm.gradients, exact.gradients);
            REQUIRE(relative_distance(flash.gradients, exact.gradients) <= 1.25 * error);
            REQUIRE(relative_distance(flash.gradients, gemm.gradients) <= 1.25 * error);
            REQUIRE(std::abs(flash.loss - exact.loss) <= 2 * std::abs(gemm.loss - exact.loss) + 1e-3 * exact.loss);
        }
}

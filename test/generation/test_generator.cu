#include "generation/generator.h"

#include <algorithm>

#include "test/model/golden_model.h"
#include "test/model/small_decoder.h"

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

int argmax(const float* logits, int V) { return static_cast<int>(std::max_element(logits, logits + V) - logits); }

// Row b of the result: the first prompts[b] columns of row b of `tokens` (B, T), then greedy tokens up to column T.
std::vector<int> continue_greedily(Generator& generator, const std::vector<int>& tokens, int T,
                                   const std::vector<int>& prompts, int V) {
    const int B = static_cast<int>(prompts.size());
    const int shortest = *std::min_element(prompts.begin(), prompts.end());
    std::vector<int> out(tokens.size());
    std::vector<int> next(static_cast<size_t>(B));
    std::vector<int> begin;
    for (int b = 0; b < B; ++b) begin.insert(begin.end(), tokens.begin() + b * T, tokens.begin() + b * T + shortest);
    for (int b = 0; b < B; ++b) std::copy_n(tokens.begin() + b * T, prompts[b], out.begin() + b * T);
    const std::vector<float>* logits = &generator.start(begin);
    for (int t = shortest; t < T; ++t) {
        for (int b = 0; b < B; ++b) {
            if (t >= prompts[b]) out[b * T + t] = argmax(logits->data() + b * V, V);
            next[b] = out[b * T + t];
        }
        if (t + 1 < T) logits = &generator.step(next);
    }
    return out;
}

}  // namespace

TEST_CASE("generation/generator: greedy continuations match transformers' generate()") {
    for (const std::string& name : kGoldenModels) {
        INFO(name);
        Golden g(name, DType::f32);
        const DecoderConfig c = golden_config(name);
        const std::vector<int> expected = read_ints(g.file, "greedy");
        REQUIRE(expected.size() == size_t{kGoldenB} * kGoldenT);
        auto generator = make_generator(c, g.runner.model->params(), kGoldenB, kGoldenT, g.runner.context);
        REQUIRE(continue_greedily(*generator, expected, kGoldenT, {3, 3, 3}, c.V) == expected);
        REQUIRE(generator->length() == kGoldenT - 1);
        // Longer prompts are passed token by token.
        REQUIRE(continue_greedily(*generator, expected, kGoldenT, {5, 3, 8}, c.V) == expected);

        auto single = make_generator(c, g.runner.model->params(), 1, kGoldenT, g.runner.context);
        for (int b = 0; b < kGoldenB; ++b) {
            const std::vector<int> row(expected.begin() + b * kGoldenT, expected.begin() + (b + 1) * kGoldenT);
            REQUIRE(continue_greedily(*single, row, kGoldenT, {3}, c.V) == row);
        }
    }
}

TEST_CASE("generation/generator: logits with the cache match the model's without") {
    for (const std::string& name : kGoldenModels)
        for (DType dtype : {DType::f32, DType::bf16}) {
            INFO(name << " " << name_of(dtype));
            Golden g(name, dtype);
            const int V = golden_config(name).V;
            const std::vector<int> tokens = read_ints(g.file, "tokens");
            const Buffer<float> on_device(int64_t{kGoldenB} * kGoldenT * V);
            g.runner.model->logits(on_device.data(), *g.batch, 0, kGoldenB * kGoldenT);
            const std::vector<float> whole = fetch(on_device, g.runner.context.stream);

            auto generator =
                make_generator(golden_config(name), g.runner.model->params(), kGoldenB, kGoldenT, g.runner.context);
            for (int prompt : {1, 5, kGoldenT}) {
                INFO("prompt of " << prompt);
                for (int t = prompt; t <= kGoldenT; ++t) {
                    std::vector<int> fed;
                    for (int b = 0; b < kGoldenB; ++b)
                        for (int u = t == prompt ? 0 : t - 1; u < t; ++u) fed.push_back(tokens[b * kGoldenT + u]);
                    const std::vector<float>& logits = t == prompt ? generator->start(fed) : generator->step(fed);
                    std::vector<float> expected;
                    for (int b = 0; b < kGoldenB; ++b) {
                        const auto row = whole.begin() + (b * kGoldenT + t - 1) * V;
                        expected.insert(expected.end(), row, row + V);
                    }
                    // The sums have another order: a few roundings of float. In bf16, each of the two may differ by
                    // 0.02 from the exact logits (test_golden.cu), so they may differ by twice that.
                    REQUIRE(relative_distance(logits, expected) <= (dtype == DType::f32 ? 2e-6 : 0.04));
                }
            }
        }
}

// Prompts shorter and longer than the window, and single tokens far beyond it.
TEST_CASE("generation/generator: with a window, logits with the cache match the model's without") {
    for (const ModelFamily& family : families())
        for (const int window : {1, 2, 7}) {
            DecoderConfig c = small_config(family.name);
            c.window = window;
            c.init_std = 0.1f;  // larger scores of single rows amplify rounding beyond the bound, which is of gradients
            ModelRunner r(c, small_run(DType::f32));
            const std::vector<int> tokens = random_ints(B * T, 71, c.V);
            const Buffer<float> on_device(int64_t{B} * T * c.V);
            r.model->logits(on_device.data(), *DeviceBatch(tokens, tokens, B, T, r.context.stream), 0, B * T);
            const std::vector<float> whole = fetch(on_device, r.context.stream);
            auto generator = make_generator(c, r.model->params(), B, T, r.context);
            for (const int prompt : {1, window, 20})
                for (int t = prompt; t <= T; ++t) {
                    INFO(family.name << ", window " << window << ", prompt of " << prompt << ", token " << t);
                    std::vector<int> fed;
                    std::vector<float> expected;
                    for (int b = 0; b < B; ++b) {
                        const auto row = whole.begin() + (b * T + t - 1) * c.V;
                        expected.insert(expected.end(), row, row + c.V);
                        for (int u = t == prompt ? 0 : t - 1; u < t; ++u) fed.push_back(tokens[b * T + u]);
                    }
                    const std::vector<float>& logits = t == prompt ? generator->start(fed) : generator->step(fed);
                    REQUIRE(relative_distance(logits, expected) <= rounding_distance(c, B * T));
                }
        }
}

TEST_CASE("generation/generator: weights for generation alone have no second copy and give the same logits") {
    for (DType dtype : {DType::f32, DType::bf16}) {
        INFO(name_of(dtype));
        Golden g("llama_gqa", dtype);
        const DecoderConfig c = golden_config("llama_gqa");
        ParamStore params(decoder_params(c), dtype, g.runner.context.stream, /*gradients=*/false);
        load_weights(params, SafetensorsModel(g.file.path()), g.runner.context.stream);
        REQUIRE((params.masters().data<float>() == nullptr) == (dtype == DType::bf16));
        auto trained = make_generator(c, g.runner.model->params(), 1, 4, g.runner.context);
        auto alone = make_generator(c, params, 1, 4, g.runner.context);
        REQUIRE(same_bits(alone->start({1, 2, 3}), trained->start({1, 2, 3})));
    }
}

TEST_CASE("generation/generator: too many tokens are an error, and start() discards the sequences") {
    Golden g("gpt2", DType::f32);
    const DecoderConfig c = golden_config("gpt2");
    auto generator = make_generator(c, g.runner.model->params(), 1, 4, g.runner.context);
    const std::vector<float> first = generator->start({1, 2, 3});
    generator->step({4});
    REQUIRE(contains(error_of([&] { generator->step({5}); }), "4 tokens"));
    REQUIRE(contains(error_of([&] { generator->start({1, c.V}); }), "vocabulary"));
    REQUIRE(contains(error_of([&] { generator->start({1, 2, 3, 4, 5}); }), "5 prompt tokens"));
    REQUIRE_THROWS_AS(generator->start({}), Error);
    REQUIRE_THROWS_AS(make_generator(c, g.runner.model->params(), 1, kGoldenT + 1, g.runner.context), UsageError);
    REQUIRE(same_bits(generator->start({1, 2, 3}), first));
}

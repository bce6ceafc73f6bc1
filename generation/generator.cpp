#include "generation/generator.h"

#include "model/layers.h"

namespace teon {

namespace {

// The activation plan of generation, with additional rows for the generator.
struct GeneratorPlan {
    ActivationPlan plan;
    Tensor tokens, positions, logits;  // (B * capacity) int; (B, V) float
    GeneratorPlan(DecoderLayers& layers, const DecoderConfig& c, int B, int capacity, DType dtype) {
        DecoderRun run;
        run.B = B;
        run.T = capacity;
        run.dtype = dtype;
        run.attention = AttentionKind::gemm;
        plan = layers.plan(run, Purpose::generate);
        tokens = plan.shared_bytes(Shared::tokens, plan.N() * static_cast<int64_t>(sizeof(int)));
        positions = plan.shared_bytes(Shared::positions, plan.N() * static_cast<int64_t>(sizeof(int)));
        logits = plan.shared_bytes(Shared::float_logits, int64_t{B} * c.V * size_of(DType::f32));
        plan.set_offsets();
    }
};

template <typename T>
class DecoderGenerator final : public Generator {
public:
    DecoderGenerator(const DecoderConfig& c, const ParamStore& params, int B, int capacity, Context& context)
        : V_(c.V),
          B_(B),
          capacity_(capacity),
          ctx_(context),
          params_(params),
          layers_(c),
          plan_(layers_, c, B, capacity, dtype_of<T>),
          memory_(plan_.plan),
          logits_(static_cast<size_t>(B) * c.V) {
        layers_.prepare(Pass<T>{ctx_, params_, memory_, {}});
    }

    const std::vector<float>& start(const std::vector<int>& tokens) override {
        const int T_new = static_cast<int>(tokens.size()) / B_;
        CHECK(
            T_new >= 1 && static_cast<int64_t>(tokens.size()) == static_cast<int64_t>(T_new) * B_ && T_new <= capacity_,
            "{} prompt tokens for {} sequences of at most {}", tokens.size(), B_, capacity_);
        length_ = 0;
        return extend(tokens, T_new);
    }

    const std::vector<float>& step(const std::vector<int>& tokens) override {
        CHECK(static_cast<int>(tokens.size()) == B_, "{} tokens for {} sequences", tokens.size(), B_);
        CHECK(length_ < capacity_, "the sequences have {} tokens, the generator's capacity", length_);
        return extend(tokens, 1);
    }

    int length() const override { return length_; }
    int capacity() const override { return capacity_; }

private:
    const std::vector<float>& extend(const std::vector<int>& tokens, int T_new) {
        upload_rows(tokens, T_new);
        Batch batch{B_, T_new, memory_.at<int>(plan_.tokens)};
        batch.positions = memory_.at<int>(plan_.positions);
        const Pass<T> p{ctx_, params_, memory_, batch, length_};
        layers_.forward(p);
        float* logits = memory_.at<float>(plan_.logits);
        layers_.head().logits(p, logits, T_new - 1, B_, T_new);  // the last row of each sequence
        download(logits_.data(), logits, static_cast<int64_t>(logits_.size()), ctx_.stream);
        ctx_.stream.synchronize();
        length_ += T_new;
        return logits_;
    }

    void upload_rows(const std::vector<int>& tokens, int T_new) {
        positions_.resize(tokens.size());
        for (size_t i = 0; i < tokens.size(); ++i) {
            CHECK(tokens[i] >= 0 && tokens[i] < V_, "token {} is outside the model's vocabulary of {}", tokens[i], V_);
            positions_[i] = length_ + static_cast<int>(i) % T_new;
        }
        const auto n = static_cast<int64_t>(tokens.size());
        upload(memory_.at<int>(plan_.tokens), tokens.data(), n, ctx_.stream);
        upload(memory_.at<int>(plan_.positions), positions_.data(), n, ctx_.stream);
    }

    const int V_, B_, capacity_;
    Context& ctx_;
    const ParamStore& params_;
    DecoderLayers layers_;
    const GeneratorPlan plan_;
    const Activations memory_;
    std::vector<float> logits_;
    std::vector<int> positions_;
    int length_ = 0;
};

}  // namespace

int64_t generator_bytes(const DecoderConfig& c, int B, int capacity, DType dtype) {
    DecoderLayers layers(c);
    return GeneratorPlan(layers, c, B, capacity, dtype).plan.total_bytes();
}

std::unique_ptr<Generator> make_generator(const DecoderConfig& c, const ParamStore& params, int B, int capacity,
                                          Context& context) {
    CHECK_USAGE(B >= 1 && capacity >= 1 && capacity <= c.max_T, "{} tokens per sequence: this model's context is {}",
                capacity, c.max_T);
    if (params.dtype() == DType::bf16) return std::make_unique<DecoderGenerator<bf16>>(c, params, B, capacity, context);
    return std::make_unique<DecoderGenerator<float>>(c, params, B, capacity, context);
}

}  // namespace teon

#include "generation/generator.h"

#include <algorithm>

#include "model/decoder_forward.h"

namespace teon {

namespace {

// Everything that one pass writes, N = B * T rows of the longest prompt; and what lives from pass to pass.
struct GeneratorTensors {
    Tensor x, norm, branch;  // (N, C) T: residual stream, normalized, and what the next norm adds to the stream
    Tensor mean, rstd;       // (N) float
    Tensor qkv, attention;   // (N, qkv_width) T; (N, C) T
    Tensor lse, attention_scratch;
    Tensor mlp_in, mlp_act;       // (N, mlp_in_width) T; (N, Fp) T
    Tensor cache;                 // L copies of (B, capacity, 2 NKV HS) T
    Tensor logits, logits_float;  // (B, Vp) T; float
    Tensor tokens, positions;     // (N) int
    Tensor cos_sin;               // (max_T, HS) float
};

// Takes the memory if `arena` is given. Returns its size in bytes.
size_t lay_out(const DecoderConfig& c, int B, int capacity, DType dtype, GeneratorTensors* tensors, Arena* arena) {
    using G = GeneratorTensors;
    const int64_t N = static_cast<int64_t>(B) * capacity, item = size_of(dtype), f32 = 4;
    size_t total = 0;
    auto take = [&](Tensor G::*tensor, int64_t bytes, int copies = 1) {
        const auto stride = static_cast<int64_t>(Arena::aligned(static_cast<size_t>(bytes)));
        if (arena) (*tensors).*tensor = {arena->take<std::byte>(stride * copies), copies > 1 ? stride : 0};
        total += static_cast<size_t>(stride * copies);
    };
    for (Tensor G::*tensor : {&G::x, &G::norm, &G::branch, &G::attention}) take(tensor, N * c.C * item);
    for (Tensor G::*tensor : {&G::mean, &G::rstd, &G::tokens, &G::positions}) take(tensor, N * f32);
    take(&G::qkv, N * c.qkv_width() * item);
    take(&G::lse, N * c.NH * f32);
    take(&G::attention_scratch,
         static_cast<int64_t>(attention_scratch_bytes({B, capacity, c.NH, c.NKV, c.HS()}, dtype)));
    take(&G::mlp_in, N * c.mlp_in_width() * item);
    take(&G::mlp_act, N * c.Fp() * item);
    take(&G::cache, N * 2 * c.NKV * c.HS() * item, c.L);
    take(&G::logits, static_cast<int64_t>(B) * c.Vp() * item);
    take(&G::logits_float, static_cast<int64_t>(B) * c.Vp() * f32);
    if (c.positions == Positions::rotary) take(&G::cos_sin, static_cast<int64_t>(c.max_T) * c.HS() * f32);
    return total;
}

template <typename T>
class DecoderGenerator final : public Generator {
public:
    DecoderGenerator(const DecoderConfig& c, const ParamStore& params, int B, int capacity, Context& context)
        : c_(c),
          B_(B),
          capacity_(capacity),
          ctx_(context),
          p_(lay_out_params(c)),
          ops_{c_, params, ctx_},
          arena_(lay_out(c, B, capacity, dtype_of<T>, nullptr, nullptr)),
          logits_(static_cast<size_t>(B) * c.V),
          padded_(static_cast<size_t>(B) * c.Vp()) {
        lay_out(c_, B_, capacity_, dtype_of<T>, &a_, &arena_);
        if (c_.positions == Positions::rotary) fill_rotary_table(a_.cos_sin.template at<float>(), c_, ctx_.stream);
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
        CHECK(length_ < capacity_, "the sequences have {} tokens, which is all that the generator was made for",
              length_);
        return extend(tokens, 1);
    }

    int length() const override { return length_; }
    int capacity() const override { return capacity_; }

private:
    const std::vector<float>& extend(const std::vector<int>& tokens, int T_new) {
        const int N = B_ * T_new;
        upload_rows(tokens, T_new);
        ops_.embed(at(a_.x), a_.tokens.at<int>(), a_.positions.at<int>(), p_, N);
        for (int l = 0; l < c_.L; ++l) block(l, T_new);
        norm(p_.final_norm, at(a_.branch), N);

        // The last row of each sequence, T_new rows apart.
        const T* last = at(a_.norm) + static_cast<int64_t>(T_new - 1) * c_.C;
        ops_.linear(at(a_.logits), last, p_.head, B_, static_cast<int64_t>(T_new) * c_.C);
        cast(a_.logits_float.at<float>(), at(a_.logits), static_cast<int64_t>(B_) * c_.Vp(), ctx_.stream);
        download(padded_.data(), a_.logits_float.at<float>(), static_cast<int64_t>(padded_.size()), ctx_.stream);
        ctx_.stream.synchronize();
        for (int b = 0; b < B_; ++b)
            std::copy_n(padded_.begin() + static_cast<int64_t>(b) * c_.Vp(), c_.V,
                        logits_.begin() + static_cast<int64_t>(b) * c_.V);
        length_ += T_new;
        return logits_;
    }

    void block(int l, int T_new) {
        const LayerRows& p = p_.layers[static_cast<size_t>(l)];
        const int N = B_ * T_new;
        const AttentionShape shape{B_, T_new, c_.NH, c_.NKV, c_.HS()};
        // 1. queries, keys and values
        norm(p.norm1, l > 0 ? at(a_.branch) : nullptr, N);
        ops_.linear(at(a_.qkv), at(a_.norm), p.qkv, N);
        ops_.rotate(at(a_.qkv), a_.cos_sin.at<float>(), a_.positions.at<int>(), N);
        cache_append(a_.cache.at<T>(l), at(a_.qkv), shape, length_, capacity_, ctx_.stream);
        // 2. attention: of a whole prompt to itself, of a token to the cache
        if (length_ == 0) {
            attention_forward(at(a_.attention), a_.lse.at<float>(), a_.attention_scratch.at<void>(), at(a_.qkv),
                              nullptr, shape, ctx_);
        } else {
            attention_decode(at(a_.attention), at(a_.qkv), a_.cache.at<T>(l), shape, length_ + 1, capacity_,
                             ctx_.stream);
        }
        ops_.linear(at(a_.branch), at(a_.attention), p.attn_out, N);
        // 3. MLP
        norm(p.norm2, at(a_.branch), N);
        ops_.mlp_in(at(a_.mlp_act), at(a_.mlp_in), at(a_.norm), p.mlp_in, N);
        ops_.linear(at(a_.branch), at(a_.mlp_act), p.mlp_out, N);
    }

    // x += branch, in place; norm = its norm.
    void norm(const NormRows& p, const T* branch, int N) {
        ops_.norm(at(a_.norm), at(a_.x), a_.mean.at<float>(), a_.rstd.at<float>(), at(a_.x), branch, p, N);
    }

    void upload_rows(const std::vector<int>& tokens, int T_new) {
        positions_.resize(tokens.size());
        for (size_t i = 0; i < tokens.size(); ++i) {
            CHECK(tokens[i] >= 0 && tokens[i] < c_.V, "token {} is outside the model's vocabulary of {}", tokens[i],
                  c_.V);
            positions_[i] = length_ + static_cast<int>(i) % T_new;
        }
        const auto n = static_cast<int64_t>(tokens.size());
        upload(a_.tokens.at<int>(), tokens.data(), n, ctx_.stream);
        upload(a_.positions.at<int>(), positions_.data(), n, ctx_.stream);
    }

    T* at(const Tensor& tensor) const { return tensor.at<T>(); }

    const DecoderConfig c_;
    const int B_, capacity_;
    Context& ctx_;
    const DecoderParams p_;
    const DecoderForward<T> ops_;
    Arena arena_;
    GeneratorTensors a_;
    std::vector<float> logits_, padded_;
    std::vector<int> positions_;
    int length_ = 0;
};

}  // namespace

int64_t generator_bytes(const DecoderConfig& c, int B, int capacity, DType dtype) {
    return static_cast<int64_t>(lay_out(c, B, capacity, dtype, nullptr, nullptr));
}

std::unique_ptr<Generator> make_generator(const DecoderConfig& c, const ParamStore& params, int B, int capacity,
                                          Context& context) {
    CHECK_USAGE(B >= 1 && capacity >= 1 && capacity <= c.max_T, "{} tokens per sequence: this model's context is {}",
                capacity, c.max_T);
    if (params.dtype() == DType::bf16) return std::make_unique<DecoderGenerator<bf16>>(c, params, B, capacity, context);
    return std::make_unique<DecoderGenerator<float>>(c, params, B, capacity, context);
}

}  // namespace teon

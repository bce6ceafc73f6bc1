// Causal self-attention with its two products: one computes queries, keys and values, the other projects the heads.
#pragma once

#include <type_traits>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/decode.h"
#include "kernels/attention/first_key.h"
#include "kernels/attention/flash.h"
#include "kernels/qk_norm.h"
#include "kernels/rotary.h"
#include "model/dropout.h"
#include "model/linear.h"
#include "model/rotary_frequencies.h"

namespace teon {

class Attention {
public:
    Attention(ParamBuilder& b, const DecoderConfig& c, float out_std)
        : rotates_(c.rotates(b.layer)),
          scales_(c.scales_positions(b.layer)),
          NH_(c.NH),
          NKV_(c.NKV),
          HS_(c.HS()),
          normed_(vectors(c)),
          max_T_(c.max_T),
          window_(c.window_of(b.layer)),
          norm_eps_(c.norm_eps),
          inv_freq_(rotary_frequencies(c, b.layer)),
          rotated_size_(scales_ && c.rope_attention > 0 ? c.rope_attention : 1.0f),
          dropout_(c.dropout),
          site_(dropout_site(b.layer, DropoutPlace::attention_probabilities)) {
        const DecoderNames& n = c.names;
        const int Q = NH_ * HS_;
        const int KV = NKV_ * HS_;
        qkv_ = Linear(b, {{n.q, Role::q, Q, Q, NH_}, {n.k, Role::k, KV, KV, NKV_}, {n.v, Role::v, KV, KV, NKV_}}, c.C,
                      c.C, c.init_std, c.attention_biases);
        if (c.qk_norm != QkNorm::none) {
            q_norm_ = b.vector(n.q_norm, "weight", Role::norm, normed_.q_width, normed_.q_width, Init::ones);
            k_norm_ = b.vector(n.k_norm, "weight", Role::norm, normed_.k_width, normed_.k_width, Init::ones);
        }
        proj_ = Linear(b, {{n.o, Role::o, c.C, c.C}}, Q, Q, out_std, c.attention_biases && c.attention_out_bias);
        proj_.bias_summed = c.sums_out_bias();
    }

    int out_bias() const { return proj_.bias; }

    void plan(ActivationPlan& plan, const Ports& ports) {
        ports_ = ports;
        qkv_.plan(plan, ports.in.x_maximum, {});
        proj_.plan(plan, {}, ports.out.dx_maximum);
        const AttentionShape shape{plan.run().B, plan.run().T, NH_, NKV_, HS_};
        flash_ = plan.run().attention == AttentionKind::flash;
        qkv_.bias_summed = flash_ && qkv_.bias >= 0 && !rotates_ && !normed();
        if (normed()) {
            before_norm_ = plan.saved("queries, keys, values before norm", qkv_.out, Drop::under_block);
            rstd_ = plan.saved_floats("queries, keys 1/std", normed_.normed(), Drop::under_block);
            norm_scratch_ = plan.gradient_bytes(
                Shared::norm_scratch,
                static_cast<int64_t>(qk_norm_backward_scratch_bytes(static_cast<int>(plan.N()), normed_)));
        }
        qkv_rows_ = plan.saved("queries, keys, values", qkv_.out, normed() ? Drop::under_cheap : Drop::under_block);
        if (!normed()) before_norm_ = qkv_rows_;
        lse_ = plan.saved_floats("attention log-sum-exp", NH_, Drop::under_block);
        heads_ = plan.saved("attention heads", proj_.in, Drop::under_block);
        scratch_ = plan.shared_bytes(
            Shared::attention_scratch,
            static_cast<int64_t>(flash_ ? flash_attention_scratch_bytes(shape, qkv_.bias_summed)
                                        : attention_scratch_bytes(shape, plan.run().dtype, plan.run().on_gpu)));
        if (rotates_)
            rotary_ = plan.shared_bytes(scales_ ? Shared::rotary_table : Shared::unscaled_rotary_table,
                                        int64_t{max_T_} * HS_ * size_of(DType::f32));
        if (windowed(plan.run().T))
            first_key_ = plan.shared_bytes(Shared::first_key, plan.N() * static_cast<int64_t>(sizeof(int)));
        cache_ = plan.cache("keys and values", 2 * NKV_ * HS_);
        capacity_ = plan.run().T;
        dqkv_ = plan.gradient(Shared::qkv_gradient, qkv_.out);
        dheads_ = plan.gradient(Shared::norm_output_gradient, proj_.in);
    }

    // The products of queries with keys and of probabilities with values are those of the keys that a row sees.
    double flops(int T) const { return qkv_.flops() + proj_.flops() + 4.0 * proj_.in * mean_keys(T, window_); }
    double recompute_flops(const ActivationPlan& plan, int T) const { return plan.keeps(before_norm_) ? 0 : flops(T); }

    Tensor rotary() const { return rotary_; }  // the table, which layers share; may be none

    // Computes the rotary table. Synchronizes.
    template <typename T>
    void prepare(const Pass<T>& p) const {
        Buffer<float> on_device(static_cast<int64_t>(inv_freq_.size()));
        upload(on_device.data(), inv_freq_.data(), on_device.size(), p.stream());
        rotary_table(p.floats(rotary_), on_device.data(), max_T_, HS_, rotated_size_, p.stream());
        p.stream().synchronize();
    }

    // Computes the first keys of a batch's rows, which all layers with a window share.
    template <typename T>
    void begin(const Pass<T>& p) const {
        if (windowed(p.batch.T))
            window_first_keys(p.ints(first_key_), p.batch.doc_start, p.batch.B, p.batch.T, window_, p.stream());
    }

    template <typename T>
    void forward(const Pass<T>& p) const {
        qkv_.forward(p, p.at(before_norm_), p.at(ports_.in.x), p.N());
        norm_and_rotate(p);
        attend(p);
        proj_.forward(p, p.at(ports_.out.x), p.at(heads_), p.N(), p.residual(ports_));
    }

    template <typename T>
    void recompute(const Pass<T>& p) const {
        if (!p.keeps(before_norm_)) return forward(p);
        if (!p.keeps(qkv_rows_)) norm_and_rotate(p);
    }

    template <typename T>
    void backward(const Pass<T>& p) const {
        T* dqkv = p.at(dqkv_);
        proj_.backward(p, p.at(dheads_), p.at(ports_.out.dx), p.at(heads_), p.N(), p.accumulate);
        attend_backward(p, dqkv);
        if (rotates_) rotary_backward(dqkv, p.floats(rotary_), p.batch.positions, p.N(), NH_, NKV_, HS_, p.stream());
        if (normed())
            qk_norm_backward<T>({.dqkv = dqkv,
                                 .dq_weight = p.grad(q_norm_),
                                 .dk_weight = p.grad(k_norm_),
                                 .scratch = p.bytes(norm_scratch_),
                                 .x = p.at(before_norm_),
                                 .rstd = p.floats(rstd_),
                                 .q_weight = p.weight(q_norm_),
                                 .k_weight = p.weight(k_norm_),
                                 .N = p.N(),
                                 .accumulate = p.accumulate},
                                normed_, p.stream());
        qkv_.backward(p, p.at(ports_.in.dx), dqkv, p.at(ports_.in.x), p.N(), p.accumulate, p.at(ports_.dresidual));
    }

private:
    bool normed() const { return q_norm_ >= 0; }
    // Whether some row of a sequence of T does not see all keys before it.
    bool windowed(int T) const { return window_ > 0 && window_ < T; }

    static QkVectors vectors(const DecoderConfig& c) {
        if (c.qk_norm == QkNorm::all_heads) return {1, 1, c.NH * c.HS(), c.NKV * c.HS()};
        return {c.NH, c.NKV, c.HS(), c.HS()};
    }

    // Normalizes and rotates queries and keys, if the layer does.
    template <typename T>
    void norm_and_rotate(const Pass<T>& p) const {
        if (normed())
            qk_norm_forward(p.at(qkv_rows_), p.floats(rstd_), p.at(before_norm_), p.weight(q_norm_), p.weight(k_norm_),
                            p.N(), normed_, norm_eps_, p.stream());
        if (rotates_)
            rotary_forward(p.at(qkv_rows_), p.floats(rotary_), p.batch.positions, p.N(), NH_, NKV_, HS_, p.stream());
    }

    // Attention within a batch or a prompt or, during generation, of one new token to the cache.
    template <typename T>
    void attend(const Pass<T>& p) const {
        T* heads = p.at(heads_);
        const T* qkv = p.at(qkv_rows_);
        if (!p.memory.plan().trains()) cache_append(p.at(cache_), qkv, shape(p), p.cached, capacity_, p.stream());
        if (p.cached > 0)
            return attention_decode(heads, qkv, p.at(cache_), shape(p),
                                    windowed(p.cached + 1) ? p.cached + 1 - window_ : 0, p.cached + 1, capacity_,
                                    p.stream());
        if constexpr (std::is_same_v<T, bf16>) {
            if (flash_) return flash_attention_forward(heads, p.floats(lse_), qkv, first_key(p), shape(p), p.stream());
        }
        attention_forward(heads, p.floats(lse_), p.bytes(scratch_), qkv, first_key(p), shape(p), p.context,
                          dropout_mask(p, dropout_, site_));
    }

    template <typename T>
    void attend_backward(const Pass<T>& p, T* dqkv) const {
        const T* dheads = p.at(dheads_);
        const T* qkv = p.at(qkv_rows_);
        const T* heads = p.at(heads_);
        const float* lse = p.floats(lse_);
        if constexpr (std::is_same_v<T, bf16>) {
            if (flash_)
                return flash_attention_backward(dqkv, p.bytes(scratch_), dheads, qkv, heads, lse, first_key(p),
                                                shape(p), p.stream(), qkv_.bias_summed ? p.grad(qkv_.bias) : nullptr,
                                                p.accumulate);
        }
        attention_backward(dqkv, p.bytes(scratch_), dheads, qkv, heads, lse, first_key(p), shape(p), p.context,
                           dropout_mask(p, dropout_, site_));
    }

    template <typename T>
    const int* first_key(const Pass<T>& p) const {
        return windowed(p.batch.T) ? p.ints(first_key_) : p.batch.doc_start;
    }

    template <typename T>
    AttentionShape shape(const Pass<T>& p) const {
        return {p.batch.B, p.batch.T, NH_, NKV_, HS_};
    }

    bool rotates_, scales_;
    int NH_, NKV_, HS_;
    QkVectors normed_;
    int max_T_, window_;
    float norm_eps_;
    std::vector<float> inv_freq_;  // of rotary positions
    float rotated_size_;
    float dropout_;
    int site_;
    int q_norm_ = -1, k_norm_ = -1;  // rows of the parameter table; -1: none
    Linear qkv_, proj_;
    bool flash_ = false;  // only in bf16
    int capacity_ = 0;    // of the cache
    // Queries and keys are rotated in place. before_norm is qkv_rows if there is no norm. heads: (N, NH * HS).
    Ports ports_;
    Tensor before_norm_, rstd_, norm_scratch_, qkv_rows_, lse_, heads_, scratch_, rotary_, first_key_, cache_, dqkv_,
        dheads_;
};

}  // namespace teon

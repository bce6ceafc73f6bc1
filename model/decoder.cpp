#include "model/decoder.h"

#include <algorithm>
#include <type_traits>

#include "kernels/ops.h"
#include "model/decoder_forward.h"

namespace teon {

namespace {

template <typename T>
class Decoder final : public Model {
public:
    Decoder(const DecoderConfig& c, const DecoderRun& r, Context& context)
        : c_(c),
          r_(r),
          ctx_(context),
          p_(lay_out_params(c)),
          plan_(lay_out_activations(c, r, nullptr, nullptr)),
          arena_(static_cast<size_t>(plan_.total_bytes())) {
        params_ = std::make_unique<ParamStore>(p_.table, r.dtype, ctx_.stream);
        lay_out_activations(c_, r_, &a_, &arena_);
        if (c_.positions == Positions::rotary) fill_rotary_table(a_.cos_sin.at<float>(), c_, ctx_.stream);
    }

    const ActivationPlan& activation_plan() const override { return plan_; }

    void forward(float* losses, const Batch& batch) override {
        run_blocks(batch);
        run_head(losses, batch, 0.0f, false);
    }

    void forward_backward(float* losses, const Batch& batch, float grad_scale,
                          const std::function<void(int)>& on_grads_ready) override {
        run_blocks(batch);
        run_head(losses, batch, grad_scale, true);
        norm_backward(a_.dx.at<T>(), p_.final_norm, a_.dnorm.at<T>(), nullptr, a_.x.at<T>(c_.L),
                      a_.mean_final.at<float>(), a_.rstd_final.at<float>(), batch.B * batch.T);
        for (int l = c_.L - 1; l >= 0; --l) {
            block_backward(l, batch);
            if (on_grads_ready) on_grads_ready(l);
        }
        const int N = batch.B * batch.T;
        embedding_backward(params_->grad(p_.token), a_.dx.at<T>(), batch.tokens, batch.token_order, N, c_.C,
                           ctx_.stream);
        if (p_.position >= 0)
            embedding_backward(params_->grad(p_.position), a_.dx.at<T>(), batch.positions, batch.position_order, N,
                               c_.C, ctx_.stream);
        if (on_grads_ready) on_grads_ready(-1);
    }

    void logits(float* out, const Batch& batch, int row_begin, int row_end) override {
        run_blocks(batch);
        const int chunk = head_rows(c_, r_);
        for (int begin = row_begin; begin < row_end; begin += chunk) {
            const int rows = std::min(chunk, row_end - begin);
            head_logits(begin, rows);
            for (int i = 0; i < rows; ++i)
                cast(out + static_cast<int64_t>(begin - row_begin + i) * c_.V,
                     a_.logits.at<T>() + static_cast<int64_t>(i) * c_.Vp(), c_.V, ctx_.stream);
        }
    }

private:
    // ---- forward --------------------------------------------------------------------------------

    void run_blocks(const Batch& batch) {
        CHECK(batch.T <= r_.T && static_cast<int64_t>(batch.B) * batch.T <= static_cast<int64_t>(r_.B) * r_.T &&
                  batch.T <= c_.max_T,
              "a batch of {} x {} tokens does not fit a model planned for {} x {}", batch.B, batch.T, r_.B, r_.T);
        ops().embed(a_.x.at<T>(0), batch.tokens, batch.positions, p_, batch.B * batch.T);
        for (int l = 0; l < c_.L; ++l) block_forward(l, batch);
        ops().norm(a_.norm_final.at<T>(), a_.x.at<T>(c_.L), a_.mean_final.at<float>(), a_.rstd_final.at<float>(),
                   a_.mid.at<T>(c_.L - 1), a_.branch.at<T>(), p_.final_norm, batch.B * batch.T);
    }

    void block_forward(int l, const Batch& batch) {
        // 1. residual stream + the MLP output of the block before, normalized
        const T* from = l > 0 ? a_.mid.at<T>(l - 1) : a_.x.at<T>(0);
        ops().norm(a_.norm1.at<T>(l), a_.x.at<T>(l), a_.mean1.at<float>(l), a_.rstd1.at<float>(l), from,
                   l > 0 ? a_.branch.at<T>() : nullptr, p_.layers[l].norm1, batch.B * batch.T);
        attention_and_mlp_in(l, batch);
        // 6. what the next norm adds to the residual stream
        ops().linear(a_.branch.at<T>(), a_.mlp_act.at<T>(l), p_.layers[l].mlp_out, batch.B * batch.T);
    }

    // The inside of a block, from norm1 to mlp_act. Also what block recomputation runs again.
    void attention_and_mlp_in(int l, const Batch& batch) {
        const LayerRows& p = p_.layers[l];
        const int N = batch.B * batch.T;
        // 2. queries, keys and values from one product
        ops().linear(a_.qkv.at<T>(l), a_.norm1.at<T>(l), p.qkv, N);
        ops().rotate(a_.qkv.at<T>(l), a_.cos_sin.at<float>(), batch.positions, N);
        // 3. attention
        attend(l, batch);
        ops().linear(a_.branch.at<T>(), a_.attention.at<T>(l), p.attn_out, N);
        // 4. residual stream + attention, normalized
        ops().norm(a_.norm2.at<T>(l), a_.mid.at<T>(l), a_.mean2.at<float>(l), a_.rstd2.at<float>(l), a_.x.at<T>(l),
                   a_.branch.at<T>(), p.norm2, N);
        // 5. MLP up to its activation
        ops().mlp_in(a_.mlp_act.at<T>(l), a_.mlp_in.at<T>(l), a_.norm2.at<T>(l), p.mlp_in, N);
    }

    void activation_forward(int l, int N) {
        if (c_.mlp == Mlp::gelu) {
            gelu_forward(a_.mlp_act.at<T>(l), a_.mlp_in.at<T>(l), static_cast<int64_t>(N) * c_.Fp(), ctx_.stream);
        } else {
            swiglu_forward(a_.mlp_act.at<T>(l), a_.mlp_in.at<T>(l), N, c_.Fp(), ctx_.stream);
        }
    }

    // Losses and, with gradient, dnorm = gradient of norm_final and the head's weight gradient, some rows at a time.
    void run_head(float* losses, const Batch& batch, float grad_scale, bool with_gradient) {
        const int N = batch.B * batch.T, chunk = head_rows(c_, r_), Vp = c_.Vp();
        for (int begin = 0; begin < N; begin += chunk) {
            const int rows = std::min(chunk, N - begin);
            head_logits(begin, rows);
            classifier(a_.logits.at<T>(), losses + begin, batch.targets + begin, rows, c_.V, Vp, grad_scale,
                       with_gradient, ctx_.stream);
            if (!with_gradient) continue;
            const int64_t at = static_cast<int64_t>(begin) * c_.C;
            linear_backward(a_.dnorm.at<T>() + at, a_.logits.at<T>(), a_.norm_final.at<T>() + at, p_.head, rows);
        }
    }

    void head_logits(int begin, int rows) {
        ops().linear(a_.logits.at<T>(), a_.norm_final.at<T>() + static_cast<int64_t>(begin) * c_.C, p_.head, rows);
    }

    // ---- backward -------------------------------------------------------------------------------

    // dx: in, the gradient of the residual stream after block l; out, before it.
    void block_backward(int l, const Batch& batch) {
        const LayerRows& p = p_.layers[l];
        const int N = batch.B * batch.T;
        T* dx = a_.dx.at<T>();
        T* dnorm = a_.dnorm.at<T>();
        recompute(l, batch);
        // 5, 6. MLP
        linear_backward(a_.dmlp_act.at<T>(), dx, a_.mlp_act.at<T>(l), p.mlp_out, N);
        activation_backward(l, N);
        linear_backward(dnorm, a_.dmlp_in.at<T>(), a_.norm2.at<T>(l), p.mlp_in, N);
        // 4. the residual stream goes on beside the norm
        norm_backward(dx, p.norm2, dnorm, dx, a_.mid.at<T>(l), a_.mean2.at<float>(l), a_.rstd2.at<float>(l), N);
        // 3. attention
        linear_backward(dnorm, dx, a_.attention.at<T>(l), p.attn_out, N);
        attend_backward(l, dnorm, batch);
        // 2. queries, keys and values
        if (c_.positions == Positions::rotary)
            rotary_backward(a_.dqkv.at<T>(), a_.cos_sin.at<float>(), batch.positions, N, c_.NH, c_.NKV, c_.HS(),
                            ctx_.stream);
        linear_backward(dnorm, a_.dqkv.at<T>(), a_.norm1.at<T>(l), p.qkv, N);
        // 1.
        norm_backward(dx, p.norm1, dnorm, dx, a_.x.at<T>(l), a_.mean1.at<float>(l), a_.rstd1.at<float>(l), N);
    }

    // Brings back what the policy did not keep of block l.
    void recompute(int l, const Batch& batch) {
        const int N = batch.B * batch.T;
        if (r_.recompute == Recompute::none || l == c_.L - 1) return;  // the last block's are still in place
        ops().norm(a_.norm1.at<T>(l), nullptr, a_.mean1.at<float>(l), a_.rstd1.at<float>(l), a_.x.at<T>(l), nullptr,
                   p_.layers[l].norm1, N);
        if (r_.recompute == Recompute::block) {
            attention_and_mlp_in(l, batch);
        } else {
            ops().norm(a_.norm2.at<T>(l), nullptr, a_.mean2.at<float>(l), a_.rstd2.at<float>(l), a_.mid.at<T>(l),
                       nullptr, p_.layers[l].norm2, N);
            activation_forward(l, N);
        }
    }

    // ---- the two attentions behind one name -----------------------------------------------------

    bool flash() const { return r_.attention == AttentionKind::flash; }  // then T is bf16: resolve_attention

    void attend(int l, const Batch& batch) {
        T* out = a_.attention.at<T>(l);
        const T* qkv = a_.qkv.at<T>(l);
        float* lse = a_.lse.at<float>(l);
        if constexpr (std::is_same_v<T, bf16>) {
            if (flash()) return flash_attention_forward(out, lse, qkv, batch.doc_start, shape(batch), ctx_.stream);
        }
        attention_forward(out, lse, a_.attention_scratch.at<void>(), qkv, batch.doc_start, shape(batch), ctx_);
    }

    void attend_backward(int l, const T* dout, const Batch& batch) {
        T* dqkv = a_.dqkv.at<T>();
        void* scratch = a_.attention_scratch.at<void>();
        const T* qkv = a_.qkv.at<T>(l);
        const T* out = a_.attention.at<T>(l);
        const float* lse = a_.lse.at<float>(l);
        if constexpr (std::is_same_v<T, bf16>) {
            if (flash())
                return flash_attention_backward(dqkv, scratch, dout, qkv, out, lse, batch.doc_start, shape(batch),
                                                ctx_.stream);
        }
        attention_backward(dqkv, scratch, dout, qkv, out, lse, batch.doc_start, shape(batch), ctx_);
    }

    void activation_backward(int l, int N) {
        if (c_.mlp == Mlp::gelu) {
            gelu_backward(a_.dmlp_in.at<T>(), a_.mlp_in.at<T>(l), a_.dmlp_act.at<T>(),
                          static_cast<int64_t>(N) * c_.Fp(), ctx_.stream);
        } else {
            swiglu_backward(a_.dmlp_in.at<T>(), a_.mlp_in.at<T>(l), a_.dmlp_act.at<T>(), N, c_.Fp(), ctx_.stream);
        }
    }

    // ---- norms and linear layers ----------------------------------------------------------------

    void norm_backward(T* dx, const NormRows& p, const T* dout, const T* dresidual, const T* x, const float* mean,
                       const float* rstd, int N) {
        void* scratch = a_.norm_scratch.at<void>();
        if (c_.norm == Norm::layernorm) {
            layernorm_backward(dx, params_->grad(p.weight), params_->grad(p.bias), scratch, dout, dresidual, x, mean,
                               rstd, params_->work<T>(p.weight), N, c_.C, ctx_.stream);
        } else {
            rmsnorm_backward(dx, params_->grad(p.weight), scratch, dout, dresidual, x, rstd, params_->work<T>(p.weight),
                             N, c_.C, ctx_.stream);
        }
    }

    // dx (N, in) = dy (N, out) W; dW += dy^T x; db += column sums of dy
    void linear_backward(T* dx, const T* dy, const T* x, const Linear& p, int N) {
        Gemm weight;
        weight.M = p.out;
        weight.N = p.in;
        weight.K = N;
        weight.trans_a = true;
        weight.A = mat(dy, p.out);
        weight.B = mat(x, p.in);
        weight.C = mat(params_->grad(p.weight), p.in);
        weight.beta = 1.0f;
        if (p.bias >= 0) {
            weight.epilogue = Epilogue::bias_grad;
            weight.bias = mat(params_->grad(p.bias), p.out);
        }
        ctx_.linalg.gemm(weight);

        Gemm input;
        input.M = N;
        input.N = p.in;
        input.K = p.out;
        input.A = mat(dy, p.out);
        input.B = mat(params_->work<T>(p.weight), p.in);
        input.C = mat(dx, p.in);
        ctx_.linalg.gemm(input);
    }

    // ---------------------------------------------------------------------------------------------

    DecoderForward<T> ops() const { return {c_, *params_, ctx_}; }
    AttentionShape shape(const Batch& batch) const { return {batch.B, batch.T, c_.NH, c_.NKV, c_.HS()}; }

    const DecoderConfig c_;
    const DecoderRun r_;
    Context& ctx_;
    const DecoderParams p_;
    const ActivationPlan plan_;
    Arena arena_;
    Activations a_;
};

}  // namespace

std::unique_ptr<Model> make_decoder(const DecoderConfig& c, const DecoderRun& r, Context& context) {
    DecoderRun resolved = r;
    resolved.recompute = resolve_recompute(c, r);
    resolved.attention = resolve_attention(c, r);
    if (r.dtype == DType::bf16) return std::make_unique<Decoder<bf16>>(c, resolved, context);
    CHECK(r.dtype == DType::f32, "a model is stored as float or bf16, not {}", name_of(r.dtype));
    return std::make_unique<Decoder<float>>(c, resolved, context);
}

}  // namespace teon

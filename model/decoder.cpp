#include "model/decoder.h"

#include <optional>

#include "model/layers.h"
#include "runtime/cuda/named_range.h"

namespace teon {

namespace {

template <typename T>
class Decoder final : public Model {
public:
    Decoder(const DecoderConfig& c, const DecoderRun& r, Context& context, const ParamShard& shard)
        : r_(r),
          max_T_(c.max_T),
          drops_(c.dropout > 0),
          ctx_(context),
          layers_(c),
          memory_(layers_.plan(r, Purpose::train)) {
        params_ = std::make_unique<ParamStore>(layers_.table(), r.dtype, ctx_.stream, /*gradients=*/true, shard);
        if (r.offloaded_blocks > 0) offload_.emplace(memory_, ctx_.stream);
        layers_.prepare(pass({}));
    }

    void forward(float* losses, const Batch& batch) override {
        const Pass<T> p = pass(batch);
        layers_.forward(p);
        layers_.head().losses(p, losses, 0.0f, false);
    }

    void forward_backward(float* losses, const Batch& batch, float grad_scale, bool accumulate,
                          const std::function<void(int)>& on_grads_ready) override {
        Pass<T> p = pass(batch, accumulate);
        p.drops = drops_;
        if (offload_) p.offload = &*offload_;
        {
            const NamedRange range("forward");
            layers_.forward(p);
            layers_.head().losses(p, losses, grad_scale, true);
        }
        const NamedRange range("backward");
        layers_.backward(p, on_grads_ready);
    }

    void logits(float* out, const Batch& batch, int row_begin, int row_end) override {
        const Pass<T> p = pass(batch);
        layers_.forward(p);
        layers_.head().logits(p, out, row_begin, row_end - row_begin);
    }

private:
    Pass<T> pass(const Batch& batch, bool accumulate = false) const {
        CHECK(batch.B <= r_.B && batch.T <= r_.T && batch.T <= max_T_,
              "a batch of {} x {} tokens does not fit a model planned for {} x {}", batch.B, batch.T, r_.B, r_.T);
        return {ctx_, *params_, memory_, batch, /*cached=*/0, accumulate};
    }

    const DecoderRun r_;
    const int max_T_;
    const bool drops_;
    Context& ctx_;
    DecoderLayers layers_;
    const Activations memory_;
    std::optional<ActivationOffload> offload_;
};

void check_fp8(const DecoderConfig& c, const DecoderRun& r) {
    const std::string_view flag = name_of(r.matmul_dtype);
    CHECK_USAGE(r.dtype == DType::bf16, "--matmul-dtype {}: needs --dtype bf16, but this run has {}", flag,
                name_of(r.dtype));
    const struct {
        const char* name;
        int value, stored;
    } sizes[] = {{"--seq-len", r.T, r.T},
                 {"--channels", c.C, c.C},
                 {"--ffn", c.F, c.Fp()},
                 {"width of all heads", c.attention_width(), c.attention_width()},
                 {"width of queries, keys and values", c.qkv_width(), c.qkv_width()}};
    for (const auto& size : sizes)
        CHECK_USAGE(size.stored % 16 == 0, "--matmul-dtype {}: {} {} is not a multiple of 16, as FP8 products need",
                    flag, size.name, size.value);
}

DecoderRun resolved(const DecoderConfig& c, const DecoderRun& r) {
    if (r.matmul_dtype != MatmulDType::same) check_fp8(c, r);
    DecoderRun run = r;
    run.attention = resolve_attention(c, r);
    return run;
}

}  // namespace

ParamTable decoder_params(const DecoderConfig& c) { return DecoderLayers(c).table(); }

ActivationPlan decoder_activations(const DecoderConfig& c, const DecoderRun& r) { return activation_planner(c)(r); }

std::function<ActivationPlan(const DecoderRun&)> activation_planner(const DecoderConfig& c) {
    return [c, layers = std::make_shared<DecoderLayers>(c)](const DecoderRun& r) {
        return layers->plan(resolved(c, r), Purpose::train);
    };
}

void check_device(const DecoderRun& r, const DeviceInfo& device) {
    const int capability = device.compute_capability;
    CHECK_USAGE(r.matmul_dtype == MatmulDType::same || !device.is_gpu || capability >= 89,
                "--matmul-dtype {}: needs a GPU of compute capability 8.9 or later, but {} has {}.{}",
                name_of(r.matmul_dtype), device.name, capability / 10, capability % 10);
}

double decoder_flops_per_token(const DecoderConfig& c, int T) {
    return 3 * DecoderLayers(c).flops(T);  // the backward pass has two products for each product of the forward pass
}

double recompute_flops_share(const DecoderConfig& c, int T, const RecomputePlan& recompute) {
    DecoderRun run;
    run.recompute = recompute;
    run.attention = AttentionKind::gemm;
    DecoderLayers layers(c);
    return layers.recompute_flops(layers.plan(run, Purpose::train), T) / (3 * layers.flops(T));
}

bool supports_flash(const DecoderConfig& c, const DecoderRun& r) {
    return c.dropout == 0 && flash_attention_supports({r.B, r.T, c.NH, c.NKV, c.HS()}, r.dtype);
}

AttentionKind resolve_attention(const DecoderConfig& c, const DecoderRun& r) {
    const bool possible = supports_flash(c, r);
    if (r.attention == AttentionKind::automatic)
        return possible && flash_attention_is_fast() ? AttentionKind::flash : AttentionKind::gemm;
    CHECK_USAGE(
        r.attention != AttentionKind::flash || c.dropout == 0,
        "--attention flash: has no dropout of probabilities, but this run has --dropout {}; use --attention gemm",
        c.dropout);
    CHECK_USAGE(
        r.attention != AttentionKind::flash || possible,
        "--attention flash: needs --dtype bf16, a head size of 64 or 128 and at most 65535 sequences, but this run "
        "has {}, {} and {}; use --attention gemm",
        name_of(r.dtype), c.HS(), r.B);
    return r.attention;
}

std::unique_ptr<Model> make_decoder(const DecoderConfig& c, const DecoderRun& r, Context& context,
                                    const ParamShard& shard) {
    const DecoderRun run = resolved(c, r);
    if (r.dtype == DType::bf16) return std::make_unique<Decoder<bf16>>(c, run, context, shard);
    CHECK(r.dtype == DType::f32, "a model is stored as float or bf16, not {}", name_of(r.dtype));
    return std::make_unique<Decoder<float>>(c, run, context, shard);
}

}  // namespace teon

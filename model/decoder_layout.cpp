#include "model/decoder_layout.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops.h"

namespace teon {

std::string_view name_of(AttentionKind k) {
    switch (k) {
        case AttentionKind::automatic:
            return "auto";
        case AttentionKind::gemm:
            return "gemm";
        case AttentionKind::flash:
            return "flash";
    }
    return "?";
}

void validate(const DecoderConfig& c) {
    auto positive = [](const char* flag, int value) {
        CHECK_USAGE(value > 0, "--{} {}: must be at least 1", flag, value);
    };
    positive("layers", c.L);
    positive("channels", c.C);
    positive("heads", c.NH);
    positive("kv-heads", c.NKV);
    positive("ffn", c.F);
    positive("vocab-size", c.V);
    positive("seq-len", c.max_T);
    CHECK_USAGE(c.C % c.NH == 0, "--channels {} is not a multiple of --heads {}", c.C, c.NH);
    CHECK_USAGE(c.NH % c.NKV == 0, "--heads {} is not a multiple of --kv-heads {}", c.NH, c.NKV);
    CHECK_USAGE(c.positions != Positions::rotary || c.HS() % 2 == 0,
                "rotary positions need an even head size, but --channels {} / --heads {} is {}", c.C, c.NH, c.HS());
    CHECK_USAGE(c.family != "gpt2" || c.NKV == c.NH, "--kv-heads {}: GPT-2 has as many key/value heads as heads ({})",
                c.NKV, c.NH);
}

// ---- parameters ---------------------------------------------------------------------------------

namespace {

class ParamBuilder {
public:
    explicit ParamBuilder(const DecoderConfig& c) : c_(c) {}

    int matrix(const ParamName& name, Role role, int layer, int rows, int cols, int logical_rows, int logical_cols,
               float std, bool joined = false) {
        ParamRow row = make(name, "weight", role, layer, rows, cols, logical_rows, logical_cols);
        row.slot.transposed = c_.names.transposed && is_hidden_matrix(role);
        row.init_std = std;
        row.decay = true;
        row.joined = joined;
        return table.add(std::move(row));
    }
    int vector(const ParamName& name, const char* suffix, Role role, int layer, int n, int logical_n, Init init,
               bool joined = false) {
        ParamRow row = make(name, suffix, role, layer, 1, n, 1, logical_n);
        row.init = init;
        row.joined = joined;
        return table.add(std::move(row));
    }
    NormRows norm(const ParamName& name, int layer) {
        NormRows rows;
        rows.weight = vector(name, "weight", Role::norm, layer, c_.C, c_.C, Init::ones);
        if (c_.norm == Norm::layernorm) rows.bias = vector(name, "bias", Role::norm, layer, c_.C, c_.C, Init::zeros);
        return rows;
    }
    // Joined linear layers that read the same input: their weights, then their biases.
    struct Part {
        const ParamName& name;
        Role role;
        int out, logical_out;
    };
    Linear linear(std::initializer_list<Part> parts, int layer, int in, int logical_in, float std) {
        Linear linear{-1, -1, 0, in};
        for (const Part& p : parts) {
            int row = matrix(p.name, p.role, layer, p.out, in, p.logical_out, logical_in, std, linear.weight >= 0);
            if (linear.weight < 0) linear.weight = row;
            linear.out += p.out;
        }
        if (!c_.biases) return linear;
        for (const Part& p : parts) {
            int row = vector(p.name, "bias", Role::bias, layer, p.out, p.logical_out, Init::zeros, linear.bias >= 0);
            if (linear.bias < 0) linear.bias = row;
        }
        return linear;
    }

    ParamTable table;

private:
    ParamRow make(const ParamName& name, const char* suffix, Role role, int layer, int rows, int cols, int logical_rows,
                  int logical_cols) const {
        ParamRow row;
        row.name = fmt::format("{}.{}", fmt::format(fmt::runtime(name.name), layer), suffix);
        row.slot = {fmt::format("{}.{}", fmt::format(fmt::runtime(name.checkpoint), layer), suffix), name.part,
                    name.parts, false};
        row.role = role;
        row.layer = layer;
        row.rows = rows;
        row.cols = cols;
        row.logical_rows = logical_rows;
        row.logical_cols = logical_cols;
        return row;
    }
    const DecoderConfig& c_;
};

}  // namespace

DecoderParams lay_out_params(const DecoderConfig& c) {
    validate(c);
    const DecoderNames& n = c.names;
    const int KV = c.NKV * c.HS();
    const float std = c.init_std;
    const float residual_std = c.scaled_residual_init ? std / std::sqrt(2.0f * static_cast<float>(c.L)) : std;
    ParamBuilder b(c);
    DecoderParams p;
    p.token = b.matrix(n.token, Role::token_embedding, -1, c.Vp(), c.C, c.V, c.C, std);
    if (c.positions == Positions::learned)
        p.position = b.matrix(n.position, Role::position_embedding, -1, c.max_T, c.C, c.max_T, c.C, std);
    for (int l = 0; l < c.L; ++l) {
        LayerRows rows;
        rows.norm1 = b.norm(n.norm1, l);
        rows.qkv =
            b.linear({{n.q, Role::q, c.C, c.C}, {n.k, Role::k, KV, KV}, {n.v, Role::v, KV, KV}}, l, c.C, c.C, std);
        rows.attn_out = b.linear({{n.o, Role::o, c.C, c.C}}, l, c.C, c.C, residual_std);
        rows.norm2 = b.norm(n.norm2, l);
        if (c.mlp == Mlp::swiglu) {
            rows.mlp_in =
                b.linear({{n.gate, Role::mlp_gate, c.Fp(), c.F}, {n.up, Role::mlp_up, c.Fp(), c.F}}, l, c.C, c.C, std);
        } else {
            rows.mlp_in = b.linear({{n.up, Role::mlp_up, c.Fp(), c.F}}, l, c.C, c.C, std);
        }
        rows.mlp_out = b.linear({{n.down, Role::mlp_down, c.C, c.C}}, l, c.Fp(), c.F, residual_std);
        p.layers.push_back(rows);
    }
    p.final_norm = b.norm(n.final_norm, -1);
    int head = c.tied_head ? p.token : b.matrix(n.head, Role::head, -1, c.Vp(), c.C, c.V, c.C, std);
    p.head = {head, -1, c.Vp(), c.C};
    p.table = std::move(b.table);
    return p;
}

ParamTable decoder_params(const DecoderConfig& c) { return lay_out_params(c).table; }

double decoder_flops_per_token(const DecoderConfig& c, int T) {
    double weights = static_cast<double>(c.V) * c.C;  // the head
    ParamTable table = decoder_params(c);
    for (const ParamRow& row : table.rows())
        if (is_hidden_matrix(row.role)) weights += static_cast<double>(row.logical_size());
    return 6.0 * weights + 6.0 * c.L * c.C * static_cast<double>(T);
}

double recompute_flops_share(const DecoderConfig& c, int T, Recompute policy) {
    if (policy != Recompute::block) return 0;
    // The forward products of each block but the last, without its last one: 2 per weight, and attention's two
    // products.
    const double width = c.C;
    const double weights = width * (c.qkv_width() + c.C + c.mlp_in_width());
    return (c.L - 1) * (2 * weights + 2 * width * T) / decoder_flops_per_token(c, T);
}

// ---- activations --------------------------------------------------------------------------------

int head_rows(const DecoderConfig& c, const DecoderRun& r) {
    constexpr int64_t kBudget = 128 << 20;
    int64_t rows = kBudget / (static_cast<int64_t>(c.Vp()) * size_of(r.dtype)) / 128 * 128;
    return static_cast<int>(std::clamp<int64_t>(rows, 128, static_cast<int64_t>(r.B) * r.T));
}

ActivationPlan lay_out_activations(const DecoderConfig& c, const DecoderRun& r, Activations* activations,
                                   Arena* arena) {
    CHECK(r.recompute != Recompute::automatic, "the recompute policy must be resolved before memory is laid out");
    const int64_t N = static_cast<int64_t>(r.B) * r.T, item = size_of(r.dtype), f32 = 4;
    const int64_t NC = N * c.C * item;
    // Copies: what block recomputation drops, and what the cheap policy drops as well.
    const int L = c.L, block = r.recompute == Recompute::block ? 1 : L, cheap = r.recompute == Recompute::none ? L : 1;
    const AttentionShape attention{r.B, r.T, c.NH, c.NKV, c.HS()};
    const bool layernorm = c.norm == Norm::layernorm;

    ActivationPlan plan;
    auto row = [&](Tensor Activations::*tensor, const char* name, int64_t bytes, int copies, bool shared_by_layers) {
        const char* lifetime = copies > 1 || !shared_by_layers ? "saved" : "scratch";
        plan.add(name, bytes, copies, lifetime);
        if (arena)
            (*activations).*tensor = {arena->take<std::byte>(static_cast<int64_t>(Arena::aligned(bytes)) * copies),
                                      copies > 1 ? static_cast<int64_t>(Arena::aligned(bytes)) : 0};
    };
    using A = Activations;
    row(&A::x, "residual stream", NC, L + 1, false);
    row(&A::norm1, "attention norm", NC, cheap, L > 1);
    if (layernorm) row(&A::mean1, "attention norm mean", N * f32, block, L > 1);
    row(&A::rstd1, "attention norm 1/std", N * f32, block, L > 1);
    row(&A::qkv, "queries, keys, values", N * c.qkv_width() * item, block, L > 1);
    row(&A::lse, "attention log-sum-exp", N * c.NH * f32, block, L > 1);
    row(&A::attention, "attention heads", NC, block, L > 1);
    row(&A::mid, "residual after attention", NC, block, L > 1);
    row(&A::norm2, "MLP norm", NC, cheap, L > 1);
    if (layernorm) row(&A::mean2, "MLP norm mean", N * f32, block, L > 1);
    row(&A::rstd2, "MLP norm 1/std", N * f32, block, L > 1);
    row(&A::mlp_in, "MLP before activation", N * c.mlp_in_width() * item, block, L > 1);
    row(&A::mlp_act, "MLP after activation", N * c.Fp() * item, cheap, L > 1);
    row(&A::norm_final, "final norm", NC, 1, false);
    if (layernorm) row(&A::mean_final, "final norm mean", N * f32, 1, false);
    row(&A::rstd_final, "final norm 1/std", N * f32, 1, false);
    if (c.positions == Positions::rotary)
        row(&A::cos_sin, "rotary table", static_cast<int64_t>(c.max_T) * c.HS() * f32, 1, false);
    row(&A::branch, "block output", NC, 1, true);
    row(&A::logits, "logits chunk", static_cast<int64_t>(head_rows(c, r)) * c.Vp() * item, 1, true);
    row(&A::dx, "gradient of residual stream", NC, 1, true);
    row(&A::dnorm, "gradient of norm output", NC, 1, true);
    row(&A::dqkv, "gradient of q, k, v", N * c.qkv_width() * item, 1, true);
    row(&A::dmlp_act, "gradient of MLP activation", N * c.Fp() * item, 1, true);
    if (c.mlp == Mlp::swiglu) row(&A::dmlp_in, "gradient before activation", N * c.mlp_in_width() * item, 1, true);
    const size_t attention_scratch = resolve_attention(c, r) == AttentionKind::flash
                                         ? flash_attention_scratch_bytes(attention)
                                         : attention_scratch_bytes(attention, r.dtype);
    row(&A::attention_scratch, "attention scratch", static_cast<int64_t>(attention_scratch), 1, true);
    size_t norm_scratch = layernorm ? layernorm_backward_scratch_bytes(static_cast<int>(N), c.C)
                                    : rmsnorm_backward_scratch_bytes(static_cast<int>(N), c.C);
    row(&A::norm_scratch, "norm gradient scratch", static_cast<int64_t>(norm_scratch), 1, true);
    if (arena && c.mlp == Mlp::gelu) activations->dmlp_in = activations->dmlp_act;
    return plan;
}

AttentionKind resolve_attention(const DecoderConfig& c, const DecoderRun& r) {
    const bool possible = flash_attention_supports({r.B, r.T, c.NH, c.NKV, c.HS()}, r.dtype);
    if (r.attention == AttentionKind::automatic)
        return possible && flash_attention_is_fast() ? AttentionKind::flash : AttentionKind::gemm;
    CHECK_USAGE(
        r.attention != AttentionKind::flash || possible,
        "--attention flash: needs --dtype bf16 and a head size (--channels / --heads) of 64 or 128, but this model has "
        "{} and {}; use --attention gemm",
        name_of(r.dtype), c.HS());
    return r.attention;
}

Recompute resolve_recompute(const DecoderConfig& c, const DecoderRun& r) {
    if (r.recompute != Recompute::automatic) return r.recompute;
    DecoderRun trial = r;
    for (Recompute policy : {Recompute::none, Recompute::cheap, Recompute::block}) {
        trial.recompute = policy;
        if (r.memory_budget == 0 || lay_out_activations(c, trial, nullptr, nullptr).total_bytes() <= r.memory_budget)
            return policy;
    }
    return Recompute::block;  // the smallest there is; whoever allocates says by how much it is too large
}

ActivationPlan decoder_activations(const DecoderConfig& c, const DecoderRun& r) {
    DecoderRun resolved = r;
    resolved.recompute = resolve_recompute(c, r);
    return lay_out_activations(c, resolved, nullptr, nullptr);
}

}  // namespace teon

// The decoder-only transformer that GPT-2 and LLaMA share: pre-norm blocks of attention and MLP on a residual stream.
// A model file (gpt2.h, llama.h) is a table of presets, names and initial values that fills in DecoderConfig.
#pragma once

#include <memory>
#include <string>

#include "model/model.h"

namespace teon {

enum class Norm { layernorm, rmsnorm };
enum class Positions { learned, rotary };
enum class Mlp { gelu, swiglu };
// flash: on tensor cores, without scores in memory; bf16 and head sizes 64 and 128. automatic: flash where it is
// possible and the machine has tensor cores, else gemm.
enum class AttentionKind { automatic, gemm, flash };
std::string_view name_of(AttentionKind k);

// What a parameter is called here and in a Hugging Face checkpoint; {} stands for the layer; ".weight" or ".bias"
// follows.
struct ParamName {
    std::string name, checkpoint;
    int part = 0, parts = 1;  // block `part` of `parts` of the checkpoint's tensor
};
struct DecoderNames {
    ParamName token, position, norm1, q, k, v, o, norm2, gate, up, down, final_norm, head;
    bool transposed = false;  // checkpoints store linear weights (in, out)
};

struct DecoderConfig {
    std::string family;  // "gpt2", "llama"
    std::string preset;
    int L = 0, C = 0, NH = 0, NKV = 0, F = 0, V = 0;
    int max_T = 1024;  // rows of the learned position table; longest sequence
    Norm norm = Norm::layernorm;
    Positions positions = Positions::learned;
    Mlp mlp = Mlp::gelu;
    bool biases = true;
    bool tied_head = true;
    float norm_eps = 1e-5f;
    float rope_base = 10000.0f;
    float rope_scaling = 1.0f;  // positions are divided by it (linear scaling)
    float init_std = 0.02f;
    bool scaled_residual_init = true;  // attention output and mlp-down start at init_std / sqrt(2 L), as GPT-2's do
    DecoderNames names;

    int HS() const { return C / NH; }
    int qkv_width() const { return (NH + 2 * NKV) * HS(); }
    int Vp() const { return (V + 127) / 128 * 128; }  // stored rows of the token table: a multiple of 128
    int Fp() const { return (F + 7) / 8 * 8; }        // stored MLP width: a multiple of 8 (16-byte rows in bf16)
    int mlp_in_width() const { return mlp == Mlp::swiglu ? 2 * Fp() : Fp(); }
};

// Throws UsageError unless the sizes fit together (C a multiple of NH, NH of NKV, HS even for rotary, all positive).
void validate(const DecoderConfig& c);

// How one run uses it.
struct DecoderRun {
    int B = 1, T = 1;  // the largest micro-batch that will be given
    DType dtype = DType::f32;
    Recompute recompute = Recompute::none;
    AttentionKind attention = AttentionKind::automatic;
    int64_t memory_budget = 0;  // bytes for activations, for Recompute::automatic; 0 = unlimited
};

ParamTable decoder_params(const DecoderConfig& c);  // touches no device
ActivationPlan decoder_activations(const DecoderConfig& c,
                                   const DecoderRun& r);                       // touches no device; resolves automatic
Recompute resolve_recompute(const DecoderConfig& c, const DecoderRun& r);      // automatic -> the cheapest that fits
AttentionKind resolve_attention(const DecoderConfig& c, const DecoderRun& r);  // UsageError if flash is asked in vain

// Training FLOPs of one token in a sequence of T: 6 per weight of every matrix product (head included, embeddings not),
// and causal attention at half of its full square. Recomputation is not counted.
double decoder_flops_per_token(const DecoderConfig& c, int T);

// The arithmetic that a recompute policy adds to a step, as a share of decoder_flops_per_token. Elementwise work is not
// counted.
double recompute_flops_share(const DecoderConfig& c, int T, Recompute policy);

// Parameters are allocated but not initialized (ParamStore::initialize, or loaded).
std::unique_ptr<Model> make_decoder(const DecoderConfig& c, const DecoderRun& r, Context& context);

}  // namespace teon

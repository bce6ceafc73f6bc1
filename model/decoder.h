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
enum class AttentionKind { automatic, gemm, flash };

struct DecoderConfig {
    std::string family;          // "gpt2", "llama"
    int L = 0, C = 0, NH = 0, NKV = 0, HS = 0, F = 0, V = 0;
    int Vp = 0, Fp = 0;          // as stored: V to a multiple of 128, F to a multiple of 8
    int max_T = 0;               // rows of the learned position table, longest sequence
    Norm norm = Norm::layernorm;
    Positions positions = Positions::learned;
    Mlp mlp = Mlp::gelu;
    bool biases = true;
    bool tied_head = true;
    float norm_eps = 1e-5f;
    float rope_base = 10000.0f;
    float rope_scaling = 1.0f;   // positions are divided by it (linear scaling)
    float init_std = 0.02f;
    float init_residual_std = 0.02f;  // attention output and mlp-down (GPT-2: 0.02 / sqrt(2 L))
};

// How one run uses it.
struct DecoderRun {
    int B = 1, T = 1;            // the largest micro-batch that will be given
    DType dtype = DType::f32;
    Recompute recompute = Recompute::none;
    AttentionKind attention = AttentionKind::automatic;
    int64_t memory_budget = 0;   // bytes for activations, for Recompute::automatic; 0 = unlimited
};

ParamTable decoder_params(const DecoderConfig& c);                             // touches no device
ActivationPlan decoder_activations(const DecoderConfig& c, const DecoderRun& r);  // touches no device
std::unique_ptr<Model> make_decoder(const DecoderConfig& c, const DecoderRun& r, Context& context);

}  // namespace teon

// Describes a decoder-only transformer. A family (gpt2.h, llama.h, ...) fills it in. Nothing here touches a device.
#pragma once

#include <string>

#include "base/check.h"
#include "base/enum_names.h"
#include "kernels/activation_kinds.h"
#include "kernels/norm_kinds.h"

namespace teon {

// Where a block normalizes. f is a branch (attention, MLP) of the residual stream x. pre: x + f(norm(x)). post:
// x + norm(f(x)).
enum class NormPlacement { pre, post };
template <>
inline constexpr auto kEnumNames<NormPlacement> = enum_names<NormPlacement>({{NormPlacement::pre, "pre"},
                                                                             {NormPlacement::post, "post"}});
// RMSNorm of queries and of keys before rotation, over each head or over all heads of a token together.
enum class QkNorm { none, per_head, all_heads };
template <>
inline constexpr auto kEnumNames<QkNorm> =
    enum_names<QkNorm>({{QkNorm::none, "none"}, {QkNorm::per_head, "per-head"}, {QkNorm::all_heads, "all-heads"}});
enum class PositionKind { learned, rotary };

// The name of a parameter here and in a Hugging Face checkpoint. {} stands for the layer; ".weight" or ".bias" is
// appended.
struct ParamName {
    std::string name, checkpoint;
    int part = 0, parts = 1;  // block `part` of `parts` of the checkpoint's tensor
};
struct DecoderNames {
    ParamName token, position, attention_norm, q, k, v, q_norm, k_norm, o, attention_post_norm, mlp_norm, gate, up,
        down, mlp_post_norm, final_norm, head;
    bool transposed = false;  // checkpoints store linear weights (in, out)
};

inline constexpr int kMaxContext = 1 << 20;

struct DecoderConfig {
    std::string family;  // "gpt2": ModelFamily::name
    std::string preset;
    int L = 0, C = 0, NH = 0, NKV = 0, F = 0, V = 0;
    int head_size = 0;        // elements per head; 0: C / NH
    int max_T = 1024;         // rows of the learned position table; longest sequence
    int window = 0;           // keys that a token attends to, its own included; 0: all before it
    int full_every = 0;       // each full_every-th layer has no window; 0: all have it
    int unrotated_every = 0;  // each such layer has no rotary positions; 0: all have them
    NormKind norm = NormKind::layernorm;
    PositionKind positions = PositionKind::learned;
    ActivationKind mlp = ActivationKind::gelu;
    NormPlacement norm_placement = NormPlacement::pre;
    QkNorm qk_norm = QkNorm::none;
    bool attention_biases = true, mlp_biases = true;
    bool attention_out_bias = true;  // if attention_biases: also of the projection of the heads
    bool tied_head = true;
    float norm_eps = 1e-5f;
    float rope_base = 10000.0f;
    float rope_scaling = 1.0f;  // divides positions (linear scaling), or only slow frequencies (Llama 3.1's)
    // Llama 3.1's scaling: frequencies that turn less than rope_low_turns times in rope_original_context tokens are
    // divided by rope_scaling, those that turn more than rope_high_turns times are kept. 0, 0, 0: linear scaling.
    float rope_low_turns = 0.0f, rope_high_turns = 0.0f;
    int rope_original_context = 0;
    // YaRN's scaling uses the three numbers, too, and multiplies rotated queries and keys by this. 0: no YaRN.
    float rope_attention = 0.0f;
    float init_std = 0.02f;
    // Probability with which training drops an element of the embedding's output, of the attention's probabilities and
    // of what a branch adds to the residual stream.
    float dropout = 0;
    bool scaled_residual_init = true;  // initialize attention output and mlp-down with init_std / sqrt(2 L), as GPT-2
    DecoderNames names;

    // Whether a LayerNorm sums the gradient of the last bias of a branch: the next one on the residual stream, unless
    // dropout comes between them, or the branch's own.
    bool sums_out_bias() const {
        return row_of(norm).centered && (dropout == 0 || norm_placement != NormPlacement::pre);
    }
    void set_preset(const char* of_family, const char* name, int channels, int layers, int heads, int kv_heads,
                    int ffn) {
        family = of_family;
        preset = name;
        C = channels;
        L = layers;
        NH = heads;
        NKV = kv_heads;
        F = ffn;
    }
    int window_of(int layer) const { return is_nth(full_every, layer) ? 0 : window; }
    bool rotates(int layer) const { return positions == PositionKind::rotary && !is_nth(unrotated_every, layer); }
    // Where only some layers have a window, only the others scale positions, as in OLMo 3.
    bool scales_positions(int layer) const { return full_every == 0 || is_nth(full_every, layer); }
    int HS() const { return head_size > 0 ? head_size : C / NH; }
    int attention_width() const { return NH * HS(); }
    int qkv_width() const { return (NH + 2 * NKV) * HS(); }
    int Vp() const { return (V + 127) / 128 * 128; }  // stored rows of the token table: a multiple of 128
    int Fp() const { return (F + 7) / 8 * 8; }        // stored MLP width: a multiple of 8 (16-byte rows in bf16)

private:
    static bool is_nth(int n, int layer) { return n > 0 && (layer + 1) % n == 0; }
};

}  // namespace teon

// The decoder-only transformer that all families share: blocks of attention and MLP on a residual stream.
#pragma once

#include <memory>

#include "model/activation_plan.h"
#include "model/decoder_config.h"
#include "model/model.h"

namespace teon {

ParamTable decoder_params(const DecoderConfig& c);  // touches no device
// Touches no device. Resolves automatic attention.
ActivationPlan decoder_activations(const DecoderConfig& c, const DecoderRun& r);
AttentionKind resolve_attention(const DecoderConfig& c, const DecoderRun& r);  // UsageError if flash is asked in vain

// Throws UsageError where the device cannot do what the run asks for.
void check_device(const DecoderRun& r, const DeviceInfo& device);

// Training FLOPs of one token in a sequence of T: 6 per weight of every matrix product (head included, embeddings not),
// and causal attention at half of its full square. Recomputation is not counted.
double decoder_flops_per_token(const DecoderConfig& c, int T);

// The arithmetic that recomputation adds to a step, as a share of decoder_flops_per_token. Elementwise work is not
// counted.
double recompute_flops_share(const DecoderConfig& c, int T, const RecomputePlan& recompute);

// Parameters are allocated but not initialized (ParamStore::initialize, or loaded).
std::unique_ptr<Model> make_decoder(const DecoderConfig& c, const DecoderRun& r, Context& context,
                                    const ParamShard& shard = {});

}  // namespace teon

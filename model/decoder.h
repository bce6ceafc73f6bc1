// The decoder-only transformer that all families share: blocks of attention and MLP on a residual stream.
#pragma once

#include <functional>
#include <memory>

#include "model/activation_plan.h"
#include "model/decoder_config.h"
#include "model/model.h"

namespace teon {

ParamTable decoder_params(const DecoderConfig& c);  // touches no device
// Touches no device. Resolves AttentionKind::automatic.
ActivationPlan decoder_activations(const DecoderConfig& c, const DecoderRun& r);
// Returns decoder_activations() of the model for many runs: it builds the model's layers once.
std::function<ActivationPlan(const DecoderRun&)> activation_planner(const DecoderConfig& c);
// Whether flash attention can compute the model's attention. It has no dropout.
bool supports_flash(const DecoderConfig& c, const DecoderRun& r);
// The attention that the run uses. Throws UsageError if flash is asked for but not supported.
AttentionKind resolve_attention(const DecoderConfig& c, const DecoderRun& r);

// Throws UsageError if the device does not support the run's matmul_dtype.
void check_device(const DecoderRun& r, const DeviceInfo& device);

// Training FLOPs of one token in a sequence of T: 6 per weight of every matrix product (including the head, excluding
// embeddings), and half of full attention, because it is causal. Recomputation is not counted.
double decoder_flops_per_token(const DecoderConfig& c, int T);

// FLOPs that recomputation adds to a step, as a fraction of decoder_flops_per_token. Elementwise work is not counted.
double recompute_flops_share(const DecoderConfig& c, int T, const RecomputePlan& recompute);

// Parameters are allocated and zero: the caller initializes (ParamStore::initialize) or loads them.
std::unique_ptr<Model> make_decoder(const DecoderConfig& c, const DecoderRun& r, Context& context,
                                    const ParamShard& shard = {});

}  // namespace teon

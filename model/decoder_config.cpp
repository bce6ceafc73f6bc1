#include "model/decoder_config.h"

namespace teon {

void validate(const DecoderConfig& c) {
    auto within = [](const char* flag, int value, int most) {
        CHECK_USAGE(value > 0 && value <= most, "--{} {}: must be between 1 and {}", flag, value, most);
    };
    within("layers", c.L, kMaxLayers);
    within("channels", c.C, kMaxChannels);
    within("heads", c.NH, kMaxHeads);
    within("kv-heads", c.NKV, kMaxHeads);
    within("ffn", c.F, kMaxFfn);
    within("vocab-size", c.V, kMaxVocab);
    within("seq-len", c.max_T, kMaxContext);
    CHECK_USAGE(c.head_size >= 0 && c.head_size <= kMaxHeadSize, "a head of {} elements", c.head_size);
    CHECK_USAGE(c.head_size > 0 || c.C % c.NH == 0, "--channels {} is not a multiple of --heads {}", c.C, c.NH);
    CHECK_USAGE(c.NH % c.NKV == 0, "--heads {} is not a multiple of --kv-heads {}", c.NH, c.NKV);
    CHECK_USAGE(c.positions != PositionKind::rotary || c.HS() % 2 == 0,
                "rotary positions need an even head size, but a head of this model has {} elements", c.HS());
    CHECK_USAGE(c.family != "gpt2" || c.NKV == c.NH, "--kv-heads {}: GPT-2 has as many key/value heads as heads ({})",
                c.NKV, c.NH);
}

}  // namespace teon

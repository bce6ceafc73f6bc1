#include "model/decoder_config.h"

#include "model/fields.h"

namespace teon {

void validate(const DecoderConfig& c) {
    for (const ModelField& f : model_fields()) {
        const auto* member = std::get_if<int DecoderConfig::*>(&f.member);
        if (!member || (f.otherwise && c.**member == 0)) continue;
        CHECK_USAGE(f.least <= c.**member && c.**member <= f.most, "{} {}: must be between {} and {}", f.name(),
                    c.**member, f.least, f.most);
    }
    CHECK_USAGE(c.head_size > 0 || c.C % c.NH == 0, "--channels {} is not a multiple of --heads {}", c.C, c.NH);
    CHECK_USAGE(c.NH % c.NKV == 0, "--heads {} is not a multiple of --kv-heads {}", c.NH, c.NKV);
    CHECK_USAGE(c.positions != PositionKind::rotary || c.HS() % 2 == 0,
                "rotary positions need an even head size, but a head of this model has {} elements", c.HS());
}

}  // namespace teon

#include "options/likes.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

namespace teon {

namespace {

// A program's rates, decay and momentum are its defaults; a flag that is absent has this program's default.
constexpr Like kLikes[] = {
    {"torch", "torch.optim.Muon of PyTorch 2.15.0",
     "--optimizer muon --ortho jordan --nesterov on --update-scale original --lr 1e-3 --weight-decay 0.1 "
     "--momentum 0.95",
     ""},
    {"torch-rms", "torch.optim.Muon of PyTorch 2.15.0 with match_rms_adamw",
     "--optimizer muon --ortho jordan --nesterov on --update-rms 0.2 --lr 1e-3 --weight-decay 0.1 --momentum 0.95", ""},
    {"keller", "KellerJordan/Muon 857d1ad",
     "--optimizer muon --ortho jordan --nesterov on --update-scale original --lr 0.02 --weight-decay 0 "
     "--momentum 0.95",
     ""},
    {"moonlight", "Moonlight's Muon, as in LLaMA-Factory 0.9.5",
     "--optimizer muon --ortho jordan --nesterov on --update-rms 0.2 --lr 1e-3 --weight-decay 0.1 --momentum 0.95",
     "one learning rate for all: give --adamw-lr the same"},
    {"pytorch-optimizer", "Muon of pytorch-optimizer 4.1.0",
     "--optimizer muon --ortho jordan --nesterov on --update-scale original --lr 0.02 --weight-decay 0 "
     "--momentum 0.95",
     ""},
    {"timm", "Muon of timm 1.0.31",
     "--optimizer muon --ortho you --nesterov off --update-rms 0.2 --lr 0.02 --weight-decay 0 --momentum 0.95",
     "one learning rate for all: give --adamw-lr the same"},
    {"dion", "Muon of microsoft/dion 0a059a4",
     "--optimizer muon --ortho polar-express-dion --nesterov off --update-scale spectral --lr 0.01 "
     "--weight-decay 0.01 --momentum 0.95",
     ""},
    {"dion-you", "Muon of microsoft/dion 0a059a4 with use_polar_express=False",
     "--optimizer muon --ortho you --nesterov off --update-scale spectral --lr 0.01 --weight-decay 0.01 "
     "--momentum 0.95",
     ""},
    {"nvidia", "Muon of emerging-optimizers 0.3.0",
     "--optimizer muon --ortho you --nesterov off --update-rms 1 --lr 3e-4 --weight-decay 0.01 --momentum 0.95",
     "more than five steps, where its coefficients begin again; Megatron's blocks of divided matrices"},
    {"deepspeed", "MuonWithAuxAdam of DeepSpeed 0.19.8",
     "--optimizer muon --ortho jordan --nesterov on --update-scale original --lr 0.02 --weight-decay 0 "
     "--momentum 0.95",
     ""},
    {"optax", "contrib.muon of optax 0.2.8",
     "--optimizer muon --ortho jordan --nesterov on --nesterov-form bias-corrected --update-scale original "
     "--weight-decay 0 --momentum 0.95",
     "Muon for embeddings and head, NAdam for the rest; it has no default for --lr"},
    {"keras", "Muon of Keras 3.15.1",
     "--optimizer muon --ortho jordan --nesterov on --update-rms 0.2 --lr 1e-3 --weight-decay 0.004 --momentum 0.95",
     "Adam for the kernels of MultiHeadAttention, which have three dimensions there"},
    {"heavyball", "Muon of heavyball 3.2.1",
     "--optimizer muon --ortho you --nesterov on --nesterov-form ema --update-scale original --lr 0.0025 "
     "--weight-decay 0 --momentum 0.9",
     "stochastic rounding; SGD for what is not a matrix"},
    {"gram-newton-schulz", "Muon of gram-newton-schulz 0.1.6",
     "--optimizer muon --ortho polar-express-dao --nesterov on --update-rms 0.2 --lr 1e-3 --weight-decay 0.1 "
     "--momentum 0.95",
     ""},
    {"optimuon", "Muon of optimuon 0.1.1",
     "--optimizer normuon --ortho polar-express-dion --nesterov on --update-scale original --lr 0.02 "
     "--weight-decay 0 --cautious-weight-decay on --momentum 0.95 --neuron-beta2 0.95 --neuron-axis long",
     ""},
    {"nanochat", "nanochat 92d63d4",
     "--optimizer normuon --ortho polar-express-nanochat --nesterov on --update-scale original --lr 0.02 "
     "--weight-decay 0.28 --cautious-weight-decay on --decay-at adjusted --momentum 0.97 --momentum-warmup 400 "
     "--momentum-start 0.85 --neuron-beta2 0.9 --neuron-axis long --renormalize on --equalize-rows on",
     "rate and decay scaled by batch and tokens; the decay's cosine to 0; the "
     "momentum's way down to 0.9"},
    {"modded-nanogpt", "modded-nanogpt f411b3d",
     "--optimizer normuon --ortho polar-express-dion --nesterov on --update-scale original --lr 0.023 "
     "--weight-decay 0.0276 --cautious-weight-decay on --decay-at adjusted --momentum 0.95 --momentum-warmup 300 "
     "--momentum-start 0.85 --neuron-beta2 0.9 --neuron-axis long",
     "twice the rate for mlp-down (--lr-scale); decay by the square "
     "of the rate, which 0.0276 = 1.2 x 0.023 gives at the peak only; the momentum's way down to 0.85"},
};

std::vector<std::pair<std::string, std::string>> flags_of(const Like& like) {
    std::vector<std::pair<std::string, std::string>> flags;
    std::istringstream words{std::string(like.flags)};
    for (std::string flag, value; words >> flag >> value;) flags.emplace_back(flag, value);
    return flags;
}

// Whether --update-rms, the short form of --update-scale rms, or --update-scale itself is given in the flag's place.
bool replaced(const std::string& flag, const std::set<std::string>& by_user) {
    const bool scales = flag == "--update-scale" || flag == "--update-rms";
    return by_user.count(flag) || (scales && (by_user.count("--update-scale") || by_user.count("--update-rms")));
}

std::string value_text(const OptionRow& row) {
    const Json value = row.get();
    if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
    return value.is_number() ? fmt::format("{}", value.number()) : value.get<std::string>();
}

bool has(const OptionRow& row, const std::string& value) {
    const std::optional<double> number = parse_number(value);
    return number ? row.get().number() == as_written(static_cast<float>(*number)) : value_text(row) == value;
}

}  // namespace

std::span<const Like> likes() { return kLikes; }

const Like* like_named(std::string_view name) {
    const Like* const row = std::find_if(std::begin(kLikes), std::end(kLikes), [&](auto& l) { return l.name == name; });
    return row == std::end(kLikes) ? nullptr : row;
}

std::set<std::string> apply(const Like& like, const OptionTable& table, const std::set<std::string>& by_user) {
    std::set<std::string> set;
    for (const auto& [flag, value] : flags_of(like)) {
        if (replaced(flag, by_user)) continue;
        table.row(flag).set(value);
        set.insert(flag);
    }
    return set;
}

std::string like_text(const Like& like, const OptionTable& table) {
    std::string text(like.program);
    std::string others;
    for (const auto& [flag, theirs] : flags_of(like)) {
        const OptionRow& row = table.row(flag);
        text += fmt::format("{}{} {}", text.size() == like.program.size() ? ": " : " ", flag, value_text(row));
        if (has(row, theirs)) continue;
        others += fmt::format("{}{} {} (there {})", others.empty() ? "" : ", ", flag, value_text(row), theirs);
    }
    if (!others.empty()) text += "; other than there: " + others;
    return text + (like.not_repeated.empty() ? "" : fmt::format("; not repeated: {}", like.not_repeated));
}

}  // namespace teon

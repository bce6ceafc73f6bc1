// Instructions by which the lanes of a warp exchange values: shuffles, votes, reductions.
#include "gpusim/collective.h"
#include "gpusim/decode/decoder.h"
#include "gpusim/memory.h"

namespace teon::gpusim {

namespace {

const Names<Shuffle> kShuffles = {
    {"bfly", Shuffle::bfly}, {"idx", Shuffle::idx}, {"up", Shuffle::up}, {"down", Shuffle::down}};
const Names<Vote> kVotes = {{"all", Vote::all}, {"any", Vote::any}, {"uni", Vote::uni}, {"ballot", Vote::ballot}};

}  // namespace

void Decoder::shuffle_() {  // d[|p], a, b, c, mask
    need_operands(5, 5);
    instruction_.kind = Kind::collective;
    instruction_.run = &shuffle;
    instruction_.variant = static_cast<uint8_t>(variant(kShuffles));
    const size_t bar = op(0).find('|');
    exact(op(0).substr(0, bar), 4);
    if (bar != std::string_view::npos) exact(op(0).substr(bar + 1), 0);
    const int destinations = instruction_.count;
    for (size_t k = 1; k < 5; ++k) exact(op(k), 4);
    emit(destinations);
}

void Decoder::elect_() {  // d|p, mask
    need_operands(2, 2);
    instruction_.kind = Kind::collective;
    instruction_.run = &elect;
    const size_t bar = op(0).find('|');
    if (bar == std::string_view::npos) refuse("the operands");
    const std::string_view leader = op(0).substr(0, bar);
    add(leader == "_" ? new_register(4) : find_register(leader));
    exact(op(0).substr(bar + 1), 0);
    exact(op(1), 4);
    emit(2);
}

void Decoder::match_() {  // match.any: d, a, mask; match.all: d[|p], a, mask
    need_operands(3, 3);
    const int bytes = bytes_of_type(parts_.back());
    instruction_.kind = Kind::collective;
    instruction_.run = &match;
    instruction_.variant = has("all");
    instruction_.bytes = static_cast<uint8_t>(bytes);
    const size_t bar = op(0).find('|');
    exact(op(0).substr(0, bar), 4);
    if (bar != std::string_view::npos) exact(op(0).substr(bar + 1), 0);
    const int destinations = instruction_.count;
    exact(op(1), bytes);
    exact(op(2), 4);
    emit(destinations);
}

void Decoder::redux_() {  // d, a, mask
    need_operands(3, 3);
    if (has("f32")) refuse("the type");
    instruction_.kind = Kind::collective;
    instruction_.run = &redux;
    instruction_.variant = static_cast<uint8_t>(variant(kAtomics));
    instruction_.sign = has("s32");
    for (size_t k = 0; k < 3; ++k) exact(op(k), 4);
    emit(1);
}

void Decoder::active() {
    need_operands(1, 1);
    instruction_.run = &active_mask;
    exact(op(0), 4);
    emit(1);
}

void Decoder::vote_() {  // d, [!]p, mask
    need_operands(3, 3);
    instruction_.kind = Kind::collective;
    instruction_.run = &vote;
    const Vote v = variant(kVotes);
    instruction_.variant = static_cast<uint8_t>(v);
    exact(op(0), v == Vote::ballot ? 4 : 0);
    instruction_.sign = op(1)[0] == '!';
    exact(op(1).substr(instruction_.sign), 0);
    exact(op(2), 4);
    emit(1);
}

}  // namespace teon::gpusim

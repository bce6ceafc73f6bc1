#include "gpusim/counts.h"

#include <algorithm>
#include <array>

#include "base/integer.h"

namespace teon::gpusim {

namespace {

constexpr uint64_t kWord = 4;
constexpr uint64_t kBanks = 32;
constexpr uint64_t kSector = 32;

// The distinct words that lanes access: at most four per lane, or five if the access is not aligned.
struct Words {
    std::array<uint64_t, 32 * 4 + 32> all;
    size_t count = 0;

    Words(const uint64_t* addresses, Lanes lanes, uint32_t bytes) {
        for_lanes(lanes, [&](int l) {
            for (uint64_t word = addresses[l] / kWord; word <= (addresses[l] + bytes - 1) / kWord; ++word)
                all[count++] = word;
        });
        std::sort(all.begin(), all.begin() + count);
        count = static_cast<size_t>(std::unique(all.begin(), all.begin() + count) - all.begin());
    }
    const uint64_t* begin() const { return all.data(); }
    const uint64_t* end() const { return all.data() + count; }
};

}  // namespace

void KernelCounts::add(const std::vector<Count>& more) {
    const std::lock_guard lock(mutex);
    code.resize(more.size());
    for (size_t k = 0; k < more.size(); ++k) {
        code[k].warps += more[k].warps;
        code[k].lanes += more[k].lanes;
        code[k].transactions += more[k].transactions;
        code[k].at_least += more[k].at_least;
    }
}

void count_sectors(Count& count, const uint64_t* addresses, Lanes lanes, uint32_t bytes) {
    const Words words(addresses, lanes, bytes);
    uint64_t last = ~uint64_t{0};
    for (const uint64_t word : words) {
        const uint64_t sector = word * kWord / kSector;
        count.transactions += sector != last;
        last = sector;
    }
    count.at_least += static_cast<uint64_t>(ceil_div(static_cast<int64_t>(words.count * kWord), int64_t{kSector}));
}

void count_wavefronts(Count& count, const uint64_t* addresses, Lanes lanes, uint32_t bytes) {
    const int of_vectors = bytes == 8 ? 16 : 8;
    const int together = bytes <= kWord ? 32 : of_vectors;
    for (int first = 0; first < 32; first += together) {
        const Lanes some = lanes & static_cast<Lanes>(((uint64_t{1} << together) - 1) << first);
        if (!some) continue;
        const Words words(addresses, some, bytes);
        std::array<uint64_t, kBanks> of_bank{};
        for (const uint64_t word : words) ++of_bank[word % kBanks];
        count.transactions += *std::max_element(of_bank.begin(), of_bank.end());
        count.at_least += static_cast<uint64_t>(ceil_div(static_cast<int64_t>(words.count), int64_t{kBanks}));
    }
}

}  // namespace teon::gpusim

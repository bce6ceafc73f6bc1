// Makes a Batch of given tokens on the device, with all the arrays that the loader derives from them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "data/batch.h"
#include "runtime/device.h"

namespace teon::test {

// Returns the indices of the keys, sorted by key; equal keys keep their order.
inline std::vector<int> order_of(const std::vector<int>& keys) {
    std::vector<int> order(keys.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] < keys[b]; });
    return order;
}

class DeviceBatch {
public:
    DeviceBatch(const std::vector<int>& tokens, const std::vector<int>& targets, int B, int T, const Stream& stream,
                const std::vector<int>& doc_start = {}, int64_t first_sample = 0) {
        std::vector<int> positions(tokens.size());
        for (size_t i = 0; i < tokens.size(); ++i) {
            int t = static_cast<int>(i) % T;
            positions[i] = doc_start.empty() ? t : t - doc_start[i];
        }
        batch_.B = B;
        batch_.T = T;
        batch_.tokens = put(tokens, stream);
        batch_.targets = put(targets, stream);
        batch_.positions = put(positions, stream);
        batch_.token_order = put(order_of(tokens), stream);
        batch_.position_order = put(order_of(positions), stream);
        if (!doc_start.empty()) batch_.doc_start = put(doc_start, stream);
        std::vector<int> number(sizeof first_sample / sizeof(int));
        std::memcpy(number.data(), &first_sample, sizeof first_sample);
        batch_.first_sample = reinterpret_cast<const int64_t*>(put(number, stream));
    }
    const Batch& operator*() const { return batch_; }

private:
    const int* put(const std::vector<int>& values, const Stream& stream) {
        memory_.emplace_back(static_cast<int64_t>(values.size()));
        upload(memory_.back().data(), values.data(), memory_.back().size(), stream);
        stream.synchronize();
        return memory_.back().data();
    }
    std::vector<Buffer<int>> memory_;
    Batch batch_;
};

}  // namespace teon::test

// Makes a Batch of given tokens on the device, with all the arrays that the loader derives from them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "data/batch.h"
#include "test/support/transfer.h"

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
        batch_.tokens = on_device(tokens, stream);
        batch_.targets = on_device(targets, stream);
        batch_.positions = on_device(positions, stream);
        batch_.token_order = on_device(order_of(tokens), stream);
        batch_.position_order = on_device(order_of(positions), stream);
        if (!doc_start.empty()) batch_.doc_start = on_device(doc_start, stream);
        std::vector<int> number(sizeof first_sample / sizeof(int));
        std::memcpy(number.data(), &first_sample, sizeof first_sample);
        batch_.first_sample = reinterpret_cast<const int64_t*>(on_device(number, stream));
    }
    const Batch& operator*() const { return batch_; }

private:
    const int* on_device(const std::vector<int>& values, const Stream& stream) {
        memory_.emplace_back(std::ssize(values));
        put(memory_.back().data(), values, stream);
        return memory_.back().data();
    }
    std::vector<Buffer<int>> memory_;
    Batch batch_;
};

}  // namespace teon::test

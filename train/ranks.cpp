#include "train/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <vector>

#include "base/hash.h"
#include "base/integer.h"
#include "runtime/cuda/comm.h"

namespace teon {

std::string broadcast_from_rank_0(const std::string& text, Context& context) {
    Comm& comm = *context.comm;
    if (comm.size() == 1) return text;
    auto broadcast = [&](std::string bytes) {  // every rank passes the same length
        const size_t size = bytes.size();
        bytes.resize(round_up(size, sizeof(float)));
        const auto n = static_cast<int64_t>(bytes.size() / 4);
        Buffer<float> shared(n);
        upload_bytes(shared.data(), bytes.data(), bytes.size(), context.stream);
        comm.broadcast(shared.data(), DType::f32, {{0, n, 0}}, context.stream);
        comm.join(context.stream);
        download_bytes(bytes.data(), shared.data(), bytes.size(), context.stream);
        context.stream.synchronize();
        bytes.resize(size);
        return bytes;
    };
    std::string length(sizeof(uint64_t), '\0');
    const uint64_t text_bytes = text.size();
    std::memcpy(length.data(), &text_bytes, sizeof text_bytes);
    length = broadcast(length);
    uint64_t size = 0;
    std::memcpy(&size, length.data(), sizeof size);
    return size == 0 ? "" : broadcast(comm.rank() == 0 ? text : std::string(size, '\0'));
}

void on_rank_0(Context& context, const std::function<void()>& work) {
    if (context.comm->size() == 1) return work();
    std::future<void> working;
    if (context.comm->rank() == 0) working = std::async(std::launch::async, work);
    const auto done = [&] {
        return working.valid() && working.wait_for(std::chrono::seconds(1)) == std::future_status::ready;
    };
    while (broadcast_from_rank_0(done() ? "done" : "", context).empty()) {}
    if (working.valid()) working.get();
}

namespace {

// Throws Error naming the first rank and text whose hash differs from rank 0's. name(i): of the i-th text.
void check_hashes(const std::vector<uint64_t>& hashes, const std::function<std::string(size_t)>& name,
                  Context& context) {
    constexpr int64_t words = sizeof(uint64_t) / sizeof(float);  // sent as floats whose bits are not interpreted
    const int64_t floats = words * std::ssize(hashes);
    Buffer<float> own_hashes(floats);
    Buffer<float> all_hashes(floats * context.comm->size());
    upload_bytes(own_hashes.data(), hashes.data(), hashes.size() * sizeof(uint64_t), context.stream);
    context.comm->all_gather(all_hashes.data(), own_hashes.data(), floats, DType::f32, context.stream);
    context.comm->join(context.stream);
    std::vector<uint64_t> of_ranks(hashes.size() * static_cast<size_t>(context.comm->size()));
    download_bytes(of_ranks.data(), all_hashes.data(), of_ranks.size() * sizeof(uint64_t), context.stream);
    context.stream.synchronize();
    for (size_t i = hashes.size(); i < of_ranks.size(); ++i)
        CHECK(of_ranks[i] == of_ranks[i % hashes.size()], "rank {} has different {} than rank 0", i / hashes.size(),
              name(i % hashes.size()));
}

uint64_t hash_on_device(const std::byte* data, size_t bytes, std::vector<std::byte>& window, const Stream& stream) {
    Hash hash;
    for (size_t begin = 0; begin < bytes; begin += window.size()) {
        const size_t size = std::min(window.size(), bytes - begin);
        download_bytes(window.data(), data + begin, size, stream);
        stream.synchronize();
        hash.update(window.data(), size);
    }
    return hash.digest();
}

}  // namespace

void check_same_on_all_ranks(const ParamStore& params, Context& context) {
    if (params.has_weight_windows()) return;
    const ParamTable& table = params.table();
    const size_t element = size_of(params.dtype());
    const auto* weights = static_cast<const std::byte*>(params.work_all());
    std::vector<std::byte> window(std::min(static_cast<size_t>(table.size()) * element, size_t{64} << 20));
    std::vector<uint64_t> hashes;
    for (const ParamRow& row : table.rows())
        hashes.push_back(hash_on_device(weights + static_cast<size_t>(row.offset) * element,
                                        static_cast<size_t>(row.size()) * element, window, context.stream));
    const auto name = [&](size_t row) { return "weights " + table.rows()[row].name; };
    check_hashes(hashes, name, context);
}

void check_equal_on_all_ranks(const std::string& text, const char* what, Context& context) {
    check_hashes(
        {hash_of(text)}, [&](size_t) { return what; }, context);
}

}  // namespace teon

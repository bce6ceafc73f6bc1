#include "train/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <vector>

#include "base/hash.h"
#include "base/integer.h"
#include "runtime/comm.h"

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

void check_hash(uint64_t hash, const std::string& what, Context& context) {
    constexpr int64_t words = sizeof hash / sizeof(float);  // sent as floats whose bits are not interpreted
    Buffer<float> own_hash(words);
    Buffer<float> all_hashes(words * context.comm->size());
    upload_bytes(own_hash.data(), &hash, sizeof hash, context.stream);
    context.comm->all_gather(all_hashes.data(), own_hash.data(), words, DType::f32, context.stream);
    context.comm->join(context.stream);
    std::vector<uint64_t> hashes(context.comm->size());
    download_bytes(hashes.data(), all_hashes.data(), hashes.size() * sizeof hash, context.stream);
    context.stream.synchronize();
    for (size_t r = 1; r < hashes.size(); ++r)
        CHECK(hashes[r] == hashes[0], "rank {} has different {} than rank 0", r, what);
}

}  // namespace

void check_same_on_all_ranks(const ParamStore& params, Context& context) {
    if (params.has_weight_windows()) return;
    const size_t bytes = static_cast<size_t>(params.table().size()) * size_of(params.dtype());
    const auto* weights = static_cast<const std::byte*>(params.work_all());
    std::vector<std::byte> window(std::min(bytes, size_t{64} << 20));
    Hash hash;
    for (size_t begin = 0; begin < bytes; begin += window.size()) {
        const size_t size = std::min(window.size(), bytes - begin);
        download_bytes(window.data(), weights + begin, size, context.stream);
        context.stream.synchronize();
        hash.update(window.data(), size);
    }
    check_hash(hash.digest(), "weights", context);
}

void check_equal_on_all_ranks(const std::string& text, const char* what, Context& context) {
    check_hash(hash_of(text), what, context);
}

}  // namespace teon

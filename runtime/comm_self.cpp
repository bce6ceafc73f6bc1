// What all communicators share, and the communicator of a single process: rank 0 of 1, whose collectives leave the data
// as it is but check their arguments as those of many ranks do.
#include "runtime/comm.h"

#include <algorithm>

namespace teon {

std::vector<Part> even_parts(int64_t n, int ranks, int64_t align) {
    std::vector<Part> parts;
    int64_t begin = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        const int64_t end = rank + 1 == ranks ? n : n * (rank + 1) / ranks / align * align;
        parts.push_back({begin, end - begin, rank});
        begin = end;
    }
    return parts;
}

void Comm::check(const char* operation, const std::vector<Part>& parts) const {
    for (const Part& part : parts) {
        CHECK(part.size >= 0, "{}: {} elements", operation, part.size);
        CHECK(part.root >= 0 && part.root < size(), "{}: root {}, but this run has the ranks 0 to {}", operation,
              part.root, size() - 1);
    }
}

void Comm::reduce_sum(float* data, const std::vector<Part>& parts, const Stream& stream) {
    check("reduce_sum", parts);
    for (const Part& part : parts)
        if (part.root != rank()) bytes_sent_ += part.size * static_cast<int64_t>(sizeof(float));
    queue_reduce(data, parts, stream);
}

void Comm::broadcast(void* data, DType dtype, const std::vector<Part>& parts, const Stream& stream) {
    check("broadcast", parts);
    for (const Part& part : parts)
        if (part.root == rank()) bytes_sent_ += part.size * static_cast<int64_t>(size_of(dtype)) * (size() - 1);
    queue_broadcast(data, dtype, parts, stream);
}

void Comm::all_reduce_sum(float* data, int64_t n, const Stream& stream) {
    CHECK(n >= 0, "all_reduce_sum: {} elements", n);
    const std::vector<Part> parts = even_parts(n, size());
    reduce_sum(data, parts, stream);
    broadcast(data, DType::f32, parts, stream);
}

void Comm::all_gather(void* out, const void* in, int64_t n_each, DType dtype, const Stream& stream) {
    CHECK(n_each >= 0, "all_gather: {} elements", n_each);
    const size_t bytes = static_cast<size_t>(n_each) * size_of(dtype);
    std::byte* own = static_cast<std::byte*>(out) + bytes * rank();
    if (own != in) copy_bytes(own, in, bytes, stream);
    std::vector<Part> parts;
    for (int r = 0; r < size(); ++r) parts.push_back({r * n_each, n_each, r});
    broadcast(out, dtype, parts, stream);
}

namespace {

class SelfComm final : public Comm {
public:
    int rank() const override { return 0; }
    int size() const override { return 1; }
    void join(const Stream&) override {}
    void barrier() override {}
    void fail(const std::string&) noexcept override {}

private:
    void queue_reduce(float*, const std::vector<Part>&, const Stream&) override {}
    void queue_broadcast(void*, DType, const std::vector<Part>&, const Stream&) override {}
};

}  // namespace

std::unique_ptr<Comm> make_comm() {
    const Launch launch = launch_from_environment();
    return launch.alone() ? std::make_unique<SelfComm>() : make_comm(launch);
}

}  // namespace teon

#include "runtime/cuda/device.h"

#include <cmath>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "kernels/reduce.h"
#include "test/support/compare.h"
#include "test/support/transfer.h"

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

TEST_CASE("runtime/cuda/device: the device describes itself") {
    REQUIRE(device_count() >= 1);
    set_device(0);
    DeviceInfo info = device_info();
    REQUIRE_FALSE(info.name.empty());
    REQUIRE(info.multiprocessors >= 1);
    REQUIRE(info.total_bytes > 0);
    REQUIRE(info.free_bytes > 0);
    REQUIRE(info.free_bytes <= info.total_bytes);
    if (std::string(backend_name()) == "cuda") REQUIRE(info.is_gpu);
    REQUIRE((info.compute_capability > 0) == info.is_gpu);
    REQUIRE_THROWS_AS(set_device(device_count()), Error);
    REQUIRE_THROWS_AS(set_device(-1), Error);
}

TEST_CASE("runtime/cuda/device: buffers are counted while they live") {
    size_t before = device_bytes_in_use();
    {
        Buffer<float> a(1000);
        REQUIRE(device_bytes_in_use() == before + 4000);
        Buffer<bf16> b(33);
        REQUIRE(device_bytes_in_use() == before + 4066);
        REQUIRE(device_bytes_peak() >= before + 4066);
        for (const void* p : {static_cast<void*>(a.data()), static_cast<void*>(b.data())})
            REQUIRE(reinterpret_cast<uintptr_t>(p) % 256 == 0);
        Buffer<float> moved(std::move(a));
        REQUIRE(a.data() == nullptr);
        REQUIRE(a.size() == 0);
        REQUIRE(moved.size() == 1000);
        moved = Buffer<float>(10);
        REQUIRE(device_bytes_in_use() == before + 106);
        Buffer<float> empty(0);
        REQUIRE(empty.data() == nullptr);
    }
    REQUIRE(device_bytes_in_use() == before);
    REQUIRE(device_bytes_peak() >= before + 4066);
}

TEST_CASE("runtime/cuda/device: offloaded memory is used as the device's and is not counted") {
    Stream stream;
    const size_t before = device_bytes_in_use();
    const OffloadableBuffer<float> here(33, false);
    const OffloadableBuffer<float> offloaded(33, true);
    const OffloadableBuffer<float> none;
    REQUIRE(device_bytes_in_use() == before + 33 * 4);
    REQUIRE((offloaded.size() == 33 && none.size() == 0 && none.data() == nullptr));
    const std::vector<float> values = random_values<float>(33, 1);
    upload(offloaded.data(), values.data(), 33, stream);
    zero(here.data(), 33, stream);
    add(here.data(), offloaded.data(), 33, stream);  // kernels read it
    add(offloaded.data(), here.data(), 33, stream);  // and write it
    copy(here.data(), offloaded.data(), 33, stream);
    zero(offloaded.data(), 32, stream);
    const std::vector<float> twice = fetch(here.data(), 33, stream);
    const std::vector<float> rest = fetch(offloaded.data(), 33, stream);
    for (int i = 0; i < 33; ++i) {
        REQUIRE(twice[i] == 2 * values[i]);
        REQUIRE(rest[i] == (i < 32 ? 0 : 2 * values[i]));
    }
}

TEST_CASE("runtime/cuda/device: a graph does again what was queued, wherever its memory's values come from") {
    Stream stream;
    Buffer<int> from(3);
    Buffer<int> between(3);
    Buffer<int> to(3);
    PinnedBuffer<int> seen(3);
    zero(from.data(), 3, stream);
    Graph graph(stream, [&] {
        copy(between.data(), from.data(), 3, stream);
        std::thread([] { const Buffer<int> other(5); }).join();  // a capture does not restrict other threads
        copy(to.data(), between.data(), 3, stream);
    });
    const Graph moved(std::move(graph));
    for (const int value : {5, 6, 7}) {
        const std::vector<int> values(3, value);
        upload(from.data(), values.data(), 3, stream);
        moved.launch(stream);
        download(seen.data(), to.data(), 3, stream);
        stream.synchronize();
        for (int i = 0; i < 3; ++i) REQUIRE(seen[i] == value);
    }
}

TEST_CASE("runtime/cuda/device: a graph of what allocates, waits or throws is refused, and the stream goes on") {
    Stream stream;
    Buffer<int> x(2);
    REQUIRE_THROWS_AS(Graph(stream, [&] { const Buffer<int> more(4); }), Error);
    REQUIRE_THROWS_AS(Graph(stream, [&] { stream.synchronize(); }), Error);
    REQUIRE_THROWS_AS(Graph(stream,
                            [&] {
                                zero(x.data(), 2, stream);
                                throw std::out_of_range("mine");
                            }),
                      std::out_of_range);
    const Graph graph(stream, [&] { zero(x.data(), 2, stream); });
    put(x.data(), {1, 2}, stream);
    graph.launch(stream);
    REQUIRE(fetch(x, stream) == std::vector<int>{0, 0});
}

TEST_CASE("runtime/cuda/device: an allocation that cannot be had is an error and is not counted") {
    size_t before = device_bytes_in_use();
    REQUIRE(contains(error_of([] { Buffer<float> huge(int64_t{1} << 50); }), "4503599627370496"));  // 4 PiB
    REQUIRE(device_bytes_in_use() == before);
}

TEST_CASE("runtime/cuda/device: copies arrive whole, in order and within bounds") {
    Stream stream;
    for (int64_t n : {0, 1, 31, 33, 97, 100003}) {
        auto values = random_values<float>(n, 1);
        Guarded<float> a(n, stream);
        Guarded<float> b(n, stream);
        upload(a.data(), values.data(), n, stream);
        copy(b.data(), a.data(), n, stream);
        zero(a.data(), n, stream);
        std::vector<float> back(n, -1.0f);
        download(back.data(), b.data(), n, stream);
        stream.synchronize();
        REQUIRE(same_bits(back, values));
        REQUIRE(same_bits(b.get(), values));
        REQUIRE(same_bits(a.get(), std::vector<float>(n, 0.0f)));
        fill_bytes(a.data(), 0xff, n * sizeof(float), stream);
        for (float x : a.get()) REQUIRE(std::isnan(x));
    }
}

TEST_CASE("runtime/cuda/device: pinned memory copies like any other and is not device memory") {
    Stream stream;
    size_t before = device_bytes_in_use();
    PinnedBuffer<float> out(1000);
    PinnedBuffer<float> in(1000);
    REQUIRE(device_bytes_in_use() == before);
    std::iota(out.data(), out.data() + 1000, 0.0f);
    std::fill_n(in.data(), 1000, -1.0f);
    Buffer<float> device(1000);
    upload(device.data(), out.data(), 1000, stream);
    download(in.data(), device.data(), 1000, stream);
    stream.synchronize();
    for (int i = 0; i < 1000; ++i) REQUIRE(in[i] == static_cast<float>(i));
}

TEST_CASE("runtime/cuda/device: fresh host memory holds NaN in every storage type") {
    if (device_info().is_gpu) return;  // a GPU's memory is not initialized
    Stream stream;
    Buffer<std::byte> memory(1024);
    for (float x : fetch(reinterpret_cast<float*>(memory.data()), 256, stream)) REQUIRE(std::isnan(x));
    for (bf16 x : fetch(reinterpret_cast<bf16*>(memory.data()), 512, stream))
        REQUIRE(std::isnan(static_cast<float>(x)));
}

TEST_CASE("runtime/cuda/device: events measure time and order streams") {
    Stream stream;
    Stream other;
    Event from;
    Event to;
    Buffer<float> memory(1 << 20);
    from.record(stream);
    zero(memory.data(), memory.size(), stream);
    to.record(stream);
    to.make_wait(other);
    REQUIRE(same_bits(fetch(memory, other), std::vector<float>(1 << 20, 0.0f)));
    to.synchronize();
    REQUIRE(from.done());
    REQUIRE(to.done());
    REQUIRE(Event::milliseconds(from, to) > 0.0);
    Event moved(std::move(to));
    REQUIRE(Event::milliseconds(from, moved) > 0.0);
}

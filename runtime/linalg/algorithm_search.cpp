#include "runtime/linalg/algorithm_search.h"

#include "runtime/cuda/cuda_check.h"

namespace teon {

void AlgorithmSearch::start(std::map<std::string, std::string> choices,
                            std::function<void(const AlgorithmChoice&)> chosen) {
    started_ = true;
    known_ = std::move(choices);
    chosen_ = std::move(chosen);
}

bool AlgorithmSearch::may_try() const {
    if (!started_) return false;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    detail::check_cuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream_.handle()), &capture),
                       "gemm: asking about stream capture");
    return capture == cudaStreamCaptureStatusNone;
}

const std::string* AlgorithmSearch::choice_of(const std::string& product) const {
    const auto entry = known_.find(product);
    return entry == known_.end() ? nullptr : &entry->second;
}

void AlgorithmSearch::report(const AlgorithmChoice& choice) const {
    if (chosen_) chosen_(choice);
}

double AlgorithmSearch::milliseconds(const std::function<void()>& run) const {
    constexpr int runs = 5;
    Event from;
    Event to;
    from.record(stream_);
    for (int k = 0; k < runs; ++k) run();
    to.record(stream_);
    to.synchronize();
    return Event::milliseconds(from, to) / runs;
}

}  // namespace teon

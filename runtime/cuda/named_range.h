// Names of phases for NVIDIA's external profilers:  nsys profile --trace=cuda,nvtx ./train_gpt2 ...
#pragma once

namespace teon {

// Names the work that this thread queues during the object's lifetime; ranges may be nested. Unlike a profiler's scope
// (runtime/cuda/profiler.h) it queues nothing, so kernels start early as they do without it. Does nothing on a CPU, and
// if the program was built without CUDA's header nvtx3/nvToolsExt.h.
class NamedRange {
public:
    explicit NamedRange(const char* name);
    ~NamedRange();
    NamedRange(const NamedRange&) = delete;
};

}  // namespace teon

// A training step on a constant batch, for benchmarks. It does the work of Trainer's step (train/trainer.cpp) on one
// rank, without a loader or a log.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/reduce.h"
#include "kernels/step_control.h"
#include "model/decoder.h"
#include "optim/optimizer.h"
#include "test/support/device_batch.h"

namespace teon::bench {

class TrainingStep {
public:
    // A step is `micro_steps` micro-batches of run.B x run.T uniform random tokens.
    TrainingStep(const DecoderConfig& config, const DecoderRun& run, int micro_steps,
                 const OptimizerOptions& options = {})
        : micro_steps_(micro_steps),
          model_(make_decoder(config, run, context)),
          optimizer_(model_->params(), options, context),
          batch_(random_tokens(run.B * run.T, config.V, 1), random_tokens(run.B * run.T, config.V, 2), run.B, run.T,
                 context.stream),
          losses_(int64_t{run.B} * run.T) {
        model_->params().initialize(1, context.stream);
        zero(reinterpret_cast<std::byte*>(control_.data()), sizeof(StepControl), context.stream);
    }

    int64_t tokens() const { return micro_steps_ * losses_.size(); }
    const ParamTable& table() const { return model_->params().table(); }

    // Run `steps` steps and return their median milliseconds, or those of the fastest.
    double median_ms(int steps) { return sorted_ms(steps)[static_cast<size_t>(steps / 2)]; }
    double fastest_ms(int steps) { return sorted_ms(steps)[0]; }

    Context context;

private:
    std::vector<double> sorted_ms(int steps) {
        std::vector<double> ms;
        for (int i = 0; i < steps; ++i) {
            Event begin;
            Event end;
            begin.record(context.stream);
            step();
            end.record(context.stream);
            end.synchronize();
            ms.push_back(Event::milliseconds(begin, end));
        }
        std::sort(ms.begin(), ms.end());
        return ms;
    }

    static std::vector<int> random_tokens(int n, int vocabulary, uint64_t state) {
        std::vector<int> tokens(static_cast<size_t>(n));
        for (int& token : tokens) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            token = static_cast<int>((state >> 33) % static_cast<uint64_t>(vocabulary));
        }
        return tokens;
    }

    void step() {
        ParamStore& params = model_->params();
        const float grad_scale = 1.0f / static_cast<float>(tokens());
        for (int micro = 0; micro < micro_steps_; ++micro) {
            model_->forward_backward(losses_.data(), *batch_, grad_scale, micro > 0);
            reduce_sum(sums_.data(), scratch_.data(), losses_.data(), losses_.size(), micro > 0, context.stream);
        }
        reduce_sum_squares(sums_.data() + 1, scratch_.data(), params.gradients().data<float>(), params.table().size(),
                           false, context.stream);
        step_control(control_.data(), sums_.data() + 1, sums_.data(), 1.0f, 1.0f, 0.0f, 0.9f, 0.95f, context.stream);
        optimizer_.step(params, control_.data(), context);
    }

    int micro_steps_;
    std::unique_ptr<Model> model_;
    Optimizer optimizer_;
    test::DeviceBatch batch_;
    Buffer<float> losses_, sums_{2};
    Buffer<StepControl> control_{1};
    Buffer<std::byte> scratch_{static_cast<int64_t>(reduce_scratch_bytes())};
};

}  // namespace teon::bench

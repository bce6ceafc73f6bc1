// Runs whose checkpoints the tests write and read, and file operations with planted faults.
#pragma once

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_writer.h"
#include "files/json.h"
#include "model/decoder.h"
#include "model/gpt2.h"
#include "model/llama.h"
#include "test/support/compare.h"
#include "test/support/temp_dir.h"
#include "test/support/transfer.h"
#include "test/support/whole_params.h"

namespace teon::test {

inline DecoderConfig small_config(bool llama, int L = 2) {
    DecoderConfig c = llama ? llama_family().config("tiny") : gpt2_family().config("tiny");
    c.L = L;
    c.C = 8;
    c.NH = c.NKV = 2;
    c.F = 13;
    c.V = 11;
    c.max_T = 4;  // F is stored with padding
    return c;
}

// A model with an optimizer, both filled with distinct numbers that no initialization gives.
struct Trained {
    Context ctx;
    DecoderConfig config;
    std::unique_ptr<Model> model;
    std::unique_ptr<Optimizer> optimizer;

    explicit Trained(uint64_t seed, Method method = Method::teon, bool llama = false, DType dtype = DType::f32,
                     int L = 2)
        : config(small_config(llama, L)), model(make_decoder(config, {1, 4, dtype}, ctx)) {
        OptimizerOptions o;
        o.method = method;
        o.ns_dtype = DType::f32;
        optimizer = std::make_unique<Optimizer>(model->params(), o, ctx);
        fill(seed);
    }
    void fill(uint64_t seed) {
        for (int i = 0; i < model->table().count(); ++i)
            put(model->params().master(i), random_values<float>(model->table()[i].size(), seed++), ctx.stream);
        round_masters(model->params(), ctx.stream);
        for (const StateTensor& t : optimizer->state()) put(t.data, random_values<float>(t.size(), seed++), ctx.stream);
    }
    // Sets the padding to 0, as training leaves it.
    void clear_padding() {
        for (int i = 0; i < model->table().count(); ++i) {
            const ParamRow& row = model->table()[i];
            std::vector<float> values = fetch(model->params().master(i), row.size(), ctx.stream);
            for (int64_t at = 0; at < row.size(); ++at)
                if (at / row.cols >= row.logical_rows || at % row.cols >= row.logical_cols)
                    values[static_cast<size_t>(at)] = 0;
            put(model->params().master(i), values, ctx.stream);
        }
        round_masters(model->params(), ctx.stream);
    }
    // Returns every float that a checkpoint must restore, padding included.
    std::vector<float> bits() const {
        std::vector<float> all;
        const auto add = [&](const float* from, int64_t n) {
            const std::vector<float> values = fetch(from, n, ctx.stream);
            all.insert(all.end(), values.begin(), values.end());
        };
        for (int i = 0; i < model->table().count(); ++i) add(model->params().master(i), model->table()[i].size());
        for (const StateTensor& t : optimizer->state()) add(t.data, t.size());
        return all;
    }
    void read(const std::string& checkpoint) {
        read_tensors(checkpoint, model->params(), optimizer->state(), ctx.stream);
    }
    CheckpointPlan plan(const std::string& folder) const {
        CheckpointPlan p;
        p.run_folder = folder;
        p.config = json_text(hf_config(config.family == "llama" ? llama_family() : gpt2_family(), config, 10)) + "\n";
        p.extra_files = {{"tokenizer/tokens.bin", "tokens"}, {"tokenizer.json", "{}"}};
        return p;
    }
    SaveResult save(const std::string& folder, int64_t step, FileOps& files) const {
        CheckpointWriter writer(plan(folder), model->params(), optimizer->state(), files);
        writer.save(state(step), ctx.stream);
        return *writer.result(true);
    }
    // Saves a checkpoint. Returns the fault, "" if there is none.
    std::string save(CheckpointWriter& writer, int64_t step, int skipped_in_row = 1, bool interim = false,
                     bool best = false) const {
        TrainingState s = state(step);
        s.control.skipped_in_row = skipped_in_row;
        s.interim = interim;
        writer.save(s, ctx.stream, nullptr, 0, best ? std::optional(loss_of(step)) : std::nullopt);
        return writer.result(true)->fault;
    }
    static double loss_of(int64_t step) { return 1.0 / static_cast<double>(step); }
    static TrainingState state(int64_t step) {
        TrainingState s;
        s.step = step;
        s.tokens = 1000 * step;
        s.next_sample = 10 * step + 3;
        s.control.updates = static_cast<int>(step) - 1;
        s.control.skipped_in_row = 1;
        s.control.loss_stats = {0.1f, 1e-30f, 17};
        s.control.grad_norm_stats = {1e30f, 0.3f, 128};
        s.run = {{"options", {{"lr", 0.1f}}}};
        s.log = {1000 * step, 0xfedcba9876543210};
        s.best = {loss_of(step), step, 3, step + 5};
        return s;
    }
};

// File operations with a planted fault. Syncs do nothing, because the tests do not cut the power.
struct FaultyFiles : FileOps {
    enum Kind { error, short_write, crash };
    Kind kind = error;
    int64_t fault_at = -1;  // the call that fails; a crash also fails every call after it
    int code = EIO;
    int64_t calls = 0;
    bool happened = false;

    FaultyFiles() = default;
    FaultyFiles(Kind kind, int64_t fault_at, int code = EIO) : kind(kind), fault_at(fault_at), code(code) {}

    bool fails() {
        const bool now = calls++ == fault_at;
        happened |= now;
        if (now || (happened && kind == crash)) errno = code;
        return kind == crash ? happened : now && kind == error;
    }
    int make_folder(const std::string& path) override { return fails() ? -1 : FileOps::make_folder(path); }
    int create(const std::string& path) override { return fails() ? -1 : FileOps::create(path); }
    ssize_t write(int file, const void* data, size_t bytes) override {
        const int64_t call = calls;
        const bool failed = fails();
        if (failed || call == fault_at) {  // a part is written even if the machine stops within the call
            const ssize_t n = FileOps::write(file, data, kind == error ? 0 : (bytes + 1) / 2);
            return failed ? -1 : n;
        }
        return FileOps::write(file, data, bytes);
    }
    int sync(int) override { return fails() ? -1 : 0; }
    int close(int file) override {
        const bool failed = fails();
        const int status = FileOps::close(file);
        return failed ? -1 : status;
    }
    int sync_folder(const std::string&) override { return fails() ? -1 : 0; }
    int rename(const std::string& from, const std::string& to) override {
        return fails() ? -1 : FileOps::rename(from, to);
    }
    int link(const std::string& target, const std::string& path) override {
        return fails() ? -1 : FileOps::link(target, path);
    }
    int remove_folder(const std::string& path) override { return fails() ? -1 : FileOps::remove_folder(path); }
};

// A run of one layer and its folder.
struct SmallRun : Trained {
    TempDir folder;
    FaultyFiles files;

    explicit SmallRun(uint64_t seed = 1) : Trained(seed, Method::adamw, false, DType::f32, 1) {}

    // Saves the checkpoint of a step and returns its folder.
    std::string save(int64_t step) {
        const SaveResult result = Trained::save(folder.path(), step, files);
        CHECK(result.fault.empty(), "{}", result.fault);
        return result.folder;
    }
    using Trained::save;
    CheckpointWriter writer(int64_t keep_last, int64_t keep_every, FileOps& operations) const {
        CheckpointPlan p = plan(folder.path());
        p.keep_last = keep_last;
        p.keep_every = keep_every;
        return CheckpointWriter(p, model->params(), optimizer->state(), operations);
    }
    CheckpointWriter writer(int64_t keep_last = 0, int64_t keep_every = 0) {
        return writer(keep_last, keep_every, files);
    }
    std::string checkpoint(int64_t step) const { return folder / checkpoint_name(step); }
    std::vector<int64_t> steps() const { return list_checkpoints(folder.path()); }
    FoundCheckpoint find() const { return find_checkpoint(folder.path()); }
};

}  // namespace teon::test

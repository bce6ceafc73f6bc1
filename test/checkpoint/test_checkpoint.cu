#include "checkpoint/checkpoint.h"

#include <pthread.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"
#include "model/decoder.h"
#include "model/gpt2.h"
#include "model/llama.h"
#include "test/support/compare.h"
#include "test/support/json.h"
#include "test/support/skip.h"
#include "test/support/temp_dir.h"

#include "test/support/catch.h"
#include "test/support/fuzz.h"
#include "test/support/whole_params.h"

using namespace teon;
using namespace teon::test;
namespace fs = std::filesystem;

namespace {

DecoderConfig small_config(bool llama, int L = 2) {
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
            put(model->params().master(i), model->table()[i].size(), seed++);
        round_masters(model->params(), ctx.stream);
        for (const StateTensor& t : optimizer->state()) put(t.data, int64_t{t.rows} * t.cols, seed++);
    }
    // Sets the padding to 0, as training leaves it.
    void clear_padding() {
        for (int i = 0; i < model->table().count(); ++i) {
            const ParamRow& row = model->table()[i];
            std::vector<float> values(static_cast<size_t>(row.size()));
            download(values.data(), model->params().master(i), row.size(), ctx.stream);
            ctx.stream.synchronize();
            for (int64_t at = 0; at < row.size(); ++at)
                if (at / row.cols >= row.logical_rows || at % row.cols >= row.logical_cols)
                    values[static_cast<size_t>(at)] = 0;
            upload(model->params().master(i), values.data(), row.size(), ctx.stream);
            ctx.stream.synchronize();
        }
        round_masters(model->params(), ctx.stream);
    }
    void put(float* to, int64_t n, uint64_t seed) {
        const std::vector<float> values = random_values<float>(n, seed);
        upload(to, values.data(), n, ctx.stream);
        ctx.stream.synchronize();
    }
    // Returns every float that a checkpoint must restore, padding included.
    std::vector<float> bits() {
        std::vector<float> all;
        auto add = [&](const float* from, int64_t n) {
            all.resize(all.size() + static_cast<size_t>(n));
            download(all.data() + all.size() - n, from, n, ctx.stream);
            ctx.stream.synchronize();
        };
        for (int i = 0; i < model->table().count(); ++i) add(model->params().master(i), model->table()[i].size());
        for (const StateTensor& t : optimizer->state()) add(t.data, int64_t{t.rows} * t.cols);
        return all;
    }
    CheckpointPlan plan(const std::string& folder) const {
        CheckpointPlan p;
        p.run_folder = folder;
        p.config = json_text(hf_config(config.family == "llama" ? llama_family() : gpt2_family(), config, 10)) + "\n";
        p.extra_files = {{"tokenizer/tokens.bin", "tokens"}, {"tokenizer.json", "{}"}};
        return p;
    }
    SaveResult save(const std::string& folder, int64_t step, FileOps& files) {
        CheckpointWriter writer(plan(folder), model->params(), optimizer->state(), files);
        writer.save(state(step), ctx.stream);
        return *writer.result(true);
    }
    // Saves a checkpoint. Returns the fault, "" if there is none.
    std::string save(CheckpointWriter& writer, int64_t step, int skipped_in_row = 1, bool interim = false,
                     bool best = false) {
        TrainingState s = state(step);
        s.control.skipped_in_row = skipped_in_row;
        s.interim = interim;
        writer.save(s, ctx.stream, nullptr, 0, best);
        return writer.result(true)->fault;
    }
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
        return s;
    }
};

// File operations with a planted fault. Syncs do nothing, because the tests do not cut the power.
struct FaultyFiles : FileOps {
    enum Kind { error, short_write, crash };
    int64_t calls = 0, fault_at = -1;  // the call that fails; a crash also fails every call after it
    Kind kind = error;
    int code = EIO;
    bool happened = false;

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
    int sync_path(const std::string&) override { return fails() ? -1 : 0; }
    int rename(const std::string& from, const std::string& to) override {
        return fails() ? -1 : FileOps::rename(from, to);
    }
    int link(const std::string& target, const std::string& path) override {
        return fails() ? -1 : FileOps::link(target, path);
    }
    int remove_folder(const std::string& path) override { return fails() ? -1 : FileOps::remove_folder(path); }
};

std::vector<std::string> files_of(const std::string& folder) {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
        if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), folder).string());
    std::sort(files.begin(), files.end());
    return files;
}

}  // namespace

TEST_CASE("checkpoint/checkpoint: what is read is what was written, bit for bit") {
    for (Method method : {Method::adamw, Method::lion, Method::muon, Method::normuon, Method::teon})
        for (bool llama : {false, true})
            for (DType dtype : {DType::f32, DType::bf16}) {
                TempDir folder;
                FaultyFiles files;
                Trained saved(1, method, llama, dtype);
                Trained loaded(1000, method, llama, dtype);
                const SaveResult result = saved.save(folder.path(), 7, files);
                REQUIRE(result.fault == "");
                REQUIRE(result.folder == folder / "step_00000007");
                const FoundCheckpoint checkpoint_found = find_checkpoint(folder.path());
                REQUIRE(checkpoint_found.folder == result.folder);
                REQUIRE(checkpoint_found.passed_over.empty());
                REQUIRE(to_json(read_training_state(checkpoint_found.folder)) == to_json(Trained::state(7)));
                read_tensors(checkpoint_found.folder, loaded.model->params(), loaded.optimizer->state(),
                             loaded.ctx.stream);
                REQUIRE(same_bits(loaded.bits(), saved.bits()));
                if (dtype == DType::bf16) {
                    std::vector<bf16> a(static_cast<size_t>(saved.model->table().size()));
                    std::vector<bf16> b = a;
                    for (auto [from, to] : {std::pair{&saved, &a}, {&loaded, &b}}) {
                        download(to->data(), static_cast<bf16*>(from->model->params().work_all()), std::ssize(*to),
                                 from->ctx.stream);
                        from->ctx.stream.synchronize();
                    }
                    REQUIRE(std::memcmp(a.data(), b.data(), a.size() * sizeof(bf16)) == 0);
                }
            }
}

TEST_CASE("checkpoint/checkpoint: model.safetensors holds the weights without padding, under Hugging Face's names") {
    for (bool llama : {false, true}) {
        TempDir folder;
        FaultyFiles files;
        Trained saved(1, Method::adamw, llama);
        Trained loaded(1000, Method::adamw, llama);
        const std::string checkpoint = saved.save(folder.path(), 7, files).folder;
        load_weights(loaded.model->params(), SafetensorsModel(checkpoint), loaded.ctx.stream);
        loaded.ctx.stream.synchronize();
        const ParamTable& table = saved.model->table();
        const std::vector<float> expected = saved.bits();
        const std::vector<float> values_found = loaded.bits();
        int64_t begin = 0;  // first element of row r
        for (int r = 0; r < table.count(); begin += table[r++].size())
            for (int i = 0; i < table[r].logical_rows; ++i)
                for (int j = 0; j < table[r].logical_cols; ++j) {
                    const auto at = static_cast<size_t>(begin + int64_t{i} * table[r].cols + j);
                    if (values_found[at] != expected[at]) FAIL(table[r].name << " " << i << " " << j);
                }
        REQUIRE(read_file(checkpoint + "/tokenizer/tokens.bin") == "tokens");
        REQUIRE(read_file(checkpoint + "/tokenizer.json") == "{}");
    }
}

TEST_CASE("checkpoint/checkpoint: each weight is stored once") {
    for (DType dtype : {DType::f32, DType::bf16}) {
        TempDir folder;
        FaultyFiles files;
        Trained saved(1, Method::teon, false, dtype);
        saved.clear_padding();
        const std::string checkpoint = saved.save(folder.path(), 7, files).folder;
        REQUIRE_FALSE(fs::exists(checkpoint + "/optimizer/master.safetensors"));
        Trained loaded(1000, Method::teon, false, dtype);
        read_tensors(checkpoint, loaded.model->params(), loaded.optimizer->state(), loaded.ctx.stream);
        REQUIRE(same_bits(loaded.bits(), saved.bits()));
    }
}

TEST_CASE("checkpoint/checkpoint: a matrix of one row is written as a matrix") {
    DecoderConfig c = small_config(false);
    c.max_T = 1;
    for (const CheckpointTensor& t : checkpoint_tensors(decoder_params(c))) {
        if (contains(t.name, "wpe")) REQUIRE(t.shape == std::vector<int64_t>{1, c.C});
        if (contains(t.name, "ln_f")) REQUIRE(t.shape == std::vector<int64_t>{c.C});
    }
}

TEST_CASE("checkpoint/checkpoint: a large model is written in several files, and read back from them") {
    TempDir folder;
    FaultyFiles files;
    Trained saved(1);
    Trained loaded(1000);
    CheckpointPlan plan = saved.plan(folder.path());
    plan.shard_bytes = 1000;
    CheckpointWriter writer(plan, saved.model->params(), saved.optimizer->state(), files);
    writer.save(Trained::state(7), saved.ctx.stream);
    const SaveResult result = *writer.result(true);
    REQUIRE(result.fault == "");
    REQUIRE(checkpoint_fault(result.folder) == std::nullopt);
    const std::string index = result.folder + "/model.safetensors.index.json";
    const nlohmann::json j = nlohmann::json::parse(read_file(index));
    int64_t total = 0;
    std::set<std::string> shards;
    for (const CheckpointTensor& t : checkpoint_tensors(saved.model->table())) {
        const std::string file = j["weight_map"][t.name];
        shards.insert(file);
        total += 4 * t.elements();
        REQUIRE(SafetensorsFile(result.folder + "/" + file).find(t.name));
    }
    REQUIRE(j["metadata"]["total_size"] == total);
    REQUIRE(shards.size() > 3);
    REQUIRE(*shards.begin() == fmt::format("model-00001-of-{:05}.safetensors", shards.size()));
    REQUIRE_FALSE(fs::exists(result.folder + "/model.safetensors"));
    verify_model(result.folder);
    verify_model(index);
    load_weights(loaded.model->params(), SafetensorsModel(result.folder), loaded.ctx.stream);
    for (int r = 0; r < saved.model->table().count(); ++r) {
        const ParamRow& row = saved.model->table()[r];
        std::vector<float> a(static_cast<size_t>(row.size()));
        std::vector<float> b = a;
        download(a.data(), saved.model->params().master(r), row.size(), saved.ctx.stream);
        download(b.data(), loaded.model->params().master(r), row.size(), loaded.ctx.stream);
        saved.ctx.stream.synchronize();
        loaded.ctx.stream.synchronize();
        for (int i = 0; i < row.logical_rows; ++i)
            for (int k = 0; k < row.logical_cols; ++k) {
                const auto at = static_cast<size_t>(int64_t{i} * row.cols + k);
                if (a[at] != b[at]) FAIL(row.name << " " << i << " " << k);
            }
    }
    const std::string last = result.folder + "/" + *shards.rbegin();
    const std::string weights = read_file(last);
    write_file(last, weights.substr(0, weights.size() - 1) + "\x01");
    REQUIRE_THROWS_AS(verify_model(index), Error);
    write_file(last, weights);
    const std::string bad[][2] = {{"missing shard", "../model.safetensors"},
                                  {"absolute", "/etc/passwd"},
                                  {"not that shard", *shards.rbegin()},
                                  {"no such file", "other.safetensors"}};
    for (const auto& [what, name] : bad) {
        nlohmann::json other = j;
        other["weight_map"][checkpoint_tensors(saved.model->table())[0].name] = name;
        write_file(index, other.dump());
        INFO(what);
        REQUIRE_THROWS_AS(SafetensorsModel(result.folder), Error);
    }
    write_file(index, "{\"weight_map\": [1]}");
    REQUIRE_THROWS_AS(SafetensorsModel(result.folder), Error);
}

TEST_CASE("checkpoint/checkpoint: an unreadable folder is not taken for an empty one") {
    TempDir folder;
    FaultyFiles files;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    const std::string checkpoint = run.save(folder.path(), 7, files).folder;
    REQUIRE(find_checkpoint(folder.path() + "/none").folder.empty());
    // No file can be opened while it lives. It ends before the error is read, for which sanitizers open a pipe.
    struct NoFiles {
        NoFiles() {
            ::getrlimit(RLIMIT_NOFILE, &before);
            const rlimit none = {3, before.rlim_max};
            ::setrlimit(RLIMIT_NOFILE, &none);
        }
        ~NoFiles() { ::setrlimit(RLIMIT_NOFILE, &before); }
        rlimit before;
    };
    const std::string complaint = error_of<ReadError>([&] {
        const NoFiles none;
        find_checkpoint(folder.path());
    });
    const std::string good = error_of<ReadError>([&] {
        const NoFiles none;
        newest_good_checkpoint(folder.path());
    });
    REQUIRE(complaint == folder.path() + ": cannot be listed: Too many open files");
    REQUIRE(good == complaint);
    REQUIRE(find_checkpoint(folder.path()).folder == checkpoint);
}

TEST_CASE("checkpoint/checkpoint: a checkpoint for which there is too little memory is not taken for damaged") {
#if defined(__SANITIZE_ADDRESS__)
    SKIP_TEST("the address sanitizer has memory of its own");
#endif
    TempDir folder;
    FaultyFiles files;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    const std::string checkpoint = run.save(folder.path(), 7, files).folder;
    write_file(checkpoint + "/manifest.json", std::string(size_t{60} << 20, ' '));
    rlimit before;
    REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
    const rlimit none = {size_t{1} << 20, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_AS, &none) == 0);
    std::vector<std::unique_ptr<char[]>> taken;  // uses up free memory that the heap already holds
    while (taken.size() < 100 && (taken.empty() || taken.back()))
        taken.emplace_back(new (std::nothrow) char[size_t{16} << 20]);
    bool thrown = false;
    try {
        find_checkpoint(folder.path());
    } catch (const std::bad_alloc&) { thrown = true; }
    REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
    REQUIRE(thrown);
}

TEST_CASE("checkpoint/checkpoint: a reader finds a checkpoint while the run replaces them") {
    TempDir folder;
    FaultyFiles files;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    CheckpointPlan plan = run.plan(folder.path());
    plan.keep_last = 1;
    CheckpointWriter writer(plan, run.model->params(), run.optimizer->state(), files);
    REQUIRE(run.save(writer, 1, 0) == "");
    for (int64_t step = 2; step < 40; ++step) {
        std::atomic<bool> saved = false;
        const std::jthread saving([&] {
            run.save(writer, step, 0);
            saved = true;
        });
        while (!saved) {
            const FoundCheckpoint checkpoint_found = find_checkpoint(folder.path());
            REQUIRE(!checkpoint_found.folder.empty());
            REQUIRE(checkpoint_found.passed_over.empty());
        }
    }
}

TEST_CASE("checkpoint/checkpoint: what may not be read is not taken for damaged") {
    TempDir folder;
    FaultyFiles files;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    const std::string checkpoint = run.save(folder.path(), 7, files).folder;
    fs::permissions(folder.path(), fs::perms(0755));
    for (const char* file : {"model.safetensors", "manifest.json", "trainer.json"}) {
        std::string said;
        {
            const Unreadable denied(checkpoint + "/" + file);
            said = error_of<ReadError>([&] { find_checkpoint(folder.path()); });
        }
        CAPTURE(said);
        REQUIRE(contains(
            said, fmt::format("{}/{}: cannot be opened: Permission denied; nothing was changed", checkpoint, file)));
    }
}

TEST_CASE("checkpoint/checkpoint: reading a model finds damage to it and needs no training state") {
    TempDir folder;
    FaultyFiles files;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    const std::string checkpoint = run.save(folder.path(), 7, files).folder;
    const std::string model = checkpoint + "/model.safetensors";
    fs::remove_all(checkpoint + "/optimizer");
    verify_model(checkpoint);
    verify_model(model);
    const std::string config = read_file(checkpoint + "/config.json");
    const std::string weights = read_file(model);
    write_file(checkpoint + "/config.json", config + " ");
    REQUIRE_THROWS_AS(verify_model(checkpoint), Error);
    REQUIRE_THROWS_AS(verify_model(model), Error);
    write_file(checkpoint + "/config.json", config);
    write_file(model, weights.substr(0, weights.size() - 1) + "\x01");
    REQUIRE_THROWS_AS(verify_model(checkpoint), Error);
    REQUIRE_THROWS_AS(verify_model(model), Error);
    fs::remove(checkpoint + "/manifest.json");
    verify_model(checkpoint);
}

TEST_CASE(
    "checkpoint/checkpoint: a fault at any file operation leaves a whole checkpoint, and the next save needs no help") {
    Trained old_run(1, Method::adamw, false, DType::f32, 1);
    Trained new_run(1000, Method::adamw, false, DType::f32, 1);
    const std::vector<float> old_bits = old_run.bits();
    const std::vector<float> new_bits = new_run.bits();
    TempDir folder;
    FaultyFiles good;
    REQUIRE(old_run.save(folder.path(), 1, good).fault == "");
    for (FaultyFiles::Kind kind : {FaultyFiles::error, FaultyFiles::short_write, FaultyFiles::crash})
        for (int64_t at = 0;; ++at) {
            FaultyFiles files;
            files.kind = kind;
            files.fault_at = at;
            files.code = at % 2 ? EIO : ENOSPC;
            const SaveResult result = new_run.save(folder.path(), 2, files);
            INFO("fault at operation " << at << " of kind " << kind << ": " << result.fault);
            if (!files.happened) {
                REQUIRE(at > 20);
                REQUIRE(result.fault == "");
                fs::remove_all(folder / "step_00000002");
                break;
            }
            if (kind == FaultyFiles::short_write)
                REQUIRE(result.fault == "");  // another call writes the rest
            else
                REQUIRE(contains(result.fault, std::strerror(files.code)));

            const FoundCheckpoint checkpoint_found = find_checkpoint(folder.path());
            REQUIRE(checkpoint_found.passed_over.empty());  // an incomplete checkpoint never has a checkpoint's name
            const bool renamed = checkpoint_found.folder == folder / "step_00000002";
            if (!renamed) REQUIRE(checkpoint_found.folder == folder / "step_00000001");
            Trained loaded(2000, Method::adamw, false, DType::f32, 1);
            read_tensors(checkpoint_found.folder, loaded.model->params(), loaded.optimizer->state(), loaded.ctx.stream);
            REQUIRE(same_bits(loaded.bits(), renamed ? new_bits : old_bits));

            if (!renamed) REQUIRE(new_run.save(folder.path(), 2, good).fault == "");
            REQUIRE(find_checkpoint(folder.path()).folder == folder / "step_00000002");
            fs::remove_all(folder / "step_00000002");
        }
}

TEST_CASE("checkpoint/checkpoint: every damage is found, the file named and the checkpoint before it taken (fuzz)") {
    Trained run(1, Method::teon, false, DType::f32, 1);
    TempDir pristine;
    TempDir folder;
    FaultyFiles files;
    REQUIRE(run.save(pristine.path(), 10, files).fault == "");
    REQUIRE(run.save(pristine.path(), 20, files).fault == "");
    const std::string older = folder / "step_00000010";
    const std::string newer = folder / "step_00000020";
    std::mt19937_64 random(fuzz_seed(5));
    auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
    const int rounds = fuzz_rounds(100);
    for (int i = 0; i < rounds; ++i) {
        fs::remove_all(older);
        fs::remove_all(newer);
        fs::copy(pristine.path(), folder.path(), fs::copy_options::recursive);
        const std::vector<std::string> names = files_of(newer);
        const std::string name = names[below(names.size())];
        const std::string path = newer + "/" + name;
        std::string bytes = read_file(path);
        std::string how;
        REQUIRE(!bytes.empty());
        switch (i % 8) {
            case 0:
                how = "bit flip";
                bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
                write_file(path, bytes);
                break;
            case 1:
                how = "truncation";
                write_file(path, bytes.substr(0, below(bytes.size())));
                break;
            case 2:
                how = "missing";
                fs::remove(path);
                break;
            case 3: {
                std::string other;
                do other = names[below(names.size())];
                while (other == name);
                how = "swapped with " + other;
                write_file(path, read_file(newer + "/" + other));
                write_file(newer + "/" + other, bytes);
                break;
            }
            case 4:
                how = "empty";
                write_file(path, "");
                break;
            case 5:
                how = "a folder";
                fs::remove(path);
                fs::create_directory(path);
                break;
            case 6:
                how = "a pipe";  // reading it would block for ever
                fs::remove(path);
                REQUIRE(mkfifo(path.c_str(), 0600) == 0);
                break;
            default:
                how = "longer";
                write_file(path, bytes + std::string(1 + below(9), '\0'));
        }
        INFO(how << ": " << name);
        const FoundCheckpoint checkpoint_found = find_checkpoint(folder.path());
        REQUIRE(checkpoint_found.folder == older);
        REQUIRE(checkpoint_found.passed_over.size() == 1);
        REQUIRE(checkpoint_found.passed_over[0].first == newer);
        const std::string& fault = checkpoint_found.passed_over[0].second;
        if (i % 8 != 3)
            REQUIRE(fault.find(path) == 0);
        else
            REQUIRE(fault.find(newer) == 0);  // either of the two files, or manifest.json
    }
}

TEST_CASE("checkpoint/checkpoint: a renamed folder or an incomplete manifest is not a checkpoint") {
    Trained run(1, Method::adamw, false, DType::f32, 1);
    TempDir folder;
    FaultyFiles files;
    REQUIRE(run.save(folder.path(), 10, files).fault == "");
    fs::copy(folder / "step_00000010", folder / "step_00000020", fs::copy_options::recursive);
    fs::create_directories(folder / "step_00000030");
    write_file(folder / "step_00000030/manifest.json", manifest_text(30, {}));
    const FoundCheckpoint checkpoint_found = find_checkpoint(folder.path());
    REQUIRE(checkpoint_found.folder == folder / "step_00000010");
    REQUIRE(checkpoint_found.passed_over.size() == 2);
    REQUIRE(contains(checkpoint_found.passed_over[0].second, "lists no"));
    REQUIRE(contains(checkpoint_found.passed_over[1].second, "of step 10"));
}

TEST_CASE("checkpoint/checkpoint: training goes on while a checkpoint is written, which holds what was when it began") {
    struct Slow : FaultyFiles {
        std::mutex mutex;
        std::condition_variable changed;
        bool open = false;
        int make_folder(const std::string& path) override {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return open; });
            return FaultyFiles::make_folder(path);
        }
        void let_go() {
            std::lock_guard lock(mutex);
            open = true;
            changed.notify_all();
        }
    } files;
    TempDir folder;
    Trained run(1);
    Trained loaded(1000);
    const std::vector<float> before = run.bits();
    CheckpointWriter writer(run.plan(folder.path()), run.model->params(), run.optimizer->state(), files);
    writer.save(Trained::state(1), run.ctx.stream);
    REQUIRE(!writer.result(false));  // in flight
    run.fill(500);
    const std::vector<float> after = run.bits();
    files.let_go();
    writer.save(Trained::state(2), run.ctx.stream);  // waits for the first save
    REQUIRE(list_checkpoints(folder.path()).front() == 1);
    REQUIRE(writer.result(true)->step == 2);
    REQUIRE(!writer.result(true));
    for (auto [step, bits] : {std::pair{1, &before}, {2, &after}}) {
        read_tensors(folder / checkpoint_name(step), loaded.model->params(), loaded.optimizer->state(),
                     loaded.ctx.stream);
        REQUIRE(same_bits(loaded.bits(), *bits));
    }
}

TEST_CASE("checkpoint/checkpoint: old ones are removed but for the last few and every so many") {
    TempDir folder;
    FaultyFiles files;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    CheckpointPlan plan = run.plan(folder.path());
    plan.keep_last = 2;
    plan.keep_every = 40;
    CheckpointWriter writer(plan, run.model->params(), run.optimizer->state(), files);
    auto save = [&](int64_t step) {
        writer.save(Trained::state(step), run.ctx.stream);
        return *writer.result(true);
    };
    for (int64_t step = 10; step <= 90; step += 10) REQUIRE(save(step).fault == "");
    REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{40, 80, 90});
    REQUIRE(save(100).fault == "");
    REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{40, 80, 90, 100});
    // A save succeeds even if the removal of old checkpoints fails. The first operation after the save's own fails:
    FaultyFiles counting;
    fs::create_directories(folder / "other");
    REQUIRE(run.save(folder / "other", 110, counting).fault == "");
    files.calls = 0;
    files.fault_at = counting.calls;
    const SaveResult result = save(110);
    REQUIRE(result.fault == "");
    REQUIRE(contains(result.warning, "step_00000090"));
    REQUIRE(checkpoint_fault(result.folder) == std::nullopt);
}

TEST_CASE(
    "checkpoint/checkpoint: the last good one is never removed, and weights that are not finite are never saved") {
    TempDir folder;
    FaultyFiles files;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    CheckpointPlan plan = run.plan(folder.path());
    plan.keep_last = 2;
    CheckpointWriter writer(plan, run.model->params(), run.optimizer->state(), files);
    auto save = [&](int64_t step, int skipped) { return run.save(writer, step, skipped); };
    REQUIRE(newest_good_checkpoint(folder.path()) == std::nullopt);
    for (int64_t step = 10; step <= 40; step += 10) REQUIRE(save(step, 0) == "");
    REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{30, 40});
    for (int64_t step = 50; step <= 90; step += 10) REQUIRE(save(step, static_cast<int>(step) - 40) == "");
    REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{40, 80, 90});
    REQUIRE(newest_good_checkpoint(folder.path()) == 40);
    REQUIRE(save(100, 0) == "");
    REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{90, 100});

    for (float bad : {NAN, INFINITY, -INFINITY}) {
        const ParamRow& row = run.model->table()[1];
        upload(run.model->params().master(1) + row.size() - 1, &bad, 1, run.ctx.stream);
        run.ctx.stream.synchronize();
        REQUIRE(save(110, 0).find(fmt::format("the weights of {} are not finite", row.name)) == 0);
        REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{90, 100});
        REQUIRE(newest_good_checkpoint(folder.path()) == 100);
    }
}

TEST_CASE("checkpoint/checkpoint: the last good checkpoint has been read back and verified") {
    TempDir folder;
    FaultyFiles files;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    CheckpointPlan plan = run.plan(folder.path());
    auto save = [&](int64_t step, int skipped, int64_t keep_last) {
        plan.keep_last = keep_last;
        CheckpointWriter writer(plan, run.model->params(), run.optimizer->state(), files);
        REQUIRE(run.save(writer, step, skipped) == "");
    };
    save(10, 0, 0);
    save(20, 0, 0);
    save(25, 0, 0);
    const std::string weights = folder / "step_00000025/model.safetensors";
    std::string bytes = read_file(weights);
    bytes[bytes.size() / 2] ^= 4;
    write_file(weights, bytes);
    save(30, 1, 1);
    REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{20, 30});
    REQUIRE(newest_good_checkpoint(folder.path()) == 20);
}

TEST_CASE("checkpoint/checkpoint: a fault at any file operation of a removal leaves whole checkpoints") {
    Trained run(1, Method::adamw, false, DType::f32, 1);
    for (FaultyFiles::Kind kind : {FaultyFiles::error, FaultyFiles::crash})
        for (int64_t at = 0;; ++at) {
            TempDir folder;
            FaultyFiles files;
            FaultyFiles good;
            for (int64_t step = 1; step <= 4; ++step) REQUIRE(run.save(folder.path(), step, good).fault == "");
            CheckpointPlan plan = run.plan(folder.path());
            plan.keep_last = 2;
            files.kind = kind;
            files.fault_at = at;
            const std::string fault =
                CheckpointWriter(plan, run.model->params(), run.optimizer->state(), files).remove_old(4);
            INFO("fault at operation " << at << " of kind " << kind << ": " << fault);
            REQUIRE(fault.empty() == !files.happened);
            for (int64_t step : list_checkpoints(folder.path()))
                REQUIRE(!checkpoint_fault(folder / checkpoint_name(step)));
            REQUIRE(find_checkpoint(folder.path()).folder == folder / "step_00000004");
            if (files.happened) continue;
            REQUIRE(at == 4);  // two operations for each of two checkpoints
            REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{3, 4});
            break;
        }
}

TEST_CASE("checkpoint/checkpoint: a save whose thread cannot be created is not reported as saved") {
    TempDir folder;
    FaultyFiles files;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    CheckpointWriter writer(run.plan(folder.path()), run.model->params(), run.optimizer->state(), files);
    REQUIRE(run.save(writer, 1) == "");
    pthread_attr_t before;
    pthread_attr_t huge;  // no address space has room for a stack of 2^60 bytes
    REQUIRE((pthread_getattr_default_np(&before) == 0 && pthread_getattr_default_np(&huge) == 0));
    REQUIRE((pthread_attr_setstacksize(&huge, size_t{1} << 60) == 0 && pthread_setattr_default_np(&huge) == 0));
    const auto save = [&] { writer.save(Trained::state(2), run.ctx.stream); };
    REQUIRE_THROWS_AS(save(), std::system_error);
    REQUIRE(pthread_setattr_default_np(&before) == 0);
    REQUIRE(!writer.result(true));
    REQUIRE(run.save(writer, 2) == "");
    REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{1, 2});
}

TEST_CASE("checkpoint/checkpoint: the next checkpoint replaces an interim one, unless that is the last good one") {
    TempDir folder;
    FaultyFiles files;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    CheckpointWriter writer(run.plan(folder.path()), run.model->params(), run.optimizer->state(), files);
    auto save = [&](int64_t step, bool interim, int skipped) {
        REQUIRE(run.save(writer, step, skipped, interim) == "");
    };
    save(10, false, 0);
    save(15, true, 0);
    REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{10, 15});
    REQUIRE(read_training_state(folder / "step_00000015").interim);
    save(20, false, 0);
    REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{10, 20});
    save(25, true, 0);
    save(27, true, 3);
    save(30, false, 6);
    REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{10, 20, 25, 30});
}

TEST_CASE("checkpoint/checkpoint: the best one stays until another is the best") {
    TempDir folder;
    FaultyFiles files;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    CheckpointPlan plan = run.plan(folder.path());
    plan.keep_last = 1;
    CheckpointWriter last(plan, run.model->params(), run.optimizer->state(), files);
    plan.keep_last = 0;
    CheckpointWriter all(plan, run.model->params(), run.optimizer->state(), files);
    const auto steps = [&] { return list_checkpoints(folder.path()); };
    REQUIRE(best_checkpoint(folder.path()) == std::nullopt);
    REQUIRE(last.mark_best(5) == "");  // no such checkpoint
    REQUIRE(best_checkpoint(folder.path()) == std::nullopt);
    REQUIRE(run.save(last, 10, 0, true, true) == "");
    REQUIRE(best_checkpoint(folder.path()) == 10);
    REQUIRE(fs::read_symlink(folder / "best") == "step_00000010");  // relative: a run's folder can be moved
    for (int64_t step = 20; step <= 40; step += 10) REQUIRE(run.save(last, step, 0) == "");
    REQUIRE(steps() == std::vector<int64_t>{10, 40});
    REQUIRE(last.mark_best(40) == "");
    REQUIRE(best_checkpoint(folder.path()) == 40);
    REQUIRE(run.save(last, 50, 0) == "");
    REQUIRE(steps() == std::vector<int64_t>{40, 50});
    REQUIRE(last.mark_best(50) == "");
    // Where all are kept, a best one that was not due is replaced.
    REQUIRE(run.save(all, 60, 0, true, true) == "");
    REQUIRE(run.save(all, 70, 0, true, true) == "");
    REQUIRE(run.save(all, 80, 0) == "");
    REQUIRE(steps() == std::vector<int64_t>{40, 50, 70, 80});
    fs::rename(folder / "step_00000070", folder / "step_00000070.damaged");
    REQUIRE(best_checkpoint(folder.path()) == std::nullopt);
}

TEST_CASE(
    "checkpoint/checkpoint: after a fault at any file operation, the best one is the old one or the new one, whole") {
    Trained run(1, Method::adamw, false, DType::f32, 1);
    for (const bool due : {false, true})  // a checkpoint that was due has been saved when it turns out to be the best
        for (FaultyFiles::Kind kind : {FaultyFiles::error, FaultyFiles::crash})
            for (int64_t at = 0;; ++at) {
                TempDir folder;
                FaultyFiles files;
                CheckpointPlan plan = run.plan(folder.path());
                plan.keep_last = 1;
                CheckpointWriter good(plan, run.model->params(), run.optimizer->state());
                REQUIRE(run.save(good, 1, 0, true, true) == "");
                if (due) REQUIRE(run.save(good, 2, 0) == "");
                files.kind = kind;
                files.fault_at = at;
                CheckpointWriter writer(plan, run.model->params(), run.optimizer->state(), files);
                std::string fault;
                if (due) {
                    fault = writer.mark_best(2);
                } else {
                    TrainingState state = Trained::state(2);
                    state.control.skipped_in_row = 0;
                    writer.save(state, run.ctx.stream, nullptr, 0, true);
                    const SaveResult result = *writer.result(true);
                    fault = result.fault + result.warning;
                }
                INFO("fault at operation " << at << " of kind " << kind << ": " << fault);
                REQUIRE(fault.empty() == !files.happened);
                const std::optional<int64_t> best = best_checkpoint(folder.path());
                REQUIRE((best == 1 || best == 2));
                REQUIRE(!checkpoint_fault(folder / checkpoint_name(*best)));
                // The resumed run marks it again, and needs no help.
                if (!fs::exists(folder / "step_00000002")) REQUIRE(run.save(good, 2, 0) == "");
                REQUIRE(good.mark_best(2) == "");
                REQUIRE(best_checkpoint(folder.path()) == 2);
                REQUIRE(good.remove_old(2) == "");
                REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{2});
                if (!files.happened) break;
            }
}

TEST_CASE("checkpoint/checkpoint: nothing is saved if the log cannot be written") {
    TempDir folder;
    FaultyFiles files;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    CheckpointPlan plan = run.plan(folder.path());
    bool full = true;
    plan.sync_log = [&] {
        if (full) throw Error("metrics.jsonl: 3 lines cannot be written");
    };
    CheckpointWriter writer(plan, run.model->params(), run.optimizer->state(), files);
    REQUIRE(run.save(writer, 1) == "metrics.jsonl: 3 lines cannot be written");
    REQUIRE(fs::is_empty(folder.path()));
    full = false;
    REQUIRE(run.save(writer, 1) == "");
    REQUIRE(list_checkpoints(folder.path()) == std::vector<int64_t>{1});
}

TEST_CASE("checkpoint/checkpoint: state of another run is refused by name") {
    TempDir folder;
    FaultyFiles files;
    Trained saved(1, Method::teon);
    Trained adamw(1, Method::adamw);
    Trained deeper(1, Method::teon, false, DType::f32, 3);
    Trained llama(1, Method::teon, true);
    const std::string checkpoint = saved.save(folder.path(), 7, files).folder;
    for (Trained* other : {&adamw, &deeper, &llama}) {
        const std::string message = error_of(
            [&] { read_tensors(checkpoint, other->model->params(), other->optimizer->state(), other->ctx.stream); });
        REQUIRE(message.find(checkpoint + (other == &adamw ? "/optimizer/" : "/model.safetensors")) == 0);
    }
}

TEST_CASE(
    "checkpoint/checkpoint: SOAP's state of version 0.2.0, which had no shared moments, is read; no other gap is") {
    Trained soap(1, Method::soap);
    const std::vector<StateTensor> all = soap.optimizer->state();
    const auto read_without = [&](const std::function<bool(const StateTensor&)>& is_absent) {
        TempDir folder;
        FaultyFiles files;
        std::vector<StateTensor> saved = all;
        std::erase_if(saved, is_absent);
        REQUIRE(saved.size() < all.size());
        CheckpointWriter writer(soap.plan(folder.path()), soap.model->params(), saved, files);
        writer.save(Trained::state(7), soap.ctx.stream);
        const std::string checkpoint = writer.result(true)->folder;
        return error_of([&] { read_tensors(checkpoint, soap.model->params(), all, soap.ctx.stream); });
    };
    const auto is_shared = [](const StateTensor& t) { return t.name.ends_with("_shared"); };
    REQUIRE(read_without(is_shared) == "");
    REQUIRE(read_without([&](const StateTensor& t) { return is_shared(t) || t.name == "wte.weight.m"; }) != "");
    REQUIRE(read_without([&](const StateTensor& t) { return t.name.ends_with(".left"); }) != "");
}

TEST_CASE("checkpoint/checkpoint: a trainer.json of wrong kinds is refused, and names the file") {
    const nlohmann::json change = {{"step", 2}, {"event", "length_changed"}, {"reason", "x"}};
    TrainingState state = Trained::state(7);
    const nlohmann::json run = {
        {"program", "train_gpt2"},  {"options", {{"init-from", ""}, {"dtype", "float"}}},
        {"model", {{"layers", 2}}}, {"ranks", 1},
        {"micro_batch", 2},         {"steps", 9},
        {"warmup_steps", 1},        {"init_from", ""},
        {"changes", {change}},      {"data", {{"train", {{{"file", "a"}}}}, {"val", {{{"file", "b"}}}}}}};
    state.run = our_json(run);
    const nlohmann::json good = library_json(to_json(state)).flatten();
    REQUIRE(to_json(training_state(our_json(good.unflatten()), "x")) == to_json(state));
    const std::set<std::string> free = {"/run/model/layers", "/run/data/train/0/file",
                                        "/run/data/val/0/file"};  // only compared
    for (const auto& [key, value] : good.items()) {
        if (free.count(key)) continue;
        for (const nlohmann::json& wrong :
             {nlohmann::json(value.is_string() ? "" : "1"), nlohmann::json(1.5), nlohmann::json(-7), nlohmann::json(),
              nlohmann::json::array({1}), nlohmann::json({{"a", 1}})}) {
            if (wrong.type() == value.type() || (wrong.is_number() && key.find("/guard/") == 0) ||
                (wrong == -7 && key == "/run/changes/0/step"))
                continue;
            nlohmann::json damaged = library_json(to_json(state));
            damaged[nlohmann::json::json_pointer(key)] = wrong;
            if (wrong.is_null() && key == "/log") continue;
            INFO(key << " = " << wrong.dump());
            const std::string why =
                error_of([&] { training_state(our_json(damaged), "run/step_00000007/trainer.json"); });
            REQUIRE(why.find("run/step_00000007/trainer.json") == 0);
        }
    }
}

TEST_CASE("checkpoint/checkpoint: the step in trainer.json must be the folder's") {
    TempDir folder;
    Trained trained(1);
    REQUIRE(trained.save(folder.path(), 7, system_files()).fault == "");
    const std::string path = folder / "step_00000007/trainer.json";
    Json j = read_json(path);
    j["step"] = 6;
    write_file_atomically(path, json_text(j));
    REQUIRE(error_of([&] { read_training_state(folder / "step_00000007"); }) ==
            path + ": of step 6, not of this folder's");
}

TEST_CASE("checkpoint/checkpoint: which folder names are those of checkpoints") {
    REQUIRE(checkpoint_name(1000) == "step_00001000");
    REQUIRE(checkpoint_step("step_00001000") == 1000);
    REQUIRE(checkpoint_step(checkpoint_name(123456789012)) == 123456789012);
    for (const char* name : {"", "step_", "step_1", "step_00001000.tmp", "step_00001000.damaged", "step_-0000001",
                             "step_0000100x", "xstep_00001000", "step_000001000"})
        REQUIRE(!checkpoint_step(name));
}

TEST_CASE("checkpoint/checkpoint: a full disk is reported and costs only the new checkpoint") {
    TempDir folder;
    const std::string disk = folder / "disk";
    fs::create_directories(disk);
    if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=96k") != 0) SKIP_TEST("mounting a tmpfs is not permitted");
    struct Unmount {
        std::string path;
        ~Unmount() { umount(path.c_str()); }
    } unmount{disk};
    Trained run(1, Method::adamw, false, DType::f32, 1);
    int64_t saved = 0;
    SaveResult result;
    while (result.fault.empty() && saved < 1000) {
        result = run.save(disk, saved + 1, system_files());
        if (result.fault.empty()) ++saved;
    }
    REQUIRE(contains(result.fault, std::strerror(ENOSPC)));
    REQUIRE(saved >= 1);
    REQUIRE(find_checkpoint(disk).folder == disk + "/" + checkpoint_name(saved));
    REQUIRE(find_checkpoint(disk).passed_over.empty());
    fs::remove_all(disk + "/" + checkpoint_name(1));  // with room again, saving works again
    REQUIRE(run.save(disk, saved + 1, system_files()).fault == "");
}

TEST_CASE("checkpoint/checkpoint: a folder that cannot be written is reported and what is there stays") {
    if (geteuid() == 0) SKIP_TEST("root may write everywhere");
    TempDir folder;
    Trained run(1, Method::adamw, false, DType::f32, 1);
    REQUIRE(run.save(folder.path(), 1, system_files()).fault == "");
    fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
    const SaveResult result = run.save(folder.path(), 2, system_files());
    fs::permissions(folder.path(), fs::perms::owner_all);
    REQUIRE(contains(result.fault, std::strerror(EACCES)));
    REQUIRE(find_checkpoint(folder.path()).folder == folder / "step_00000001");
}

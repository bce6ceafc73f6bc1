#include "checkpoint/checkpoint.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"
#include "test/checkpoint/trained_run.h"
#include "test/support/catch.h"
#include "test/support/fuzz.h"
#include "test/support/json.h"
#include "test/support/skip.h"

using namespace teon;
using namespace teon::test;
namespace fs = std::filesystem;

namespace {

// Requires equal weights, padding excluded.
void has_weights_of(const Trained& loaded, const Trained& saved) {
    for (int r = 0; r < saved.model->table().count(); ++r) {
        const ParamRow& row = saved.model->table()[r];
        const std::vector<float> a = fetch(saved.model->params().master(r), row.size(), saved.ctx.stream);
        const std::vector<float> b = fetch(loaded.model->params().master(r), row.size(), loaded.ctx.stream);
        for (int i = 0; i < row.logical_rows; ++i)
            for (int j = 0; j < row.logical_cols; ++j) {
                const auto at = static_cast<size_t>(int64_t{i} * row.cols + j);
                if (a[at] != b[at]) FAIL(row.name << " " << i << " " << j);
            }
    }
}

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
                loaded.read(checkpoint_found.folder);
                REQUIRE(same_bits(loaded.bits(), saved.bits()));
                if (dtype == DType::f32) continue;
                const auto weights = [](const Trained& t) {
                    return fetch(t.model->params().work_copy(), t.model->table().size(), t.ctx.stream);
                };
                REQUIRE(same_bits(weights(loaded), weights(saved)));
            }
}

TEST_CASE("checkpoint/checkpoint: model.safetensors holds the weights without padding, under Hugging Face's names") {
    for (bool llama : {false, true}) {
        TempDir folder;
        FaultyFiles files;
        const Trained saved(1, Method::adamw, llama);
        Trained loaded(1000, Method::adamw, llama);
        const std::string checkpoint = saved.save(folder.path(), 7, files).folder;
        load_weights(loaded.model->params(), SafetensorsModel(checkpoint), loaded.ctx.stream);
        has_weights_of(loaded, saved);
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
        loaded.read(checkpoint);
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
    has_weights_of(loaded, saved);
    const std::string last = result.folder + "/" + *shards.rbegin();
    const std::string weights = read_file(last);
    write_file(last, weights.substr(0, weights.size() - 1) + "\x01");
    REQUIRE_THROWS_AS(verify_model(index), Error);
    write_file(last, weights);
    for (const std::string& name :
         {std::string("../model.safetensors"), std::string("/etc/passwd"), *shards.rbegin(),  // holds other tensors
          std::string("other.safetensors")}) {
        nlohmann::json other = j;
        other["weight_map"][checkpoint_tensors(saved.model->table())[0].name] = name;
        write_file(index, other.dump());
        INFO(name);
        REQUIRE_THROWS_AS(SafetensorsModel(result.folder), Error);
    }
    write_file(index, "{\"weight_map\": [1]}");
    REQUIRE_THROWS_AS(SafetensorsModel(result.folder), Error);
}

TEST_CASE("checkpoint/checkpoint: an unreadable folder is not taken for an empty one") {
    SmallRun run;
    const std::string& folder = run.folder.path();
    const std::string checkpoint = run.save(7);
    REQUIRE(find_checkpoint(folder + "/none").folder.empty());
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
        find_checkpoint(folder);
    });
    const std::string good = error_of<ReadError>([&] {
        const NoFiles none;
        newest_good_checkpoint(folder);
    });
    REQUIRE(complaint == folder + ": cannot be listed: Too many open files");
    REQUIRE(good == complaint);
    REQUIRE(run.find().folder == checkpoint);
}

TEST_CASE("checkpoint/checkpoint: a checkpoint for which there is too little memory is not taken for damaged") {
#if defined(__SANITIZE_ADDRESS__)
    SKIP_TEST("the address sanitizer has memory of its own");
#endif
    SmallRun run;
    write_file(run.save(7) + "/manifest.json", std::string(size_t{60} << 20, ' '));
    rlimit before;
    REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
    const rlimit none = {size_t{1} << 20, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_AS, &none) == 0);
    std::vector<std::unique_ptr<char[]>> taken;  // uses up free memory that the heap already holds
    while (taken.size() < 100 && (taken.empty() || taken.back()))
        taken.emplace_back(new (std::nothrow) char[size_t{16} << 20]);
    bool thrown = false;
    try {
        run.find();
    } catch (const std::bad_alloc&) { thrown = true; }
    REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
    REQUIRE(thrown);
}

TEST_CASE("checkpoint/checkpoint: what may not be read is not taken for damaged") {
    SmallRun run;
    const std::string checkpoint = run.save(7);
    fs::permissions(run.folder.path(), fs::perms(0755));
    for (const char* file : {"model.safetensors", "manifest.json", "trainer.json"}) {
        const std::string path = checkpoint + "/" + file;
        const std::string said = error_of_unreadable<ReadError>(path, [&] { run.find(); });
        CAPTURE(said);
        REQUIRE(contains(said, path + ": cannot be opened: Permission denied; nothing was changed"));
    }
}

TEST_CASE("checkpoint/checkpoint: reading a model finds damage to it and needs no training state") {
    SmallRun run;
    const std::string checkpoint = run.save(7);
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

TEST_CASE("checkpoint/checkpoint: every damage is found, the file named and the checkpoint before it taken (fuzz)") {
    const Trained run(1, Method::teon, false, DType::f32, 1);
    TempDir pristine;
    TempDir folder;
    FaultyFiles files;
    for (int step : {10, 20}) REQUIRE(run.save(pristine.path(), step, files).fault == "");
    const std::string older = folder / "step_00000010";
    const std::string newer = folder / "step_00000020";
    Fuzz fuzz(5);
    const int rounds = fuzz_rounds(100);
    for (int i = 0; i < rounds; ++i) {
        fs::remove_all(older);
        fs::remove_all(newer);
        fs::copy(pristine.path(), folder.path(), fs::copy_options::recursive);
        const std::vector<std::string> names = files_of(newer);
        const std::string name = fuzz.any(names);
        const std::string path = newer + "/" + name;
        std::string bytes = read_file(path);
        std::string how;
        REQUIRE(!bytes.empty());
        switch (i % 8) {
            case 0:
                how = "bit flip";
                bytes[fuzz.below(bytes.size())] ^= static_cast<char>(1 << fuzz.below(8));
                write_file(path, bytes);
                break;
            case 1:
                how = "truncation";
                write_file(path, bytes.substr(0, fuzz.below(bytes.size())));
                break;
            case 2:
                how = "missing";
                fs::remove(path);
                break;
            case 3: {
                std::string other;
                do other = fuzz.any(names);
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
                write_file(path, bytes + std::string(1 + fuzz.below(9), '\0'));
        }
        INFO(how << ": " << name);
        const FoundCheckpoint checkpoint_found = find_checkpoint(folder.path());
        REQUIRE(checkpoint_found.folder == older);
        REQUIRE(checkpoint_found.passed_over.size() == 1);
        REQUIRE(checkpoint_found.passed_over[0].first == newer);
        const std::string& fault = checkpoint_found.passed_over[0].second;
        REQUIRE(fault.starts_with(i % 8 == 3 ? newer : path));  // swapped: either of the two files, or manifest.json
    }
}

TEST_CASE("checkpoint/checkpoint: a renamed folder or an incomplete manifest is not a checkpoint") {
    SmallRun run;
    const std::string checkpoint = run.save(10);
    fs::copy(checkpoint, run.checkpoint(20), fs::copy_options::recursive);
    fs::create_directories(run.checkpoint(30));
    write_file(run.checkpoint(30) + "/manifest.json", manifest_text(30, {}));
    const FoundCheckpoint checkpoint_found = run.find();
    REQUIRE(checkpoint_found.folder == checkpoint);
    REQUIRE(checkpoint_found.passed_over.size() == 2);
    REQUIRE(contains(checkpoint_found.passed_over[0].second, "lists no"));
    REQUIRE(contains(checkpoint_found.passed_over[1].second, "of step 10"));
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
        const std::string message = error_of([&] { other->read(checkpoint); });
        REQUIRE(message.find(checkpoint + (other == &adamw ? "/optimizer/" : "/model.safetensors")) == 0);
    }
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
    SmallRun run;
    const std::string checkpoint = run.save(7);
    const std::string path = checkpoint + "/trainer.json";
    Json j = read_json(path);
    j["step"] = 6;
    write_file_atomically(path, json_text(j));
    REQUIRE(error_of([&] { read_training_state(checkpoint); }) == path + ": of step 6, not of this folder's");
}

TEST_CASE("checkpoint/checkpoint: which folder names are those of checkpoints") {
    REQUIRE(checkpoint_name(1000) == "step_00001000");
    REQUIRE(checkpoint_step("step_00001000") == 1000);
    REQUIRE(checkpoint_step(checkpoint_name(123456789012)) == 123456789012);
    for (const char* name : {"", "step_", "step_1", "step_00001000.tmp", "step_00001000.damaged", "step_-0000001",
                             "step_0000100x", "xstep_00001000", "step_000001000"})
        REQUIRE(!checkpoint_step(name));
}

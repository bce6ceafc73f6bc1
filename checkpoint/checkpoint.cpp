#include "checkpoint/checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"
#include "files/file.h"
#include "files/json.h"

namespace teon {

namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 1;
constexpr std::string_view kPrefix = "step_";

// Files that resuming needs. A checkpoint is not whole if its manifest lacks one of them.
constexpr const char* kNeeded[] = {"config.json", "optimizer/state.safetensors", "trainer.json"};

std::string hex(uint64_t x) { return fmt::format("{:016x}", x); }

uint64_t parse_hex(const std::string& text, const std::string& path) {
    uint64_t x = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x, 16);
    CHECK(error == std::errc() && end == text.data() + text.size(), "{}: '{}' is not a hash", path, text);
    return x;
}

Json stats_json(const SeriesStats& s) { return {{"mean", s.mean}, {"variance", s.variance}, {"count", s.count}}; }
SeriesStats stats_of(const JsonObject& j) { return {j.at<float>("mean"), j.at<float>("variance"), j.at<int>("count")}; }

// Throws Error unless the file has the size and hash of its manifest entry.
void verify_file(const std::string& folder, const ManifestEntry& entry) {
    const std::string path = folder + "/" + entry.path;
    const InputFile file(path);
    CHECK(file.bytes() == entry.bytes, "{}: {} bytes, {} were written", path, file.bytes(), entry.bytes);
    Hash hash;
    std::vector<char> block(size_t{1} << 20);
    for (int64_t at = 0; at < file.bytes(); at += static_cast<int64_t>(block.size())) {
        const int64_t n = std::min(file.bytes() - at, static_cast<int64_t>(block.size()));
        file.read(block.data(), n, at);
        hash.update(block.data(), static_cast<size_t>(n));
    }
    const uint64_t content_hash = hash.digest();
    CHECK(content_hash == entry.xxh3, "{}: its content changed: hash {}, {} was written", path, hex(content_hash),
          hex(entry.xxh3));
}

// Returns the manifest's entries. Throws Error unless the manifest is unchanged and belongs to this folder.
std::vector<ManifestEntry> verified_manifest(const std::string& folder) {
    const std::string path = folder + "/manifest.json";
    const std::string text = read_text(path, JsonLimits().bytes);
    const Json parsed = parse_json(text, path);
    const JsonObject manifest(parsed, path);
    std::vector<ManifestEntry> files;
    const auto step = manifest.at<int64_t>("step");
    const auto list = manifest.at<Json>("files");
    CHECK(list.is_array(), "{}: files is not a list", path);
    for (const Json& item : list.items()) {
        const JsonObject file(item, path + ": files");
        files.push_back(
            {file.at<std::string>("path"), file.at<int64_t>("bytes"), parse_hex(file.at<std::string>("xxh3"), path)});
    }
    CHECK(text == manifest_text(step, files), "{}: its content changed", path);
    const std::optional<int64_t> expected = checkpoint_step(fs::path(folder).filename().string());
    CHECK(!expected || *expected == step, "{}: of step {}, not of this folder's", path, step);
    return files;
}

void verify(const std::string& folder) {
    const std::vector<ManifestEntry> files = verified_manifest(folder);
    std::set<std::string> names;
    for (const ManifestEntry& entry : files) names.insert(entry.path);
    for (const char* needed : kNeeded) CHECK(names.count(needed), "{}/manifest.json: lists no {}", folder, needed);
    CHECK(names.count("model.safetensors") || names.count("model.safetensors.index.json"),
          "{}/manifest.json: lists no model.safetensors", folder);
    for (const ManifestEntry& entry : files) verify_file(folder, entry);
}

// Uploads elements [begin, end) of a tensor of the file whose shape must be [rows, cols].
void upload_tensor(float* out, const SafetensorsFile& file, const std::string& name, int64_t rows, int64_t cols,
                   int64_t begin, int64_t end, const Stream& stream) {
    const TensorInfo& t = file.at(name);
    CHECK(t.dtype == "F32" && t.shape == (std::vector<int64_t>{rows, cols}),
          "{}: tensor '{}' is {} [{}], this run's is F32 [{}, {}]", file.path(), name, t.dtype, joined(t.shape, ", "),
          rows, cols);
    std::vector<float> piece;
    for (int64_t n = 0; begin < end; begin += n, out += n) {
        n = std::min(end - begin, ParamStore::kStagedElements);
        piece.resize(static_cast<size_t>(n));
        file.read(t, begin, n, piece.data());
        upload(out, piece.data(), n, stream);
        stream.synchronize();  // `piece` is reused
    }
}

}  // namespace

Json to_json(const BestEvaluation& best) {
    Json j = {{"step", best.step}, {"since", best.since}, {"last", best.last}};
    if (best.step > 0) j["loss"] = best.loss;
    return j;
}

BestEvaluation best_evaluation(const Json& j, const std::string& where) {
    const JsonObject o(j, where);
    BestEvaluation best;
    best.step = o.at<int64_t>("step");
    best.since = o.at<int64_t>("since");
    best.last = o.at<int64_t>("last");
    if (best.step > 0) best.loss = o.at<double>("loss");
    CHECK(best.step >= 0 && best.since >= 0 && best.last >= 0 && best.loss >= 0, "{}: a value is negative", where);
    return best;
}

Json to_json(const TrainingState& s) {
    Json j = {{"format", kFormat},
              {"step", s.step},
              {"tokens", s.tokens},
              {"next_sample", s.next_sample},
              {"updates", s.control.updates},
              {"guard",
               {{"skipped_in_row", s.control.skipped_in_row},
                {"loss", stats_json(s.control.loss_stats)},
                {"grad_norm", stats_json(s.control.grad_norm_stats)}}},
              {"run", s.run}};
    if (s.interim) j["interim"] = true;
    if (s.best.last > 0) j["best"] = to_json(s.best);
    if (s.log) j["log"] = {{"bytes", s.log->bytes}, {"xxh3", hex(s.log->xxh3)}};
    return j;
}

// Throws UsageError naming the file and the key if a part of the run's description that resuming reads is of another
// kind.
void check_run(const Json& run, const std::string& where) {
    const JsonObject o(run, where);
    const auto check = [&]<typename T>(const JsonObject& in, const char* key, T least) {
        if (in.has_key(key)) {
            const T value = in.at<T>(key);
            if constexpr (std::is_integral_v<T>)
                CHECK_USAGE(value >= least, "{}: {} is {}, expected at least {}", in.name(), key, value, least);
        }
    };
    const auto object_at = [&](const JsonObject& in, const char* key) {
        return in.has_key(key) ? in.at<Json>(key) : Json::object();
    };
    const auto check_list = [&](const JsonObject& in, const char* key, auto check_item) {
        if (!in.has_key(key)) return;
        const auto list = in.at<Json>(key);
        const std::string name = fmt::format("{}: {}", in.name(), key);
        CHECK_USAGE(list.is_array(), "{} is {}, expected a list", name, shown(list));
        for (const Json& item : list.items()) check_item(JsonObject(item, name));
    };
    check(o, "program", std::string());
    check(o, "init_from", std::string());
    check(o, "ranks", 1);
    check(o, "micro_batch", 0);
    check(o, "steps", int64_t{0});
    check(o, "warmup_steps", int64_t{-1});
    const Json options = object_at(o, "options");
    const Json model = object_at(o, "model");
    const Json data = object_at(o, "data");
    const JsonObject options_of_run(options, where + ": options");
    check(options_of_run, "init-from", std::string());
    check(options_of_run, "dtype", std::string());
    JsonObject(model, where + ": model");
    check_list(o, "changes", [&](const JsonObject& change) {
        change.at<int64_t>("step");
        change.at<std::string>("event");
        change.at<std::string>("reason");
    });
    const JsonObject data_of_run(data, where + ": data");
    for (const char* key : {"train", "val"}) {
        const Json shards = data_of_run.has_key(key) ? data_of_run.at<Json>(key) : Json::array();
        if (shards.is_array()) {  // as version 0.2 wrote them
            check_list(data_of_run, key, [](const auto&) {});
            continue;
        }
        const JsonObject summary(shards, fmt::format("{}: {}", data_of_run.name(), key));
        check(summary, "shards", int64_t{0});
        check(summary, "tokens", int64_t{0});
        check(summary, "hash", std::string());
    }
}

TrainingState training_state(const Json& j, const std::string& path) {
    TrainingState s;
    const JsonObject o(j, path);
    const int format = o.at<int>("format");
    CHECK(format == kFormat, "{}: format {}, this program reads {}", path, format, kFormat);
    s.step = o.at<int64_t>("step");
    s.tokens = o.at<int64_t>("tokens");
    s.next_sample = o.at<int64_t>("next_sample");
    s.control.updates = o.at<int>("updates");
    const auto guard_json = o.at<Json>("guard");
    const JsonObject guard(guard_json, path + ": guard");
    s.control.skipped_in_row = guard.at<int>("skipped_in_row");
    auto stats = [&](const char* key) {
        const auto series = guard.at<Json>(key);
        return stats_of(JsonObject(series, guard.name() + ": " + key));
    };
    s.control.loss_stats = stats("loss");
    s.control.grad_norm_stats = stats("grad_norm");
    s.run = o.at<Json>("run");
    check_run(s.run, path + ": run");
    for (const auto& [key, value] : {std::pair{"step", s.step},
                                     {"tokens", s.tokens},
                                     {"next_sample", s.next_sample},
                                     {"updates", s.control.updates},
                                     {"skipped_in_row", s.control.skipped_in_row}})
        CHECK(value >= 0, "{}: {} is {}, expected at least 0", path, key, value);
    s.interim = o.get("interim", false);
    if (o.has_key("best")) s.best = best_evaluation(o.at<Json>("best"), path + ": best");
    if (o.has("log")) {
        const auto log_json = o.at<Json>("log");
        const JsonObject log(log_json, path + ": log");
        s.log = {log.at<int64_t>("bytes"), parse_hex(log.at<std::string>("xxh3"), log.name())};
        CHECK(s.log->bytes >= 0, "{}: bytes is {}, expected at least 0", log.name(), s.log->bytes);
    }
    return s;
}

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::optional<int64_t> checkpoint_step(const std::string& name) {
    int64_t step = -1;
    if (!name.starts_with(kPrefix)) return std::nullopt;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
    if (step < 0 || checkpoint_name(step) != name) return std::nullopt;
    return step;
}

std::string manifest_text(int64_t step, const std::vector<ManifestEntry>& files) {
    Json j = {{"format", kFormat}, {"step", step}, {"files", Json::array()}};
    for (const ManifestEntry& f : files)
        j["files"].push_back({{"path", f.path}, {"bytes", f.bytes}, {"xxh3", hex(f.xxh3)}});
    const std::string content = json_text(j, {.in_order = true});
    j["xxh3"] = hex(hash_of(content));
    return json_text(j, {.indent = 1, .in_order = true}) + "\n";
}

std::optional<std::string> checkpoint_fault(const std::string& folder) {
    try {
        verify(folder);
        return std::nullopt;
    } catch (const ReadError& error) {
        throw ReadError(fmt::format("{}; nothing was changed: try again, or move {} away to go on without it",
                                    error.what(), folder));
    } catch (const Error& fault) { return fault.what(); }
}

void verify_model(const std::string& path) {
    const bool whole = is_folder(path);
    const bool many = whole || path.ends_with(".index.json");
    const std::string folder = whole ? path : fs::path(path).parent_path().string();
    const std::string manifest = (fs::path(folder) / "manifest.json").string();
    if (!path_exists(manifest)) return;
    const Json parsed = read_json(manifest);
    if (!parsed.contains("xxh3") || !parsed.contains("files")) return;  // written by another program
    for (const ManifestEntry& entry : verified_manifest(folder.empty() ? "." : folder)) {
        const bool of_training = entry.path.starts_with("optimizer/") || entry.path == "trainer.json";
        if (many ? !of_training : entry.path == fs::path(path).filename() || entry.path == "config.json")
            verify_file(folder.empty() ? "." : folder, entry);
    }
}

std::vector<int64_t> list_checkpoints(const std::string& run_folder) {
    std::vector<int64_t> steps;
    std::error_code error;
    std::error_code ignored;
    for (const std::string& name : names_in(run_folder, error))
        if (auto step = checkpoint_step(name); step && fs::is_directory(fs::path(run_folder) / name, ignored))
            steps.push_back(*step);
    if (error) throw ReadError(fmt::format("{}: cannot be listed: {}", run_folder, error.message()));
    std::sort(steps.begin(), steps.end());
    return steps;
}

std::string faults_of(const FoundCheckpoint& checkpoint) {
    std::vector<std::string> faults;
    for (const auto& [folder, fault] : checkpoint.passed_over) faults.push_back(fault);
    return joined(faults, "; ");
}

// A run may save and remove checkpoints at the same time. It removes one only after it saved a newer one.
FoundCheckpoint find_checkpoint(const std::string& run_folder) {
    const auto list = [&] {
        const std::vector<int64_t> steps = list_checkpoints(run_folder);
        // A listing during a removal may miss both the removed checkpoint and the newer one.
        return steps.empty() ? list_checkpoints(run_folder) : steps;
    };
    FoundCheckpoint result;
    std::vector<int64_t> steps = list();
    while (!steps.empty()) {
        const std::string folder = run_folder + "/" + checkpoint_name(steps.back());
        const std::optional<std::string> fault = checkpoint_fault(folder);
        if (!fault) {
            result.folder = folder;
            break;
        }
        std::error_code error;
        if (!fs::exists(folder, error) && !error) {
            result = {};
            steps = list();
            continue;
        }
        result.passed_over.push_back({folder, *fault});
        steps.pop_back();
    }
    return result;
}

std::optional<int64_t> best_checkpoint(const std::string& run_folder) {
    std::error_code error;
    const std::string path = run_folder + "/" + kBestFile;
    std::optional<int64_t> step = checkpoint_step(fs::read_symlink(run_folder + "/" + kBestLink, error).string());
    if (path_exists(path)) {
        const Json best = read_json(path);
        step = JsonObject(best, path).at<int64_t>("step");
    }
    return step && is_folder(run_folder + "/" + checkpoint_name(*step)) ? step : std::nullopt;
}

void check_best_link(const std::string& run_folder) {
    std::error_code error;
    const fs::file_status status = fs::symlink_status(run_folder + "/" + kBestLink, error);
    CHECK_USAGE(!fs::exists(status) || fs::is_symlink(status),
                "{}/{}: is not a link, which --keep-best makes there; move it away", run_folder, kBestLink);
}

std::optional<int64_t> newest_good_checkpoint(const std::string& run_folder) {
    const std::vector<int64_t> steps = list_checkpoints(run_folder);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
        const std::string folder = run_folder + "/" + checkpoint_name(*step);
        try {
            if (read_training_state(folder).control.skipped_in_row == 0 && !checkpoint_fault(folder)) return *step;
        } catch (const ReadError&) { throw; } catch (const Error&) {  // a damaged checkpoint is not good
        }
    }
    return std::nullopt;
}

TrainingState read_training_state(const std::string& folder) {
    const std::string path = folder + "/trainer.json";
    const TrainingState state = training_state(read_json(path), path);
    const std::optional<int64_t> expected = checkpoint_step(fs::path(folder).filename().string());
    CHECK(!expected || *expected == state.step, "{}: of step {}, not of this folder's", path, state.step);
    return state;
}

void read_tensors(const std::string& folder, ParamStore& params, const std::vector<StateTensor>& state,
                  const Stream& stream) {
    load_weights(params, SafetensorsModel(folder), stream);
    if (const std::string path = folder + "/optimizer/master.safetensors"; path_exists(path)) {
        const SafetensorsFile padded(path);
        for (int i = 0; i < params.table().count(); ++i) {
            const ParamRow& row = params.table()[i];
            if (!padded.find(row.name)) continue;
            upload_tensor(params.staging(i), padded, row.name, row.rows, row.cols, 0, row.size(), stream);
            params.place(i, 0, row.size(), stream);
        }
    }
    const SafetensorsFile saved(folder + "/optimizer/state.safetensors");
    CHECK(saved.tensors().size() == state.size(), "{}: holds {} tensors, this run's optimizer has {}", saved.path(),
          saved.tensors().size(), state.size());
    for (const StateTensor& t : state) upload_tensor(t.data, saved, t.name, t.rows, t.cols, t.begin, t.end, stream);
}

}  // namespace teon

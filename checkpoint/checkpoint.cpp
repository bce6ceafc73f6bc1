#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>

#include "checkpoint/hash.h"
#include "checkpoint/safetensors.h"

namespace teon {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

constexpr int kFormat = 1;
constexpr std::string_view kPrefix = "step_";

// What resuming reads; a manifest that does not list one of these is not of a whole checkpoint.
constexpr const char* kNeeded[] = {"config.json", "model.safetensors", "optimizer/master.safetensors",
                                   "optimizer/state.safetensors", "trainer.json"};

std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    CHECK(file, "{}: cannot be read", path);
    std::string text(std::istreambuf_iterator<char>(file), {});
    CHECK(!file.bad(), "{}: cannot be read", path);
    return text;
}

std::string hex(uint64_t x) { return fmt::format("{:016x}", x); }

uint64_t parse_hex(const std::string& text) {
    uint64_t x = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x, 16);
    CHECK(error == std::errc() && end == text.data() + text.size(), "'{}' is not a hash", text);
    return x;
}

json stats_json(const SeriesStats& s) { return {{"mean", s.mean}, {"variance", s.variance}, {"count", s.count}}; }
SeriesStats stats_of(const json& j) {
    return {j.at("mean").get<float>(), j.at("variance").get<float>(), j.at("count").get<int>()};
}

// Throws Error unless the file has this size and hash.
void verify_file(const std::string& folder, const ManifestEntry& entry) {
    const std::string path = folder + "/" + entry.path;
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    CHECK(fs::exists(status), "{}: missing", path);
    CHECK(fs::is_regular_file(status), "{}: not a file", path);
    const int64_t bytes = static_cast<int64_t>(fs::file_size(path, error));
    CHECK(!error && bytes == entry.bytes, "{}: {} bytes, {} were written", path, bytes, entry.bytes);
    std::ifstream file(path, std::ios::binary);
    CHECK(file, "{}: cannot be read", path);
    Hash hash;
    std::vector<char> block(size_t{1} << 20);
    int64_t seen = 0;
    while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
        hash.update(block.data(), static_cast<size_t>(file.gcount()));
        seen += file.gcount();
    }
    CHECK(!file.bad() && seen == bytes, "{}: cannot be read beyond byte {}", path, seen);
    const uint64_t found = hash.digest();
    CHECK(found == entry.xxh3, "{}: its content changed: hash {}, {} was written", path, hex(found), hex(entry.xxh3));
}

void verify(const std::string& folder) {
    const std::string path = folder + "/manifest.json";
    std::error_code error;
    CHECK(fs::exists(path, error), "{}: missing", path);
    const std::string text = read_text(path);
    const json j = json::parse(text, nullptr, false);
    CHECK(j.is_object(), "{}: not valid JSON", path);
    std::vector<ManifestEntry> files;
    std::set<std::string> names;
    int64_t step = -1;
    try {
        step = j.at("step").get<int64_t>();
        for (const json& f : j.at("files")) {
            files.push_back({f.at("path").get<std::string>(), f.at("bytes").get<int64_t>(),
                             parse_hex(f.at("xxh3").get<std::string>())});
            names.insert(files.back().path);
        }
    } catch (const std::exception& fault) { throw Error(fmt::format("{}: not a manifest: {}", path, fault.what())); }
    CHECK(text == manifest_text(step, files), "{}: its content changed", path);
    const std::optional<int64_t> expected = checkpoint_step(fs::path(folder).filename().string());
    CHECK(!expected || *expected == step, "{}: of step {}, not of this folder's", path, step);
    for (const char* needed : kNeeded) CHECK(names.count(needed), "{}: lists no {}", path, needed);
    for (const ManifestEntry& entry : files) verify_file(folder, entry);
}

// Uploads elements [begin, end) of a tensor of the file whose shape must be [rows, cols].
void upload_tensor(float* out, const SafetensorsFile& file, const std::string& name, int64_t rows, int64_t cols,
                   int64_t begin, int64_t end, const Stream& stream) {
    const TensorInfo& t = file.at(name);
    CHECK(t.dtype == "F32" && t.shape == (std::vector<int64_t>{rows, cols}),
          "{}: tensor '{}' is {} [{}], this run's is F32 [{}, {}]", file.path(), name, t.dtype,
          fmt::join(t.shape, ", "), rows, cols);
    const std::vector<std::byte> data = file.read(t);
    upload(out, reinterpret_cast<const float*>(data.data()) + begin, end - begin, stream);
    stream.synchronize();  // data ends here
}

}  // namespace

json to_json(const TrainingState& s) {
    return {{"format", kFormat},
            {"step", s.step},
            {"tokens", s.tokens},
            {"next_sample", s.next_sample},
            {"updates", s.control.updates},
            {"guard",
             {{"skipped_in_row", s.control.skipped_in_row},
              {"loss", stats_json(s.control.loss_stats)},
              {"grad_norm", stats_json(s.control.grad_norm_stats)}}},
            {"run", s.run}};
}

TrainingState training_state(const json& j, const std::string& path) {
    TrainingState s;
    try {
        const int format = j.at("format").get<int>();
        CHECK(format == kFormat, "format {}, this program reads {}", format, kFormat);
        s.step = j.at("step").get<int64_t>();
        s.tokens = j.at("tokens").get<int64_t>();
        s.next_sample = j.at("next_sample").get<int64_t>();
        s.control.updates = j.at("updates").get<int>();
        const json& guard = j.at("guard");
        s.control.skipped_in_row = guard.at("skipped_in_row").get<int>();
        s.control.loss_stats = stats_of(guard.at("loss"));
        s.control.grad_norm_stats = stats_of(guard.at("grad_norm"));
        s.run = j.at("run");
    } catch (const std::exception& fault) { throw Error(fmt::format("{}: {}", path, fault.what())); }
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
    nlohmann::ordered_json j = {{"format", kFormat}, {"step", step}, {"files", json::array()}};
    for (const ManifestEntry& f : files)
        j["files"].push_back({{"path", f.path}, {"bytes", f.bytes}, {"xxh3", hex(f.xxh3)}});
    const std::string content = j.dump();
    j["xxh3"] = hex(hash_of(content));
    return j.dump(1) + "\n";
}

std::optional<std::string> checkpoint_fault(const std::string& folder) {
    try {
        verify(folder);
        return std::nullopt;
    } catch (const std::exception& fault) { return fault.what(); }
}

std::vector<int64_t> list_checkpoints(const std::string& run_folder) {
    std::vector<int64_t> steps;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(run_folder, error))
        if (auto step = checkpoint_step(entry.path().filename().string())) steps.push_back(*step);
    std::sort(steps.begin(), steps.end());
    return steps;
}

FoundCheckpoint find_checkpoint(const std::string& run_folder) {
    FoundCheckpoint found;
    const std::vector<int64_t> steps = list_checkpoints(run_folder);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
        const std::string folder = run_folder + "/" + checkpoint_name(*step);
        const std::optional<std::string> fault = checkpoint_fault(folder);
        if (!fault) {
            found.folder = folder;
            break;
        }
        found.passed_over.push_back({folder, *fault});
    }
    return found;
}

TrainingState read_training_state(const std::string& folder) {
    const std::string path = folder + "/trainer.json";
    const json j = json::parse(read_text(path), nullptr, false);
    CHECK(j.is_object(), "{}: not valid JSON", path);
    return training_state(j, path);
}

void read_tensors(const std::string& folder, ParamStore& params, const std::vector<StateTensor>& state,
                  const Stream& stream) {
    const SafetensorsFile master(folder + "/optimizer/master.safetensors");
    for (int i = 0; i < params.table().count(); ++i) {
        const ParamRow& row = params.table()[i];
        upload_tensor(params.master(i), master, row.name, row.rows, row.cols, 0, row.size(), stream);
    }
    params.sync_work(stream);
    const SafetensorsFile saved(folder + "/optimizer/state.safetensors");
    CHECK(saved.tensors().size() == state.size(), "{}: holds {} tensors, this run's optimizer has {}", saved.path(),
          saved.tensors().size(), state.size());
    for (const StateTensor& t : state) upload_tensor(t.data, saved, t.name, t.rows, t.cols, t.begin, t.end, stream);
}

}  // namespace teon

#include "checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"
#include "files/file.h"
#include "files/json.h"

namespace teon {

namespace {

constexpr size_t kBlock = size_t{8} << 20;  // most bytes of one write

void require(int status, const char* what, const std::string& path) {
    CHECK(status >= 0, "{}: cannot {}: {}", path, what, std::strerror(errno));
}

// A file of a checkpoint, hashed while it is written. close() makes it durable; without close() it is abandoned.
class OutputFile {
public:
    OutputFile(FileOps& files, const std::string& folder, const std::string& path)
        : files_(files), path_(folder + "/" + path), entry_{path} {
        file_ = files_.create(path_);
        require(file_, "create", path_);
    }
    ~OutputFile() {
        if (file_ >= 0) files_.close(file_);
    }
    OutputFile(const OutputFile&) = delete;

    void write(const void* data, size_t bytes) {
        const char* p = static_cast<const char*>(data);
        hash_.update(p, bytes);
        entry_.bytes += static_cast<int64_t>(bytes);
        while (bytes > 0) {
            const ssize_t n = files_.write(file_, p, std::min(bytes, kBlock));
            if (n < 0 && errno == EINTR) continue;
            if (n == 0) errno = EIO;
            require(n > 0 ? 0 : -1, "write", path_);
            p += n;
            bytes -= static_cast<size_t>(n);
        }
    }
    void write(const std::string& text) { write(text.data(), text.size()); }

    ManifestEntry close() {
        require(files_.sync(file_), "sync", path_);
        require(files_.close(std::exchange(file_, -1)), "close", path_);
        entry_.xxh3 = hash_.digest();
        return entry_;
    }

private:
    FileOps& files_;
    std::string path_;
    Hash hash_;
    ManifestEntry entry_;
    int file_ = -1;
};

// Returns false for a checkpoint that cannot be read, so that it is not removed.
bool is_interim(const std::string& folder) {
    try {
        return read_training_state(folder).interim;
    } catch (const Error&) { return false; }
}

}  // namespace

CheckpointWriter::CheckpointWriter(CheckpointPlan plan, const ParamStore& params, std::vector<StateTensor> state,
                                   FileOps& files)
    : plan_(std::move(plan)), params_(params), state_(std::move(state)), files_(files) {
    weights_at_ = {0};
    for (const ParamRow& row : params.table().rows()) weights_at_.push_back(weights_at_.back() + row.size());
    copy_ = PinnedBuffer<float>(weights_at_.back() + elements_of(state_));
}

CheckpointWriter::~CheckpointWriter() {
    if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::save(const TrainingState& state, const Stream& stream,
                            const std::function<const float*(int64_t begin, int64_t end)>& collected, int64_t window,
                            std::optional<double> best) {
    if (thread_.joinable()) thread_.join();
    float* to = copy_.data();
    if (collected) {
        for_each_window(copy_.size(), window, [&](int64_t begin, int64_t end) {
            download(to + begin, collected(begin, end), end - begin, stream);
        });
    } else {
        const auto save = [&](const float* from, int64_t n) { download(std::exchange(to, to + n), from, n, stream); };
        for (int row = 0; row < params_.table().count(); ++row) save(params_.master(row), params_.table()[row].size());
        for (const StateTensor& t : state_) save(t.data, t.size());
    }
    copied_.record(stream);
    running_ = true;
    thread_ = std::thread([this, state, best] {
        save_copy(state, best);
        running_ = false;
    });
    reported_ = false;  // last: without a thread there is no result
}

std::optional<SaveResult> CheckpointWriter::result(bool wait) {
    if (reported_ || (running_ && !wait)) return std::nullopt;
    if (thread_.joinable()) thread_.join();
    reported_ = true;
    return result_;
}

void CheckpointWriter::save_copy(const TrainingState& state, std::optional<double> best) {
    const std::string folder = folder_of(state.step);
    const std::string staged = folder + ".tmp";
    result_ = {};
    result_.step = state.step;
    result_.folder = folder;
    try {
        copied_.synchronize();
        check_finite();
        const auto start = std::chrono::steady_clock::now();
        require(files_.remove_folder(staged), "remove", staged);  // left by a killed run
        write(state, staged);
        require(files_.rename(staged, folder), "rename", staged);
        require(files_.sync_folder(plan_.run_folder), "sync", plan_.run_folder);
        result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    } catch (const std::exception& fault) {
        result_.fault = fault.what();
        files_.remove_folder(staged);  // frees the space; if this fails, the next save of this step tries again
        return;
    }
    try {
        if (best) unmarked_ = {state.step, *best};
        const std::string link = unmarked_ ? write_best() : "";
        const std::string removal = remove_old(state.step);
        result_.warning = link + (link.empty() || removal.empty() ? "" : "; ") + removal;
    } catch (const std::exception& fault) { result_.warning = fault.what(); }
}

std::string CheckpointWriter::mark_best(int64_t step, double loss) {
    if (thread_.joinable()) thread_.join();
    if (!path_exists(folder_of(step))) return "";
    unmarked_ = {step, loss};
    try {
        return write_best();
    } catch (const std::exception& fault) { return fault.what(); }
}

// Each rename replaces at once: a kill leaves the old file and link or the new ones. The file comes first, because it
// protects the checkpoint; a resumed run makes the link again.
std::string CheckpointWriter::write_best() {
    const auto [step, loss] = *unmarked_;
    const auto replace = [&](const char* name, const std::function<void(const std::string&)>& make) {
        const std::string path = plan_.run_folder + "/" + name;
        const std::string staged = path + ".tmp";
        require(files_.remove_folder(staged), "remove", staged);  // left by a killed run
        make(name + std::string(".tmp"));
        require(files_.rename(staged, path), "rename", staged);
        require(files_.sync_folder(plan_.run_folder), "sync", plan_.run_folder);
    };
    replace(kBestFile, [&](const std::string& staged) {
        OutputFile file(files_, plan_.run_folder, staged);
        file.write(json_text({{"step", step}, {"loss", loss}}, {.in_order = true}) + "\n");
        file.close();
    });
    unmarked_.reset();
    try {
        check_best_link(plan_.run_folder);
        replace(kBestLink, [&](const std::string& staged) {
            const std::string path = plan_.run_folder + "/" + staged;
            require(files_.link(checkpoint_name(step), path), "link", path);
        });
        return "";
    } catch (const std::exception& fault) {
        return fmt::format("{}; {} names the best checkpoint", fault.what(), kBestFile);
    }
}

void CheckpointWriter::check_finite() const {
    for (int row = 0; row < params_.table().count(); ++row)
        CHECK(std::all_of(weights(row), weights(row + 1), [](float x) { return std::isfinite(x); }),
              "the weights of {} are not finite, nothing was saved", params_.table()[row].name);
}

void CheckpointWriter::write(const TrainingState& state, const std::string& staged) {
    require(files_.make_folder(staged), "create", staged);
    require(files_.make_folder(staged + "/optimizer"), "create", staged + "/optimizer");
    std::vector<ManifestEntry> manifest;
    auto close = [&](OutputFile& file) {
        manifest.push_back(file.close());
        result_.bytes += manifest.back().bytes;
    };
    auto write_text = [&](const std::string& path, const std::string& text) {
        OutputFile file(files_, staged, path);
        file.write(text);
        close(file);
    };
    const ParamTable& table = params_.table();
    const std::map<std::string, std::string> format = {{"format", "pt"}};

    write_text("config.json", plan_.config);
    {
        const std::vector<CheckpointTensor> tensors = checkpoint_tensors(table);
        std::vector<TensorData> described;
        for (const CheckpointTensor& t : tensors) described.push_back({t.name, "F32", t.shape, nullptr});
        const std::vector<ModelShard> shards = divide_model(described, plan_.shard_bytes);
        std::vector<float> values;
        for (const ModelShard& shard : shards) {
            OutputFile file(files_, staged, shard.file);
            file.write(safetensors_header({described.begin() + static_cast<int64_t>(shard.begin),
                                           described.begin() + static_cast<int64_t>(shard.end)},
                                          format));
            for (size_t t = shard.begin; t < shard.end; ++t) {
                values.resize(static_cast<size_t>(tensors[t].elements()));
                for (int i : tensors[t].params) gather_param(table[i], weights(i), values.data());
                file.write(values.data(), values.size() * sizeof(float));
            }
            close(file);
        }
        if (shards.size() > 1) {
            const auto [name, index] = model_index(described, shards);
            write_text(name, index);
        }
    }
    auto write_tensors = [&](const std::string& path, const std::vector<TensorData>& tensors) {
        OutputFile file(files_, staged, path);
        file.write(safetensors_header(tensors, format));
        for (const TensorData& t : tensors)
            file.write(t.data, static_cast<size_t>(t.shape[0] * t.shape[1]) * sizeof(float));
        close(file);
    };
    std::vector<TensorData> padded;
    std::vector<TensorData> moments;  // model.safetensors has no padding; zero padding is not saved
    for (int i = 0; i < table.count(); ++i)
        if (const ParamRow& row = table[i]; !padding_is_zero(row, weights(i)))
            padded.push_back({row.name, "F32", {row.rows, row.cols}, weights(i)});
    const float* from = weights(table.count());
    for (const StateTensor& t : state_) {
        moments.push_back({t.name, "F32", {t.rows, t.cols}, from});
        from += static_cast<int64_t>(t.rows) * t.cols;
    }
    if (!padded.empty()) write_tensors("optimizer/master.safetensors", padded);
    write_tensors("optimizer/state.safetensors", moments);

    std::vector<std::string> folders = {staged + "/optimizer"};
    for (const auto& [path, content] : plan_.extra_files) {
        if (const size_t slash = path.find('/'); slash != std::string::npos) {
            const std::string folder = staged + "/" + path.substr(0, slash);
            if (std::find(folders.begin(), folders.end(), folder) == folders.end()) {
                require(files_.make_folder(folder), "create", folder);
                folders.push_back(folder);
            }
        }
        write_text(path, content);
    }
    write_text("trainer.json", json_text(to_json(state), {.indent = 2}) + "\n");
    if (plan_.sync_log) plan_.sync_log();
    OutputFile file(files_, staged, "manifest.json");
    file.write(manifest_text(state.step, manifest));
    file.close();
    folders.push_back(staged);
    for (const std::string& folder : folders) require(files_.sync_folder(folder), "sync", folder);
}

std::string CheckpointWriter::folder_of(int64_t step) const { return plan_.run_folder + "/" + checkpoint_name(step); }

std::string CheckpointWriter::remove_old(int64_t newest) {
    if (unmarked_) return "";
    try {
        std::vector<int64_t> steps = list_checkpoints(plan_.run_folder);
        int64_t kept = 1;
        std::reverse(steps.begin(), steps.end());
        std::erase_if(steps, [&](int64_t step) {
            if (step >= newest) return true;
            if (plan_.keep_last > 0 ? ++kept <= plan_.keep_last : !is_interim(folder_of(step))) return true;
            return plan_.keep_every > 0 && step % plan_.keep_every == 0;
        });
        if (steps.empty()) return "";
        const std::optional<int64_t> good = newest_good_checkpoint(plan_.run_folder);
        const std::optional<int64_t> best = best_checkpoint(plan_.run_folder);
        for (const int64_t step : steps) {
            if (step == good || step == best) continue;
            const std::string folder = folder_of(step);
            require(files_.rename(folder, folder + ".tmp"), "rename", folder);  // so that a kill leaves no partial one
            require(files_.remove_folder(folder + ".tmp"), "remove", folder);
        }
    } catch (const std::exception& fault) { return fault.what(); }
    return "";
}

}  // namespace teon

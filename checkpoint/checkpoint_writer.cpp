#include "checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/hash.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"
#include "files/file.h"
#include "files/json.h"

namespace teon {

namespace {

constexpr size_t kBlock = size_t{8} << 20;  // most bytes of one write
const std::map<std::string, std::string> kMetadata = {{"format", "pt"}};

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

}  // namespace

// The folder of a checkpoint that is being written, and its manifest.
class CheckpointWriter::StagedFolder {
public:
    StagedFolder(FileOps& files, std::string path) : files_(files), path_(std::move(path)) { make(path_); }

    // Calls write(file) to write the file `name`, which is at most one folder deep.
    template <typename F>
    void add(const std::string& name, F write) {
        if (const size_t slash = name.find('/'); slash != std::string::npos) make(path_ + "/" + name.substr(0, slash));
        OutputFile file(files_, path_, name);
        write(file);
        manifest_.push_back(file.close());
    }
    void add_text(const std::string& name, const std::string& text) {
        add(name, [&](OutputFile& file) { file.write(text); });
    }
    // The tensors are float.
    void add_tensors(const std::string& name, const std::vector<TensorData>& tensors) {
        add(name, [&](OutputFile& file) {
            file.write(safetensors_header(tensors, kMetadata));
            for (const TensorData& t : tensors) file.write(t.data, static_cast<size_t>(bytes_of(t)));
        });
    }
    // Writes the manifest, makes the folders durable and returns the bytes of the files that the manifest lists.
    int64_t close(int64_t step) {
        OutputFile file(files_, path_, "manifest.json");
        file.write(manifest_text(step, manifest_));
        file.close();
        for (auto folder = folders_.rbegin(); folder != folders_.rend(); ++folder)
            require(files_.sync_folder(*folder), "sync", *folder);
        int64_t bytes = 0;
        for (const ManifestEntry& entry : manifest_) bytes += entry.bytes;
        return bytes;
    }

private:
    void make(const std::string& folder) {
        if (std::find(folders_.begin(), folders_.end(), folder) != folders_.end()) return;
        require(files_.make_folder(folder), "create", folder);
        folders_.push_back(folder);
    }

    FileOps& files_;
    const std::string path_;
    std::vector<std::string> folders_;  // made: path_, then those in it
    std::vector<ManifestEntry> manifest_;
};

// Returns false for a checkpoint that cannot be read, so that it is not removed.
static bool is_interim(const std::string& folder) {
    try {
        return read_training_state(folder).interim;
    } catch (const Error&) { return false; }
}

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
    const int64_t step = unmarked_->first;
    const double loss = unmarked_->second;
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
    StagedFolder folder(files_, staged);
    folder.add_text("config.json", plan_.config);
    write_model(folder);
    write_optimizer(folder);
    for (const auto& [name, content] : plan_.extra_files) folder.add_text(name, content);
    folder.add_text("trainer.json", json_text(to_json(state), {.indent = 2}) + "\n");
    if (plan_.sync_log) plan_.sync_log();
    result_.bytes = folder.close(state.step);
}

void CheckpointWriter::write_model(StagedFolder& folder) const {
    const ParamTable& table = params_.table();
    const std::vector<CheckpointTensor> tensors = checkpoint_tensors(table);
    std::vector<TensorData> described;
    for (const CheckpointTensor& t : tensors) described.push_back({t.name, "F32", t.shape, nullptr});
    const std::vector<ModelShard> shards = divide_model(described, plan_.shard_bytes);
    std::vector<float> values;
    for (const ModelShard& shard : shards) {
        folder.add(shard.file, [&](OutputFile& file) {
            file.write(safetensors_header({described.begin() + static_cast<int64_t>(shard.begin),
                                           described.begin() + static_cast<int64_t>(shard.end)},
                                          kMetadata));
            for (size_t t = shard.begin; t < shard.end; ++t) {
                values.resize(static_cast<size_t>(tensors[t].elements()));
                for (int i : tensors[t].params) gather_param(table[i], weights(i), values.data());
                file.write(values.data(), values.size() * sizeof(float));
            }
        });
    }
    if (shards.size() == 1) return;
    const auto [name, index] = model_index(described, shards);
    folder.add_text(name, index);
}

void CheckpointWriter::write_optimizer(StagedFolder& folder) const {
    const ParamTable& table = params_.table();
    std::vector<TensorData> padded;  // model.safetensors has no padding; zero padding is not saved
    for (int i = 0; i < table.count(); ++i)
        if (const ParamRow& row = table[i]; !padding_is_zero(row, weights(i)))
            padded.push_back({row.name, "F32", {row.rows, row.cols}, weights(i)});
    if (!padded.empty()) folder.add_tensors("optimizer/master.safetensors", padded);
    std::vector<TensorData> moments;
    const float* from = weights(table.count());
    for (const StateTensor& t : state_) {
        moments.push_back({t.name, "F32", {t.rows, t.cols}, from});
        from += t.size();
    }
    folder.add_tensors("optimizer/state.safetensors", moments);
}

std::string CheckpointWriter::folder_of(int64_t step) const { return plan_.run_folder + "/" + checkpoint_name(step); }

std::string CheckpointWriter::remove_old(int64_t newest) {
    if (unmarked_) return "";
    try {
        std::vector<int64_t> old = list_checkpoints(plan_.run_folder);
        std::erase_if(old, [&](int64_t step) { return step >= newest; });
        std::set<int64_t> kept;
        for (size_t i = 0; i < old.size(); ++i) {
            const int64_t newer = std::ssize(old) - static_cast<int64_t>(i);  // `newest` included
            const bool is_last = plan_.keep_last > 0 ? newer < plan_.keep_last : !is_interim(folder_of(old[i]));
            const bool is_multiple = plan_.keep_every > 0 && old[i] % plan_.keep_every == 0;
            if (is_last || is_multiple) kept.insert(old[i]);
        }
        if (kept.size() == old.size()) return "";  // without reading any
        kept.insert(newest_good_checkpoint(plan_.run_folder).value_or(newest));
        kept.insert(best_checkpoint(plan_.run_folder).value_or(newest));
        for (const int64_t step : old) {
            if (kept.count(step)) continue;
            const std::string folder = folder_of(step);
            require(files_.rename(folder, folder + ".tmp"), "rename", folder);  // so that a kill leaves no partial one
            require(files_.remove_folder(folder + ".tmp"), "remove", folder);
        }
    } catch (const std::exception& fault) { return fault.what(); }
    return "";
}

}  // namespace teon

#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/integer.h"
#include "files/json.h"

namespace teon {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr int64_t kMaxHeader = 100'000'000;  // the format's own limit

// Returns a whole number from 0 to INT64_MAX; -1 if the value is none.
int64_t natural(const Json& value) { return value.kind() == Json::Kind::integer ? value.get<int64_t>() : -1; }

TensorInfo parse_tensor(const std::string& path, const std::string& name, const Json& j, int64_t data_begin,
                        int64_t data_bytes) {
    auto fault = [&](const char* what) { return fmt::format("{}: tensor '{}': {}", path, name, what); };
    CHECK(j["dtype"].is_text() && j["shape"].is_array() && j["data_offsets"].items().size() == 2, "{}",
          fault("its header entry is not {dtype, shape, data_offsets}"));
    TensorInfo t;
    t.name = name;
    t.dtype = j["dtype"].get<std::string>();
    const int item = dtype_bytes(t.dtype);
    int64_t elements = 1;
    for (const Json& d : j["shape"].items()) {
        t.shape.push_back(natural(d));
        CHECK(t.shape.back() >= 0, "{}", fault("bad shape"));
        CHECK(!__builtin_mul_overflow(elements, t.shape.back(), &elements), "{}", fault("shape overflows"));
    }
    const int64_t begin = natural(j["data_offsets"].items()[0]);
    const int64_t end = natural(j["data_offsets"].items()[1]);
    CHECK(begin >= 0 && begin <= data_bytes && end >= 0 && end <= data_bytes, "{}",
          fault("its data lie beyond the end of the file"));
    const bool matches = item == 0 || (elements <= INT64_MAX / item && end - begin == elements * item);
    CHECK(begin <= end && matches, "{}", fault("its offsets do not match its shape and dtype"));
    t.offset = data_begin + begin;
    t.bytes = end - begin;
    return t;
}

}  // namespace

int dtype_bytes(const std::string& dtype) {
    static const std::map<std::string, int> sizes = {{"F64", 8},  {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1},
                                                     {"I64", 8},  {"I32", 4}, {"I16", 2}, {"I8", 1},   {"U8", 1},
                                                     {"BOOL", 1}, {"U16", 2}, {"U32", 4}, {"U64", 8}};
    auto it = sizes.find(dtype);
    return it == sizes.end() ? 0 : it->second;
}

int64_t TensorInfo::elements() const {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
    const int64_t size = file_.bytes();
    CHECK(size >= 8, "{}: {} bytes are too few for a safetensors file", path, size);
    uint64_t header_bytes = 0;
    file_.read(&header_bytes, 8, 0);
    CHECK(header_bytes <= static_cast<uint64_t>(std::min(kMaxHeader, size - 8)),
          "{}: its header claims {} bytes, the file has {}", path, header_bytes, size);
    std::string text(header_bytes, '\0');
    file_.read(text.data(), static_cast<int64_t>(header_bytes), 8);
    const Json header = parse_json(text, path + ": its header", {.bytes = kMaxHeader});
    const int64_t data_begin = 8 + static_cast<int64_t>(header_bytes);
    for (const auto& [name, entry] : header.members()) {
        if (name != "__metadata__") {
            tensors_.push_back(parse_tensor(path, name, entry, data_begin, size - data_begin));
            continue;
        }
        CHECK(entry.is_object(), "{}: its __metadata__ is not an object", path);
        for (const auto& [key, value] : entry.members()) {
            CHECK(value.is_text(), "{}: its __metadata__ '{}' is not a string", path, key);
            metadata_[key] = value.get<std::string>();
        }
    }
    std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
        return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
    });
    int64_t at = data_begin;  // tensors must cover the data without gaps or overlaps
    for (const TensorInfo& t : tensors_) {
        CHECK(t.offset == at, "{}: tensor '{}' begins at byte {}, expected {}", path, t.name, t.offset, at);
        at += t.bytes;
        index_.emplace(t.name, index_.size());
    }
    CHECK(at == size, "{}: {} bytes, but its header describes {}", path, size, at);
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
    const auto entry = index_.find(name);
    return entry == index_.end() ? nullptr : &tensors_[entry->second];
}

const TensorInfo& SafetensorsFile::at(const std::string& name) const {
    const TensorInfo* t = find(name);
    CHECK(t, "{}: has no tensor '{}'", path(), name);
    return *t;
}

std::vector<std::byte> SafetensorsFile::read(const TensorInfo& tensor) const {
    std::vector<std::byte> data(static_cast<size_t>(tensor.bytes));
    file_.read(data.data(), tensor.bytes, tensor.offset);
    return data;
}

std::vector<float> SafetensorsFile::read_float(const TensorInfo& tensor) const {
    CHECK(dtype_bytes(tensor.dtype) > 0, "{}: tensor '{}' is {}, an unknown type", path(), tensor.name, tensor.dtype);
    std::vector<float> out(static_cast<size_t>(tensor.elements()));
    read_float(tensor, 0, std::ssize(out), out.data());
    return out;
}

void SafetensorsFile::read(const TensorInfo& tensor, int64_t first, int64_t n, void* out) const {
    CHECK(first >= 0 && n >= 0 && first + n <= tensor.elements(), "{}: tensor '{}' has {} elements, not {} from {} on",
          path(), tensor.name, tensor.elements(), n, first);
    const int64_t bytes = dtype_bytes(tensor.dtype);
    file_.read(out, n * bytes, tensor.offset + first * bytes);
}

void SafetensorsFile::read_float(const TensorInfo& tensor, int64_t first, int64_t n, float* out) const {
    if (tensor.dtype == "F32") return read(tensor, first, n, out);
    auto convert = [&]<typename T>(T) {
        std::vector<T> stored(static_cast<size_t>(n));
        read(tensor, first, n, stored.data());
        std::transform(stored.begin(), stored.end(), out, [](T x) { return static_cast<float>(x); });
    };
    if (tensor.dtype == "F64")
        convert(double{});
    else if (tensor.dtype == "BF16")
        convert(bf16{});
    else if (tensor.dtype == "F16")
        convert(f16{});
    else if (tensor.dtype == "F8_E4M3")
        convert(e4m3{});
    else if (tensor.dtype == "I8")
        convert(int8_t{});
    else
        throw Error(fmt::format("{}: tensor '{}' is {}, not a floating-point type", path(), tensor.name, tensor.dtype));
}

bool SafetensorsModel::in(const std::string& folder) {
    return path_exists(fs::path(folder) / kSingle) || path_exists(fs::path(folder) / kIndex);
}

SafetensorsModel::SafetensorsModel(const std::string& path) : path_(path) {
    if (is_folder(path)) {
        CHECK_USAGE(in(path), "{}: contains neither {} nor {}", path, kSingle, kIndex);
        path_ = (fs::path(path) / (path_exists(fs::path(path) / kSingle) ? kSingle : kIndex)).string();
    }
    if (!path_.ends_with(".json")) {
        files_.push_back(std::make_unique<SafetensorsFile>(path_));
        for (const TensorInfo& t : files_[0]->tensors()) place_[t.name] = files_[0].get();
        return;
    }
    const Json index = read_json(path_);
    const auto places = JsonObject(index, path_).at<Json>("weight_map");
    const JsonObject place(places, path_ + ": weight_map");
    std::map<std::string, const SafetensorsFile*> opened;
    for (const auto& [tensor, unused] : places.members()) {
        const auto name = place.at<std::string>(tensor);
        CHECK_USAGE(!name.empty() && name[0] != '.' && name.find_first_of(std::string_view("/\0", 2)) == name.npos,
                    "{}: {} is in '{}', expected a file beside it", path_, tensor, name);
        const SafetensorsFile*& file = opened[name];
        if (!file) {
            files_.push_back(std::make_unique<SafetensorsFile>((fs::path(path_).parent_path() / name).string()));
            file = files_.back().get();
        }
        CHECK(file->find(tensor), "{}: has no tensor '{}', which {} places there", file->path(), tensor, path_);
        place_[tensor] = file;
    }
}

SafetensorsModel::Found SafetensorsModel::find(const std::string& name) const {
    const auto place = place_.find(name);
    return place == place_.end() ? Found() : Found{place->second, place->second->find(name)};
}

std::vector<std::string> SafetensorsModel::names() const {
    std::vector<std::string> names;
    for (const auto& [name, file] : place_) names.push_back(name);
    return names;
}

std::string SafetensorsModel::content() const {
    std::string all;
    for (const std::unique_ptr<SafetensorsFile>& file : files_) all += sampled_hash(file->path());
    return fmt::format("{:016x}", hash_of(all));
}

int64_t bytes_of(const TensorData& t) {
    int64_t bytes = dtype_bytes(t.dtype);
    for (int64_t d : t.shape) bytes *= d;
    return bytes;
}

std::vector<ModelShard> divide_model(const std::vector<TensorData>& tensors, int64_t shard_bytes) {
    std::vector<ModelShard> shards = {{kSingle, 0, 0}};
    int64_t bytes = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
        if (bytes > 0 && bytes + bytes_of(tensors[i]) > shard_bytes) {
            shards.push_back({"", i, i});
            bytes = 0;
        }
        bytes += bytes_of(tensors[i]);
        shards.back().end = i + 1;
    }
    if (shards.size() == 1) return shards;
    for (size_t i = 0; i < shards.size(); ++i)
        shards[i].file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    return shards;
}

std::pair<std::string, std::string> model_index(const std::vector<TensorData>& tensors,
                                                const std::vector<ModelShard>& shards) {
    Json map = Json::object();
    int64_t total = 0;
    for (const ModelShard& shard : shards)
        for (size_t i = shard.begin; i < shard.end; ++i) {
            map[tensors[i].name] = shard.file;
            total += bytes_of(tensors[i]);
        }
    const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
    return {kIndex, json_text(index, {.indent = 2, .in_order = true}) + "\n"};
}

std::string safetensors_header(const std::vector<TensorData>& tensors,
                               const std::map<std::string, std::string>& metadata) {
    Json header = Json::object();
    for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
    int64_t at = 0;
    for (const TensorData& t : tensors) {
        const int64_t bytes = bytes_of(t);
        header[t.name] = {
            {"dtype", t.dtype}, {"shape", Json::array_of(t.shape)}, {"data_offsets", Json::array({at, at + bytes})}};
        at += bytes;
    }
    std::string text = json_text(header, {.in_order = true});
    text.resize(round_up(text.size(), 8), ' ');  // so that data begin at a multiple of 8 bytes
    uint64_t size = text.size();
    std::string out(8, '\0');
    std::memcpy(out.data(), &size, 8);
    return out + text;
}

}  // namespace teon

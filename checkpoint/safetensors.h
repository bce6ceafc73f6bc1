// The safetensors format (https://github.com/huggingface/safetensors): 8 bytes little-endian header length, a JSON
// header, data. The reader trusts nothing: every length, offset, shape and type is checked against the file before it
// is used.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "files/file.h"

namespace teon {

struct TensorInfo {
    std::string name, dtype;        // "F32", "BF16", "F16", "F64", "I32", "I64", ..., or one that is unknown here
    std::vector<int64_t> shape;     // empty: a scalar
    int64_t offset = 0, bytes = 0;  // in the file
    int64_t elements() const;
};

class SafetensorsFile {
public:
    explicit SafetensorsFile(const std::string& path);  // throws Error naming the file and the fault

    const std::string& path() const { return file_.path(); }
    const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of their data
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    const TensorInfo* find(const std::string& name) const;  // nullptr if absent
    const TensorInfo& at(const std::string& name) const;    // throws Error naming file and tensor
    std::vector<std::byte> read(const TensorInfo& tensor) const;
    std::vector<float> read_float(const TensorInfo& tensor) const;  // from F64, F32, BF16, F16, F8_E4M3 or I8
    // out (n) = elements [first, first + n) of the tensor, as stored or in float.
    void read(const TensorInfo& tensor, int64_t first, int64_t n, void* out) const;
    void read_float(const TensorInfo& tensor, int64_t first, int64_t n, float* out) const;

private:
    InputFile file_;
    std::vector<TensorInfo> tensors_;
    std::unordered_map<std::string, size_t> index_;  // in tensors_, by name
    std::map<std::string, std::string> metadata_;
};

// The tensors of a model in one file, or in the files that a model.safetensors.index.json lists.
class SafetensorsModel {
public:
    // Opens a .safetensors file, an index, or a folder that contains model.safetensors or model.safetensors.index.json.
    // Throws Error naming the file and the fault (UsageError if nothing is there). It is a fault if an index names a
    // file outside its folder, or a file that lacks the tensor.
    explicit SafetensorsModel(const std::string& path);
    struct Found {
        const SafetensorsFile* file = nullptr;
        const TensorInfo* tensor = nullptr;
        explicit operator bool() const { return tensor; }
    };
    Found find(const std::string& name) const;  // in the file that the index names, if there is one
    std::vector<std::string> names() const;     // of all tensors, sorted
    std::string content() const;                // equal for equal files: a sampled hash (files/file.h)
    const std::string& path() const { return path_; }
    // Returns whether `folder` contains such a model.
    static bool in(const std::string& folder);

private:
    std::string path_;
    std::vector<std::unique_ptr<SafetensorsFile>> files_;
    std::map<std::string, const SafetensorsFile*> place_;  // file of each tensor
};

// A tensor to write. `data` points to all elements of `shape`.
struct TensorData {
    std::string name, dtype;
    std::vector<int64_t> shape;
    const void* data = nullptr;
};

int dtype_bytes(const std::string& dtype);  // 0 for an unknown one, of which only the offsets are checked

int64_t bytes_of(const TensorData& tensor);

// Tensors [begin, end) of a model, and the file that holds them.
struct ModelShard {
    std::string file;
    size_t begin = 0, end = 0;
};
// Divides a model into files of at most shard_bytes bytes of data each; a larger tensor gets a file of its own. As by
// Hugging Face, the names are model.safetensors, or model-00001-of-00003.safetensors and so on.
std::vector<ModelShard> divide_model(const std::vector<TensorData>& tensors, int64_t shard_bytes);
// Returns name and content of the index of several shards.
std::pair<std::string, std::string> model_index(const std::vector<TensorData>& tensors,
                                                const std::vector<ModelShard>& shards);

// Returns the header of a file with these tensors. Their data follow the header without gaps, in this order.
std::string safetensors_header(const std::vector<TensorData>& tensors,
                               const std::map<std::string, std::string>& metadata);

}  // namespace teon

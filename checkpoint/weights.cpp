#include "checkpoint/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "files/file.h"

namespace teon {

namespace {

// Element (i, j) of a parameter is element base + i * row_stride + j * col_stride of its checkpoint tensor.
struct Place {
    int64_t base, row_stride, col_stride;
};
Place place_of(const ParamRow& r) {
    const int64_t m = r.logical_rows;
    const int64_t n = r.logical_cols;
    if (m == 1 && r.rows == 1) return {r.slot.part * n, 0, 1};             // a vector: parts follow one another
    if (r.slot.transposed) return {r.slot.part * m, 1, m * r.slot.parts};  // (in, parts * out)
    return {r.slot.part * m * n, n, 1};                                    // (parts * out, in)
}

template <typename F>
void for_each_element(const ParamRow& r, F f) {
    const Place p = place_of(r);
    for (int64_t i = 0; i < r.logical_rows; ++i)
        for (int64_t j = 0; j < r.logical_cols; ++j) f(i * r.cols + j, p.base + i * p.row_stride + j * p.col_stride);
}

SafetensorsModel::Found find(const CheckpointTensor& t, const SafetensorsModel& model) {
    SafetensorsModel::Found tensor_found = model.find(t.name);
    for (std::string prefix : {"transformer.", "model."})
        if (!tensor_found && t.name.starts_with(prefix)) tensor_found = model.find(t.name.substr(prefix.size()));
    CHECK_USAGE(tensor_found, "{}: has no tensor '{}'", model.path(), t.name);
    CHECK_USAGE(tensor_found.tensor->shape == t.shape, "{}: tensor '{}' is [{}], this model's is [{}]",
                tensor_found.file->path(), tensor_found.tensor->name, fmt::join(tensor_found.tensor->shape, ", "),
                fmt::join(t.shape, ", "));
    return tensor_found;
}

// Returns "model.layers.0.mlp.up_proj.weight" for "model.layers.7.mlp.up_proj.weight"; other names unchanged.
std::string in_first_layer(const std::string& name) {
    for (const std::string_view layers : {"h.", "layers."})
        for (size_t at = name.find(layers); at != name.npos; at = name.find(layers, at + 1)) {
            const size_t number = at + layers.size();
            const size_t end = name.find_first_not_of("0123456789", number);
            if ((at == 0 || name[at - 1] == '.') && end != name.npos && end > number && name[end] == '.')
                return name.substr(0, number) + "0" + name.substr(end);
        }
    return name;
}

}  // namespace

int64_t CheckpointTensor::elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
}

std::vector<CheckpointTensor> checkpoint_tensors(const ParamTable& table) {
    std::vector<CheckpointTensor> tensors;
    for (int i = 0; i < table.count(); ++i) {
        const ParamRow& r = table[i];
        auto entry = std::find_if(tensors.begin(), tensors.end(), [&](auto& t) { return t.name == r.slot.tensor; });
        if (entry != tensors.end()) {
            entry->params.push_back(i);
            continue;
        }
        const int64_t m = r.logical_rows;
        const int64_t n = r.logical_cols;
        const int64_t parts = r.slot.parts;
        std::vector<int64_t> shape = {m * parts, n};
        if (r.role == Role::norm || r.role == Role::bias)
            shape = {n * parts};
        else if (r.slot.transposed)
            shape = {n, m * parts};
        tensors.push_back({r.slot.tensor, shape, {i}});
    }
    return tensors;
}

void gather_param(const ParamRow& row, const float* storage, float* tensor) {
    for_each_element(row, [&](int64_t here, int64_t there) { tensor[there] = storage[here]; });
}

void scatter_param(const ParamRow& row, const float* tensor, float* storage) {
    std::fill(storage, storage + row.size(), 0.0f);
    for_each_element(row, [&](int64_t here, int64_t there) { storage[here] = tensor[there]; });
}

bool padding_is_zero(const ParamRow& row, const float* storage) {
    const auto zero = [](const float* begin, int64_t n) {
        return std::all_of(begin, begin + n, [](float x) { return x == 0 && !std::signbit(x); });
    };
    const int64_t cols = row.cols;
    for (int64_t i = 0; i < row.logical_rows && cols > row.logical_cols; ++i)
        if (!zero(storage + i * cols + row.logical_cols, cols - row.logical_cols)) return false;
    return zero(storage + row.logical_rows * cols, row.size() - row.logical_rows * cols);
}

std::vector<std::string> check_weights(const ParamTable& table, const SafetensorsModel& model) {
    const std::vector<CheckpointTensor> tensors = checkpoint_tensors(table);
    std::set<std::string> used;
    for (const CheckpointTensor& t : tensors) used.insert(find(t, model).tensor->name);
    const auto embedding = std::find_if(tensors.begin(), tensors.end(), [&](const CheckpointTensor& t) {
        return table[t.params[0]].role == Role::token_embedding;
    });
    int layers = 0;
    for (const ParamRow& row : table.rows()) layers = std::max(layers, row.layer + 1);
    std::vector<std::string> unused;
    for (const std::string& name : model.names()) {
        if (used.count(name)) continue;
        unused.push_back(name);
        CHECK_USAGE(!used.count(in_first_layer(name)),
                    "{}: has a tensor '{}', but its config.json says that there are {} layers", model.path(), name,
                    layers);
        // The model ties a head that it does not use to the embedding.
        if (name != "lm_head.weight" || embedding == tensors.end()) continue;
        const auto head = model.find(name);
        const auto token = find(*embedding, model);
        CHECK_USAGE(head.tensor->shape == token.tensor->shape && head.tensor->dtype == token.tensor->dtype &&
                        head.file->read(*head.tensor) == token.file->read(*token.tensor),
                    "{}: its tensor '{}' is not '{}', to which config.json ties it; set tie_word_embeddings to false "
                    "or remove that tensor",
                    model.path(), name, token.tensor->name);
    }
    return unused;
}

void load_weights(ParamStore& params, const SafetensorsModel& model, const Stream& stream) {
    refusing_as_usage([&] {
        const ParamTable& table = params.table();
        std::vector<float> storage;
        for (const CheckpointTensor& t : checkpoint_tensors(table)) {
            const SafetensorsModel::Found tensor_found = find(t, model);
            const std::string& path = tensor_found.file->path();
            const std::vector<float> values = tensor_found.file->read_float(*tensor_found.tensor);
            const auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
            CHECK(bad == values.end(), "{}: tensor '{}' is not finite at element {}; the saved model was broken", path,
                  tensor_found.tensor->name, bad - values.begin());
            for (int i : t.params) {
                storage.resize(static_cast<size_t>(table[i].size()));
                scatter_param(table[i], values.data(), storage.data());
                upload(params.staging(i), storage.data(), table[i].size(), stream);
                params.place(i, stream);
                stream.synchronize();  // storage is reused
            }
        }
    });
}

}  // namespace teon

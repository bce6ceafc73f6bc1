#include "checkpoint/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/dtype.h"
#include "test/support/catch.h"
#include "test/support/cpu_time.h"
#include "test/support/fuzz.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

namespace {

// Returns the bytes of a file with this header and data_bytes bytes of data.
std::string file_of(const std::string& header, size_t data_bytes) {
    const uint64_t size = header.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &size, 8);
    return bytes + header + std::string(data_bytes, '\1');
}

// A file in memory, as the tests write a hundred thousand files.
class MemoryFile {
public:
    MemoryFile() : file_(memfd_create("safetensors", MFD_CLOEXEC)) {
        if (file_ < 0) throw Error("no file in memory");
    }
    ~MemoryFile() { ::close(file_); }
    MemoryFile(const MemoryFile&) = delete;
    std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }
    void set(const std::string& bytes) {
        if (::ftruncate(file_, static_cast<off_t>(bytes.size())) != 0 ||
            ::pwrite(file_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
            throw Error("no room for a file in memory");
    }

private:
    int file_;
};

// Returns the error of opening a file with these bytes and reading every tensor, "" if there is none.
std::string fault(MemoryFile& memory, const std::string& bytes) {
    memory.set(bytes);
    return error_of([&] {
        const SafetensorsFile file(memory.path());
        int64_t at = static_cast<int64_t>(bytes.size());
        for (const TensorInfo& t : file.tensors()) at -= static_cast<int64_t>(file.read(t).size());
        if (at < 8) throw std::logic_error("tensors of more bytes than the file");  // not an Error: fails the test
    });
}

}  // namespace

TEST_CASE("checkpoint/safetensors: a file that is written is read back") {
    MemoryFile memory;
    const std::string path = memory.path();
    const std::vector<float> a = {1, -2, 3, NAN, INFINITY, -0.0f};
    const std::vector<float> none;
    const float scalar = 0.5f;
    const std::vector<TensorData> tensors = {{"a", "F32", {2, 3}, a.data()},
                                             {"no elements", "F32", {0, 4}, none.data()},
                                             {"\xc3\xa9 \"quoted\"", "F32", {}, &scalar}};
    std::string bytes = safetensors_header(tensors, {{"format", "pt"}});
    REQUIRE(bytes.size() % 8 == 0);
    bytes.append(reinterpret_cast<const char*>(a.data()), a.size() * 4)
        .append(reinterpret_cast<const char*>(&scalar), 4);
    REQUIRE(fault(memory, bytes) == "");
    const SafetensorsFile file(path);
    REQUIRE(file.metadata().at("format") == "pt");
    REQUIRE(file.tensors().size() == 3);
    const std::vector<std::byte> raw = file.read(file.at("a"));
    REQUIRE(std::memcmp(raw.data(), a.data(), raw.size()) == 0);
    REQUIRE(file.at("a").shape == std::vector<int64_t>{2, 3});
    REQUIRE(file.at("no elements").bytes == 0);
    REQUIRE(file.read_float(file.at("\xc3\xa9 \"quoted\"")) == std::vector<float>{0.5f});
    REQUIRE(file.find("b") == nullptr);
    REQUIRE_THROWS_WITH(file.at("b"), ContainsSubstring(path) && ContainsSubstring("'b'"));
}

TEST_CASE("checkpoint/safetensors: floats of every width, and no others, become floats") {
    MemoryFile memory;
    const std::string path = memory.path();
    const double d = 1.25;
    const bf16 b = bf16(1.25f);
    const f16 h = f16(1.25f);
    const int64_t i = 5;
    const std::vector<TensorData> tensors = {
        {"d", "F64", {1}, &d}, {"i", "I64", {1}, &i}, {"b", "BF16", {1}, &b}, {"h", "F16", {1}, &h}};
    std::string bytes = safetensors_header(tensors, {});
    bytes.append(reinterpret_cast<const char*>(&d), 8).append(reinterpret_cast<const char*>(&i), 8);
    bytes.append(reinterpret_cast<const char*>(&b), 2).append(reinterpret_cast<const char*>(&h), 2);
    REQUIRE(fault(memory, bytes) == "");
    const SafetensorsFile file(path);
    for (const char* name : {"d", "b", "h"}) REQUIRE(file.read_float(file.at(name)) == std::vector<float>{1.25f});
    REQUIRE_THROWS_WITH(file.read_float(file.at("i")), ContainsSubstring("I64"));
}

TEST_CASE("checkpoint/safetensors: files written by Python are read") {
    for (const char* name : {"gpt2", "gpt2_relu2", "gpt2_erf", "llama", "llama_geglu", "llama_geglu_erf", "llama_31",
                             "llama_gqa", "qwen2", "qwen3", "olmo2", "olmo2_3", "smollm3"}) {
        const SafetensorsFile file(std::string("test/golden/") + name + ".safetensors");
        REQUIRE(file.tensors().size() > 20);
        for (const TensorInfo& t : file.tensors())
            if (t.dtype[0] == 'F')
                for (float x : file.read_float(t)) REQUIRE(std::isfinite(x));
        REQUIRE(file.read_float(file.at("adamw_losses")).size() == 10);
    }
}

TEST_CASE("checkpoint/safetensors: files that contradict their header are refused with the reason") {
    MemoryFile memory;
    const std::string path = memory.path();
    auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
        return "{\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
    };
    const std::string whole = file_of(entry("F32", "[2]", "[0,8]"), 8);
    REQUIRE(fault(memory, whole) == "");
    for (size_t n = 0; n < whole.size(); ++n) REQUIRE(fault(memory, whole.substr(0, n)).find(path) == 0);
    const std::pair<std::string, const char*> cases[] = {
        {whole + "x", "its header describes"},
        {file_of(entry("F32", "[3]", "[0,8]"), 8), "do not match"},
        {file_of(entry("F32", "[2]", "[0,9]"), 8), "beyond the end"},
        {file_of(entry("F32", "[2]", "[8,0]"), 8), "do not match"},
        {file_of(entry("F32", "[2]", "[4,12]"), 12), "begins at byte"},
        {file_of(entry("F32", "[-2]", "[0,8]"), 8), "bad shape"},
        {file_of(entry("F32", "[2.0]", "[0,8]"), 8), "bad shape"},
        {file_of(entry("F32", "[4294967296,4294967296]", "[0,0]"), 0), "shape overflows"},
        {file_of(entry("F32", "[4611686018427387904]", "[0,0]"), 0), "do not match"},
        {file_of(entry("F32", "[2]", "[0,18446744073709551615]"), 8), "beyond the end"},
        {file_of(entry("F32", "[2]", "[0]"), 8), "not {dtype, shape, data_offsets}"},
        {file_of("{\"a\":{},\"a\":{}}", 0), "\"a\" occurs twice"},
        {file_of("{\"a\":3}", 0), "not {dtype, shape, data_offsets}"},
        {file_of("{\"__metadata__\":{\"x\":3}}", 0), "not a string"},
        {file_of("[]", 0), "not a JSON object"},
        {file_of("", 0), "its header: is empty"},
        {file_of(std::string(1 << 20, '['), 0), "more than 64 nested brackets"},
        {file_of("{\"a\":" + std::string(1 << 18, '[') + std::string(1 << 18, ']') + "}", 0),
         "more than 64 nested brackets"},
        {std::string(8, '\xff') + "{}", "claims"},
    };
    for (const auto& [bytes, says] : cases) {
        const std::string message = fault(memory, bytes);
        REQUIRE_THAT(message, ContainsSubstring(says));
        REQUIRE(message.find(path) == 0);
    }
    REQUIRE(fault(memory, file_of(entry("F33", "[9,9]", "[0,8]"), 8)) == "");  // nobody may need it
    const SafetensorsFile unknown(path);
    REQUIRE(error_of([&] { unknown.read_float(unknown.at("a")); }) == path + ": tensor 'a' is F33, an unknown type");
    TempDir folder;
    REQUIRE_THROWS_WITH(SafetensorsFile(folder / "nothing"), ContainsSubstring("nothing: cannot be opened"));
    REQUIRE_THROWS_WITH(SafetensorsFile(folder.path()), ContainsSubstring("is a directory"));
}

TEST_CASE("checkpoint/safetensors: the time to read a header grows with its length only") {
    MemoryFile memory;
    auto seconds_for = [&](int tensors) {
        std::vector<TensorData> empty;
        for (int i = 0; i < tensors; ++i) empty.push_back({"tensor." + std::to_string(i), "F32", {0}, nullptr});
        memory.set(safetensors_header(empty, {}));
        return cpu_seconds_of([&] {
            const SafetensorsFile file(memory.path());
            for (const TensorData& t : empty) REQUIRE(file.at(t.name).bytes == 0);
        });
    };
    seconds_for(1000);
    REQUIRE(seconds_for(50'000) < 500 * seconds_for(1000));  // 50 times as many; quadratic would be 2500
}

TEST_CASE("checkpoint/safetensors: no header makes the reader crash or read elsewhere (fuzz)") {
    MemoryFile memory;
    const std::vector<float> data(12, 1.0f);
    std::string seed = safetensors_header({{"a", "F32", {2, 3}, nullptr},
                                           {"b", "I64", {}, nullptr},
                                           {"c", "BF16", {4, 0, 1}, nullptr},
                                           {"d", "F32", {4}, nullptr}},
                                          {{"format", "pt"}});
    seed.append(reinterpret_cast<const char*>(data.data()), 48);
    REQUIRE(fault(memory, seed) == "");
    constexpr const char* kPieces[] = {"{",       "}",         "[",     "]",
                                       ",",       ":",         "\"",    "-1",
                                       "0",       "1e99",      "null",  "9223372036854775807",
                                       "true",    "\"F32\"",   "\"a\"", "18446744073709551615",
                                       "\\u0000", "\"shape\"", "\xff",  "\"__metadata__\":{}"};
    Fuzz fuzz(11);
    int accepted = 0;
    const int rounds = fuzz_rounds(100000);
    for (int i = 0; i < rounds; ++i) {
        std::string bytes = fuzz.damaged(seed, kPieces);
        if (fuzz.below(2) && bytes.size() > 56) {  // a matching header length lets the damage get further
            const uint64_t header = bytes.size() - 56;
            std::memcpy(bytes.data(), &header, 8);
        }
        accepted += fault(memory, bytes).empty();
    }
    REQUIRE(accepted > 100);  // changed data and names are valid
    REQUIRE(accepted < rounds / 2);
}

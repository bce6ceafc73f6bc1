#include "gpusim/fat_binary.h"

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/check.h"

namespace teon::gpusim {

namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kMagic = 0xba55ed50;
constexpr uint16_t kPtx = 1;
constexpr uint64_t kCompressed = 0x2000 | 0x8000;  // by LZ4 or by zstd

// The argument of __cudaRegisterFatBinary: __fatBinC_Wrapper_t in the toolkit's fatbinary_section.h.
struct Wrapper {
    uint32_t magic, version;
    const unsigned char* data;
    const void* rest;
};

// The layouts of the two headers, taken from the output of nvcc 13; NVIDIA does not document them.
struct Header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;  // after the header
};
struct Entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;  // after the header
    uint32_t compressed_bytes, options;
    uint16_t minor, major;
    uint32_t architecture;
    uint32_t name_offset, name_bytes;
    uint64_t flags;
};

template <typename T>
T read(const unsigned char* p) {
    T x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

// Returns whether PTX for the architecture, with a line such as ".target sm_90a", runs on the capability.
bool runs_on(std::string_view ptx, int architecture, int capability) {
    const size_t at = ptx.find(".target sm_");
    const std::string_view line = ptx.substr(at == ptx.npos ? ptx.size() : at, 16);
    const bool exact = line.substr(0, line.find_first_of(" ,\n")).find("sm_") != line.npos &&
                       line.find('a', line.find("sm_") + 3) < line.find_first_of(",\n");
    return exact ? architecture == capability : architecture <= capability;
}

}  // namespace

std::string ptx_of_fat_binary(const void* wrapper, int capability) {
    const Wrapper w = read<Wrapper>(static_cast<const unsigned char*>(wrapper));
    CHECK(w.magic == kWrapperMagic, "a fat binary begins with {:#x} and not {:#x}", w.magic, kWrapperMagic);
    const Header header = read<Header>(w.data);
    CHECK(header.magic == kMagic, "the data of a fat binary begin with {:#x} and not {:#x}", header.magic, kMagic);
    const unsigned char* at = w.data + header.header_bytes;
    const unsigned char* end = at + header.bytes;
    std::string_view best;
    uint32_t best_architecture = 0;
    bool compressed = false;
    while (at < end) {
        const Entry e = read<Entry>(at);
        const std::string_view text(reinterpret_cast<const char*>(at) + e.header_bytes, e.bytes);
        at += e.header_bytes + e.bytes;
        if (e.kind != kPtx) continue;
        if (e.flags & kCompressed) {
            compressed = true;
        } else if (e.architecture >= best_architecture && runs_on(text, static_cast<int>(e.architecture), capability)) {
            best = text;
            best_architecture = e.architecture;
        }
    }
    if (best.empty())
        throw NoCode(fmt::format(
            "the program has no PTX for a device of compute capability {}.{}{}; build it by make cuda-model",
            capability / 10, capability % 10, compressed ? ", or only such as is compressed" : ""));
    return std::string(best.substr(0, best.find('\0')));
}

}  // namespace teon::gpusim

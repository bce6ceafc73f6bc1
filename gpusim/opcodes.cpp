#include "gpusim/opcodes.h"

#include <deque>
#include <mutex>
#include <unordered_map>

namespace teon::gpusim {

namespace {

struct Opcodes {
    std::mutex mutex;
    std::deque<std::string> names;  // references stay valid
    std::unordered_map<std::string, uint16_t> indices;
};
Opcodes& opcodes() {
    static auto* all = new Opcodes;  // never destroyed: kernels may fail while the process ends
    return *all;
}

}  // namespace

uint16_t opcode_index(std::string_view name) {
    Opcodes& all = opcodes();
    const std::lock_guard lock(all.mutex);
    const auto [it, fresh] = all.indices.try_emplace(std::string(name), static_cast<uint16_t>(all.names.size()));
    if (fresh) all.names.emplace_back(name);
    return it->second;
}

const std::string& opcode_name(uint16_t opcode) {
    Opcodes& all = opcodes();
    const std::lock_guard lock(all.mutex);
    return all.names[opcode];
}

}  // namespace teon::gpusim

#include "gpusim/system_call.h"

#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/integer.h"
#include "gpusim/memory.h"

namespace teon::gpusim {

namespace {

constexpr size_t kMostText = 1 << 16;

template <typename T>
T read(Warp& w, const Instruction& i, int lane, uint64_t address) {
    T value;
    std::memcpy(&value, generic_memory(w, i, lane, address, sizeof value), sizeof value);
    return value;
}

std::string read_text(Warp& w, const Instruction& i, int lane, uint64_t address) {
    std::string text;
    for (char c; text.size() < kMostText; text += c) {
        c = read<char>(w, i, lane, address + text.size());
        if (c == 0) return text;
    }
    fail(w, i, lane, "a text at {:#x} that does not end", address);
}

// The place of operand k in the lane's local memory.
template <typename T>
T& local(Warp& w, const Instruction& i, int k, int lane) {
    return *reinterpret_cast<T*>(w.local + static_cast<size_t>(lane) * w.program->local_bytes +
                                 w.operand<uint64_t>(i, k)[lane]);
}

// The arguments of a call of vprintf: a structure of its promoted values.
class Arguments {
public:
    Arguments(Warp& w, const Instruction& i, int lane, uint64_t begin) : w_(w), i_(i), lane_(lane), at_(begin) {}

    template <typename T>
    T next() {
        at_ = round_up(at_, sizeof(T));
        const T value = read<T>(w_, i_, lane_, at_);
        at_ += sizeof(T);
        ++count_;
        return value;
    }
    std::string next_text() { return read_text(w_, i_, lane_, next<uint64_t>()); }
    int count() const { return count_; }

private:
    Warp& w_;
    const Instruction& i_;
    int lane_;
    uint64_t at_;
    int count_ = 0;
};

template <typename T>
std::string print_one(const std::string& specification, T value) {
    const int length = std::snprintf(nullptr, 0, specification.c_str(), value);
    if (length < 0) return specification;
    std::string text(static_cast<size_t>(length), ' ');
    std::snprintf(text.data(), text.size() + 1, specification.c_str(), value);
    return text;
}

// Formats what `specification` ("%5.2f", without "*") says.
std::string print_next(const std::string& specification, Arguments& arguments) {
    const char kind = specification.back();
    const bool is_long = specification.find_first_of("lzjt") != specification.npos;
    switch (kind) {
        case 's':
            return print_one(specification, arguments.next_text().c_str());
        case 'p':
            return print_one(specification, reinterpret_cast<void*>(arguments.next<uint64_t>()));
        case 'f':
        case 'F':
        case 'e':
        case 'E':
        case 'g':
        case 'G':
        case 'a':
        case 'A':
            return print_one(specification, arguments.next<double>());
        default:
            return is_long ? print_one(specification, arguments.next<uint64_t>())
                           : print_one(specification, arguments.next<uint32_t>());
    }
}

std::string print_all(const std::string& format, Arguments& arguments) {
    constexpr std::string_view kKinds = "csdiouxXpfFeEgGaA";
    std::string text;
    for (size_t at = 0; at < format.size();) {
        if (format[at] != '%') {
            text += format[at++];
            continue;
        }
        std::string specification;
        do {
            const char c = format[at++];
            specification += c == '*' ? std::to_string(arguments.next<int32_t>()) : std::string(1, c);
        } while (at < format.size() && format[at] != '%' && kKinds.find(specification.back()) == kKinds.npos);
        if (specification == "%" && at < format.size()) {
            text += format[at++];  // "%%"
        } else if (kKinds.find(specification.back()) == kKinds.npos) {
            text += specification;
        } else {
            text += print_next(specification, arguments);
        }
    }
    return text;
}

}  // namespace

void print_formatted(Warp& w, const Instruction& i, Lanes lanes) {
    for_lanes(lanes, [&](int l) {
        const std::string format = read_text(w, i, l, local<uint64_t>(w, i, 0, l));
        Arguments arguments(w, i, l, local<uint64_t>(w, i, 1, l));
        const std::string text = print_all(format, arguments);
        std::fwrite(text.data(), 1, text.size(), stdout);
        local<int32_t>(w, i, 2, l) = arguments.count();
    });
}

void fail_assertion(Warp& w, const Instruction& i, Lanes lanes) {
    const int lane = first_lane(lanes);
    const auto text = [&](int k) { return read_text(w, i, lane, local<uint64_t>(w, i, k, lane)); };
    fail(w, i, lane, "the assertion `{}' fails, in {} at {}:{}", text(0), text(3), text(1),
         local<int32_t>(w, i, 2, lane));
}

}  // namespace teon::gpusim

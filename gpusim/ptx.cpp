#include "gpusim/ptx.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/check.h"
#include "base/integer.h"

namespace teon::gpusim {

namespace {

constexpr std::string_view kBlank = " \t\n\r";

std::string_view trim(std::string_view s) {
    const size_t begin = s.find_first_not_of(kBlank);
    return begin == s.npos ? std::string_view() : s.substr(begin, s.find_last_not_of(kBlank) - begin + 1);
}

int to_int(std::string_view s) {
    int value = 0;
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
    CHECK(error == std::errc(), "PTX: '{}' is not an integer", s);
    return value;
}

// Reads text from front to end.
class Reader {
public:
    explicit Reader(std::string_view text) : text_(text) { skip(); }
    bool done() const { return at_ == text_.size(); }
    char peek() const { return text_[at_]; }
    bool take(char c) {
        if (done() || peek() != c) return false;
        ++at_;
        skip();
        return true;
    }
    // Returns the text before the first of `ends`, which it does not take.
    std::string_view until(std::string_view ends) {
        const size_t end = std::min(text_.find_first_of(ends, at_), text_.size());
        const std::string_view text = text_.substr(at_, end - at_);
        at_ = end;
        skip();
        return trim(text);
    }
    std::string_view word() {
        const auto end_from = [&](size_t at) {
            return std::min(text_.find_first_of(" \t\n\r,;(){}[]:=", at), text_.size());
        };
        size_t end = end_from(at_);
        while (text_.substr(end).starts_with("::")) end = end_from(end + 2);  // of "shared::cta"
        const std::string_view text = text_.substr(at_, end - at_);
        at_ = end;
        skip();
        return text;
    }
    std::string_view line() {
        const std::string_view text = until("\n");
        return trim(text.substr(0, text.find("//")));
    }
    // Returns the text between two brackets, of which the first must come next.
    std::string_view enclosed(char open, char close) {
        CHECK(!done() && peek() == open, "PTX: '{}' is due at \"{}\"", open, text_.substr(at_, 40));
        const size_t begin = at_ + 1;
        int depth = 0;
        for (; at_ < text_.size(); ++at_) {
            if (peek() == open) ++depth;
            if (peek() == close && --depth == 0) break;
        }
        CHECK(at_ < text_.size(), "PTX: a '{}' has no '{}'", open, close);
        const std::string_view text = text_.substr(begin, at_ - begin);
        ++at_;
        skip();
        return text;
    }
    bool starts_with(std::string_view s) const { return text_.substr(at_).starts_with(s); }

private:
    // Skips blanks and comments.
    void skip() {
        for (;;) {
            at_ = std::min(text_.find_first_not_of(kBlank, at_), text_.size());
            const bool line = starts_with("//");
            if (!line && !starts_with("/*")) return;
            const size_t end = text_.find(line ? "\n" : "*/", at_);
            const size_t length = line ? 1 : 2;  // of the end
            at_ = std::min(end, text_.size() - length) + length;
        }
    }
    std::string_view text_;
    size_t at_ = 0;
};

// Parses a variable after its state space: "[.align N] .type name[count] [= init]". nvcc never declares several
// variables at once.
Variable parse_variable(Space space, std::string_view text) {
    Variable v;
    v.space = space;
    Reader in(text);
    std::string_view type;
    while (!in.done() && in.peek() == '.') {
        const std::string_view word = in.word();
        if (word == ".align")
            v.align = static_cast<size_t>(to_int(in.word()));
        else if (word != ".ptr" && word != ".noalias" && word != ".global")
            type = word.substr(1);
    }
    const auto element = static_cast<size_t>(bytes_of_type(type));
    v.align = std::max(v.align, element);
    v.name = in.word();
    v.bytes = element;
    if (!in.done() && in.peek() == '[') {
        const std::string_view count = in.enclosed('[', ']');
        v.bytes = count.empty() ? 0 : element * static_cast<size_t>(to_int(count));
    }
    if (in.take('=')) {
        CHECK(element <= sizeof(uint64_t), "PTX: initial values of type '{}' are not modelled ({})", type, v.name);
        const std::string_view list = !in.done() && in.peek() == '{' ? in.enclosed('{', '}') : in.until("");
        for (const std::string_view value : split_operands(list)) {
            const uint64_t bits = parse_number(value);
            const auto* bytes = reinterpret_cast<const uint8_t*>(&bits);
            v.init.insert(v.init.end(), bytes, bytes + element);
        }
    }
    return v;
}

std::vector<Parameter> parse_parameters(std::string_view text) {
    std::vector<Parameter> parameters;
    size_t offset = 0;
    for (const std::string_view one : split_operands(text)) {
        CHECK(one.starts_with(".param"), "PTX: a parameter is due at \"{}\"", one);
        const Variable v = parse_variable(Space::param, trim(one.substr(6)));
        offset = round_up(offset, v.align);
        parameters.push_back({v.name, offset, v.bytes});
        offset += v.bytes;
    }
    return parameters;
}

// "NAME (parameters) directives { body }" or, for .func with results, "(results) NAME (parameters) ...".
Function parse_function(Reader& in, bool is_entry) {
    Function f;
    f.is_entry = is_entry;
    if (!in.done() && in.peek() == '(') f.results = parse_parameters(in.enclosed('(', ')'));
    f.name = in.word();
    if (!in.done() && in.peek() == '(') f.parameters = parse_parameters(in.enclosed('(', ')'));
    while (!in.done() && in.peek() == '.') {
        const std::string_view directive = in.word();
        if (directive == ".explicitcluster" || directive == ".noreturn") continue;  // have no values
        const std::string_view values = in.until("\n{;");
        if (directive == ".minnctapersm") f.min_blocks = to_int(values);
        if (directive == ".reqnctapercluster")
            for (const std::string_view n : split_operands(values)) f.cluster.push_back(to_int(n));
        if (directive != ".maxntid" && directive != ".reqntid") continue;
        f.max_threads = 1;
        for (const std::string_view n : split_operands(values)) f.max_threads *= to_int(n);
    }
    if (!in.take(';')) f.body = in.enclosed('{', '}');
    return f;
}

std::pair<int, std::string> parse_file(std::string_view text) {  // 1 "path"
    const size_t open = text.find('"');
    const size_t close = text.rfind('"');
    CHECK(open != text.npos && close > open, "PTX: .file {}", text);
    return {to_int(trim(text.substr(0, open))), std::string(text.substr(open + 1, close - open - 1))};
}

Space space_of(std::string_view directive) {
    if (directive == ".shared") return Space::shared;
    if (directive == ".const") return Space::constant;
    if (directive == ".local") return Space::local;
    return directive == ".param" ? Space::param : Space::global;
}

void parse_registers(Scope& scope, std::string_view text) {  // ".b32 %r<5>" or ".b32 a, b"
    const size_t blank = text.find_first_of(kBlank);
    const std::string_view type = text.substr(1, blank - 1);
    const int bytes = bytes_of_type(type);
    CHECK(bytes <= 8, "PTX: registers of type '{}' are not modelled", type);
    for (const std::string_view one : split_operands(text.substr(blank))) {
        const size_t open = one.find('<');
        const int count = open == one.npos ? 0 : to_int(one.substr(open + 1, one.find('>') - open - 1));
        scope.registers.push_back({one.substr(0, open), count, bytes});
    }
}

}  // namespace

int bytes_of_type(std::string_view type) {
    if (type == "pred") return 0;
    const size_t digits = type.find_first_of("0123456789");
    CHECK(digits != type.npos, "PTX: the type '{}' is not known", type);
    const size_t times = type.find('x', digits);
    const int bits = to_int(type.substr(digits, times - digits));
    return bits / 8 * (times == type.npos ? 1 : to_int(type.substr(times + 1)));
}

std::vector<std::string_view> split_operands(std::string_view text) {
    std::vector<std::string_view> parts;
    int depth = 0;
    size_t begin = 0;
    const auto end_part = [&](size_t end) {
        if (const std::string_view part = trim(text.substr(begin, end - begin)); !part.empty()) parts.push_back(part);
        begin = end + 1;
    };
    for (size_t i = 0; i < text.size(); ++i) {
        if (std::strchr("{[(", text[i])) ++depth;
        if (std::strchr("}])", text[i])) --depth;
        if (text[i] == ',' && depth == 0) end_part(i);
    }
    end_part(text.size());
    return parts;
}

std::vector<std::string_view> split_dots(std::string_view text) {
    std::vector<std::string_view> parts;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find('.', begin), text.size());
        if (end > begin) parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

uint64_t parse_number(std::string_view text) {
    const bool negative = text.starts_with('-');
    if (negative) text.remove_prefix(1);
    int base = 10;
    if (text.size() > 1 && text[0] == '0') {
        const char kind = static_cast<char>(text[1] | 0x20);
        base = 8;
        if (kind == 'x' || kind == 'f' || kind == 'd') base = 16;
        if (kind == 'b') base = 2;
        if (base != 8) text.remove_prefix(2);
    }
    if (text.ends_with('U')) text.remove_suffix(1);
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    CHECK(error == std::errc() && end == text.data() + text.size(), "PTX: '{}' is not a number", text);
    return negative ? ~value + 1 : value;
}

void parse_module(Module& m, std::string text) {
    m.text = std::move(text);
    for (Reader in(m.text); !in.done();) {
        const std::string_view directive = in.word();
        if (directive == ".version" || directive == ".address_size" || directive == ".target") {
            const std::string_view value = in.line();
            if (directive == ".target") m.target = to_int(value.substr(value.find('_') + 1));
        } else if (directive == ".file") {
            m.files.insert(parse_file(in.line()));
        } else if (directive == ".section") {
            in.word();
            in.enclosed('{', '}');
        } else if (directive == ".entry" || directive == ".func") {
            Function f = parse_function(in, directive == ".entry");
            if (Function& declared = m.functions[f.name]; declared.body.empty()) declared = std::move(f);
        } else if (directive == ".global" || directive == ".const" || directive == ".shared") {
            m.variables.push_back(parse_variable(space_of(directive), in.until(";")));
            in.take(';');
        } else if (directive == ".visible" || directive == ".weak" || directive == ".extern" ||
                   directive == ".common") {
        } else {
            throw Error(fmt::format("PTX: \"{} {}\" is not known", directive, in.line()));
        }
    }
}

namespace {

// The source lines of statements, from .loc: "file line column[, function_name label, inlined_at file line column]".
// The place where a function was inlined may be in a function that was inlined itself, as an earlier .loc said.
class Locations {
public:
    void parse(std::string_view values) {
        const auto place = [](std::string_view text) {
            Location at;
            Reader in(text);
            at.file = to_int(in.word());
            at.line = to_int(in.word());
            const int column = to_int(in.word());
            return std::pair(at, column);
        };
        constexpr std::string_view kInlined = "inlined_at ";
        const Place here = place(values);
        const size_t inlined = values.find(kInlined);
        at = here.first;
        inlined_at = {};
        if (inlined != values.npos) {
            const Place call = place(values.substr(inlined + kInlined.size()));
            const auto outer = outermost_.find(call);
            inlined_at = outer == outermost_.end() ? call.first : outer->second;
        }
        outermost_[here] = inlined == values.npos ? at : inlined_at;
    }

    Location at, inlined_at;

private:
    using Place = std::pair<Location, int>;  // and the column
    std::map<Place, Location> outermost_;
};

void parse_directive(Scope& scope, std::string_view directive, std::string_view values) {
    if (directive == ".reg")
        parse_registers(scope, values);
    else if (directive != ".pragma")
        scope.variables.push_back(parse_variable(space_of(directive), values));
}

}  // namespace

Body parse_body(std::string_view text) {
    Body body;
    body.scopes.emplace_back();
    size_t scope = 0;
    Locations locations;
    for (Reader in(text); !in.done();) {
        if (in.take(';')) continue;
        if (in.take('{')) {
            body.scopes.push_back({scope, {}, {}, {}});
            scope = body.scopes.size() - 1;
            continue;
        }
        if (in.take('}')) {
            scope = body.scopes[scope].outer;
            continue;
        }
        if (in.peek() == '.') {
            const std::string_view directive = in.word();
            if (directive == ".loc")
                locations.parse(in.line());
            else
                parse_directive(body.scopes[scope], directive, in.until(";"));
            continue;
        }
        Statement s;
        s.at = locations.at;
        s.inlined_at = locations.inlined_at;
        s.scope = scope;
        if (in.take('@')) {
            s.guard_not = in.take('!');
            s.guard = in.word();
        }
        s.opcode = in.word();
        if (in.take(':')) {
            body.scopes[scope].labels[s.opcode] = body.statements.size();
            continue;
        }
        s.operands = split_operands(in.until(";"));
        body.statements.push_back(std::move(s));
    }
    return body;
}

}  // namespace teon::gpusim

#include "options/config_file.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <map>
#include <string_view>

#include "files/file.h"
#include "files/json.h"
#include "options/removed.h"
#include "options/suggestion.h"

namespace teon {

namespace {

constexpr int64_t kMaxToml = int64_t{1} << 20;
constexpr size_t kMaxNumber = 64;  // characters

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void take_sign(std::string_view& rest) {
    if (rest.starts_with('+') || rest.starts_with('-')) rest.remove_prefix(1);
}

// Removes digits from the beginning, with single underscores between them. Returns whether there were any.
bool take_digits(std::string_view& rest) {
    size_t n = 0;
    while (n < rest.size() && (is_digit(rest[n]) || (rest[n] == '_' && n > 0 && is_digit(rest[n - 1])))) ++n;
    if (n > 0 && rest[n - 1] == '_') --n;
    rest.remove_prefix(n);
    return n > 0;
}

bool is_decimal(std::string_view rest) {  // in TOML's notation
    if (rest.size() > kMaxNumber) return false;
    take_sign(rest);
    if (rest.starts_with('0')) {
        rest.remove_prefix(1);
    } else if (!take_digits(rest)) {
        return false;
    }
    if (rest.starts_with('.')) {
        rest.remove_prefix(1);
        if (!take_digits(rest)) return false;
    }
    if (rest.starts_with('e') || rest.starts_with('E')) {
        rest.remove_prefix(1);
        take_sign(rest);
        if (!take_digits(rest)) return false;
    }
    return rest.empty();
}

class TomlReader {
public:
    TomlReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

    std::vector<ConfigEntry> entries() {
        std::vector<ConfigEntry> list;
        std::map<std::string, int> lines;  // by key
        for (skip(true); !done(); skip(true)) {
            require(peek() != '[', "sections are not used here; write every flag at the top level");
            ConfigEntry entry{key(), {}, line_};
            const auto [first, fresh] = lines.emplace(entry.key, line_);
            if (!fresh) fail(fmt::format("{} is given twice, also in line {}", entry.key, first->second));
            expect('=', "a flag is written as name = value");
            skip(false);
            entry.kind = kind();
            entry.value = value();
            skip(false);
            require(done() || peek() == '\n', "more follows the value; a line holds one flag");
            list.push_back(std::move(entry));
        }
        return list;
    }

private:
    bool done() const { return at_ == text_.size(); }
    char peek() const { return done() ? '\0' : text_[at_]; }
    [[noreturn]] void fail(const std::string& what) const {
        throw UsageError(fmt::format("{}: line {}: {}", name_, line_, what));
    }
    void require(bool ok, std::string_view what) const {
        if (!ok) fail(std::string(what));
    }
    char next() {
        const char c = text_[at_++];
        line_ += c == '\n';
        return c;
    }
    // Skips blanks and a comment; with `lines` also line ends and further comments.
    void skip(bool lines) {
        while (!done() &&
               (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '#' || (lines && peek() == '\n')))
            if (peek() == '#')
                at_ = std::min(text_.find('\n', at_), text_.size());
            else
                next();
    }
    void expect(char c, std::string_view what) {
        skip(false);
        require(peek() == c, what);
        next();
    }
    bool quoted() const { return peek() == '"' || peek() == '\''; }
    static bool in_bare(char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || (c != '\0' && std::strchr("-_+.", c));
    }
    std::string bare() {
        std::string word;
        while (in_bare(peek())) word += next();
        return word;
    }
    std::string key() {
        const std::string word = quoted() ? string() : bare();
        require(!word.empty(), "a flag is written as name = value");
        return word;
    }
    std::string string() {
        const char quote = next();
        std::string word;
        for (;;) {
            if (done() || peek() == '\n') fail(fmt::format("a string lacks its closing {}", quote));
            const char c = next();
            if (c == quote) break;
            require(static_cast<unsigned char>(c) >= 0x20 || c == '\t', "a control character in a string");
            word += c == '\\' && quote == '"' ? escape() : std::string(1, c);
        }
        require(!word.empty() || peek() != quote, "strings of several lines are not used here");
        return word;
    }
    std::string escape() {
        static constexpr std::string_view kNames = "\"\\bfnrt";
        static constexpr std::string_view kChars = "\"\\\b\f\n\r\t";
        const char c = done() ? '\0' : next();
        if (const size_t i = kNames.find(c); i != std::string_view::npos) return std::string(1, kChars[i]);
        require(c == 'u' || c == 'U', "an unknown escape in a string; a backslash itself is \\\\");
        const size_t count = c == 'u' ? 4 : 8;
        const std::string_view digits = text_.substr(at_, count);
        uint32_t code = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
        if (error != std::errc() || end != digits.data() + count)
            fail(fmt::format("\\{} takes {} hexadecimal digits", c, count));
        at_ += count;
        require(code < 0x110000 && (code < 0xd800 || code > 0xdfff) && code > 0,
                "an escape that is no character, or the character NUL");
        return utf8(code);
    }
    static std::string utf8(uint32_t code) {
        if (code < 0x80) return {static_cast<char>(code)};
        std::string tail;
        uint32_t first_limit = 0x40;  // limit of the first byte's bits, halved with each byte after it
        do {
            tail.insert(tail.begin(), static_cast<char>(0x80 | (code & 0x3f)));
            code >>= 6;
            first_limit >>= 1;
        } while (code >= first_limit);
        return static_cast<char>(~(2 * first_limit - 1) | code) + tail;
    }
    std::string scalar() {
        if (quoted()) return string();
        std::string word = bare();
        if (word == "true" || word == "false") return word;
        require(!word.empty(), "a value is missing");
        if (!is_decimal(word)) fail(fmt::format("{} is not a number; texts are written in quotes: \"{}\"", word, word));
        std::erase(word, '_');
        if (word.starts_with('+')) word.erase(0, 1);
        return word;
    }
    // Reads items up to `end` and joins them with commas, as flags take them.
    template <typename Item>
    std::string list(char end, Item item) {
        std::string joined;
        next();
        for (skip(true); peek() != end; skip(true)) {
            if (done()) fail(fmt::format("a list lacks its closing {}", end));
            if (!joined.empty()) joined += ',';
            joined += item();
            skip(true);
            if (peek() == ',')
                next();
            else if (!done() && peek() != end)
                fail(fmt::format("a comma or {} is missing in a list", end));
        }
        next();
        return joined;
    }
    ValueKind kind() const {
        if (quoted()) return ValueKind::text;
        if (peek() == '[' || peek() == '{') return ValueKind::list;
        return peek() == 't' || peek() == 'f' ? ValueKind::boolean : ValueKind::number;
    }
    std::string value() {
        if (peek() == '[') return list(']', [&] { return scalar(); });
        if (peek() != '{') return scalar();
        return list('}', [&] {
            const std::string name = key();
            expect('=', "a list in braces holds name = value");
            skip(false);
            return name + "=" + scalar();
        });
    }

    std::string_view text_;
    const std::string& name_;
    size_t at_ = 0;
    int line_ = 1;
};

const OptionRow& row_of(const OptionTable& table, const std::string& key, const std::string& where) {
    for (const OptionRow& row : table.rows)
        if (row.flag == "--" + key) return row;
    throw UsageError(fmt::format("{}: there is no flag '{}'{}", where, key, suggestion(table, "--" + key)));
}

// Returns the type of a row's value in a file, for a message. Sizes may be texts, because 512Ki and 100M are not
// numbers in TOML.
std::string wanted_by(const OptionRow& row) {
    if (row.is_list) return "a text, a number or a list";
    if (row.is_switch) return "true or false";
    if (row.type == "N" || row.type == "X") return "a number";
    return row.type == "TIME" ? "seconds, or a time in quotes" : "a text in quotes";
}

bool takes(const OptionRow& row, ValueKind kind, const std::string& value) {
    const bool is_number = row.type == "N" || row.type == "X";
    if (row.is_list) return kind != ValueKind::boolean;
    if (row.is_switch) return kind == ValueKind::boolean || value == "on" || value == "off";
    const auto is = [](int (*what)(int), char c) { return what(static_cast<unsigned char>(c)) != 0; };
    if (kind == ValueKind::text)
        return !is_number || (!value.empty() && is(std::isdigit, value.front()) && is(std::isalpha, value.back()));
    return kind == ValueKind::number && (is_number || row.type == "TIME");
}

void set_row(const OptionRow& row, ValueKind kind, const std::string& value, const std::string& where) {
    const std::string key = row.flag.substr(2);
    CHECK_USAGE(row.is_list || kind != ValueKind::list, "{}: {} takes one value, not a list", where, key);
    CHECK_USAGE(takes(row, kind, value), "{}: {} takes {}, not {}", where, key, wanted_by(row),
                kind == ValueKind::text ? shown(value) : value);
    CHECK_USAGE(value.find('\0') == std::string::npos, "{}: {} holds the character NUL", where, key);
    try {
        row.set(value);
    } catch (const UsageError& error) { throw UsageError(fmt::format("{}: {}", where, error.what())); }
}

ValueKind kind_of(const Json& value) {
    if (value.is_boolean()) return ValueKind::boolean;
    if (value.is_number()) return ValueKind::number;
    return value.is_text() ? ValueKind::text : ValueKind::list;
}

// Returns a logged value as written on the command line.
std::string as_word(const Json& value, const std::string& where) {
    if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
    if (value.is_number() && !value.is_whole()) return fmt::format("{}", value.get<double>());  // 3600, not 3600.0
    if (value.is_number()) return json_text(value);
    if (value.is_text()) return value.get<std::string>();
    CHECK_USAGE(value.is_container(), "{} is {}, expected a value", where, shown(value));
    std::string words;
    const auto add = [&](const std::string& prefix, const Json& item) {
        CHECK_USAGE(!item.is_container() && !item.is_null(), "{} is {}, expected a list of values", where,
                    shown(value));
        words += (words.empty() ? "" : ",") + prefix + as_word(item, where);
    };
    for (const Json& item : value.items()) add("", item);
    for (const auto& [key, item] : value.members()) add(key + '=', item);
    return words;
}

// A default may have no spelling on the command line: 0 layers means the preset's number.
void set_logged(const OptionRow& row, const Json& value, const std::string& path) {
    if (value != row.get()) set_row(row, kind_of(value), as_word(value, path + ": " + row.flag.substr(2)), path);
}

void take_over(const Json& file, const std::string& path, const OptionTable& table, const std::string& program,
               FlagsGiven& flags) {
    const JsonObject o(file, path);
    CHECK_USAGE(o.has("options") && file["options"].is_object(),
                "{}: is not the config.json of a run: it has no options", path);
    const auto of = o.get<std::string>("program", "");
    CHECK_USAGE(of == program, "{}: is of a run of {}, not of {}", path, of.empty() ? "another program" : of, program);
    const std::string all = path + ": options";
    for (const auto& [key, value] : file["options"].members()) {
        if (!flags.count("--" + key)) check_not_removed(key, value, all);
        if (is_removed_flag(key)) continue;
        const OptionRow& row = row_of(table, key, all);
        if (row.this_call || value.is_null()) continue;
        flags.by_run[row.flag] = value;
        if (!flags.count(row.flag)) set_logged(row, value, path);
    }
}

}  // namespace

std::vector<ConfigEntry> parse_toml(std::string_view text, const std::string& name) {
    return TomlReader(text, name).entries();
}

void set_rows(const OptionTable& table, const std::map<std::string, Json>& values) {
    const std::string file = "a run's config.json";
    for (const auto& [flag, value] : values) set_logged(row_of(table, flag.substr(2), file), value, file);
}

void read_config(const std::string& path, const OptionTable& table, const std::string& program, FlagsGiven& flags) {
    const std::string text = read_text(path, JsonLimits().bytes);  // a run's config.json names each of its shards
    const size_t first = text.find_first_not_of(" \t\r\n");
    CHECK_USAGE(first != std::string::npos, "{}: is empty; it holds lines like lr = 0.02, or is a run's config.json",
                path);
    if (text[first] == '{') return take_over(parse_json(text, path), path, table, program, flags);
    CHECK_USAGE(static_cast<int64_t>(text.size()) <= kMaxToml, "{}: {} bytes, more than the {} of a TOML file", path,
                text.size(), kMaxToml);
    CHECK_USAGE(is_utf8(text), "{}: is not a text in UTF-8", path);
    const std::set<std::string> on_command_line = flags.by_user;
    for (const ConfigEntry& entry : parse_toml(text, path)) {
        const std::string where = fmt::format("{}: line {}", path, entry.line);
        const OptionRow& row = row_of(table, entry.key, where);
        if (on_command_line.count(row.flag)) continue;
        set_row(row, entry.kind, entry.value, where);
        flags.by_user.insert(row.flag);
    }
}

}  // namespace teon

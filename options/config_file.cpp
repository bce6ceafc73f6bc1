#include "options/config_file.h"

#include <algorithm>
#include <cctype>
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

bool is_digit(char c) { return c >= '0' && c <= '9'; }

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
        skip(false);
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
    // Returns a value that JSON writes in the same way; null if it does not.
    Json as_json(const std::string& word) const {
        try {
            return parse_json("{\"value\":" + word + "}", name_)["value"];
        } catch (const UsageError&) { return {}; }
    }
    std::string string() {
        const char quote = next();
        std::string word;
        for (;;) {
            if (done() || peek() == '\n') fail(fmt::format("a string lacks its closing {}", quote));
            const char c = next();
            if (c == quote) break;
            require(static_cast<unsigned char>(c) >= 0x20 || c == '\t', "a control character in a string");
            const bool escapes = c == '\\' && quote == '"' && !done() && peek() != '\n';
            word += c == '\t' && quote == '"' ? "\\t" : std::string(1, c);
            if (escapes) word += next();
        }
        require(!word.empty() || peek() != quote, "strings of several lines are not used here");
        if (quote == '\'') return word;
        const Json value = as_json('"' + word + '"');
        require(value.is_text(), "an unknown escape in a string; write the character itself, a backslash as \\\\");
        return value.get<std::string>();
    }
    Json number(const std::string& word) const {
        std::string digits;
        for (size_t i = 0; i < word.size(); ++i) {
            const bool within = i > 0 && i + 1 < word.size() && is_digit(word[i - 1]) && is_digit(word[i + 1]);
            if (word[i] != '_' || !within) digits += word[i];
        }
        if (digits.size() > 1 && digits[0] == '+' && is_digit(digits[1])) digits.erase(0, 1);
        const Json value = as_json(digits);
        if (!value.is_number())
            fail(fmt::format("{} is not a number; texts are written in quotes: \"{}\"", word, word));
        return value;
    }
    Json scalar() {
        if (quoted()) return string();
        const std::string word = bare();
        require(!word.empty(), "a value is missing");
        return word == "true" || word == "false" ? Json(word == "true") : number(word);
    }
    // Reads the items of a list up to `end`.
    template <typename Item>
    void items(char end, Item item) {
        next();
        for (skip(true); peek() != end; skip(true)) {
            if (done()) fail(fmt::format("a list lacks its closing {}", end));
            item();
            skip(true);
            if (peek() == ',')
                next();
            else if (!done() && peek() != end)
                fail(fmt::format("a comma or {} is missing in a list", end));
        }
        next();
    }
    Json value() {
        if (peek() != '[' && peek() != '{') return scalar();
        Json list = peek() == '[' ? Json::array() : Json::object();
        if (list.is_array()) {
            items(']', [&] { list.push_back(scalar()); });
        } else {
            items('}', [&] {
                const std::string name = key();
                expect('=', "a list in braces holds name = value");
                list[name] = scalar();
            });
        }
        return list;
    }

    std::string_view text_;
    const std::string& name_;
    size_t at_ = 0;
    int line_ = 1;
};

const OptionRow& row_of(const OptionTable& table, const std::string& key, const std::string& where) {
    const OptionRow* const row = table.find("--" + key);
    CHECK_USAGE(row, "{}: there is no flag '{}'{}", where, key, suggestion(table, "--" + key));
    return *row;
}

// Returns the type of a row's value in a file, for a message. Sizes may be texts, because 512Ki and 100M are not
// numbers in TOML.
std::string wanted_by(const OptionRow& row) {
    if (row.is_list) return "a text, a number or a list";
    if (row.is_switch) return "true or false";
    if (row.type == "N" || row.type == "X") return "a number";
    return row.type == "TIME" ? "seconds, or a time in quotes" : "a text in quotes";
}

bool takes(const OptionRow& row, const Json& value) {
    const bool is_number = row.type == "N" || row.type == "X";
    if (row.is_list) return !value.is_boolean();
    if (row.is_switch) return value.is_boolean() || value == "on" || value == "off";
    if (!value.is_text()) return value.is_number() && (is_number || row.type == "TIME");
    const auto text = value.get<std::string>();
    return !is_number ||
           (!text.empty() && is_digit(text.front()) && std::isalpha(static_cast<unsigned char>(text.back())));
}

// Returns a value as written on the command line.
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

void set_row(const OptionRow& row, const Json& value, const std::string& where) {
    const std::string key = row.flag.substr(2);
    const std::string word = as_word(value, where + ": " + key);
    CHECK_USAGE(row.is_list || !value.is_container(), "{}: {} takes one value, not a list", where, key);
    CHECK_USAGE(takes(row, value), "{}: {} takes {}, not {}", where, key, wanted_by(row),
                value.is_text() ? shown(value) : word);
    CHECK_USAGE(word.find('\0') == std::string::npos, "{}: {} holds the character NUL", where, key);
    try {
        row.set(word);
    } catch (const UsageError& error) { throw UsageError(fmt::format("{}: {}", where, error.what())); }
}

}  // namespace

std::vector<ConfigEntry> parse_toml(std::string_view text, const std::string& name) {
    return TomlReader(text, name).entries();
}

void read_config(const std::string& path, const OptionTable& table, FlagsGiven& given) {
    const std::string text = read_text(path, JsonLimits().bytes);  // a run's config.json names each of its shards
    const size_t first = text.find_first_not_of(" \t\r\n");
    CHECK_USAGE(first != std::string::npos, "{}: is empty; it holds lines like lr = 0.02, or is a run's config.json",
                path);
    if (text[first] == '{') {
        given.run_config = path;
        return;
    }
    CHECK_USAGE(static_cast<int64_t>(text.size()) <= kMaxToml, "{}: {} bytes, more than the {} of a TOML file", path,
                text.size(), kMaxToml);
    CHECK_USAGE(is_utf8(text), "{}: is not a text in UTF-8", path);
    const std::set<std::string> on_command_line = given.by_user;
    for (const ConfigEntry& entry : parse_toml(text, path)) {
        const std::string where = fmt::format("{}: line {}", path, entry.line);
        const OptionRow& row = row_of(table, entry.key, where);
        if (on_command_line.count(row.flag)) continue;
        set_row(row, entry.value, where);
        given.by_user.insert(row.flag);
    }
}

void read_run_config(const std::string& path, const OptionTable& table, const std::string& program, FlagsGiven& given) {
    const Json file = read_json(path);
    const JsonObject o(file, path);
    CHECK_USAGE(o.has("options") && file["options"].is_object(),
                "{}: is not the config.json of a run: it has no options", path);
    const auto of = o.get<std::string>("program", "");
    CHECK_USAGE(of == program, "{}: is of a run of {}, not of {}", path, of.empty() ? "another program" : of, program);
    std::set<std::string> by_run;
    for (const Json& name : file["given"].items()) by_run.insert("--" + name.get<std::string>(path + ": given"));
    const std::string where = path + ": options";
    for (const auto& [key, value] : file["options"].members()) {
        const std::string removed = why_removed(key, value);
        CHECK_USAGE(removed.empty() || given.by_user.count("--" + key), "{}: {}", where, removed);
        if (!removed.empty() || is_removed_flag(key)) continue;
        const OptionRow& row = row_of(table, key, where);
        if (row.this_call || value.is_null()) continue;
        if (!o.has("given")) by_run.insert(row.flag);
        // A default may have no spelling on the command line: 0 layers means the preset's number.
        if (!given.by_user.count(row.flag) && !given.by_like.count(row.flag) && value != row.get())
            set_row(row, value, path);
    }
    given.by_run = std::move(by_run);
}

}  // namespace teon

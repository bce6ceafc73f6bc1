#include "options/command_line.h"

#include <algorithm>
#include <numeric>

#include "files/json.h"
#include "options/config_file.h"
#include "options/version.h"

namespace teon {

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            size_t next = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
            diagonal = std::exchange(row[j], next);
        }
    }
    return row.back();
}

[[noreturn]] void reject_unknown(const OptionTable& table, const std::string& word) {
    const std::string flag = word.substr(0, word.find('='));
    if (!flag.starts_with("-")) {
        const std::string nearest = nearest_flag(table, "--" + flag);
        throw UsageError(fmt::format("{}: not expected here; flags begin with --{}", shown(word),
                                     nearest == "--" + flag ? ": " + nearest : ""));
    }
    throw UsageError(fmt::format("{}: no such flag; did you mean {}? (--help lists all)",
                                 is_utf8(flag) && flag.size() < 40 ? flag : shown(flag), nearest_flag(table, flag)));
}

// The words of each row, in the order of the table.
std::vector<std::vector<std::string>> words_of(const OptionTable& table, int argc, const char* const* argv) {
    std::vector<std::vector<std::string>> words(table.rows.size());
    for (int i = 1; i < argc;) {
        const std::string word = argv[i++];
        const size_t equals = word.find('=');
        const auto row = std::find_if(table.rows.begin(), table.rows.end(),
                                      [&](const OptionRow& r) { return r.flag == word.substr(0, equals); });
        if (row == table.rows.end()) reject_unknown(table, word);
        std::vector<std::string>& values = words[static_cast<size_t>(row - table.rows.begin())];
        const size_t before = values.size();
        if (equals != std::string::npos) {
            values.push_back(word.substr(equals + 1));
        } else {
            const int most = row->is_list ? argc : 1;
            for (int n = 0; n < most && i < argc && !std::string_view(argv[i]).starts_with("--"); ++n)
                values.push_back(argv[i++]);
            if (row->is_switch && values.size() == before) values.push_back("on");
        }
        CHECK_USAGE(values.size() > before, "{}: needs a value: {}", row->flag, row->type);
        for (const std::string& value : values)
            CHECK_USAGE(is_utf8(value), "{} {}: not a text in UTF-8", row->flag, shown(value));
        CHECK_USAGE(row->is_list || values.size() == 1, "{}: given {} times ({}); give it once", row->flag,
                    values.size(), fmt::join(values, ", "));
    }
    return words;
}

// Words of the text, wrapped to `width` columns, each line but the first behind `indent` blanks.
std::string wrapped(const std::string& text, size_t indent, size_t width) {
    std::string out;
    size_t column = indent;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(' ', at), text.size());
        if (column > indent && column + 1 + end - at > width) {
            out += "\n" + std::string(indent, ' ');
            column = indent;
        } else if (column > indent) {
            out += ' ';
            ++column;
        }
        out += text.substr(at, end - at);
        column += end - at;
        at = end + 1;
    }
    return out;
}

// The table and what every program has.
struct Builtin {
    bool help = false, version = false;
    std::string config, completion;

    OptionTable added_to(const OptionTable& table) {
        OptionTable all = table;
        all.group("Run");
        all.text("--config", config, "FILE",
                 "flags from a TOML file of the same names, or from the config.json of a run of this program; flags "
                 "given here override it");
        all.group("Checks");
        all.choice("--completion", completion, Choices<std::string>{{"bash", "bash"}},
                   "print completion for a shell: source <(PROGRAM --completion bash)");
        all.toggle("--version", version, "print the source version and exit").default_text = "";
        all.toggle("--help", help, "print this and exit").default_text = "";
        return all;
    }
};

}  // namespace

std::string nearest_flag(const OptionTable& table, std::string_view word) {
    word = word.substr(0, 64);  // longer ones are like none
    const std::string_view letters = word.substr(std::min(word.find_first_not_of('-'), word.size()));
    // How far a flag is: first whether it begins so, as -h and --he do, then by what would have to be typed otherwise.
    const auto distance = [&](const OptionRow& row) {
        return std::pair(!std::string_view(row.flag).substr(2).starts_with(letters), edit_distance(word, row.flag));
    };
    const auto nearer = [&](const OptionRow& a, const OptionRow& b) { return distance(a) < distance(b); };
    return std::min_element(table.rows.begin(), table.rows.end(), nearer)->flag;
}

std::optional<FlagsGiven> parse_flags(const OptionTable& table, const std::string& program,
                                      const std::string& description, int argc, const char* const* argv) {
    Builtin builtin;
    const OptionTable all = builtin.added_to(table);
    const std::vector<std::vector<std::string>> words = words_of(all, argc, argv);
    FlagsGiven given;
    for (size_t i = 0; i < words.size(); ++i) {
        if (words[i].empty()) continue;
        all.rows[i].set(fmt::format("{}", fmt::join(words[i], ",")));
        given.by_user.insert(all.rows[i].flag);
    }
    if (builtin.help) fmt::print("{}", help_text(table, program, description));
    if (builtin.version) fmt::print("{}\n", source_version());
    if (!builtin.completion.empty()) fmt::print("{}", bash_completion(table, program));
    if (builtin.help || builtin.version || !builtin.completion.empty()) return std::nullopt;
    if (!builtin.config.empty()) read_config(builtin.config, table, program, given);
    return given;
}

std::string help_text(const OptionTable& table, const std::string& program, const std::string& description) {
    constexpr size_t kIndent = 34, kWidth = 110;
    Builtin builtin;
    const OptionTable all = builtin.added_to(table);
    std::vector<std::string> groups;
    for (const OptionRow& row : all.rows)
        if (std::find(groups.begin(), groups.end(), row.group) == groups.end()) groups.push_back(row.group);
    std::string text = fmt::format("{}\n\n{} --FLAG VALUE ...\n", description, program);
    for (const std::string& group : groups) {
        text += fmt::format("\n{}:\n", group);
        for (const OptionRow& row : all.rows) {
            if (row.group != group) continue;
            const bool plain = row.flag == "--help" || row.flag == "--version";
            const std::string left = plain ? "  " + row.flag : fmt::format("  {} {}", row.flag, row.type);
            const std::string right =
                row.default_text.empty() ? row.help : fmt::format("{} ({})", row.help, row.default_text);
            const std::string gap =
                left.size() + 1 < kIndent ? std::string(kIndent - left.size(), ' ') : "\n" + std::string(kIndent, ' ');
            text += left + gap + wrapped(right, kIndent, kWidth) + "\n";
        }
    }
    return text;
}

std::string bash_completion(const OptionTable& table, const std::string& program) {
    Builtin builtin;
    const OptionTable all = builtin.added_to(table);
    std::string flags, cases;
    for (const OptionRow& row : all.rows) {
        flags += (flags.empty() ? "" : " ") + row.flag;
        if (row.type.find('|') != std::string::npos) {
            std::string choices = row.type;
            std::replace(choices.begin(), choices.end(), '|', ' ');
            cases += fmt::format("        {}) words='{}' ;;\n", row.flag, choices);
        } else if (row.type == "PATH" || row.type == "FILE" || row.type == "FOLDER") {
            cases += fmt::format(
                "        {}) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n",
                row.flag);
        } else if (!row.is_list) {
            cases += fmt::format("        {}) return ;;\n", row.flag);
        }
    }
    return fmt::format(R"(_{0}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words='{1}'
    [[ $word == --* ]] || case ${{COMP_WORDS[COMP_CWORD - 1]}} in
{2}    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -F _{0} {0} ./{0}
)",
                       program, flags, cases);
}

std::string error_line(std::string_view program, std::string_view message) {
    std::string line = fmt::format("{}: error: ", program);
    const bool text = is_utf8(message);
    for (const unsigned char c : message) {
        if (c == '\n')
            line += "\\n";
        else if (c < 0x20 || c == 0x7f || (c >= 0x80 && !text))
            line += fmt::format("\\x{:02x}", c);
        else
            line += static_cast<char>(c);
    }
    return line + "\n";
}

}  // namespace teon

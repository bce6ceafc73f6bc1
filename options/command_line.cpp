#include "options/command_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <system_error>

#include "base/standard_streams.h"
#include "base/text.h"
#include "files/file.h"
#include "files/json.h"
#include "options/config_file.h"
#include "options/suggestion.h"
#include "options/version.h"

namespace teon {

namespace {

[[noreturn]] void reject_unknown(const OptionTable& table, const std::string& word) {
    const std::string flag = word.substr(0, word.find('='));
    if (!flag.starts_with("-")) {
        // A value without its flag. Programs that continue runs have --resume.
        CHECK_USAGE(!table.find("--resume") || !path_exists(word + "/config.json"),
                    "{}: not expected here; to continue that run write --resume --out {}", shown(word), word);
        throw UsageError(fmt::format("{}: not expected here; flags begin with --{}", shown(word),
                                     table.find("--" + flag) ? ": --" + flag : ""));
    }
    throw UsageError(fmt::format("{}: no such flag{} (--help-all lists all)",
                                 is_utf8(flag) && flag.size() < 40 ? flag : shown(flag), suggestion(table, flag)));
}

// Returns the words given for each row, in the order of the table.
std::vector<std::vector<std::string>> words_of(const OptionTable& table, int argc, const char* const* argv) {
    std::vector<std::vector<std::string>> words(table.rows.size());
    for (int i = 1; i < argc;) {
        const std::string argument = argv[i++];
        const std::string word = argument == "-h" ? "--help" : argument;
        const size_t equals = word.find('=');
        const OptionRow* const row = table.find(word.substr(0, equals));
        if (!row) reject_unknown(table, word);
        std::vector<std::string>& values = words[static_cast<size_t>(row - table.rows.data())];
        const size_t before = values.size();
        if (equals != std::string::npos) {
            values.push_back(word.substr(equals + 1));
        } else {
            const int max_values = row->is_list ? argc : 1;
            for (int n = 0; n < max_values && i < argc && !std::string_view(argv[i]).starts_with("--"); ++n)
                values.push_back(argv[i++]);
            if (row->is_switch && values.size() == before) values.push_back("on");
        }
        CHECK_USAGE(values.size() > before, "{}: needs a value: {}", row->flag, row->type);
        for (const std::string& value : values)
            CHECK_USAGE(is_utf8(value), "{} {}: not a text in UTF-8", row->flag, shown(value));
        CHECK_USAGE(row->is_list || values.size() == 1, "{}: given {} times ({}); give it once", row->flag,
                    values.size(), joined(values, ", "));
    }
    return words;
}

// Flags that every program has.
struct Builtin {
    bool help = false, help_all = false, version = false;
    std::string config, completion;

    OptionTable added_to(const OptionTable& table) {
        OptionTable all = table;
        all.group("Run");
        all.text("--config", config, "FILE",
                 "flags from a TOML file of the same names, or from the config.json of a run of this program; flags "
                 "given here override it");
        all.group("Checks");
        all.name("--completion", completion, {"bash"},
                 "print completion for a shell: source <(PROGRAM --completion bash)");
        all.toggle("--version", version, "print the source version and exit").default_text = "";
        all.toggle("--help", help, "print examples and the flags that are used most").default_text = "";
        all.toggle("--help-all", help_all, "print every flag").default_text = "";
        return all;
    }
};

size_t help_width() {
    const int columns = terminal_columns();
    return static_cast<size_t>(columns > 0 ? std::clamp(columns, 60, 110) : 80);
}

// Puts the remark of an example that is too long above it.
std::string example_text(const std::string& example) {
    const size_t remark = example.find("  #");
    if (remark == std::string::npos || example.size() + 2 <= help_width()) return "  " + example + "\n";
    return "  " + example.substr(remark + 2) + "\n  " + example.substr(0, remark) + "\n";
}

// Continues values that are too many for a line on the next one, after a '|'.
std::string wrapped_values(std::string text, size_t width) {
    for (size_t begin = 0; text.size() - begin > width;) {
        const size_t bar = text.rfind('|', begin + width - 1);
        if (bar == std::string::npos || bar < begin) break;
        text.insert(bar + 1, "\n    ");
        begin = bar + 2;
    }
    return text;
}

std::string help_line(const OptionRow& row) {
    const size_t width = help_width();
    const size_t indent = width < 100 ? 28 : 34;
    const bool is_plain = row.is_switch && row.default_text.empty();  // --help, --version
    const std::string flag_column =
        is_plain ? "  " + row.flag : wrapped_values(fmt::format("  {} {}", row.flag, row.type), width);
    const std::string help_column =
        row.default_text.empty() ? row.help : fmt::format("{} ({})", row.help, row.default_text);
    const std::string gap = flag_column.size() + 1 < indent ? std::string(indent - flag_column.size(), ' ')
                                                            : "\n" + std::string(indent, ' ');
    return flag_column + gap + wrapped(help_column, indent, width) + "\n";
}

// `table` includes the flags of every program.
std::string help_text(const OptionTable& table, const ProgramText& program, bool every_flag) {
    std::string text = fmt::format("{}\n\n./{} --FLAG VALUE ...\n\nExamples:\n", program.description, program.name);
    for (const std::string& example : program.examples) text += example_text(example);
    if (!every_flag) {
        text += "\nMost used flags:\n";
        for (const std::string& flag : program.most_used)
            if (const OptionRow* row = table.find(flag)) text += help_line(*row);
        return text + fmt::format("\n./{} --help-all lists every flag.\n", program.name);
    }
    std::vector<std::string> groups;
    for (const OptionRow& row : table.rows)
        if (std::find(groups.begin(), groups.end(), row.group) == groups.end()) groups.push_back(row.group);
    for (const std::string& group : groups) {
        text += fmt::format("\n{}:\n", group);
        for (const OptionRow& row : table.rows)
            if (row.group == group) text += help_line(row);
    }
    return text;
}

std::string bash_completion(const OptionTable& table, const std::string& program) {
    std::string flags;
    std::string cases;
    for (const OptionRow& row : table.rows) {
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

}  // namespace

std::optional<FlagsGiven> parse_flags(const OptionTable& table, const ProgramText& program, int argc,
                                      const char* const* argv) {
    Builtin builtin;
    const OptionTable all = builtin.added_to(table);
    const std::vector<std::vector<std::string>> words = words_of(all, argc, argv);
    FlagsGiven flags;
    for (size_t i = 0; i < words.size(); ++i) {
        if (words[i].empty()) continue;
        all.rows[i].set(joined(words[i], ","));
        flags.by_user.insert(all.rows[i].flag);
    }
    if (builtin.help || builtin.help_all) print_output(help_text(all, program, builtin.help_all));
    if (builtin.version) print_output(fmt::format("{}\n", source_version()));
    if (!builtin.completion.empty()) print_output(bash_completion(all, program.name));
    if (builtin.help || builtin.help_all || builtin.version || !builtin.completion.empty()) return std::nullopt;
    if (!builtin.config.empty()) read_config(builtin.config, table, flags);
    return flags;
}

std::string message_of(const std::exception& error) {
    const auto* system = dynamic_cast<const std::system_error*>(&error);
    if (system && system->code() == std::errc::resource_unavailable_try_again)
        return "a thread cannot be started: a limit of processes (ulimit -u) or of address space (ulimit -v) is "
               "reached";
    return error.what();
}

std::string error_line(std::string_view program, std::string_view whole_message) {
    const std::string message = shortened(whole_message);
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

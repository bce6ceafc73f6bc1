#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <set>

#include "files/file.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

// The number of calls after which readdir() fails; -1: never.
static int calls_before_fault = -1;
extern "C" struct dirent* readdir(DIR* folder) {
    if (calls_before_fault == 0) {
        errno = EIO;
        return nullptr;
    }
    if (calls_before_fault > 0) --calls_before_fault;
    static const auto next = reinterpret_cast<struct dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
    return next(folder);
}

TEST_CASE("files/file: a path that is not a regular file is refused by name, and links are never written through") {
    TempDir folder;
    const std::string pipe = folder / "pipe";
    const std::string file = folder / "file";
    const std::string link = folder / "link";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    std::ofstream(file) << "content";
    REQUIRE(::symlink(file.c_str(), link.c_str()) == 0);
    REQUIRE(::symlink("nowhere", (folder / "dangling").c_str()) == 0);
    REQUIRE(read_text(link, 100) == "content");
    REQUIRE(read_text(file, 7) == "content");
    REQUIRE_THAT(error_of([&] { read_text(file, 6); }), ContainsSubstring("file: 7 bytes, more than the 6"));
    const std::pair<std::string, const char*> unreadable[] = {{pipe, "pipe: is not a regular file"},
                                                              {folder.path(), "is a directory"},
                                                              {"/dev/zero", "/dev/zero: is not a regular file"},
                                                              {folder / "none", "none: cannot be opened: No such file"},
                                                              {folder / "dangling", "dangling: cannot be opened"}};
    for (const auto& row : unreadable)
        REQUIRE_THAT(error_of([&] { read_text(row.first, 100); }), ContainsSubstring(row.second));
    const std::pair<std::string, const char*> unwritable[] = {
        {pipe, "pipe: cannot be opened"},
        {folder.path(), "cannot be opened"},
        {"/dev/null", "/dev/null: is not a regular file"},
        {link, "link: cannot be opened for writing: it is a symbolic link"},
        {folder / "no/folder", "cannot be opened"}};
    for (const auto& row : unwritable)
        REQUIRE_THAT(error_of([&] { open_for_append(row.first); }), ContainsSubstring(row.second));
    // With a reader at its other end the pipe can be opened, but is still refused.
    const Descriptor reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK));
    REQUIRE_THAT(error_of([&] { open_for_append(pipe); }), ContainsSubstring("pipe: is not a regular file"));
    write_all(open_for_append(file), "+more", 5, file);
    REQUIRE(read_file(file) == "content+more");
    REQUIRE_THAT(error_of([&] { InputFile(file).read(std::string(20, ' ').data(), 20, 0); }),
                 ContainsSubstring("file: ends at byte 12, 8 more were expected"));
}

TEST_CASE(
    "files/file: a folder's names are sorted, hidden ones left out, and a folder that cannot be read is an error") {
    TempDir folder;
    for (const char* name : {"b", "a", ".c"}) std::ofstream(folder / name) << "x";
    std::error_code error;
    using Names = std::vector<std::string>;
    REQUIRE(names_in(folder.path(), error) == Names{"a", "b"});
    REQUIRE(names_in(folder / "none", error).empty());
    REQUIRE(names_in(folder / "a", error).empty());
    REQUIRE(!error);
    for (int calls : {0, 1, 2}) {
        calls_before_fault = calls;
        names_in(folder.path(), error);
        calls_before_fault = -1;
        REQUIRE(error == std::errc::io_error);
    }
}

TEST_CASE("files/file: a file is replaced as a whole or not at all, whatever lies at the temporary's name") {
    TempDir folder;
    const std::string path = folder / "config.json";
    const std::string victim = folder / "victim";
    const std::string temporary = path + ".tmp";
    std::ofstream(victim) << "mine";
    REQUIRE(::symlink(victim.c_str(), temporary.c_str()) == 0);
    write_file_atomically(path, "new");
    REQUIRE(read_file(path) == "new");
    REQUIRE(read_file(victim) == "mine");
    REQUIRE(::mkfifo(temporary.c_str(), 0600) == 0);
    write_file_atomically(path, "newer");
    REQUIRE(read_file(path) == "newer");
    std::filesystem::remove(path);
    std::filesystem::create_symlink(victim, path);  // replaces the link, not its target
    write_file_atomically(path, "newest");
    REQUIRE(read_file(path) == "newest");
    REQUIRE(read_file(victim) == "mine");
    std::filesystem::create_directory(temporary);
    REQUIRE_THAT(error_of([&] { write_file_atomically(path, "x"); }), ContainsSubstring(temporary));
    REQUIRE(read_file(path) == "newest");
    std::filesystem::remove(temporary);
    std::filesystem::create_directory(folder / "there");
    REQUIRE_THAT(error_of([&] { write_file_atomically(folder / "there", "x"); }),
                 ContainsSubstring("there: is not a regular file"));
    REQUIRE(!std::filesystem::exists(folder / "there.tmp"));
    // A limit on the size of files stands in for a full disk.
    struct rlimit before;
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const struct rlimit small = {1000, before.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const std::string said = error_of([&] { write_file_atomically(path, std::string(2000, 'x')); });
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    std::signal(SIGXFSZ, handler);
    REQUIRE_THAT(said, ContainsSubstring("config.json.tmp: cannot be written"));
    REQUIRE(read_file(path) == "newest");
    REQUIRE(!std::filesystem::exists(temporary));
}

TEST_CASE("files/files: a device or a pipe is not replaced by a file") {
    TempDir folder;
    const std::string pipe = folder / "pipe";
    const std::string link = folder / "link";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    REQUIRE(error_of([&] { write_file_atomically(pipe, "x"); }) ==
            pipe + ": is not a regular file, and is not replaced by one");
    struct stat status;
    REQUIRE(::lstat(pipe.c_str(), &status) == 0);
    REQUIRE(S_ISFIFO(status.st_mode));
    REQUIRE(::symlink("/dev/null", link.c_str()) == 0);
    write_file_atomically(link, "x");  // replaces the link, not its target
    REQUIRE(read_text(link, 9) == "x");
}

TEST_CASE("files/file: a sampled hash is of the size, all of a small file, and places all over a large one") {
    TempDir folder;
    const std::string path = folder / "shard";
    auto hash = [&](const std::string& bytes) {
        write_file_atomically(path, bytes);
        return sampled_hash(path);
    };
    std::string small(1000, 'a');
    std::string large(3 << 20, 'b');
    std::set<std::string> seen = {hash(""), hash(small), hash(small + "a"), hash(large), hash(large + "b")};
    REQUIRE(seen.size() == 5);
    for (size_t at : {size_t{0}, size_t{500}, size_t{999}}) {
        std::string other = small;
        other[at] = 'c';
        REQUIRE(seen.insert(hash(other)).second);
    }
    for (size_t at : {size_t{0}, large.size() / 15 * 7 + 100, large.size() - 1}) {
        std::string other = large;
        other[at] = 'c';
        REQUIRE(seen.insert(hash(other)).second);
    }
    REQUIRE(hash(small) == hash(small));
    REQUIRE(hash(small).size() == 16);
}

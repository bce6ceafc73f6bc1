"""dev/check_statements.py names the file and line of each kind of fault, and no code that only looks like one."""
import check_statements
from check_statements import RULES
from testing import Case, write_files

BODY = "void f(int n) {\n%s\n}\n"
FAULTS = [  # rule, a statement whose first line has the fault
    ("comma", "a = 1, b = 2;"),
    ("comma", "if (n > 0) a = 1, b = 2;"),
    ("comma", "for (int i = 0; i < n; ++i) a += i, b += g<int, 3>(i);"),
    ("comma", "return problem += \"x\", false;"),
    ("comma", "g([&](int x) { return list.push_back(x), true; });"),
    ("comma", "run_kernel<<<1, 32>>>(x), wait();"),
    ("declarations", "int a = 1, b = 2;"),
    ("declarations", "const std::map<int, float>::iterator a = x.begin(), b = x.end();"),
    ("declarations", "T *out, *in;"),
    ("declarations", "std::vector<R> p(n), q(n);"),
    ("declarations", "static constexpr int kRows = 4, kColumns = 8;"),
    ("ternary", "x = n > 0 ? 1 : n < 0 ? -1 : 0;"),
    ("ternary", "x = n > 0 ? 1 : 2 * (n < 0 ? -1 : 0);"),
    ("ternary", "x = (n > 0 ? 1 : 2) == 2 ? 3 : 4;"),
    ("ternary", "g({n > 0 ? 1 : n < 0 ? -1 : 0, 2});"),
    ("assignment", "while ((at = text.find(',')) != n) g(at);"),
    ("assignment", "for (int at; (at = find(n)) != n;) g(at);"),
    ("assignment", "if (n = 2) g(n);"),
    ("assignment", "if (const int a = g(n); (b += a)) g(b);"),
    ("postfix", "n++;"),
    ("postfix", "for (int i = 0; i < n; i++) g(i);"),
    ("postfix", "for (int i = 0; i < n; ++i, n--) g(i);"),
    ("capitals", "constexpr int TILE_ROWS = 4;"),
    ("capitals", "const float LEAST[] = {1, 2};"),
    ("adjective", "const auto found = g(n);"),
    ("adjective", "for (const std::vector<int>& own : lists) g(own);"),
    ("adjective", "void f(const char* most, int n);"),
    ("capitals", "enum Kind { kGood, BAD };"),
]
SOUND = r"""
// a = 1, b = 2; and n++;
#define ROWS(x) int a, b; \
    x++
template <typename T, int kRows, bool LAST = false>
struct Pair : A<int, float>, B {
    Pair(int x, int y) : A<int, float>{x, y}, first{x}, second(y) {
        g();
    }
    T first, second;  // fields may share a line
    bool operator()(int a, int b) const { return a < b && b > a; }
    auto operator<=>(const Pair&) const = default;
};
enum class Side { left, right };
constexpr int HS = 64;
constexpr Pair<int, 3> kPairs[] = {{1, 2}, {3, 4}};
std::map<int, std::vector<float>> h(const std::map<int, float>& x, int n) noexcept {
    const char* text = "a = 1, b = 2; n++";
    const char* raw = R"(int a, b; n++;)";
    const char comma = ',';
    const char quote = '\'';
    if (const auto it = x.find(n); it != x.end() && n == 3) return {{1, {2.0f}}, {3, {}}};
    if (n > 4) throw Failure{3, "x"};
    while (const int* p = g(n)) n = *p;
    for (int i = 0, end = n; i < end; ++i, --n) list[count++] = i;
    for (auto& [key, value] : x) key < n ? g(key, value) : g(n, value);
    const auto next = [count = 0, &n](int a, int b) mutable -> int { return a + b + count++; };
    const int sum = (n > 1 ? 2 : 3) + (n > 4 ? 5 : 6);
    const int largest = n > 1 ? g(n > 2 ? 1 : 2) : 3;
    run([&] { return n; }, n > 1 ? 2 : 3, n > 4 ? 5 : 6);
    static_assert(kSame<int, T>, "text");
    kernel<<<1, 32, 0>>>(n);
    switch (n) {
        case 1: g(n); break;
        default: return n-- > 1'000 ? a : b;
    }
    using Row = std::pair<int, float>;
    struct Local {
        int a, b;
    };
    n = x.found + most * own - known + given();
    do n -= 2;
    while (n > 3);
    return x.size() < 3 ? std::map<int, std::vector<float>>{{1, {}}, {2, {}}} : y;
}
"""


class CheckStatements(Case):
    def test_every_planted_fault_is_named(self):
        for rule, statement in FAULTS:
            with self.subTest(statement):
                faults = check_statements.File("train/a.cu", BODY % statement).faults
                self.assertEqual([fault[:2] for fault in faults], [(rule, 2)])

    def test_code_that_only_looks_like_faults(self):
        self.assertEqual(check_statements.File("train/a.h", SOUND).faults, [])

    def test_long_functions_and_many_parameters(self):
        def function(lines):
            return "int g(\n    int x) {\n" + "    f(x);\n" * (lines - 3) + "}\n"

        parameters = ", ".join(f"Pair<int, float> p{i}" for i in range(11))
        many = f"void many({parameters}) {{}}\nvoid more({parameters}, int x) {{}}\n"
        write_files(self.folder, {"train/a.cu": "\n" + function(81) + function(80).replace("g(", "h("),
                                  "train/b.cpp": f"\nnamespace a {{\n{many}}}\n"})
        *lines, longest, _ = self.run_script("check_statements.py", self.folder, expect=1).stdout.splitlines()
        self.assertEqual(lines, [f"train/a.cu:2: {RULES['long']} (g, 81)",
                                 f"train/b.cpp:4: {RULES['parameters']} (more, 12)"])
        self.assertTrue(longest.startswith("longest functions: g 81 (train/a.cu:2), h 80 (train/a.cu:83), "), longest)

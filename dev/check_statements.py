#!/usr/bin/env python3
"""Checks how the C++ and CUDA sources are written, by reading their tokens.

    dev/check_statements.py [FOLDER]     the tree to check (default: this one)

Each rule of RULES is a fault that compilers and clang-tidy do not report, or not in CUDA sources. Prints each fault
with its file and line, and the longest functions; exit status 1 if there is a fault.
"""
if __name__ == "__main__":
    from begin import startup

import collections
import pathlib
import re
import sys

import check_layers

LINES, PARAMETERS = 80, 11
RULES = {
    "comma": "a comma operator; write two statements",
    "declarations": "several declarations in one statement; write one each",
    "ternary": "a ternary within a ternary; write if, or a function",
    "assignment": "an assignment in a condition; write it before",
    "postfix": "x++ without use of its value; write ++x",
    "capitals": "a constant in capitals, which are for macros; write kConstant",
    "adjective": "a name without a noun; write what it is",
    "long": f"a function of more than {LINES} lines",
    "parameters": f"a function of more than {PARAMETERS} parameters; write a struct",
}

TOKEN = re.compile(r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/|(?<![^\n])[ \t]*\#(?:[^\n]*\\\n)*[^\n]*)
  | (?P<string>(?:u8|[uUL])?R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
  | (?P<number>\.?\d(?:'?[\w.]|(?<=[eEpP])[+-])*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<mark><<<.*?>>>|<<=|->\*|\.\.\.|::|->|\+\+|--|&&|\|\||<<|[-+*/%&|^=!<>]=|[^\s])
""", re.VERBOSE | re.DOTALL)
Token = collections.namedtuple("Token", "text line kind")
OPEN, CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
# One or two letters are dimensions, as in the papers.
CAPITALS = re.compile(r"(?!NKV$)[A-Z][A-Z0-9_]{2,}$|[A-Z]+_[A-Z0-9_]+$")
ADJECTIVES = {"found", "most", "own", "left", "known", "given", "wanted"}
OF_NVIDIA = {"cublasLtMatmul", "cublasSgemm_v2", "cublasSgemmStridedBatched", "cublasGemmEx",
             "cublasGemmStridedBatchedEx", "cusolverDnSgesvd", "cuTensorMapEncodeTiled",
             "encode_tiled"}  # functions whose parameters are not ours
NOT_FUNCTIONS = {"if", "for", "while", "switch", "catch", "else", "do", "try"}


class Node(list):
    """A bracket with what stands in it: tokens and Nodes. The root has no bracket."""

    def __init__(self, opening, line):
        super().__init__()
        self.text, self.line, self.end, self.kind = opening, line, line, "group"


def tokens(text):
    line = 1
    for match in TOKEN.finditer(text):
        if match.lastgroup != "space" and not match["space"]:
            kind = next(k for k in ("string", "number", "name", "mark") if match[k])
            yield Token("\"\"" if kind == "string" else match[kind], line, kind)
        line += match[0].count("\n")


def tree(text):
    """Returns the root of the brackets of a source. An unmatched bracket closes nothing."""
    root = Node("", 1)
    stack = [root]
    for token in tokens(text):
        if token.text in OPEN:
            node = Node(token.text, token.line)
            stack[-1].append(node)
            stack.append(node)
        elif token.text in CLOSE:
            if len(stack) > 1 and OPEN[stack[-1].text] == token.text:
                stack.pop().end = token.line
        else:
            stack[-1].append(token)
    root.kind = "namespace"
    return root


def is_group(item, opening):
    return isinstance(item, Node) and item.text == opening


def is_name(item, *texts):
    return isinstance(item, Token) and item.kind == "name" and (not texts or item.text in texts)


def angle_end(items, start):
    """Returns the index of the ">" that closes the template arguments beginning at start, or None for a comparison."""
    i = start + 1
    while i < len(items):
        text = items[i].text
        if text == ">":
            following = items[i + 1] if i + 1 < len(items) else None
            closes = following is None or isinstance(following, Node) or is_name(following) or following.text in (
                "::", ">", ",", "*", "&", "&&", ";", "...", "=")
            return i if closes else None
        if text in (";", "&&", "||", "?") or text in ASSIGNMENTS and not is_name(items[start - 1], "template"):
            return None
        if text == "<" and is_name(items[i - 1]):
            i = angle_end(items, i)
            if i is None:
                return None
        i += 1
    return None


def with_angles(items):
    """Returns the items with template arguments as Nodes "<"."""
    result, i = [], 0
    while i < len(items):
        end = angle_end(items, i) if items[i].text == "<" and i and (
            is_name(items[i - 1]) or is_group(items[i - 1], "[")) else None
        if end is None:
            result.append(items[i])
        else:
            angle = Node("<", items[i].line)
            angle.extend(with_angles(items[i + 1:end]))
            result.append(angle)
            i = end
        i += 1
    return result


def is_lambda(before):
    """Whether "[...]", its parameters and its return type stand at the end of these items, before a brace."""
    i = len(before) - 1
    while i >= 0 and not is_group(before[i], "["):
        if not (is_group(before[i], "(") or is_group(before[i], "<") or is_name(before[i]) or
                before[i].text in ("->", "::", "*", "&")):
            return False
        i -= 1
    if i < 0:
        return False
    previous = before[i - 1] if i else None
    return previous is None or is_name(previous, "return") or isinstance(previous, Token) and previous.kind == "mark"


def kind_of_brace(before, parent):
    """Returns what a brace after these items of its statement holds: statements, or the values of an initializer."""
    if is_lambda(before):
        return "lambda"
    if parent in ("group", "values"):
        return "values"
    first = next((item for item in before if not isinstance(item, Node) and not is_name(item, "template", "inline",
                                                                                        "static", "typedef")), None)
    parameters = [i for i, item in enumerate(before) if is_group(item, "(")]
    last = before[-1] if before else None
    if last is None or is_name(last, "else", "do", "try") or last.text == ":" and not parameters:
        return "control"
    if is_name(first, "struct", "class", "union", "enum", "namespace", "extern") and not is_group(last, "("):
        return {"enum": "enum", "namespace": "namespace", "extern": "namespace"}.get(first.text, "class")
    if is_name(first, *NOT_FUNCTIONS):
        return "control" if is_group(last, "(") else "values"
    if not parameters or is_name(first, "return", "throw") or any(item.text == "=" for item in before):
        return "values"
    after = before[parameters[0] + 1:]
    starts_list = any(item.text == ":" for item in after)  # Constructor(int x) : x_{x} {
    ends = is_group(last, "(") or is_group(last, "{")
    if starts_list and not ends:
        return "values"
    ends = ends or is_name(last, "const", "noexcept", "override", "final", "mutable")
    if ends or any(item.text == "->" for item in after):
        return "function" if parent in ("namespace", "class") else "control"
    return "values"


def statements(node):
    """Yields the statements of a block, each a list of items; marks the kind of every brace."""
    statement = []
    for item in with_angles(node):
        if item.text == ";" and isinstance(item, Token):
            yield statement
            statement = []
            continue
        if is_group(item, "{"):
            item.kind = kind_of_brace(statement, node.kind)
        statement.append(item)
        if is_group(item, "{") and item.kind in ("control", "function", "class", "enum", "namespace"):
            yield statement
            statement = []
        elif item.text == ":" and len(statement) > 1 and is_name(statement[0], "case", "default", "public", "private",
                                                                 "protected"):
            statement = []
    if statement:
        yield statement


def split(items, mark):
    parts = [[]]
    for item in items:
        if isinstance(item, Token) and item.text == mark:
            parts.append([])
        else:
            parts[-1].append(item)
    return parts


def without_headers(statement):
    """Returns the statement that follows if (...), else, for (...) and the like, and those headers."""
    headers, rest = [], statement
    while rest and is_name(rest[0], "if", "for", "while", "switch", "else", "do"):
        n = 1 + (len(rest) > 1 and is_name(rest[1], "constexpr"))
        if len(rest) > n and is_group(rest[n], "("):
            headers.append((rest[0].text, rest[n]))
            n += 1
        rest = rest[n:]
    return rest, headers


def declares(statement):
    """Whether a statement with a comma is a declaration: a type, then a name."""
    items = [item for item in statement if not is_name(item, "const", "constexpr", "static", "unsigned", "volatile",
                                                       "__shared__", "extern", "inline", "thread_local", "mutable")]
    if len(items) < len(statement) and any(is_name(item) for item in items[:1]):
        return True
    i = 0
    while i < len(items) and (is_name(items[i]) or items[i].text in ("::", "<")):
        if i and is_name(items[i]) and (is_name(items[i - 1]) or items[i - 1].text == "<"):
            return not is_name(items[0], "return", "throw", "delete", "goto", "co_yield")
        i += 1
    return bool(i) and i + 1 < len(items) and items[i].text in ("*", "&", "&&") and is_name(items[i + 1])


def assigns(items):
    """Yields the assignments of a condition, but for a declaration's."""
    for i, item in enumerate(items):
        if isinstance(item, Node):
            if item.text == "(" and not (i and is_group(items[i - 1], "[")):
                yield from assigns(item)
        elif item.text in ASSIGNMENTS:
            declared = item.text == "=" and i > 1 and is_name(items[0]) and (
                is_name(items[i - 1]) or is_group(items[i - 1], "[")) and (
                is_name(items[i - 2]) or items[i - 2].text in ("*", "&", "<", "&&"))
            if not declared:
                yield item


class File:
    """The faults and functions of one source."""

    def __init__(self, path, text):
        self.path, self.faults, self.functions = path, [], []
        self.block(tree(text))

    def fault(self, rule, line, name=""):
        self.faults.append((rule, line, name))

    def block(self, node):
        for statement in statements(node):
            if statement:
                self.statement(statement, node.kind)

    def statement(self, statement, scope):
        self.nested(statement)
        if scope == "enum":
            return
        last = statement[-1]
        if is_group(last, "{") and last.kind == "function":
            self.function(statement)
            return
        if is_group(last, "{") and last.kind in ("class", "enum", "namespace"):
            return
        rest, headers = without_headers(statement)
        for keyword, header in headers:
            self.header(keyword, header)
        if rest and not is_name(rest[0], "template", "using", "friend", "typedef"):
            self.plain(rest, scope)

    def plain(self, rest, scope):
        """A statement that is neither a definition nor a header."""
        line = rest[0].line
        if len(split(rest, ",")) > 1 and (scope != "class" or is_name(rest[0], "static")):  # fields may share a line
            self.fault("declarations" if declares(rest) else "comma", line)
        self.postfix(rest)
        if any(is_name(item, "constexpr", "const") for item in rest):
            end = next((i for i, item in enumerate(rest) if item.text == "=" or is_group(item, "{")), len(rest))
            names = [item for item in rest[:end] if is_name(item)]
            if end < len(rest) and CAPITALS.match(names[-1].text):
                self.fault("capitals", line, names[-1].text)

    def postfix(self, items):
        if len(items) > 1 and items[-1].text in ("++", "--") and not any(
                i.text in ASSIGNMENTS or is_name(i, "return") for i in items):
            self.fault("postfix", items[-1].line)

    def header(self, keyword, header):
        clauses = split(header, ";")
        conditions = clauses[1:2] if keyword == "for" else clauses[-1:]
        for condition in conditions:
            for item in assigns(with_angles(condition)):
                self.fault("assignment", item.line)
        if keyword == "for" and len(clauses) == 3:
            for step in split(clauses[2], ","):
                self.postfix(step)

    def function(self, statement):
        groups = [i for i, item in enumerate(statement) if i and is_group(item, "(") and not is_name(
            statement[i - 1], "__launch_bounds__", "__align__", "alignas", "requires", "decltype", "noexcept")]
        if not groups:
            return
        name = statement[groups[0] - 1].text
        group = groups[name == "operator" and len(groups) > 1]
        if name.isupper():  # TEST_CASE("name", "[tag]")
            name = f"{name} at line {statement[0].line}"
        length = statement[-1].end - statement[0].line + 1
        count = len(split(with_angles(statement[group]), ",")) if statement[group] else 0
        self.functions.append((length, f"{self.path}:{statement[0].line}", name))
        if length > LINES:
            self.fault("long", statement[0].line, f"{name}, {length}")
        if count > PARAMETERS and name not in OF_NVIDIA:
            self.fault("parameters", statement[0].line, f"{name}, {count}")

    def nested(self, items):
        """Checks the brackets of a statement, and its ternaries."""
        self.names(items)
        for part in split(items, ","):
            questions = [item for item in part if item.text == "?"]
            inner = any(self.asks(part, i) for i in range(len(part)))
            if len(questions) > 1 or questions and inner:
                self.fault("ternary", questions[-1].line)
        for item in items:
            if isinstance(item, Node) and item.text == "{" and item.kind != "values" and item.kind != "group":
                self.enumerators(item) if item.kind == "enum" else self.block(item)
            elif isinstance(item, Node):
                self.group(item)

    def names(self, items):
        """Checks the names that are declared: those after a type."""
        for i, item in enumerate(items):
            ends = i + 1 == len(items) or isinstance(items[i + 1], Node) or items[i + 1].text in ("=", ",", ":")
            if is_name(item, *ADJECTIVES) and i and ends:
                before = items[i - 1 - (i > 1 and items[i - 1].text in ("*", "&", "&&"))]
                if (is_name(before) or is_group(before, "<")) and not is_name(before, "return", "sizeof", "case"):
                    self.fault("adjective", item.line, item.text)

    def asks(self, part, i):
        """Whether item i is (...) that only groups, with a ternary in it."""
        if not is_group(part[i], "(") or i and (isinstance(part[i - 1], Node) or is_name(part[i - 1]) and
                                                not is_name(part[i - 1], "return")):
            return False
        return any(item.text == "?" or self.asks(part[i], k) for k, item in enumerate(part[i]))

    def group(self, node):
        """The content of brackets within a statement. Braces here are values, or a lambda's body."""
        items = with_angles(node)
        for part in split(items, ";"):
            before = []
            for item in part:
                if is_group(item, "{"):
                    item.kind = kind_of_brace(before, "group")
                before.append(item)
            self.nested(part)

    def enumerators(self, node):
        for part in split(node, ","):
            if part and is_name(part[0]) and not is_group(part[-1], "(") and CAPITALS.match(part[0].text):
                self.fault("capitals", part[0].line, part[0].text)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1])
    files = [File(path, text) for path, text in check_layers.sources(root)
             if path.endswith((".cu", ".cpp", ".h")) and not path.startswith("cpu/include/")]
    faults = [(file.path, line, rule, name) for file in files for rule, line, name in file.faults]
    for path, line, rule, name in faults:
        print(f"{path}:{line}: {RULES[rule]}" + f" ({name})" * bool(name))
    functions = sorted((f for file in files for f in file.functions), reverse=True)
    print("longest functions: " + ", ".join(f"{name} {length} ({where})" for length, where, name in functions[:5]))
    print(f"statements: {len(faults)} faults" if faults else "statements: clean")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))

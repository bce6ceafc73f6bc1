"""Predicts the seconds of the products and kernels of a table such as model_gpu.toml from counts and rates.

A product takes the time of its FLOPs or of its operands' bytes, whichever is longer. The FLOPs run at the library's
rate for its K (half of the full rate at K = m["half_k"]), on the share of the multiprocessors that its 128 x 128 tiles
keep busy on average over the waves. A search for algorithms splits sums of K >= 4096, and then all multiprocessors are
busy. The time of the epilogue's other bytes is added: the output that it adds to, the residual stream, GELU's input.

A kernel takes the longest of memory, instructions and tensor cores, plus a share of the other two: m["overlap"], or
m["wgmma_overlap"] if it multiplies by wgmma. Every launch adds a constant time.
"""
import collections
import functools

Row = collections.namedtuple("Row", "name times launches flops bytes minimum instructions seconds limit")


@functools.cache
def compiled(formula):
    return compile(formula, formula, "eval")


def evaluate(formula, shape):
    """The value of a formula of our table (never a user's) for a shape, with N = B*T."""
    return eval(compiled(formula), {"__builtins__": {}, "min": min, "N": shape["B"] * shape["T"], **shape})


def has_wgmma(table, m):
    """Whether the table has attention kernels with wgmma for the machine's architecture."""
    return any(m["architecture"] in kernel for kernel in table["kernel"])


def rounds(tiles, m):
    return -(-tiles // m["multiprocessors"])


# By the instruction that multiplies (mma.sync, wgmma): the machine's rate of the tensor cores and the overlap.
INSTRUCTIONS = {"HMMA": ("tensor", "overlap"), "HGMMA": ("peak", "wgmma_overlap")}


def overlapped(times, overlap):
    """Seconds of a kernel that needs `times` of memory, instructions and tensor cores."""
    return max(times) + overlap * (sum(times) - max(times))


def product_seconds(m, flops, K, busy, own, beside=0.0):
    """Seconds of a library's product with `own` bytes of operands and output, and `beside` more bytes in its
    epilogue."""
    rate = m["flops"] * K / (K + m["half_k"])
    return max(flops / (rate * busy), own / m["bytes"]) + beside / m["bytes"] + m["launch"]


def products(linear, shape):
    """The products of a linear layer: (pass, M, N, K, bytes per element of the output, share of launches that add to
    the output)."""
    rows, out, width_in = (int(evaluate(linear[key], shape)) for key in ("rows", "out", "in"))
    return (("forward", rows, out, width_in, 2, 0.0), ("dX", rows, width_in, out, 2, 0.0),
            ("dW", out, width_in, rows, shape["G"], 1 - rows / evaluate("N*S", shape)))


def predict(table, counts, machine, searched=True, shape=None, gelu_fusion=False):
    """The rows of a micro-step, including its share of the work that runs once per step. searched: with --autotune."""
    m = table["machine"][machine]
    shape = shape or table["shape"]
    shape = {"W": 1, "G": 4, **shape, "SM": m["multiprocessors"], "WARP": 16 if has_wgmma(table, m) else 32}
    rows = []
    for linear in table["linear"]:
        for which, M, N, K, size, adds in products(linear, shape):
            flops, output = 2.0 * M * N * K, size * M * N
            gelu = 2.0 * M * N if gelu_fusion and linear.get("gelu") == which else 0.0
            residual = 2.0 * M * N if linear.get("residual") and which == "forward" else 0.0
            own = 2.0 * (M * K + N * K) + output
            minimum = own + gelu + residual
            tiles = -(-M // 128) * -(-N // 128)
            busy = 1.0 if searched and K >= 4096 else tiles / (rounds(tiles, m) * m["multiprocessors"])
            seconds = product_seconds(m, flops, K, busy, own, 2 * adds * output + gelu + residual)
            rows.append(Row(f"{linear['name']} {which}" + (", GELU" if gelu else ""), evaluate(linear["times"], shape),
                            1, flops, minimum + adds * output, minimum, 0, seconds,
                            max(flops / m["flops"], minimum / m["bytes"])))
    for kernel in table["kernel"]:
        if kernel.get("gelu_fusion", gelu_fusion) == gelu_fusion:
            rows.append(kernel_row({**kernel, **kernel.get(m["architecture"], {})}, counts, m, shape))
    return rows


def instructions_of(counts, kernel, m):
    """A kernel's instructions per element and per warp: those executed if they are known, else those of its loops."""
    known = counts.get(kernel, {}).get(m["architecture"], [0.0])
    return tuple(known[2:4]) if len(known) > 2 else (known[0], 0.0)


def kernel_row(kernel, counts, m, shape):
    """The row of a kernel, which computes (elements, bytes), runs at a published rate (flops, rate in TFLOP/s), or
    sends (sent)."""
    value = lambda key: float(evaluate(kernel.get(key, "0"), shape))
    launches = kernel.get("launches", 1)
    per_element, per_warp = instructions_of(counts, kernel.get("like", kernel["name"]), m)
    tensor, overlap = next(((m[rate], m[overlap]) for name, (rate, overlap) in INSTRUCTIONS.items()
                            if kernel.get("anchor", "").startswith(name)), (None, m["overlap"]))
    instructions = per_element * value("elements") / (1 if tensor else 32) + per_warp * value("warps")
    seconds = overlapped([value("bytes") / m["bytes"], instructions / m["issue"],
                          4096 * value("elements") / tensor if tensor else 0.0], overlap) + launches * m["launch"]
    if "rate" in kernel:
        seconds += value("flops") / (1e12 * value("rate"))
    if "sent" in kernel:
        seconds += value("sent") / m["link"]
    return Row(kernel["name"], value("times"), launches, value("flops"), value("bytes"), value("minimum"), per_element,
               seconds, max(value("flops") / m["flops"], value("minimum") / m["bytes"]))


# Kernels that have a row of their own, but that bench_gpu.cu times together with a product.
BESIDE = {"MLP up dW, bias gradient": "bias gradient of MLP up"}


def seconds_of(rows, name):
    """Seconds of one launch of a kernel of bench_gpu.cu: of its row, or of all rows whose names begin with its name.
    None if there is no such row."""
    product = name.removesuffix(", bias gradient")
    found = [row for row in rows if row.times
             and (row.name in (product, BESIDE.get(name)) or row.name.startswith((f"{product},", f"{product} in ")))]
    return sum(row.seconds for row in found) if found else None


# Products of five steps in f16 (optim/orthogonalize.cpp): X X^T, a product of squares that reads one matrix, one that
# reads two, and a square times X.
FORMS = {"standard": (5, 5, 0, 5), "gram": (2, 5, 9, 2)}
Product = collections.namedtuple("Product", "name times flops tiles kernel library pays")


def newton_schulz(table, counts, machine, owned=None, batch=None):
    """The products of an update: launches, FLOPs of one (symmetric products counted once), its seconds with our kernel
    (None if that does not apply) and with the library, and whether symmetric_product_pays() selects the kernel. owned:
    a rank's number of stacks by name (default: all); batch: the most stacks in a launch by name (default: all)."""
    found = []
    for stack in table["stack"]:
        count = stack_size(table, stack)[0] if owned is None else owned[stack["name"]]
        most = batch[stack["name"]] if batch else max(count, 1)
        launches = collections.Counter(min(most, count - begin) for begin in range(0, count, most))
        for stacks, times in launches.items():
            found += [product._replace(times=times * product.times)
                      for product in stack_products(table, counts, table["machine"][machine], stack, stacks)]
    return found


def stack_size(table, stack):
    """(number of stacks, short side, long side)"""
    return tuple(int(evaluate(stack[key], table["shape"])) for key in ("count", "side", "long"))


def stack_products(table, counts, m, stack, count):
    """The products of `count` stacks that share their launches."""
    _, side, long = stack_size(table, stack)
    n = -(-side // 128)
    lower, square, whole = count * n * (n + 1) // 2, 2.0 * count * side * side, 2.0 * count * side * long
    per_mma, _ = instructions_of(counts, stack["kernel"], m)

    def kernel(K, moved):
        mma = rounds(lower, m) * m["multiprocessors"] * 128 * 128 * K / 2048
        return overlapped([moved / m["bytes"], mma * per_mma / m["issue"], 4096 * mma / m["tensor"]],
                          m["overlap"]) + m["launch"]

    def library(columns, K, moved):
        tiles = count * n * -(-columns // 128)
        busy = tiles / (rounds(tiles, m) * m["multiprocessors"])
        return product_seconds(m, 2.0 * 128 * 128 * K * tiles, K, busy, moved)

    mirror = square / m["bytes"] + m["launch"]
    pays = 4 * rounds(lower, m) <= 3 * rounds(count * n * n, m)
    *symmetric, last = FORMS[stack["form"]]
    found = [Product(f"{stack['name']}: {name}", times, 1.0 * count * side * side * K, lower, kernel(K, moved),
                     library(side, K, moved) + mirror, pays)
             for name, times, K, moved in zip(("X X^T", "squares, of one", "squares, of two"), symmetric,
                                              (long, side, side), (whole + square, 2 * square, 3 * square)) if times]
    return [*found, Product(f"{stack['name']}: Z X", last, 2.0 * count * side * side * long,
                            count * n * -(-long // 128), None, library(long, side, square + 3 * whole), False)]


def chosen(product, searched=True):
    """Seconds of a product by our kernel or the library, whichever the engine selects."""
    if product.kernel is None:
        return product.library
    if searched:
        return min(product.kernel, product.library)
    return product.kernel if product.pays else product.library


def update_seconds(products, searched=True):
    return sum(product.times * chosen(product, searched) for product in products)


ROUNDS = 4  # in which several ranks update their stacks of a shape (kRounds in optim/stacks.cpp)


def placed(table, ranks):
    """(number of stacks of each rank by name, the most stacks in a launch by name). The longest stack goes first, to
    the least loaded rank, as in optim/."""
    stacks = []
    for stack in table["stack"]:
        count, side, long = stack_size(table, stack)
        grams, one, two, last = FORMS[stack["form"]]
        flops = side * side * (grams * long + (one + two) * side + 2 * last * long)
        stacks += [(flops, stack["name"])] * count
    loads = [(0, rank, collections.Counter()) for rank in range(ranks)]
    for flops, name in sorted(stacks, reverse=True):
        load, rank, owned = min(loads, key=lambda item: item[:2])
        owned[name] += 1
        loads[rank] = load + flops, rank, owned
    owners = [owned for _, _, owned in loads]
    most = {stack["name"]: max(owned[stack["name"]] for owned in owners) for stack in table["stack"]}
    return owners, {name: -(-count // ROUNDS) if ranks > 1 else count for name, count in most.items()}


def total(rows, field="seconds"):
    return sum(row.times * getattr(row, field) for row in rows)


def tokens_per_second(shape, seconds):
    """Tokens/s of one GPU with this time per micro-step."""
    return shape["B"] * shape["T"] / seconds

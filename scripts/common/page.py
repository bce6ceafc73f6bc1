"""Web pages of results that are one file: tables, curves as SVG, pictures within; nothing is loaded from elsewhere."""

import base64
import html
import math

from common.written_files import replacing

# Colours of Okabe and Ito, which colour-blind readers tell apart, each with a line style of its own.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2 1 2", "1 1")
# Of a picture of curves, in the units of its text of 19, which can be read where a telephone shrinks it.
WIDTH, LEFT, TOP, BOTTOM, LINE = 640, 76, 12, 312, 27

STYLE = """body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:50rem;padding:1rem;color:#222}
h1{font-size:1.5rem;line-height:1.2}h2{font-size:1.15rem;margin-top:2rem}svg,img{width:100%;height:auto}
pre{background:#f4f4f4;padding:.7rem;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}
.scroll{overflow-x:auto}table{border-collapse:collapse}td,th{padding:.25rem .8rem .25rem 0;text-align:left;
border-bottom:1px solid #ddd;vertical-align:top}"""


def ticks(low, high, count=5):
    """Returns round numbers from `low` to `high`."""
    step = 10 ** math.floor(math.log10((high - low) / count))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= count)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def limits(curves):
    """Returns (lowest x, highest x, lowest y, highest y) of a plot of curves, {name: [(x, y)]}. The first quarter of
    each, where losses fall steeply, does not widen it."""
    every_x = [x for points in curves.values() for x, _ in points]
    low = min(y for points in curves.values() for _, y in points)
    high = max(y for points in curves.values() for _, y in points[len(points) // 4:])
    margin = 0.05 * (high - low) or 0.01
    return min(every_x), max(every_x) + (min(every_x) == max(every_x)), low - margin, high + margin


def curves_as_svg(curves, xlabel, ylabel):
    """Returns curves, {name: [(x, y)]}, as SVG. Points above the picture are left out."""
    first, last, low, high = limits(curves)
    right, bottom, height = WIDTH - 10, BOTTOM, BOTTOM + LINE * (len(curves) + 2)

    def place(x, y):
        return (LEFT + (x - first) / (last - first) * (right - LEFT),
                bottom - (y - low) / (high - low) * (bottom - TOP))

    out = [f'<svg viewBox="0 0 {WIDTH} {height}" font-size="19" role="img" aria-label="{html.escape(ylabel)}">']
    for y in ticks(low, high):
        at = place(first, y)[1]
        out.append(f'<path d="M{LEFT} {at:.1f}H{right}" stroke="#ddd"/><text x="{LEFT - 6}" y="{at + 6:.1f}" '
                   f'text-anchor="end">{y:.4g}</text>')
    for x in ticks(first, last):
        out.append(f'<text x="{place(x, low)[0]:.1f}" y="{bottom + LINE - 5}" text-anchor="middle">{x:g}</text>')
    out.append(f'<text x="{right}" y="{bottom + 2 * LINE - 5}" text-anchor="end">{html.escape(xlabel)}</text>'
               f'<text x="{LEFT}" y="{bottom + 2 * LINE - 5}">{html.escape(ylabel)}</text>')
    for i, (name, points) in enumerate(curves.items()):
        style = f'stroke="{COLORS[i % len(COLORS)]}" stroke-dasharray="{DASHES[i % len(DASHES)]}" stroke-width="2.5"'
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*p) for p in points if p[1] <= high))
        y = bottom + LINE * (i + 3) - 8
        out.append(f'<polyline points="{line}" fill="none" {style}/><path d="M{LEFT} {y - 6}h60" {style}/>'
                   f'<text x="{LEFT + 72}" y="{y}">{html.escape(name)}</text>')
    return "\n".join([*out, "</svg>"])


def table(rows, header=None):
    """Returns rows of text as a table that scrolls by itself where the window is narrow."""
    def row(cells, kind):
        return "<tr>" + "".join(f"<{kind}>{html.escape(str(cell))}</{kind}>" for cell in cells) + "</tr>"

    lines = ([row(header, "th")] if header else []) + [row(cells, "td") for cells in rows]
    return '<div class="scroll"><table>' + "\n".join(lines) + "</table></div>"


def text(lines):
    return f"<p>{html.escape(lines)}</p>"


def verbatim(lines):
    return f"<pre>{html.escape(lines)}</pre>"


def picture(path, title):
    """Returns a PNG file as part of the page."""
    with open(path, "rb") as file:
        data = base64.b64encode(file.read()).decode()
    return f'<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">'


def write(path, title, sections):
    """Writes a page of sections, pairs of a heading and its HTML, which the functions above make."""
    parts = "".join(f"<h2>{html.escape(heading)}</h2>\n{content}\n" for heading, content in sections)
    with replacing(path) as file:
        file.write(f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
                   f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>'
                   f"</head>\n<body><h1>{html.escape(title)}</h1>\n{parts}</body></html>\n")


def curves_as_text(curves, xlabel, width=80, height=14):
    """Returns lines of a plot of curves, {name: [(x, y)]}, each drawn with the first letter of its name."""
    first, last, low, high = limits(curves)
    columns = width - 9
    grid = [[" "] * columns for _ in range(height)]
    for name, points in curves.items():
        for x, y in points:
            row = round((high - y) / (high - low) * (height - 1))
            if row >= 0:
                grid[row][round((x - first) / (last - first) * (columns - 1))] = name[0]
    sides = [f"{high - (high - low) * row / (height - 1):7.3f} |" if row % 4 == 0 else "        |"
             for row in range(height)]
    names = ", ".join(f"{name[0]}: {name}" for name in curves)
    return [*((side + "".join(line)).rstrip() for side, line in zip(sides, grid)), "        +" + "-" * columns,
            f"         {first:g} to {last:g} {xlabel}; {names}"]

"""Draws a log-log chart as SVG: plot.py TITLE X Y <ROWS >SVG, a row being "series x y" with blanks between."""

import math
import sys

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 400, 70, 30, 150, 45
COLOURS = ["#1b6ca8", "#c0392b", "#1e8449", "#8e44ad", "#b9770e", "#515a5a"]


def decades(values):
    low = math.floor(math.log10(min(values)))
    return low, max(math.ceil(math.log10(max(values))), low + 1)


def number(exponent):
    return f"1e{exponent}" if abs(exponent) > 3 else f"{10.0 ** exponent:g}"


def main():
    title, x_title, y_title = sys.argv[1:]
    series = {}
    for line in sys.stdin:
        name, x, y = line.split()
        if float(y) > 0:
            series.setdefault(name, []).append((float(x), float(y)))
    points = [point for of_one in series.values() for point in of_one]
    x_low, x_high = decades([x for x, _ in points])
    y_low, y_high = decades([y for _, y in points])
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at_x(exponent):
        return LEFT + (exponent - x_low) / (x_high - x_low) * wide

    def at_y(exponent):
        return TOP + high - (exponent - y_low) / (y_high - y_low) * high

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">']
    out.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/><text x="{LEFT}" y="18" font-size="14">{title}</text>')
    for exponent in range(x_low, x_high + 1):
        x = at_x(exponent)
        out.append(f'<path d="M{x:.1f} {TOP}V{TOP + high}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{TOP + high + 16}" text-anchor="middle">{number(exponent)}</text>')
    for exponent in range(y_low, y_high + 1):
        y = at_y(exponent)
        out.append(f'<path d="M{LEFT} {y:.1f}h{wide}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(exponent)}</text>')
    out.append(f'<text x="{LEFT + wide / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{x_title}</text>')
    out.append(f'<text transform="translate(14 {TOP + high / 2:.0f}) rotate(-90)" text-anchor="middle">{y_title}</text>')
    for index, (name, of_one) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        places = [(at_x(math.log10(x)), at_y(math.log10(y))) for x, y in sorted(of_one)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        y = TOP + 14 + index * 18
        out.append(f'<text x="{LEFT + wide + 12}" y="{y}" fill="{colour}">{name}</text>')
    print("\n".join([*out, "</svg>"]))


main()

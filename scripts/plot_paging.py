#!/usr/bin/env python3
"""usage: plot_paging.py JSON OUT.svg
Draws what `weir bench paging --json` measured: tokens/s by memory limit, one line per arm, medians with min-max. The scale
is logarithmic, since arms differ by a factor of ten. Needs nothing but Python."""
import json
import math
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 60, 60
COLOURS = {'resident': '#777777', 'mmap': '#d1495b', 'advised': '#edae49', 'uffd': '#00798c'}
OTHERS = ('#8f5db7', '#30638e', '#66a182', '#a0522d')


def text(x, y, words, size=13, anchor='start', extra=''):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" {extra}>{escape(words)}</text>'


def line(x1, y1, x2, y2, colour, width=1.0):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def steps(low, high):
    """1, 2 and 5 times powers of ten between the two."""
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for digit in (1, 2, 5):
            value = digit * 10.0 ** power
            if low <= value <= high:
                yield value


def series(report):
    """arm -> [(place of the limit on the axis, min, median, max)]"""
    arms = {}
    for place, limit in enumerate(report['limits']):
        for arm in limit['arms']:
            speed = arm['tokens_per_s']
            if speed and speed['min'] > 0:
                arms.setdefault(arm['arm'], []).append((place, speed['min'], speed['median'], speed['max']))
    return arms


def draw(report):
    arms = series(report)
    if not arms:
        sys.exit('plot_paging.py: no arm has a speed in this file')
    speeds = [value for points in arms.values() for point in points for value in point[1:]]
    low, high = min(speeds) / 1.3, max(speeds) * 1.3
    n = len(report['limits'])

    def x(place):
        return LEFT + (WIDTH - LEFT - RIGHT) * (place + 0.5) / n

    def y(speed):
        return TOP + (HEIGHT - TOP - BOTTOM) * math.log(high / speed) / math.log(high / low)

    name = report['model'].rsplit('/', 1)[-1]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           text(LEFT, 26, f'{name}, {report["model_bytes"] / 2**30:.2f} GiB: tokens/s under a hard memory limit', 16),
           text(LEFT, 45, f'{report["threads"]} threads, medians and min-max of {report["runs"]} runs, read-ahead '
                          f'{report["read_ahead_kib"]} KiB, limits by {report["hard_limit"]}', 12, extra='fill="#555"')]
    for value in steps(low, high):
        out += [line(LEFT, y(value), WIDTH - RIGHT, y(value), '#dddddd'),
                text(LEFT - 8, y(value) + 4, f'{value:g}', 12, 'end')]
    for place, limit in enumerate(report['limits']):
        out.append(text(x(place), HEIGHT - BOTTOM + 20, f'{limit["percent"]} %', 13, 'middle'))
    out += [text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, 'limit of the whole process, in per cent of the file', 13, 'middle'),
            line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, '#333333'), line(LEFT, TOP, LEFT, HEIGHT - BOTTOM, '#333333')]

    others = iter(OTHERS * len(arms))
    labels = []
    for arm, points in arms.items():
        colour = COLOURS.get(arm) or next(others)
        path = ' '.join(f'{x(place):.1f},{y(median):.1f}' for place, _, median, _ in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for place, least, median, most in points:
            out += [line(x(place), y(least), x(place), y(most), colour, 1.5),
                    f'<circle cx="{x(place):.1f}" cy="{y(median):.1f}" r="4" fill="{colour}"/>',
                    text(x(place) + 7, y(median) - 6, f'{median:.2f}', 11, extra=f'fill="{colour}"')]
        labels.append([y(points[-1][2]), arm, colour])
    labels.sort()
    for i, label in enumerate(labels):  # names beside the last points, pushed apart
        label[0] = max(label[0], labels[i - 1][0] + 16 if i else TOP)
        out.append(text(WIDTH - RIGHT + 10, label[0] + 4, label[1], 13, extra=f'fill="{label[2]}" font-weight="bold"'))
    return '\n'.join([*out, '</svg>', ''])


if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        with open(sys.argv[1]) as file:
            drawn = draw(json.load(file))
        with open(sys.argv[2], 'w') as file:
            file.write(drawn)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f'plot_paging.py: {sys.argv[1]} is not what weir bench paging --json prints: {error!r}')

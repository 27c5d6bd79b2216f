#!/usr/bin/env python3
"""Draws docs/demo.svg, the picture in the README, from what `refd demo` really prints.

    docs/demo.py              runs `cargo run --release -p refd -- demo` and draws what it said
    docs/demo.py FILE         draws what it said earlier; `-` is standard input

Ids are cut to their first digits, and lines are wrapped; nothing else is changed. The picture follows the colour scheme of
whoever looks at it.
"""
import html
import re
import subprocess
import sys
import textwrap
from pathlib import Path

COMMAND = "cargo run --release -p refd -- demo"
# What the picture shows as typed: it may be drawn from the output of any build.
TYPED = "refd demo"
COLUMNS, CHAR, LINE, PAD, BAR = 100, 7.83, 19, 18, 30

STYLE = """
    svg { color-scheme: light dark }
    .ground { fill: #f6f8fa; stroke: #d0d7de } .bar { fill: #e6eaef } .dot { fill: #c4ccd4 }
    text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #24292f }
    .soft { fill: #656d76 } .id { fill: #0550ae } .good { fill: #1a7f37; font-weight: 600 } .time { fill: #8250df }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #0d1117; stroke: #30363d } .bar { fill: #161b22 } .dot { fill: #30363d }
      text { fill: #e6edf3 } .soft { fill: #8d96a0 } .id { fill: #79c0ff } .good { fill: #3fb950 } .time { fill: #d2a8ff }
    }
"""


def short(line):
    """The line with ids of 64 digits cut to eight."""
    return re.sub(r"([0-9a-f]{8})[0-9a-f]{56}", r"\1…", line)


def spans(line):
    """The line as SVG, its ids and times marked."""
    parts = re.split(r"((?:b3:)?\b[0-9a-f]{8}…|\([0-9.]+(?:ms|µs|s)\))", line)
    marked = []
    for part in parts:
        kind = "id" if part.endswith("…") else "time" if re.fullmatch(r"\([0-9.]+(ms|µs|s)\)", part) else None
        text = html.escape(part)
        marked.append(f'<tspan class="{kind}">{text}</tspan>' if kind else text)
    return "".join(marked)


def draw(output):
    lines = [(f"$ {TYPED}", "soft")]
    said = [short(line) for line in output.strip().splitlines()]
    for line in said:
        kind = "good" if line.startswith("all stopped") else ""
        wrapped = textwrap.wrap(line, COLUMNS, subsequent_indent="    ", break_on_hyphens=False)
        lines += [(part, kind) for part in wrapped]
    width, height = round(COLUMNS * CHAR + 2 * PAD), BAR + 2 * PAD + len(lines) * LINE - 6
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" aria-label="A terminal in which refd demo shows five nodes">',
        f"  <style>{STYLE}  </style>",
        f'  <rect class="ground" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        f'  <path class="bar" d="M1 9a8 8 0 0 1 8-8H{width - 9}a8 8 0 0 1 8 8V{BAR}H1Z"/>',
    ]
    out += [f'  <circle class="dot" cx="{18 + 18 * n}" cy="{BAR // 2}" r="5"/>' for n in range(3)]
    for number, (line, kind) in enumerate(lines):
        y = BAR + PAD + 8 + number * LINE
        marked = spans(line) if not kind else html.escape(line)
        kind = f' class="{kind}"' if kind else ""
        out.append(f'  <text x="{PAD}" y="{y}"{kind} xml:space="preserve">{marked}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    if len(sys.argv) > 1:
        output = sys.stdin.read() if sys.argv[1] == "-" else Path(sys.argv[1]).read_text()
    else:
        output = subprocess.run(COMMAND.split(), check=True, stdout=subprocess.PIPE, text=True).stdout
    if "everything held" not in output:
        sys.exit("the demo did not end with: everything held")
    Path(__file__).with_name("demo.svg").write_text(draw(output))


if __name__ == "__main__":
    main()

"""How a report looks: as the dashboard does, by day and by night, and on paper."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f5f7f8; --card: #fff; --sunk: #eff3f4; --line: #e1e7ea; --edge: #8b999f;
  --text: #1a2327; --quiet: #5a686f; --accent: #0f7490;
  --amber: #b06a00; --amber-text: #8a5300; --amber-wash: #fdf0d9;
  --red: #b3261e; --red-wash: #fceceb;
  --p50: #a9d6e2; --p90: #57a9c1; --p99: #0f7490; --p999: #0b5064; --max: #072f3b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101518; --card: #182024; --sunk: #11181b; --line: #273238; --edge: #64747c;
    --text: #e3eaed; --quiet: #9aa9b0; --accent: #56b6d2;
    --amber: #f0b75a; --amber-text: #f0b75a; --amber-wash: #3a2c14;
    --red: #f2938b; --red-wash: #3b1d1b;
    --p50: #2c6f85; --p90: #3b95b0; --p99: #56b6d2; --p999: #a2dcec; --max: #eaf8fc;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { margin: 0 0 4px; font-size: 26px; line-height: 1.25; font-weight: 650; letter-spacing: -0.01em; }
h2 { margin: 44px 0 12px; font-size: 19px; font-weight: 650; overflow-wrap: anywhere; }
h3 { margin: 0 0 2px; font-size: 15px; font-weight: 650; overflow-wrap: anywhere; }
p { margin: 0 0 8px; }
.quiet { color: var(--quiet); }
.note { color: var(--quiet); font-size: 13px; margin: 0 0 12px; }
header p { color: var(--quiet); overflow-wrap: anywhere; }
nav { margin: 12px 0 0; display: flex; flex-wrap: wrap; gap: 4px 16px; }
a { color: var(--accent); text-decoration: none; overflow-wrap: anywhere; }
a:hover { text-decoration: underline; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 4px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 18px 20px;
  margin: 0 0 16px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), 1fr)); gap: 16px;
  margin: 0 0 16px; }
.pair > .card { margin: 0; min-width: 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 24px 0 16px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; }
.tile b { display: block; font-size: 22px; line-height: 1.3; font-weight: 650; letter-spacing: -0.01em; }
.tile span { color: var(--quiet); font-size: 13px; }
.tile.grave b { color: var(--red); }
.findings { list-style: none; margin: 8px 0 0; padding: 0; }
.findings li { padding: 7px 12px; border-left: 3px solid var(--amber); background: var(--amber-wash); margin: 6px 0 0;
  border-radius: 0 6px 6px 0; overflow-wrap: anywhere; }
.findings li.grave { border-color: var(--red); background: var(--red-wash); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; color: var(--quiet); font-size: 13px; padding: 0 0 6px; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
tr > :last-child { padding-right: 0; }
th { font-weight: 600; color: var(--quiet); font-size: 13px; vertical-align: bottom; }
tbody th { color: var(--text); font-size: 14px; }
tbody tr:last-child > * { border-bottom: 0; }
.number { text-align: right; }
.name { white-space: normal; overflow-wrap: anywhere; min-width: 120px; max-width: 260px; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px; }
.tag { background: var(--amber-wash); color: var(--amber-text); border-radius: 4px; padding: 1px 6px; font-size: 12px;
  font-weight: 600; }
.bad { color: var(--red); font-weight: 600; }
details { margin: 10px 0 0; }
summary { cursor: pointer; color: var(--accent); font-size: 13px; }
details table { margin: 8px 0 0; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 10px 20px; margin: 0; }
dt { color: var(--quiet); font-size: 13px; }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
figure { margin: 0; overflow-x: auto; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 12px; fill: var(--quiet); font-family: inherit; }
svg text.label { font-size: 13px; fill: var(--text); }
svg text.value { font-size: 11px; fill: var(--quiet); }
svg text.even-text { fill: var(--quiet); paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
.grid { stroke: var(--line); stroke-width: 1; }
.axis { stroke: var(--edge); stroke-width: 1; }
.even { stroke: var(--quiet); stroke-width: 1.25; stroke-dasharray: 5 4; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.area { stroke: none; opacity: 0.14; }
.spot { fill: transparent; }
.line.rate { stroke: var(--accent); } .area.rate, .dot.rate, .bar { fill: var(--accent); } .hot { fill: var(--amber); }
.p50 { fill: var(--p50); } .p90 { fill: var(--p90); } .p99 { fill: var(--p99); } .p999 { fill: var(--p999); }
.max { fill: var(--max); }
.line.p50 { fill: none; stroke: var(--p50); } .line.p90 { fill: none; stroke: var(--p90); }
.line.p99 { fill: none; stroke: var(--p99); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 0 0 8px; padding: 0;
  color: var(--quiet); font-size: 13px; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; }
.swatch.p50 { background: var(--p50); } .swatch.p90 { background: var(--p90); } .swatch.p99 { background: var(--p99); }
.swatch.p999 { background: var(--p999); } .swatch.max { background: var(--max); }
footer { color: var(--quiet); font-size: 13px; margin: 40px 0 0; }
@media print { .card, .tile { break-inside: avoid; } body { background: none; } }
"""

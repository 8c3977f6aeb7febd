"""From figures to a page: what `make bench` shows at its end, and what `make bench-report` puts into docs/.

results     one file a script in bench-results/: figures, what was said, machine, versions
plots       which figures make which plot: the one table of rules
series      figures sorted by those rules into panels and rows
draw        panels and rows to PNG and SVG; the only place that knows matplotlib
content     the page as blocks: headings, tables, plots; from results alone
prose       those parts of it that no run changes
markdown    blocks to docs/benchmarks.md
html        blocks to one file that needs nothing else
"""

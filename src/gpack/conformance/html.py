"""Runs as one static HTML page: a matrix of vectors by programs. No script, nothing fetched, everything escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from ..errors import UsageError
from ..terminal.units import plural
from .outcomes import GOOD, OUTCOMES, Result, Run

_SIGNS = {"pass": "✓"}
_SHOWN_DIFFERENCES = 12

_STYLE = """
:root{--ink:#1b2330;--soft:#5d6b7e;--line:#dde3ea;--paper:#fff;--band:#f5f7fa;--good:#dff3e4;--goodink:#14692f;
--bad:#fbdcdc;--badink:#9c1414;--mild:#fdf0cf;--mildink:#7a5200;--none:#eef1f5}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9f0;--soft:#98a5b5;--line:#313b48;--paper:#12171e;--band:#1a212a;
--good:#163a23;--goodink:#8fdba8;--bad:#4a1b1f;--badink:#ffb3b3;--mild:#41340f;--mildink:#f2d48a;--none:#1d242d}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.5rem 4rem;max-width:90rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{margin:0 0 .2rem;font-size:1.6rem;letter-spacing:-.01em}
h2{margin:2.2rem 0 .6rem;font-size:1.1rem}
p{margin:.3rem 0;color:var(--soft)}
code{font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.cards{display:flex;flex-wrap:wrap;gap:.8rem;margin:1.2rem 0}
.card{flex:1 1 15rem;max-width:22rem;padding:.8rem 1rem;border:1px solid var(--line);border-radius:.6rem;
background:var(--band)}
.card b{display:block;font-size:1.02rem;overflow-wrap:anywhere}
.bar{display:flex;height:.5rem;margin:.5rem 0;border-radius:.25rem;overflow:hidden;background:var(--none)}
.bar i{display:block;height:100%}
.bar .g{background:#2f9e57}.bar .s{background:#a8b3c0}.bar .k{background:#d9a21b}.bar .f{background:#d13a3a}
.card small{color:var(--soft)}
.verdict{float:right;padding:.05rem .5rem;border-radius:1rem;font-size:.8rem;font-weight:600}
.wrap{overflow:auto;max-height:85vh;border:1px solid var(--line);border-radius:.6rem}
table{border-collapse:separate;border-spacing:0;width:100%}
th,td{padding:.28rem .6rem;border-bottom:1px solid var(--line);text-align:center;white-space:nowrap}
thead th{position:sticky;top:0;z-index:2;background:var(--band);font-size:.85rem;white-space:normal}
thead th:first-child{left:0;z-index:3;text-align:left}
tbody th{position:sticky;left:0;z-index:1;background:var(--paper);text-align:left;font-weight:400}
tr.group th{background:var(--band);font-weight:600;font-size:.85rem;color:var(--soft)}
td{font-size:.85rem;border-left:1px solid var(--line)}
.good{background:var(--good);color:var(--goodink)}.bad{background:var(--bad);color:var(--badink);font-weight:600}
.mild{background:var(--mild);color:var(--mildink)}.none{background:var(--none);color:var(--soft)}
.level{color:var(--soft);font-size:.78rem}
details{margin:.5rem 0;border:1px solid var(--line);border-radius:.5rem;padding:.5rem .8rem}
summary{cursor:pointer;overflow-wrap:anywhere}
pre{margin:.5rem 0 0;padding:.6rem .8rem;background:var(--band);border-radius:.4rem;overflow-x:auto;
white-space:pre-wrap;overflow-wrap:anywhere;font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
a{color:inherit}
.switch{margin:.6rem 0;color:var(--soft)}
#only:checked~.wrap tr.fine{display:none}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;color:var(--soft)}
dt{font-weight:600;color:var(--ink)}dd{margin:0}
"""


def html_report(runs: Sequence[Run], *, title: str = "GPACK conformance") -> str:
    """The page.

    Raises:
        UsageError: There is no run.
    """
    if not runs:
        raise UsageError("there is no result to show", code="usage")
    ids = sorted({result.id for run in runs for result in run.results})
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        # Names and messages come from strangers; even if one slipped through, nothing would run or be fetched.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{plural(len(ids), _noun(runs))}, {plural(len(runs), 'program')}.</p>",
        '<div class="cards">',
        *map(_card, runs),
        "</div>",
        _matrix(runs, ids),
        *_failures(runs),
        _legend(runs, ids),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _card(run: Run) -> str:
    subject, total = run.subject, max(len(run.results), 1)
    passed = sum(result.outcome == "pass" for result in run.results)
    failed = sum(result.fails for result in run.results) + len(run.complaints)
    skipped = sum(result.outcome == "skip" and not result.fails for result in run.results)
    widths = {"g": passed, "s": skipped, "k": len(run.results) - passed - skipped - failed, "f": failed}
    bar = "".join(f'<i class="{name}" style="width:{100 * n / total:.2f}%"></i>' for name, n in widths.items() if n > 0)
    verdict = '<span class="verdict good">passes</span>' if run.ok else '<span class="verdict bad">fails</span>'
    about = " · ".join(filter(None, [subject.kind, subject.language, subject.version, f"level {subject.level}"]))
    return (
        f'<div class="card">{verdict}<b>{escape(subject.name)}</b><small>{escape(about)}</small>'
        f'<div class="bar">{bar}</div><small>{passed} of {len(run.results)} pass'
        f"{_counted(skipped, 'skipped')}{_counted(failed, 'failing')} · {run.seconds:.1f} s</small></div>"
    )


def _noun(runs: Sequence[Run]) -> str:
    """What the programs were given."""
    nouns = {"vector" if run.subject.kind == "reader" else "recipe" for run in runs}
    return nouns.pop() if len(nouns) == 1 else "item"


def _counted(number: int, word: str) -> str:
    return f", {number} {word}" if number else ""


def _matrix(runs: Sequence[Run], ids: Sequence[str]) -> str:
    tables = [{result.id: result for result in run.results} for run in runs]
    known = {result.id: result for table in tables for result in table.values()}
    heads = "".join(f"<th>{escape(run.subject.name)}</th>" for run in runs)
    rows = []
    for group, members in groupby(sorted(ids, key=lambda name: (_group_of(name), name)), key=_group_of):
        lines = [_row(name, known[name].level, [table.get(name) for table in tables]) for name in members]
        fine = all(line.startswith("<tr class=fine>") for line in lines)
        head = f'<tr class="group{" fine" if fine else ""}"><th colspan="{len(runs) + 2}">{escape(group)}</th></tr>'
        rows += [head, *lines]
    return (
        '<h2>Matrix</h2><input type="checkbox" id="only"><label class="switch" for="only"> only rows where something '
        'did not pass</label><div class="wrap"><table>'
        f"<thead><tr><th>{_noun(runs)}</th><th>level</th>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(name: str, level: str, cells: Sequence[Result | None]) -> str:
    fine = all(cell is None or cell.outcome == "pass" for cell in cells)
    return (
        f'<tr{" class=fine" if fine else ""}><th><code>{escape(name)}</code></th><td class="level">{escape(level)}</td>'
        + "".join(_cell(index, cell) for index, cell in enumerate(cells))
        + "</tr>"
    )


def _group_of(name: str) -> str:
    """What an id begins with: `invalid/header` of `invalid/header.magic/...`, `model/homes` of `model/homes/tied`."""
    first, _, rest = name.partition("/")
    second = rest.partition("/")[0].partition(".")[0] if "/" in rest else ""
    return f"{first}/{second}" if second else first


def _cell(column: int, result: Result | None) -> str:
    if result is None:
        return '<td class="none" title="not asked"></td>'
    text = escape(_SIGNS.get(result.outcome, result.outcome))
    hint = escape(f"{result.outcome}: {result.message}" if result.message else OUTCOMES[result.outcome])
    if result.outcome != "pass":
        text = f'<a href="#{_anchor(column, result)}">{text}</a>'
    return f'<td class="{_tone(result)}" title="{hint}">{text}</td>'


def _tone(result: Result) -> str:
    if result.fails:
        return "bad"
    if result.outcome == "skip":
        return "none"
    return "good" if result.outcome == "pass" else "mild"


def _anchor(column: int, result: Result) -> str:
    """A name for a link: hexadecimal, so that no id can mean anything in HTML."""
    return f"r{column}-{result.id.encode('utf-8', 'surrogatepass').hex()}"


def _failures(runs: Sequence[Run]) -> Iterable[str]:
    for column, run in enumerate(runs):
        shown = [result for result in run.results if result.outcome != "pass" or result.fails]
        if not (shown or run.notes or run.complaints):
            continue
        yield f"<h2>{escape(run.subject.name)}</h2><p><code>{escape(' '.join(run.subject.command))}</code></p>"
        yield from (f"<p>note: {escape(note)}</p>" for note in run.notes)
        yield from (
            f'<p><span class="verdict bad" style="float:none">fails</span> <code>{escape(what)}</code>: '
            f"{escape(complaint)}</p>"
            for what, complaint in run.complaints
        )
        for result in shown:
            yield _details(column, result)


def _details(column: int, result: Result) -> str:
    shown = result.differences[:_SHOWN_DIFFERENCES]
    if len(result.differences) > len(shown):
        shown.append(f"and {len(result.differences) - len(shown)} more")
    lines = [*shown, *(f"note: {note}" for note in result.notes)]
    if result.stderr:
        lines += ["standard error ends with:", result.stderr]
    body = f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else ""
    mark = {"known": " (known)", "fixed": " (in the list of known failures, but passes)"}.get(result.known, "")
    mark = mark or (" (known to fail otherwise)" if result.known == "changed" else "")
    return (
        f'<details id="{_anchor(column, result)}"{" open" if result.fails else ""}><summary>'
        f'<span class="verdict {_tone(result)}" style="float:none">{escape(result.outcome)}</span> '
        f"<code>{escape(result.id)}</code>{mark} {escape(result.message)}</summary>"
        f"<p>should be: {escape(result.expect)}</p>{body}</details>"
    )


def _legend(runs: Sequence[Run], ids: Sequence[str]) -> str:
    met = {result.outcome for run in runs for result in run.results}
    rows = "".join(
        f"<dt>{_SIGNS.get(name, name)}</dt><dd>{escape(text)}</dd>"
        for name, text in OUTCOMES.items()
        if name in met or name in GOOD
    )
    if any(len(run.results) < len(ids) for run in runs):
        rows += "<dt>empty</dt><dd>not asked: of another level, or a file of many GiB for a reader that hashes</dd>"
    return f"<h2>What the words mean</h2><dl>{rows}</dl>"

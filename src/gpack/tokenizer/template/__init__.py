"""Chat templates: the Jinja language, evaluated over plain values, within limits, with the origin of every character.

`text`: strings that know which of their characters the template's author wrote. `budget`: the limits. `values` and
`methods`: what the language's operators and methods do. `filters` and `tests`: its filters and tests. `expressions`,
`statements`, `loops`: a parsed template turned into functions. `parse`: Jinja's own parser, and its errors as ours.
"""

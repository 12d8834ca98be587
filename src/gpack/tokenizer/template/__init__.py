"""Chat templates: the Jinja language, evaluated over plain values, within limits, with the origin of every character.

Jinja's own sandbox compiles a template to Python, keeps it from some attributes, and lets it run as long and grow as
large as it likes. Here Jinja only parses. What a template may do is what these modules do for it:

- `parse`: Jinja's parser, set up as Hugging Face sets it up, and its errors as ours;
- `statements`, `expressions`: the parsed template turned into functions of a `frame`;
- `values`, `methods`, `formatting`: operators, and what lies after a dot;
- `filters`, `lists`, `tests`, `functions`: what can be called by name;
- `text`: strings that know which of their characters the template's author wrote;
- `budget`: the limits.

Differences from Jinja: what is a generator there is a list here (`map`, `select`, ...), so it can be shown, counted and
turned into JSON; `safe` and `escape` give plain strings; filters that no chat template has a use for (`urlize`,
`xmlattr`, `random`, ...) do not exist.
"""

"""Chat templates in the shapes that are in use, written for the tests, and conversations to put through them."""

# ruff: noqa: E501 - templates are lines of their own

from __future__ import annotations

from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather\nnow",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Köln", "x"]}}},
    },
}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def _calls(arguments: Any) -> list[dict[str, Any]]:
    return [{"id": "call0", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}]


_SYSTEM = {"role": "system", "content": "  Be brief. "}
_USER = {"role": "user", "content": "  Hello\n you?  "}
_ASSISTANT = {"role": "assistant", "content": "Hi!"}
_THOUGHT = {"role": "assistant", "content": "<think>\nreason\n</think>\n\nanswer"}
_REASONED = {"role": "assistant", "content": "answer", "reasoning_content": "why"}
_PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}],
}
_CALL = {"role": "assistant", "content": "", "tool_calls": _calls({"city": "Köln", "n": [1, 2.5, None, True]})}
_CALL_TEXT = {"role": "assistant", "content": None, "tool_calls": _calls('{"city": "x"}')}
_RESULT = {"role": "tool", "content": '{"t": 5}', "name": "get_weather"}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [_USER],
    [_SYSTEM, _USER],
    [_SYSTEM, _USER, _ASSISTANT, _USER],
    [_USER, _THOUGHT, _USER],
    [_SYSTEM, _USER, _REASONED, _USER, _THOUGHT],
    [_PARTS],
    [_SYSTEM, _USER, _CALL, _RESULT, _RESULT, _ASSISTANT],
    [_USER, _CALL_TEXT, _RESULT],
    [_USER, _USER],
    [],
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": True},
    {"add_generation_prompt": True, "tools": [TOOL], "enable_thinking": False},
    {"tools": [TOOL, TOOL], "documents": [{"title": "T", "text": "some"}], "enable_thinking": True},
]

CHATML = """\
{%- if messages and messages[0].role != 'system' -%}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '')|string|trim + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

HEADERS = """\
{{- bos_token }}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + strftime_now("%d %b %Y") + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {%- if message.content is string %}
            {{- message['content'] | trim }}
        {%- elif message.content is iterable %}
            {%- for part in message.content if part.type == 'text' %}
                {{- part.text }}{{ " " if not loop.last }}
            {%- endfor %}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one tool call at a time") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' ~ tool_call.name ~ '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {{- message.content | tojson if message.content is mapping or message.content is iterable else message.content }}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

THINKING = """\
{%- macro text_of(content) -%}
    {%- if content is string -%}{{- content -}}
    {%- elif content is none -%}
    {%- else -%}
        {%- for item in content -%}{%- if 'text' in item -%}{{- item.text -}}{%- else -%}<|vision|>{%- endif -%}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string
        and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = text_of(message.content) %}
    {%- if message.role == "user" or message.role == "system" %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}
                {{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

BRACKETS = """\
{{ bos_token }}{% if messages and messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system = false %}{% endif %}\
{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if loop.index0 == 0 and system %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}
"""

PIPED_ROLES = """\
{% for message in messages %}
<|{{ message.role }}|>
{% generation %}
{{ message.content if message.content is string else message.content|tojson }}{{ '<|end|>' }}
{% endgeneration %}
{% endfor %}
{% for document in documents or [] %}{{ document | items | map('join', '=') | join('; ') }}
{% endfor %}
{{ ('<|' ~ 'assistant' ~ '|>' if add_generation_prompt else eos_token) -}}
"""

SHAPES = {"chatml": CHATML, "headers": HEADERS, "thinking": THINKING, "brackets": BRACKETS, "piped_roles": PIPED_ROLES}

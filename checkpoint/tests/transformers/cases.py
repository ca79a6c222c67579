"""Writes cases.json: files of a published model, and what `transformers` makes of them.

    python3 -m venv VENV && VENV/bin/pip install transformers==5.24.0 tokenizers==0.23.3 jinja2==3.1.6
    VENV/bin/python checkpoint/tests/transformers/cases.py

All files are of this project's own making. checkpoint/tests/transformers.rs holds the importer and the chat path to the result.
"""

import json
import pathlib
import tempfile

import jinja2
import transformers
from transformers import AutoTokenizer

# The bytes of GPT-2's byte-level alphabet, then four tokens of chats.
visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
letters = {byte: chr(byte) for byte in visible}
for number, byte in enumerate(byte for byte in range(256) if byte not in letters):
    letters[byte] = chr(256 + number)
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = {token: number for number, token in enumerate(SPECIAL + [letters[byte] for byte in range(256)] + ["<tool>", "he"])}


def added(token, special=True):
    return {"id": VOCABULARY[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": not special, "special": special}


def as_object(token):
    return {"__type": "AddedToken", **{key: value for key, value in added(token).items() if key != "id"}}


LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [added(token) for token in SPECIAL],
    "normalizer": None, "pre_tokenizer": LEVEL, "post_processor": None, "decoder": LEVEL,
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
              "vocab": VOCABULARY, "merges": [["h", "e"]]},
}
CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
LINES = """{# A comment. #}
{% for message in messages %}
  {% if message['role'] == 'user' %}
{{ '<|im_start|>user\\n' + message['content'] + eos_token }}
  {% else %}
    {{ raise_exception('no ' + message.role) }}
  {% endif %}
\t{%- if loop.last and add_generation_prompt %}
{{ '<|im_start|>assistant' }}
  {%+ endif %}
{% endfor %}
"""


def template(single, **tokens):
    ids = {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in tokens.items()}
    piece = lambda item: {"Sequence": {"id": "A", "type_id": 0}} if item == "A" else {"SpecialToken": {"id": item, "type_id": 0}}
    return {"type": "TemplateProcessing", "single": [piece(item) for item in single],
            "pair": [piece(item) for item in single] + [{"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": ids}


def flags(token, **change):
    return {str(VOCABULARY[token]): {**{key: value for key, value in added(token).items() if key != "id"}, **change}}


def decoder(tokens):
    return {"config": {"added_tokens_decoder": tokens}}


METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
UNIGRAM = {"pre_tokenizer": METASPACE, "decoder": METASPACE, "added_tokens": [], "model": {
    "type": "Unigram", "unk_id": 0, "byte_fallback": False,
    "vocab": [["<unk>", 0.0], ["</s>", -1.0], ["<s>", -1.0], ["▁", -2.0], ["he", -1.0], *([chr(letter), -3.0] for letter in range(33, 127))]}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "é <&>", "parameters": {"type": "object", "properties": {
    "unit": {"type": "string"}, "city": {"type": "string", "maximum": 1e20, "minimum": 1e-7, "default": 1.0}}, "required": ["city"]}}}]
BOS = {"post_processor": template(["<s>", "A"], **{"<s>": 0})}
CUT = {"truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}}
PAD = {"padding": {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0,
                   "pad_token": "</s>"}}
BATCH = {"padding": {**PAD["padding"], "strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 16}}
WITH_BOS = "{{ bos_token }}" + CHATML

CASES = {
    "plain": {},
    # B01
    "truncation": {"tokenizer": CUT},
    "padding": {"tokenizer": PAD},
    "padding to a multiple": {"tokenizer": BATCH},
    "both": {"tokenizer": {**CUT, **PAD}, "config": {"chat_template": CHATML}},
    # B03
    "lines": {"config": {"chat_template": LINES}},
    "lines with returns": {"config": {"chat_template": LINES.replace("\n", "\r\n")}},
    "one line end": {"config": {"chat_template": "{{ messages[0].content }}\n"}},
    "two line ends": {"config": {"chat_template": "{{ messages[0].content }}\n\n"}},
    # B04
    "bos of the template, add_bos_token": {"config": {"chat_template": WITH_BOS, "add_bos_token": True}},
    "bos of the template": {"config": {"chat_template": WITH_BOS}},
    "add_bos_token": {"config": {"chat_template": CHATML, "add_bos_token": True}},
    "add_bos_token, false": {"tokenizer": BOS, "config": {"chat_template": CHATML, "add_bos_token": False}},
    "add_bos_token, null": {"tokenizer": BOS, "config": {"add_bos_token": None}},
    "add_eos_token": {"config": {"chat_template": CHATML, "add_eos_token": True}},
    "add_eos_token over a post-processor": {"tokenizer": BOS, "config": {"add_eos_token": True}},
    "add both": {"config": {"chat_template": WITH_BOS, "add_bos_token": True, "add_eos_token": True}},
    "post-processor": {"tokenizer": BOS, "config": {"chat_template": WITH_BOS}},
    "post-processor with both": {"tokenizer": {"post_processor": template(["<s>", "A", "</s>"], **{"<s>": 0, "</s>": 1})}},
    "no bos_token": {"config": {"chat_template": WITH_BOS, "bos_token": None, "add_bos_token": True}},
    "no eos_token": {"config": {"chat_template": LINES, "eos_token": None}},
    "tokens as objects": {"config": {"chat_template": LINES, "bos_token": as_object("<s>"), "eos_token": as_object("</s>")}},
    "special_tokens_map.json": {"config": {"chat_template": WITH_BOS + "{{ eos_token }}", "bos_token": None, "eos_token": None},
                                "special_tokens_map.json": {"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}}},
    "special_tokens_map.json beside": {"config": {"chat_template": WITH_BOS + "{{ eos_token }}"},
                                       "special_tokens_map.json": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}},
    "special_tokens_map.json beside added_tokens_decoder": {
        "config": {"chat_template": WITH_BOS + "{{ eos_token }}", "added_tokens_decoder": {}},
        "special_tokens_map.json": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}},
    # B06
    "a list of templates": {"config": {"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": CHATML}]}},
    "named templates": {"config": {"chat_template": {"tool_use": "T", "default": CHATML}}},
    "chat_template.jinja": {"chat_template.jinja": LINES},
    "chat_template.jinja and another": {"config": {"chat_template": CHATML}, "chat_template.jinja": LINES},
    "chat_template.jinja and a list": {"config": {"chat_template": [{"name": "default", "template": CHATML}]}, "chat_template.jinja": LINES},
    # Tokens that only tokenizer_config.json names.
    "tokens without added_tokens": {"tokenizer": {"added_tokens": []}, "config": {"chat_template": WITH_BOS + "{{ eos_token }}"}},
    "added_tokens_decoder": {"tokenizer": {"added_tokens": []}, "config": {
        "chat_template": CHATML, "added_tokens_decoder": {str(VOCABULARY[token]): {key: value for key, value in added(token).items() if key != "id"} for token in SPECIAL}}},
    "additional_special_tokens": {"tokenizer": {"added_tokens": []}, "config": {
        "chat_template": CHATML, "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}},
    "a token that is no special one": {"tokenizer": {"added_tokens": [*TOKENIZER["added_tokens"], added("<tool>", False)]},
                                       "config": {"chat_template": "<tool>" + CHATML}},
    # Tokens of tokenizer_config.json, special_tokens_map.json and added_tokens.json.
    "flags of added_tokens_decoder": decoder(flags("</s>", lstrip=True, rstrip=True)),
    "flags of added_tokens_decoder, single_word": {
        "tokenizer": {"added_tokens": [*TOKENIZER["added_tokens"], added("<tool>", False)]}, **decoder(flags("<tool>", special=False, single_word=True))},
    "special by added_tokens_decoder": {
        "tokenizer": {"added_tokens": [*TOKENIZER["added_tokens"], added("<tool>", False)]}, **decoder(flags("<tool>"))},
    "not special by added_tokens_decoder": decoder(flags("<|im_end|>", special=False)),
    "named, and not special in tokenizer.json": {"tokenizer": {"added_tokens": [added(token, False) for token in SPECIAL]}},
    "named, and not special in added_tokens_decoder": {
        "tokenizer": {"added_tokens": [added(token, False) for token in SPECIAL]}, **decoder(flags("<s>", special=False))},
    "a new token of added_tokens_decoder": decoder({"262": {"content": "there", "special": False}}),
    "a new token of added_tokens_decoder, far": decoder({"270": {"content": "there", "special": False}}),
    "extra_special_tokens by name": {"config": {"chat_template": "{{ image_token }}" + CHATML, "extra_special_tokens": {"image_token": "<tool>"}}},
    "extra_special_tokens by name, new": {"config": {"extra_special_tokens": {"b_token": "there", "a_token": " 42"}}},
    "extra_special_tokens": {"config": {"extra_special_tokens": ["<tool>"], "additional_special_tokens": ["he"]}},
    "no extra_special_tokens": {"config": {"extra_special_tokens": [], "additional_special_tokens": ["<tool>"]}},
    "a token of a name of its own": {"config": {"chat_template": "{{ image_token }}" + CHATML, "image_token": "<tool>", "z_token": "there", "y_token": "42"}},
    "new additional_special_tokens": {"config": {"additional_special_tokens": ["there"]}},
    "additional_special_tokens with flags": {"config": {"additional_special_tokens": [{**as_object("<tool>"), "lstrip": True, "rstrip": True}]}},
    "additional_special_tokens of no type": {"config": {"additional_special_tokens": [{"content": "<tool>"}]}},
    "a new pad_token": {"config": {"pad_token": "there"}},
    "two roles of a new token": {"config": {"pad_token": "there", "mask_token": "there"}},
    "eos_token with flags": {"tokenizer": {"added_tokens": []}, "config": {"eos_token": {**as_object("</s>"), "lstrip": True, "rstrip": True}}},
    "eos_token with flags beside tokenizer.json": {"config": {"eos_token": {**as_object("</s>"), "lstrip": True, "rstrip": True}}},
    "bos_token of no type": {"config": {"bos_token": {"content": "<s>"}}},
    "bos_token that is a number": {"config": {"bos_token": 0}},
    "additional_special_tokens of special_tokens_map.json": {"special_tokens_map.json": {"additional_special_tokens": ["<tool>"]}},
    "extra_special_tokens of special_tokens_map.json": {"special_tokens_map.json": {"extra_special_tokens": [{"content": "<tool>", "lstrip": True}]}},
    "a new token of special_tokens_map.json": {"special_tokens_map.json": {"pad_token": {"content": "there", "lstrip": True}}},
    "added_tokens.json": {"added_tokens.json": {"there": 262}},
    "added_tokens.json, special": {"config": {"pad_token": "there"}, "added_tokens.json": {"there": 263, "42": 262}},
    "added_tokens.json beside added_tokens_decoder": {"config": {"added_tokens_decoder": {}}, "added_tokens.json": {"there": 262}},
    "unigram": {"tokenizer": UNIGRAM},
    "unigram with a special token": {"tokenizer": UNIGRAM, "config": {"additional_special_tokens": ["he"]}},
    # Templates for tools.
    "a template for tools": {"tools": TOOLS, "config": {"chat_template": [{"name": "tool_use", "template": "T{{ tools|tojson }}"}, {"name": "default", "template": CHATML}]}},
    "a template for tools alone": {"tools": TOOLS, "config": {"chat_template": {"tool_use": "T{{ tools|length }}{{ tools[0].function.name }}"}}},
    "a template for tools in a file": {"tools": TOOLS, "chat_template.jinja": CHATML, "additional_chat_templates/tool_use.jinja": "T{{ tools|length }}"},
    "a template of another name in a file": {"tools": TOOLS, "chat_template.jinja": CHATML, "additional_chat_templates/rag.jinja": "R"},
    "files come before tokenizer_config.json": {"config": {"chat_template": CHATML}, "additional_chat_templates/tool_use.jinja": "T"},
    "tools": {"tools": TOOLS, "config": {"chat_template": "{{ tools|tojson }}{% for tool in tools %}{% for k, v in tool.function.parameters.properties.items() %}{{ k }}={{ v.type }};{% endfor %}{% endfor %}{{ messages|tojson }}"}},
}
# B16, each a template by itself.
JINJA = {
    "strip": "{{ messages[0]['content'].strip() }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'xxaxx'.strip('x') }}",
    "split": "{{ 'a<b<c'.split('<')[-1] }}|{{ 'a b  c'.split() }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a\\nb'.splitlines() }}",
    "starts": "{% if messages[0].content.startswith(' he') %}yes{% endif %}{{ 'ab'.endswith('b') }}{{ 'ab'.startswith(('x', 'a')) }}",
    "items": "{% for key, value in messages[0].items() %}{{ key }}={{ value }};{% endfor %}{% for key in messages[0] %}{{ key }}{% endfor %}",
    "get": "{{ messages[0].get('role') }}{{ messages[0].get('tool_calls') }}{{ messages[0].get('name', 'x') }}{{ messages[0].keys()|list }}",
    "break": "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "tojson": "{{ messages[0]|tojson }}|{{ {'b': [1, 2.5, true, none, 'é\"<&>'], 'a': {}}|tojson }}",
    "tojson with options": "{{ {'b': [1, []], 'a': {'c': 'é'}}|tojson(indent=2) }}|{{ {'b': 1, 'a': 'é'}|tojson(ensure_ascii=true, sort_keys=true) }}"
                           "|{{ [1, {'a': 2}]|tojson(separators=(',', ':')) }}|{{ [1]|tojson(indent=4) }}",
    "tojson of letters": "{{ 'a\\n\\t\\\\/\\u007f\\u0001 𝄞'|tojson }}{{ '𝄞'|tojson(ensure_ascii=true) }}",
    "generation": "a{% generation %} {{ messages[0].content }} {% endgeneration %}b{%- generation -%} c {%- endgeneration -%} d",
    "generation, scoped": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "generation in raw and comments": "{% raw %}{% generation %}{% endraw %}{# {% generation %} #}{{ '{% generation %}' }}{% raw %}{% endgeneration %}{%- endraw -%} x",
    "generation in quotes": "{% if '%}{% generation %}' %}a{% endif %}{% generation %}{{ '}}{% endgeneration %}' }}{% endgeneration %}",
    "braces in expressions": "{{ {'a': {'b': 1}}['a']['b'] }}{% set x = {'y': '%}'} %}{{ x.y }}",
    "values as text": "{{ true }}{{ false }}{{ none }}{{ 1.0 }}{{ 0.1 }}{{ [1, 'a', none, true] }}{{ {'a': 'b', 'c': [1.5]} }}{{ (1, 2) }}",
    "values with ~": "{{ 'a' ~ true ~ none ~ 1 ~ 1.0 ~ ['x'] }}",
    "undefined": "{{ nothing }}|{{ messages[0].nothing }}|{{ 'a' if nothing }}|{{ nothing is defined }}|{{ nothing|default('d') }}|{{ tools }}|{{ tools is none }}",
    "whitespace": "a  {%- if true %}  b  {% endif -%}  c\n  {% set x = 1 %}\n  d {{- x -}} e\n\n  {# c #}\nf\n  {%+ if true %}g{% endif +%}\n h",
    "namespace": "{% set ns = namespace(a=1, b=[]) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}{{ ns.b }}",
    "slices": "{{ messages[1:]|length }}{{ messages[-1].role }}{{ 'abcdef'[1:4] }}{{ 'abcdef'[::-1] }}{{ [1, 2, 3][:-1] }}",
    "filters": "{{ ' a '|trim }}{{ 'a'|upper }}{{ messages|map(attribute='role')|list|join(', ') }}{{ messages|selectattr('role', 'equalto', 'user')|list|length }}"
               "{{ {'b': 1, 'a': 2}|dictsort }}{{ [3, 1, 2]|sort|first }}{{ 'a b'|replace(' ', '-') }}{{ '3'|int + 1 }}{{ [1, 2]|sum }}{{ 'ab'|length }}{{ 'hello world'|title }}",
    "indent": "{{ 'a\\nb\\n\\nc'|indent(2) }}|{{ 'a\\nb'|indent(4, true) }}",
    "macros": "{% macro m(role, text='x') -%}\n  <{{ role }}>{{ text }}\n{%- endmacro %}{{ m('a') }}{{ m('b', text='y') }}{% macro n() %}({{ caller() }}){% endmacro %}{% call n() %}z{% endcall %}",
    "set blocks": "{% set x %}\n a {{ 1 + 1 }}\n{% endset %}[{{ x }}]{% filter upper %}b{% endfilter %}",
    "loops": "{% for a in [1, 2, 3] if a != 2 %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{% else %}no{% endfor %}"
             "{% for a in [] %}{% else %}none{% endfor %}{{ loop is defined }}",
    "tests": "{{ 'a' is string }}{{ [] is iterable }}{{ {} is mapping }}{{ 1 is number }}{{ 'a' in 'abc' }}{{ 'x' not in ['x'] }}{{ 3 is odd }}{{ [] is sequence }}{{ none is none }}{{ true is true }}{{ 4 is divisibleby(2) }}",
    "numbers": "{{ 7 // 2 }}{{ 7 / 2 }}{{ 7 % 3 }}{{ 2 ** 3 }}{{ -3 }}{{ 1 + 2 * 3 }}{{ 'a' * 3 }}{{ 4 / 2 }}{{ (7 / 2)|round|int }}{{ -7 // 2 }}{{ -7 % 3 }}",
    "methods": "{{ 'a-b'.replace('-', '+') }}{{ 'ab'.upper() }}{{ 'Ab'.lower() }}{{ 'a b'.title() }}{{ ','.join(['a', 'b']) }}{{ 'aXa'.count('a') }}{{ 'abc'.find('c') }}{{ '{} {}'.format('a', 1) }}{{ 'ab'.capitalize() }}",
    "lists": "{% set a = [1] %}{% set a = a + [2] %}{{ a }}{{ [1, 2] == [1, 2] }}{{ a[0] }}{{ a|last }}{{ a|reverse|list }}{{ ['x'] * 2 }}{{ a|tojson }}",
    "dicts": "{% set d = dict(a=1, b='c') %}{{ d }}{{ d.a }}{{ d['b'] }}{{ d.keys()|list }}{{ d.values()|list }}{{ 'a' in d }}{{ d|length }}{{ d|items|list }}",
    "conditions": "{{ 'a' if messages|length > 1 else 'b' }}{% if not messages[0].x and true or false %}c{% elif 1 %}d{% endif %}{{ 1 < 2 <= 2 }}{{ nothing or 'o' }}",
    "quotes": "{{ \"it's\" }}{{ 'a\\'b' }}{{ 'tab\\tend' }}{{ 'a' 'b' }}{{ [\"it's\", 'q\"'] }}",
    "rsplit": "{{ 'a/b/c'.rsplit('/', 1) }}{{ 'a b'.rsplit() }}{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}{{ 'abc'.removesuffix('x') }}",
    "partition": "{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ 'abc'.partition('=') }}{{ 'abc'.index('c') }}",
    "no separator": "{{ 'a'.rsplit('') }}",
    "no separator of a part": "{{ 'a'.partition('') }}",
    "padding": "{{ '7'.zfill(3) }}{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ 'aB'.swapcase() }}{{ 'AB'.casefold() }}{{ '-7'.zfill(4) }}",
    "format": "{{ '%s: %.2f'|format('a', 1.5) }}",
    "and": "{{ 'a' and 'b' }}{{ '' or 'c' }}{{ 0 and 1 }}{{ not '' }}",
    "tools of none": "{{ tools is iterable }}{{ tools is defined }}{{ tools is not none and tools|length > 0 }}{% if tools %}x{% endif %}",
    "iterable": "{{ none is iterable }}{{ nothing is iterable }}{{ 'a' is iterable }}{{ {} is iterable }}{{ 1 is iterable }}{{ true is iterable }}{{ range(2) is iterable }}",
    "nothing of nothing": "{{ messages[0].nothing.more }}",
    "default of false": "{{ ''|default('a', true) }}{{ ''|default('b') }}{{ none|default('c') }}",
    "cycle": "{% for i in range(3) %}{{ loop.cycle('a', 'b') }}{{ loop.revindex }}{% endfor %}{% for i in range(4, 0, -2) %}{{ i }}{% endfor %}",
    "recursive": "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{% endfor %}",
    "think": "{% set c = 'a</think>\n\nb' %}{% if '</think>' in c %}{{ c.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}|{{ c.split('</think>')[-1].lstrip('\n') }}{% endif %}",
    "reverse turns": "{% for m in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}{{ index }}{{ m.role }}{% endfor %}",
    "content in parts": "{% set content = [{'type': 'text', 'text': 'a'}, {'type': 'image'}] %}{% for p in content if p.type == 'text' %}{{ p['text'] }}{% endfor %}{{ content|selectattr('type', 'equalto', 'text')|map(attribute='text')|join }}{{ content is not string }}",
    "compare": "{{ 1 == 1.0 }}{{ 'a' < 'b' }}{{ [1] == [1] }}{{ {'a': 1} == {'a': 1} }}{{ 1 in [1] }}{{ 'k' in {'k': 1} }}{{ none == none }}{{ true == 1 }}",
    "sort": "{{ ['b', 'A', 'c']|sort }}{{ [{'n': 2}, {'n': 1}]|sort(attribute='n')|map(attribute='n')|list }}{{ ['a', 'b', 'a']|unique|list }}{{ [1, 2, 3, 4]|batch(2)|list }}{{ [3, 1]|min }}",
    "group": "{% for role, list in messages|groupby('role') %}{{ role }}{{ list|length }}{% endfor %}{{ [1, 2, 3]|select('odd')|list }}{{ [1, 2]|reject('odd')|list }}",
    "text filters": "{{ '<a>'|escape }}{{ 'x'|string }}{{ 1.5|int }}{{ '1.5'|float }}{{ -1|abs }}{{ 'ab'|list }}{{ 2.345|round(2) }}",
    "scopes": "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}{% if true %}{% set x = 3 %}{% endif %}{{ x }}{% with x = 4 %}{{ x }}{% endwith %}{{ x }}",
    "strftime": "{{ strftime_now is defined }}{{ raise_exception is defined }}{{ strftime_now('%Y')|length }}",
    "sequence": "{{ 'a' is sequence }}{{ {} is sequence }}{{ messages[0] is sequence }}{{ [] is sequence }}{{ 1 is sequence }}{{ none is sequence }}{{ nothing is sequence }}{{ range(2) is sequence }}{{ (1, 2) is sequence }}",
    "floats": "{{ 1e16 }} {{ 1e20 }} {{ 1e-7 }} {{ 0.0001 }} {{ 123456789012345678.0 }} {{ 1e15 }} {{ 0.1 + 0.2 }} {{ 1e22 }} {{ -1e-5 }}",
    "floats in JSON": "{{ [1e20, 1e-7, 1e16, 1.0, 0.1, 1e15, 123456789012345678.0, 0.0001, 0.00001, -1.5e300]|tojson }}",
    "keys in JSON": "{{ {true: 1, none: 2, 3: 4, 1.5: 5, 'a': 6}|tojson }}{{ {false: 1}|tojson }}",
    "undefined in JSON": "{{ nothing|tojson }}",
    "escapes": "{{ '\\/' }}{{ 'a\\vb\\fc\\ad' }}{{ '\\U0001F600' }}{{ '\\x41\\101\\u00e9' }}{{ 'a\\\nb' }}{{ '\\d' }}{{ \"\\'\\\\\" }}{{ '\\0' }}|{{ '\\8' }}",
    "escapes in blocks": "{% if '\\/' == '\\\\/' %}a{% endif %}{# '\\q' #}\\q{% raw %}'\\q'{% endraw %}",
    "title": "{{ \"it's a b-c\".title() }}{{ 'foo_bar 3rd'.title() }}{{ 'ß ǆ ŉ ﬁ İ'.title() }}{{ 'HELLO wORLD'.title() }}",
    "casefold": "{{ 'ßẞ ŉ ſ İ ﬁ ı Σς K ᾳ'.casefold() }}",
    "default of none": "{{ nothing|default(none) is none }}|{{ ''|default(none, true) }}|{{ nothing|default(default_value=none) }}",
    "splitlines": "{{ 'a\\u2028b\\x0bc\\x1cd\\r\\ne\\x85f\\n'.splitlines() }}{{ 'a\\r\\nb\\rc'.splitlines(true) }}{{ ''.splitlines() }}{{ 'a\\n\\nb'.splitlines(keepends=true) }}",
    "white space": "{{ '\\x1fa\\x1c'.strip() }}|{{ '\\x1da'.lstrip() }}|{{ 'a\\x1e'.rstrip() }}|{{ ' a\\x1cb  c '.split() }}|{{ '\\x1f a \\x85'|trim }}|{{ '\\x1fa b\\x1fc'.rsplit(none, 1) }}|{{ '\\x1f'.isspace() }}|{{ '\\u200b a'.strip() }}|{{ ' a '.strip(none) }}|",
    "quotes as HTML": "{{ '\"<>&'|e }}{{ \"'\"|escape }}",
    "raw with a line end": "a{% raw %}\n b{% endraw %}\nc{% raw -%}\n d{% endraw %}{%- raw %}\n\ne{% endraw %}",
    "nothing after raw": "{% raw %}{% endraw %}",
    "formats of time": "{{ strftime_now('%f')|length }}{{ strftime_now('%Z') }}{{ strftime_now('%z') }}|{{ strftime_now('%c')|length }}{{ strftime_now('%x')|length }}{{ strftime_now('%X')|length }}{{ strftime_now('%%d') }}{{ strftime_now('%d %b %Y') == strftime_now('%d') ~ ' ' ~ strftime_now('%b') ~ ' ' ~ strftime_now('%Y') }}",
    "no separator of parts": "{{ 'abc'.split('') }}",
    "length of nothing": "{{ nothing|length }}{{ nothing|count }}{{ 'é'|length }}{{ [1]|count }}",
    "length of null": "{{ none|length }}",
    "int": "{{ 'x'|int }}{{ 'x'|int(5) }}{{ ' 12 '|int }}{{ '1.9'|int }}{{ 1.9|int }}{{ none|int }}{{ true|int }}{{ '-3'|int }}{{ '0x1A'|int(0, 16) }}{{ 'x'|int(default=7) }}{{ []|int }}",
    "names of arguments": "{{ 'a b c'.split(' ', maxsplit=1) }}{{ 'a b c'.split(sep=' ') }}{{ 'a b c'.rsplit(sep=' ', maxsplit=1) }}{{ 'a b  c'.split(maxsplit=1) }}{{ ' a b '.split(none, 1) }}",
    "where to begin": "{{ 'abcb'.find('b', 2) }}{{ 'abcb'.find('b', 2, 3) }}{{ 'abcb'.rfind('b', 0, 2) }}{{ 'abc'.startswith('b', 1) }}{{ 'abc'.endswith('b', 0, 2) }}{{ 'abcb'.count('b', 2) }}{{ 'abcb'.index('b', 2) }}{{ 'abc'.find('c', -1) }}{{ 'abc'.find('', 9) }}",
    "replace so many": "{{ 'aab'|replace('a', 'x', 1) }}{{ 'aab'.replace('a', 'x', 1) }}{{ 'aab'|replace('a', 'x') }}",
    "indent with a text": "{{ 'a\nb'|indent('> ') }}|{{ 'a\n\nb'|indent('> ', first=true, blank=true) }}|{{ 'a\n\nb\n'|indent(width=2) }}",
    "default with a name": "{{ ''|default('x', boolean=true) }}{{ nothing|default(default_value='y') }}{{ nothing|d }}|{{ 0|d('z', true) }}",
    "a default of another argument": "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(a=3, b=4) }}",
    "system in front": "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}{% set system = 'You help.' %}{% set rest = messages %}{% endif %}"
                       "{{ bos_token + system }}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}[{{ m['role'] }}] {{ m['content'] | trim }}{% endfor %}",
}
SAYS = [" hello there ", "é <s> <|im_end|>\n\nhe", "<tool> 42", "a </s> <tool> b<tool>"]
# That of a model with room for more tokens.
MODEL = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 32,
         "vocab_size": len(VOCABULARY) + 10}


def merged(base, change):
    return {key: value for key, value in {**base, **change}.items() if not (key in ("bos_token", "eos_token") and value is None)}


def case(name, change):
    files = {
        "tokenizer.json": {**TOKENIZER, **change.get("tokenizer", {})},
        "tokenizer_config.json": merged(CONFIG, change.get("config", {})),
        **{file: content for file, content in change.items() if "." in file},
    }
    # As text: the order of its fields counts.
    told = {"tools": json.dumps(change["tools"])} if "tools" in change else {}
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        for file, content in {"config.json": MODEL, **files}.items():
            text = content if isinstance(content, str) else json.dumps(content)
            path = pathlib.Path(folder) / file
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode())
        # As text too.
        files["tokenizer_config.json"] = json.dumps(files["tokenizer_config.json"])
        files["tokenizer.json"] = change.get("tokenizer", {})
        try:
            AutoTokenizer.from_pretrained(folder)
        except (TypeError, ValueError) as error:
            return {"name": name, "files": files, "refused": str(error)}
        for says in SAYS:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            answer = {"says": says, "raw": tokenizer(says)["input_ids"]}
            answer["decoded"] = tokenizer.decode(answer["raw"], skip_special_tokens=True)
            if tokenizer.chat_template:
                messages = [{"role": "user", "content": says}]
                chat = {"conversation": messages, "tools": change.get("tools"), "add_generation_prompt": True}
                try:
                    answer["text"] = tokenizer.apply_chat_template(**chat, tokenize=False)
                except (jinja2.exceptions.TemplateError, TypeError, ValueError) as error:
                    answer["refused"] = str(error)
                    answers.append(answer)
                    continue
                answer["chat"] = tokenizer.apply_chat_template(**chat, tokenize=True, return_dict=False)
            answers.append(answer)
        ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return {"name": name, "files": files, **told, "ends": ends, "answers": answers}


cases = [case(name, change) for name, change in CASES.items()]
cases += [case("jinja: " + name, {"config": {"chat_template": text}}) for name, text in JINJA.items()]
lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in cases)
head = f'"by": "transformers {transformers.__version__}", "tokenizer": {json.dumps(TOKENIZER, ensure_ascii=False)}'
path = pathlib.Path(__file__).with_name("cases.json")
path.write_text("{" + head + ', "cases": [\n' + lines + "\n]}\n")
print(f"{path}: {len(cases)} cases")

"""Chat templates of nine families, rewritten small: their markers, and what each does otherwise than the rest."""

from __future__ import annotations

import copy
from functools import lru_cache

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from tests.text.conftest import make_bpe

_HEADER = "{% if add_generation_prompt %}"
# trims, has one call a reply, "parameters", results as ipython, and tools in the first user message
LLAMA = (
    "{{ bos_token }}{% set ns = namespace(told=false) %}{% for m in messages %}"
    "{% if m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}<|eot_id|>"
    "{% elif m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|eot_id|>'
    "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if tools and m.role == 'user' and not ns.told %}{% set ns.told = true %}"
    "Functions:\n{% for t in tools %}{{ t | tojson }}\n\n{% endfor %}{% endif %}{{ m.content | trim }}<|eot_id|>"
    "{% endif %}{% endfor %}" + _HEADER + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# a system text of its own, calls between tags, results of several calls in one message of the user
QWEN_2 = (
    "{% if messages[0].role != 'system' or tools %}<|im_start|>system\n"
    "{{ messages[0].content if messages[0].role == 'system' else 'You are Qwen.' }}"
    "{% if tools %}{{ '\n\n' }}# Tools\n<tools>{% for t in tools %}{{ '\n' }}{{ t | tojson }}{% endfor %}{{ '\n' }}"
    "</tools>{% endif %}<|im_end|>\n{% endif %}{% for m in messages %}"
    "{% if m.role == 'system' and loop.first and tools %}"
    "{% elif m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif m.tool_calls %}<|im_start|>assistant{% if m.content %}{{ '\n' }}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls %}{{ '\n' }}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    + _HEADER
    + "<|im_start|>assistant\n{% endif %}"
)
# thoughts of replies after the last question alone, and an empty block where there is none
QWEN_3 = (
    "{% if tools %}<|im_start|>system\n<tools>{% for t in tools %}{{ '\n' }}{{ t | tojson }}{% endfor %}{{ '\n' }}"
    "</tools><|im_end|>\n{% endif %}{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{% set text = m.content %}"
    "{% set thought = m.reasoning_content if m.reasoning_content is string else '' %}"
    "{% if '</think>' in text and not thought %}"
    "{% set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}<|im_start|>assistant\n"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "<think>\n{{ thought.strip('\n') }}\n</think>\n\n{% endif %}{{ text }}"
    "{% for c in m.tool_calls or [] %}{% if text or not loop.first %}{{ '\n' }}{% endif %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    + _HEADER
    + "<|im_start|>assistant\n{% endif %}"
)
# no header, names of nine characters for calls, tools before the last question
MISTRAL = (
    "{{ bos_token }}{% set last = (messages | selectattr('role', 'equalto', 'user') | list)[-1] %}"
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and m == last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ m.content }}[/INST]{% elif m.role == 'system' %}[INST] {{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    '[TOOL_RESULTS] {"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
# no role for system texts and tools, roles alternate
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}" + _HEADER + "<start_of_turn>model\n{% endif %}"
)
# no end marker: the next role ends a reply; calls as keys and values; earlier thoughts are emptied
GLM = (
    "[gMASK]<sop>{% if tools %}<|system|>\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|observation|>\n"
    "<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% elif m.role == 'assistant' %}<|assistant|>\n{% if m.reasoning_content and loop.index0 > ns.last %}"
    "<think>{{ m.reasoning_content | trim }}</think>{% else %}<think></think>{% endif %}"
    "{% if m.content %}{{ '\n' }}{{ m.content | trim }}{% endif %}{% for c in m.tool_calls or [] %}"
    "\n<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments.items() %}"
    "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}"
    "</tool_call>{% endfor %}{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}{% endfor %}"
    + _HEADER
    + "<|assistant|>\n{% endif %}"
)
# an end of text after the last message, unless a header follows
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    + _HEADER
    + "<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
# the header opens a thought, which earlier replies lose; arguments are text; a call has null as its content
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% elif m.role == 'assistant' and (m.content is not defined or m.content is none) %}"
    "<｜Assistant｜><｜tool▁calls▁begin｜>"
    "{% for c in m.tool_calls %}<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>{{ c.function.name }}\n```json\n"
    "{{ '' + c.function.arguments }}\n```<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{{ eos_token }}"
    "{% elif m.role == 'assistant' %}{% if messages[loop.index0 - 1].role != 'tool' %}<｜Assistant｜>{% endif %}"
    "{{ m.content.split('</think>')[-1] }}{{ eos_token }}"
    "{% elif m.role == 'tool' %}<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>"
    "<｜tool▁outputs▁end｜>{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<｜Assistant｜><think>\n{% endif %}"
)
# channels; the last reply ends otherwise than those before; thoughts of the last reply alone
GPT_OSS = (
    "{% if tools %}<|start|>developer<|message|>{% for t in tools %}{{ t.function.name }}: "
    "{{ t.function.description }}\n{% endfor %}<|end|>{% endif %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}"
    "{% if m.thinking and (m.tool_calls or (loop.last and not add_generation_prompt)) %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>"
    "{{ f.arguments | tojson }}<|call|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{% if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}{% endif %}"
    "{% elif m.role == 'tool' %}<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>"
    "{{ m.content | tojson }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    + _HEADER
    + "<|start|>assistant{% endif %}"
)
_THINK, _CALL = (
    ("<think>", "</think>"),
    ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
# template, special tokens, further added tokens, begin and end of text, and the ends in the model's files
_PARTS: dict[str, tuple[str, str, tuple[str, ...], str, str]] = {
    "llama_3": (LLAMA, "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|>",
                (), "<|begin_of_text|>", "<|eot_id|> <|eom_id|> <|end_of_text|>"),
    "qwen_2_5": (QWEN_2, "<|im_start|> <|im_end|>", _CALL, "", "<|im_end|>"),
    "qwen_3": (QWEN_3, "<|im_start|> <|im_end|>", (*_THINK, *_CALL), "", "<|im_end|>"),
    "mistral": (MISTRAL, "<s> </s> [INST] [/INST] [TOOL_CALLS] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] "
                "[/TOOL_RESULTS]", (), "<s>", "</s>"),
    "gemma": (GEMMA, "<bos> <eos> <start_of_turn> <end_of_turn>", (), "<bos>", "<eos> <end_of_turn>"),
    "glm": (GLM, "<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|>", (*_THINK, *_CALL),
            "", "<|endoftext|> <|user|> <|observation|>"),
    "phi": (PHI, "<|endoftext|> <|system|> <|user|> <|assistant|> <|end|> <|tool|>", (), "", "<|endoftext|> <|end|>"),
    "deepseek_r1": (R1, "<｜bos｜> <｜eos｜> <｜User｜> <｜Assistant｜>",
                    (*_THINK, *(f"<｜tool▁{name}｜>" for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end",
                                                              "outputs▁begin", "outputs▁end", "output▁begin",
                                                              "output▁end", "sep"))), "<｜bos｜>", "<｜eos｜>"),
    "gpt_oss": (GPT_OSS, "<|start|> <|message|> <|end|> <|channel|> <|call|> <|return|>", (), "",
                "<|return|> <|call|>"),
}  # fmt: skip
FAMILIES = tuple(_PARTS)


@lru_cache
def make_family(name: str) -> tuple[PreTrainedTokenizerBase, tuple[int, ...]]:
    """Return a tokenizer of byte pieces with the family's template and markers, and the ends of its model."""
    template, special, added, begin, ends = _PARTS[name]
    tokenizer = copy.deepcopy(make_bpe())
    tokenizer.add_special_tokens({"additional_special_tokens": special.split(" ")})
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in added])
    tokenizer.bos_token = begin or None
    tokenizer.eos_token = ends.split(" ")[0]
    tokenizer.chat_template = template
    ids = tokenizer.convert_tokens_to_ids(ends.split(" "))
    return tokenizer, tuple(ids)

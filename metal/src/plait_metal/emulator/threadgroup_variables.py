"""Rewrites declarations of threadgroup variables so that the emulator can lay them out.

On the CPU `threadgroup` is a macro. A macro cannot tell `threadgroup float a[32];`, which is one variable for the whole
threadgroup, from `threadgroup float* p`, which only qualifies a pointer; so the declarations are found here.
"""

from __future__ import annotations

import re

from plait_metal.emulator.errors import KernelDefectError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_DECLARATION = re.compile(r"(?:(?<=[;{})\n])|^)(\s*)threadgroup\s+((?:[^;*&()=\[\]]|\[[^\]]*\])+);")
_FIRST_DECLARATOR = re.compile(r"(?P<type>.*?)(?P<name>\w+)\s*(?P<extents>(?:\[[^\]]*\]\s*)*)$", re.S)
_DECLARATOR = re.compile(r"(?P<name>\w+)\s*(?P<extents>.*)$", re.S)
_LEFT_OVER = re.compile(r"\bthreadgroup\b(?P<rest>[^;,(){}]*)")


def rewrite(source: str) -> str:
    """`source` with each `threadgroup T a[N], b;` as `MSL_THREADGROUP_VARIABLE` lines; line numbers stay.

    Raises:
        KernelDefectError: a declaration is of a form that would silently become private to each thread.
    """
    masked = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    pieces, position = [], 0
    for match in _DECLARATION.finditer(masked):
        pieces += [masked[position : match.start()], match[1], _variables(match[2]), "\n" * match[2].count("\n")]
        position = match.end()
    pieces.append(masked[position:])
    rewritten = "".join(pieces)
    for match in _LEFT_OVER.finditer(rewritten):
        if not re.search(r"[*&]", match["rest"]):
            line = rewritten.count("\n", 0, match.start()) + 1
            raise KernelDefectError(
                "compile",
                f"line {line}: `{match[0].strip()}` is no declaration the emulator can read; write `threadgroup T "
                f"name[extents];` as a statement of its own, without an initialiser",
            )
    return rewritten


def _variables(declaration: str) -> str:
    """`float a[32], b` as one macro call for each variable."""
    first, *others = _split_at_commas(declaration)
    head = _FIRST_DECLARATOR.match(first.strip())
    assert head is not None, declaration
    declarators = [head, *(match for text in others if (match := _DECLARATOR.match(text.strip())))]
    element = " ".join(head["type"].split())
    return " ".join(
        # A typedef keeps commas of template arguments out of the macro's own.
        f"typedef {element} msl_element_of_{d['name']}; "
        f"MSL_THREADGROUP_VARIABLE(msl_element_of_{d['name']}, {d['name']}, {' '.join(d['extents'].split())})"
        for d in declarators
    )


def _split_at_commas(text: str) -> list[str]:
    """Split at commas outside brackets of any kind."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<[(") - (character in ">])")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts

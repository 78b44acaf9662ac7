"""The patterns of what is no language. Each is linear in the text: repetitions are bounded or cannot overlap.

They stand in the order in which they are tried; at one place the first that matches wins.
"""

from __future__ import annotations

import re

PRIVATE_USE = "[\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd]+"

CODE = r"(?<!`)(?P<ticks>`{1,3})(?![\s`])[^`\n]{0,199}[^\s`](?P=ticks)(?!`)"
"""Not the old quotes `such' as these: the text between two of them ends in white space."""

_ATTRIBUTE = (
    r"""\s{1,20}[A-Za-z_:@][\w:.-]{0,60}\s{0,9}=\s{0,9}(?:"[^"<>]{0,2000}"|'[^'<>]{0,2000}'|[^\s"'=<>`]{1,2000})"""
)
_BOOLEAN = r"\s{1,20}(?:async|checked|controls|defer|disabled|hidden|multiple|open|readonly|required|selected)\b"
TAG = (
    rf"</?[A-Za-z][\w:.-]{{0,60}}(?:{_ATTRIBUTE}|{_BOOLEAN}){{0,30}}\s{{0,20}}/?>|<!--.{{0,2000}}?-->|<!\[CDATA\[|\]\]>"
)
"""`<b>`, `</a>`, `<br/>`, `<x id="1">`; but not `<name of the file>`, which is language."""
ENTITY = r"&(?:[A-Za-z][A-Za-z0-9]{1,31}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});"

_STOPS = r""".,;:!?'")\]}»”’…。，、；：！？）」』】"""
_IN_URL = r"""(?:\([^\s()<>]{0,200}\)|[^\s<>()"`«»“”„，。、；：！？（）「」『』【】])"""
_URL_TAIL = rf"""(?:{_IN_URL}{{0,20000}}(?:(?<=\))|(?<![{_STOPS}])))"""
_TOP = "com|org|net|edu|gov|info|io|eu|de|at|ch|uk|fr|dev|app|int"
_HOST = rf"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,62}})\.){{1,8}}(?:{_TOP})"
EMAIL = r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
URL = (
    rf"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.-]{{1,15}}://{_URL_TAIL}"
    rf"|(?<![\w.])mailto:{_URL_TAIL}|(?<![\w.])www\.{_URL_TAIL}"
    rf"|(?<![\w.@-]){_HOST}(?![\w-])(?::\d{{1,5}})?(?:[/?#]{_URL_TAIL})?/?"
)

_EXTENSIONS = (
    "avi|bak|bash|bat|bin|bmp|bz2|c|cc|cfg|cmd|conf|cpp|cs|css|csv|db|deb|dll|doc|docx|dtd|exe|flac|gif|go|gz|h|hpp|htm|"
    "html|ico|ini|iso|jar|java|jpeg|jpg|js|json|lock|log|md|mkv|mo|mov|mp3|mp4|odp|ods|odt|ogg|otf|pdf|php|pl|png|po|"
    "ppt|pptx|ps|py|rar|rb|rpm|rs|rst|rtf|sh|so|sql|svg|tar|tex|tgz|tif|tiff|toml|ts|ttf|txt|wav|webm|webp|xcf|xls|"
    "xlsx|xml|xsl|xz|yaml|yml|zip|zst"
)
_NAME = r"[\w.@%+~-]"
PATH = (
    rf"(?<![\w.:/\\<])(?:~|\.{{1,2}})?(?:/{_NAME}{{0,199}}[\w~@+-]){{1,30}}/?(?![\w<>])"
    r"|(?<![\w\\])[A-Za-z]:\\(?:[^\s<>\"'|?*:;,]{0,250}[^\s<>\"'|?*:;,.!)\]}])?|(?<![\w\\])\\\\\w[\w.$\\-]{1,250}\w"
    rf"|(?<![\w./\\-])(?:[\w.+-]{{1,100}}/){{1,20}}[\w.+-]{{1,100}}\.(?:{_EXTENSIONS})\b"
    rf"|(?<![\w./\\-])[\w+-]{{2}}[\w.+-]{{0,100}}\.(?:{_EXTENSIONS})(?![\w-]|\.\w)"
    r"|(?<![\w.-])[A-Za-z_]\w{1,60}(?:\.[A-Za-z_]\w{1,60}){2,12}(?![\w-])"
)
"""`/etc/fstab`, `~/a`, `C:\\Users`, `img/a1.png`, `notes.txt`, `org.gnome.Shell`."""

_CONVERSION = r"(?:hh|h|ll|l|L|q|j|z|t|I64)?[diouxXeEfFgGaAcCsSpn@]"
PLACEHOLDER = (
    rf"%%|%\d{{1,2}}\$[-+0#']{{0,3}}\d{{0,4}}(?:\.\d{{1,3}})?{_CONVERSION}"
    r"|%\([\w .-]{1,60}\)[-+0# ]{0,3}\d{0,4}(?:\.\d{1,3})?[a-zA-Z]"
    r"|(?<!\d)(?:%[A-Za-z_]\w{2,40}%|%[A-Z][A-Z_]{3,40})"
    rf"|(?<!\d)%[-+0#']{{0,3}}(?:\d{{1,4}}|\*)?(?:\.(?:\d{{1,3}}|\*))?{_CONVERSION}"
    r"|%L?\d{1,2}(?!\d)|(?<!\d)%[A-Za-z](?!\w)"
    r"|\$\{[^{}\n]{1,120}\}|\$\[\w{1,40}\]|\$\([A-Za-z_]\w{0,40}\)|\$[A-Za-z_]\w{0,60}(?:/[\w./-]{0,200}\w)?"
    r"|\{\{[^{}\n]{1,120}\}\}|\{%[^%\n]{1,120}%\}|\{[\w.$:+!#\[\]-]{0,60}\}"
    r"|(?<![\w:]):(?:[a-z][a-z0-9_+-]{1,40}:|[A-Za-z_]\w{1,60}\b)|@[A-Z][A-Z_]{1,40}@"
    r"""|\\[ntr\\"']"""
)
"""Of printf, Python, Qt, the shell, templates, SQL, and the escapes of strings."""

MARK = r"\]\([^\s()<>]{1,500}\)|\*{1,3}(?=\S)|(?<=\S)\*{1,3}|~~|(?<![\w:;])[:;]-?[()DP](?!\w)"
"""Of Markdown, where a link ends and what is stressed; and faces of signs."""
TALK = r"(?<![\w@.])@[A-Za-z_][\w.-]{0,60}\w|(?<![\w&#])#\w{1,80}"
OPTION = r"(?<![\w-])--[A-Za-z][\w-]{1,60}|(?<![\w-])-[A-Za-z](?![\w-])|\b[A-Za-z_][\w.]{1,80}\(\)"
IDENTIFIER = r"\b[A-Za-z0-9]{2,40}(?:_[A-Za-z0-9]{1,40}){1,12}\b|\b[A-Z]+(?:_[A-Z0-9]+)+\b"
UNIT = (
    r"(?<=\d[ \u00a0\u202f])(?:[kKMGTP]i?B|[kMG]Hz|[kMG]?bit/s|[kMG][bB]ps|[mnµ]M|[kM]Wh?|m[AVW]|mAh|dBm?|[hkM]Pa"
    r"|k?m/[hs])(?![\w/])"
)

EMOJI = (
    "(?:[0-9#*]\ufe0f?\u20e3"  # keycaps
    "|[\u231a\u231b\u23e9-\u23fa\u2600-\u27bf\u2b50\u2b55\U0001f000-\U0001faff]"
    "[\u200d\ufe0e\ufe0f\U000e0020-\U000e007f]*)+"  # joiners, variation selectors, the tags of flags
)

_JOINT = r"[.,:/\-]"
_ENDING = r"(?=(?:st|nd|rd|th|s|er|ern|te|ten|ter|tes)\b)"
NUMBER = rf"(?<![\w])[-+\u2212]?\d{{1,40}}(?:{_JOINT}\d{{1,40}}){{0,20}}(?:{_ENDING}|(?![\w{{}}])(?!{_JOINT}\w*\d))"
"""`3.5`, `1,000`, `10:30`, `2026-11-30`, and of `20th` the digits alone."""
CODED = (
    rf"(?<!\w)(?:[A-Z]{{1,6}}-)?[^\W\d]{{0,40}}\d\w{{0,80}}(?:{_JOINT}\w{{0,40}}\d\w{{0,80}}){{0,20}}"
    rf"(?:(?<=[a-z]\d)\+)?|\d{{1,40}}"
)
"""A word with digits: `A4`, `v1.2.3`, `x86_64`, `COVID-19`, `Zn2+`; at last any digits."""

_ORDER = (
    ("private", PRIVATE_USE),
    ("code", CODE),
    ("tag", TAG),
    ("entity", ENTITY),
    ("email", EMAIL),
    ("url", URL),
    ("placeholder", PLACEHOLDER),
    ("path", PATH),
    ("mark", MARK),
    ("talk", TALK),
    ("option", OPTION),
    ("identifier", IDENTIFIER),
    ("unit", UNIT),
    ("emoji", EMOJI),
    ("number", NUMBER),
    ("coded", CODED),
)
SPAN = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _ORDER))

HINT = re.compile(r"""[^\w\s,!?'"().–—„“”‚‘’«»…-]|[\d_]|\w\.\w|-[\w-]|\(\)""")
"""In a text without a match of this, `SPAN` has none: most sentences are done with at the price of one look."""

WORD = re.compile(r"[\w\u0300-\u036f\u00ad\u200b\u2060\ufeff]{1,200}|\S")
"""Words with their accents and invisible marks, and single signs."""

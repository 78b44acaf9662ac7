"""Words whose full stop does not end a sentence, by language; in lower case, without the last full stop."""

from __future__ import annotations

from collections.abc import Mapping


def _words(line: str) -> frozenset[str]:
    return frozenset(line.split())


BEFORE_ANYTHING: Mapping[str, frozenset[str]] = {
    "en": _words(
        "adm approx assoc bros capt cf cmdr co col corp dept dr e.g ed eds esp est ft gen gov hon i.e inc incl jr lt "
        "ltd maj messrs mr mrs ms mt mx ph.d prof rep rev sen sgt sr st vs viz"
    ),
    "de": _words(
        "abs abschn allg anm art aufl bearb bes best bspw bzgl bzw ca d.h dipl dr einschl engl entspr etw evtl fr frl "
        "ggf ggfs hbf hl hr hrsg i.d.r inkl ing insb jh jhd jhdt kath lat lt max med mind mio mrd nachm o.ä o.g phil "
        "prof rd rel resp s.o s.u sog st std str tel u.a u.ä u.u urspr v.a verf vgl vorm z.b z.t zit zzgl"
    ),
}
"""Never the end of a sentence."""

BEFORE_NUMBERS: Mapping[str, frozenset[str]] = {
    "en": _words(
        "apr art aug ch chap dec eq feb fig figs jan jul jun mar no nos nov oct p para pp sec sep sept vol vols"
    ),
    "de": _words("abb apr aug bd bl dez febr jan kap nov nr nrn okt sept tab ziff"),
}
"""Not the end of a sentence when a number follows: "No. 5", but "I said no. Then I left."."""

MAY_END = _words("a.m p.m")
"""Letters with full stops that end a sentence when no small letter follows, unlike "U.S. Army" and "z. B. Hunde"."""

ORDINALS = _words("cs da de et fi hu nb nn no pl sk sl")
"""Languages that write "third" as "3.": there a short number's full stop does not end a sentence."""

DATE_WORDS: Mapping[str, frozenset[str]] = {
    "de": _words(
        "januar jänner februar feber märz april mai juni juli august september oktober november dezember jahrestag "
        "jahrhundert jahrhunderts jahrtausend geburtstag weltkrieg"
    ),
}
"""What follows an ordinal rather than a list marker at the start of a line: "3. Oktober"."""

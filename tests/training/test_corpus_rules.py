"""Each rule drops what it is for and keeps its harmless neighbours."""

from dataclasses import replace

import pytest

from training.corpus.errors import CorpusError
from training.corpus.pair import Pair
from training.corpus.recipe import CleaningRecipe
from training.corpus.rules import LAYOUT_RULE, RULES, RuleContext, choose_rules, idle_rules

CONTEXT = RuleContext(CleaningRecipe(), "en", "de")
BY_NAME = {rule.name: rule for rule in (LAYOUT_RULE, *RULES)}

KEPT = {
    "fuzzy": [Pair("Open", "Öffnen")],
    "empty": [Pair("Open", "Öffnen")],
    "layout": [Pair("Two  spaces\nand a line", "Zwei  Leerzeichen\nund eine Zeile"), Pair("a -- b", "a -- b")],
    "garbled": [Pair("Ã is a letter", "Ã ist ein Buchstabe")],
    "few-letters": [Pair("%d files", "%d Dateien"), Pair("OK", "OK")],
    "too-long": [Pair("a" * 400, "b" * 400)],
    "length-ratio": [Pair("Cut", "Ausschneiden"), Pair("No", "Nicht vorhanden")],
    "placeholders": [
        Pair("Copy %s to %s", "%s nach %s kopieren"),
        Pair("%1 of %2", "%2 hat %1"),
        Pair("{name} has %(count)d", "%(count)d hat {name}"),
        Pair("100 % sure", "zu 100 % sicher"),
    ],
    "tags": [Pair("<b>Bold</b> &amp; more", "Mehr &amp; <b>fett</b>"), Pair("a < b", "a < b"), Pair("x <- y", "x")],
    "addresses": [Pair("See https://example.org/x.", "Siehe https://example.org/x!"), Pair("a@b", "a@b")],
    "untranslated": [
        Pair("Python", "Python"),
        Pair("Text Editor", "Text Editor"),
        Pair("The new file", "Die neue Datei"),
    ],
    "half-translated": [
        Pair("LVM2 is a logical volume manager for Linux", "LVM2 ist ein Logical Volume Manager für Linux"),
        Pair("Stage 3: the mini-Debian system", "Stufe 3: das Mini-Debian-System"),
        Pair("Eye of GNOME", "Eye of GNOME"),
    ],
    "identifier": [
        Pair("file.txt", "file.txt"),
        Pair("Press ctrl.x now", "Jetzt ctrl.x drücken"),
        Pair("Name", "Name"),
    ],
    "script": [Pair("Naïve café", "Naives Café"), Pair("The letter α is Greek", "Der Buchstabe α ist griechisch")],
    "language": [Pair("The sum is nothing", "Die Summe ist nichts"), Pair("What was in an art", "Was war in an Art")],
}
DROPPED = {
    "fuzzy": [Pair("Open", "Öffnen", fuzzy=True)],
    "empty": [Pair("", "Öffnen"), Pair("Open", " ")],
    "layout": [
        Pair("Name     Size", "Name     Größe"),
        Pair("a\tb", "a\tb"),
        Pair("------", "------"),
        Pair("  -v, --verbose\n be loud", "  -v\n laut"),
    ],
    "garbled": [Pair("Open", "\ufffdffnen"), Pair("Over", "Ã\u009cber")],
    "few-letters": [Pair("%A", "%A"), Pair("(", "("), Pair("+--+ x", "+--+ x"), Pair("Open", "1")],
    "too-long": [Pair("a" * 401, "b"), Pair("a", "b" * 401)],
    "length-ratio": [Pair("Cut", "Schneidet das Gewählte aus und legt es in die Ablage"), Pair("x" * 99, "y" * 20)],
    "placeholders": [
        Pair("Copy %s", "Kopieren"),
        Pair("%d of %d", "%d"),
        Pair("%s", "%d"),
        Pair("{name}", "{Name}"),
        Pair("$HOME", "$HEIM"),
        Pair("%1 %1", "%1 %2"),
    ],
    "tags": [Pair("<b>Bold</b>", "Fett"), Pair("<i>x</i>", "<b>x</b>"), Pair("a &amp; b", "a und b")],
    "addresses": [Pair("See https://a.org", "Siehe https://b.org"), Pair("Mail x@a.org", "Post an x")],
    "untranslated": [Pair("The same three words", "the same three words")],
    "half-translated": [
        Pair("These options are described in Section 2", "These options are described in Abschnitt 2"),
        Pair("Common options of all filters", "Abbildung 3: Common options of all filters"),
    ],
    "identifier": [Pair("job-state.held", "Auftrag angehalten"), Pair("media_size", "Papierformat")],
    "script": [Pair("Open", "Открыть"), Pair("打开", "Öffnen")],
    "language": [
        Pair("Open the file", "Could not open the file that you have"),
        Pair("Die Datei ist nicht da und wird gesucht", "Die Datei"),
    ],
}


def test_every_rule_has_examples_of_both_kinds() -> None:
    assert set(KEPT) == set(DROPPED) == set(BY_NAME)


@pytest.mark.parametrize(("name", "pair"), [(name, pair) for name, pairs in KEPT.items() for pair in pairs])
def test_a_rule_keeps_what_it_is_not_for(name: str, pair: Pair) -> None:
    assert BY_NAME[name].keeps(pair, CONTEXT)


@pytest.mark.parametrize(("name", "pair"), [(name, pair) for name, pairs in DROPPED.items() for pair in pairs])
def test_a_rule_drops_what_it_is_for(name: str, pair: Pair) -> None:
    assert not BY_NAME[name].keeps(pair, CONTEXT)


def test_a_language_outside_the_latin_script_may_use_its_own() -> None:
    assert BY_NAME["script"].keeps(Pair("Open", "Открыть"), RuleContext(CleaningRecipe(), "en", "ru"))


@pytest.mark.parametrize(
    ("source", "target", "pair"),
    [
        ("en", "nl", Pair("The question is whether he comes.", "Het is de vraag of hij komt.")),
        ("en", "fr", Pair("Did you see that we could go there?", "Tu as vu qu'on pouvait y aller ?")),
        ("de", "nl", Pair("Die Frage war einfach.", "Die vraag was er een, en die was kort.")),
        ("nl", "en", Pair("Het is de vraag of hij komt.", "The question remains.")),
        ("nl", "fr", Pair("Het is de vraag of hij komt.", "Tu as vu qu'on pouvait y aller ?")),
    ],
)
def test_a_side_whose_own_function_words_are_unknown_is_not_judged_by_the_others(
    source: str, target: str, pair: Pair
) -> None:
    context = RuleContext(CleaningRecipe(), source, target)
    assert BY_NAME["language"].keeps(pair, context)
    assert BY_NAME["half-translated"].keeps(pair, context)


def test_names_and_a_word_that_both_languages_write_alike_are_not_half_a_translation() -> None:
    pair = Pair("The iPhone, iPad and Mac", "De iPhone, iPad of Mac")
    assert BY_NAME["half-translated"].keeps(pair, RuleContext(CleaningRecipe(), "en", "nl"))


def test_rules_that_cannot_judge_these_languages_are_named_unless_they_are_left_out() -> None:
    french = RuleContext(CleaningRecipe(), "en", "fr")
    (note,) = idle_rules(RULES, french)
    assert note == "every pair passed half-translated, language, for no function words of fr are known."
    assert idle_rules(choose_rules(["language", "half-translated"]), french) == []
    assert idle_rules(RULES, CONTEXT) == []


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("It costs $5 a month.", "Es kostet 5 $ im Monat."),
        ("We paid $1,000 for it.", "Wir haben 1.000 Dollar dafür bezahlt."),
        ("A deal worth $3bn", "Ein Geschäft über 3 Mrd. $"),
    ],
)
def test_money_is_a_placeholder_in_messages_of_programs_only(source: str, target: str) -> None:
    context = replace(CONTEXT, messages=frozenset({"catalogues"}))
    assert BY_NAME["placeholders"].keeps(Pair(source, target, "talk"), context)
    assert not BY_NAME["placeholders"].keeps(Pair(source, target, "catalogues"), context)


@pytest.mark.parametrize("name", ["$HOME", "$_x", "$größe", "${1}", "$(name)", "$name$"])
def test_a_variable_is_a_placeholder_in_every_text(name: str) -> None:
    assert not BY_NAME["placeholders"].keeps(Pair(f"Set {name} now", "Jetzt setzen"), CONTEXT)
    assert BY_NAME["placeholders"].keeps(Pair(f"Set {name} now", f"Jetzt {name} setzen"), CONTEXT)


def test_an_argument_by_number_must_be_on_both_sides_of_a_message() -> None:
    context = replace(CONTEXT, messages=frozenset({"catalogues"}))
    assert BY_NAME["placeholders"].keeps(Pair("Move $1 to $2", "$2: von $1", "catalogues"), context)
    assert not BY_NAME["placeholders"].keeps(Pair("Move $1 to $2", "Von $1", "catalogues"), context)


def test_the_limits_of_the_recipe_count() -> None:
    strict = RuleContext(CleaningRecipe(max_chars=10, max_copy_words=0, ratio_slack=0, max_ratio=1.0), "en", "de")
    assert not BY_NAME["too-long"].keeps(Pair("x" * 11, "y"), strict)
    assert not BY_NAME["untranslated"].keeps(Pair("Python", "Python"), strict)
    assert not BY_NAME["length-ratio"].keeps(Pair("Cut", "Four"), strict)


def test_a_rule_can_be_left_out_by_name() -> None:
    assert {rule.name for rule in choose_rules(["tags", "layout"])} == set(BY_NAME) - {"tags", "layout"}


def test_leaving_out_an_unknown_rule_lists_the_known_ones() -> None:
    with pytest.raises(CorpusError, match=r"tagz is none\. Rules: layout, fuzzy"):
        choose_rules(["tagz"])

"""What the tests of the batcher share: a toy language, sentences to decode, and a batcher run until it is idle."""

from __future__ import annotations

from hypothesis import strategies as st

from model.decode.options import DecodeOptions
from model.decode.reference import ReferenceStepper, reference_search
from tests.model.toy_language import EOS, FIRST, ToyLanguage

LANGUAGE = ToyLanguage(vocab_size=9)
GREEDY = DecodeOptions(beam_size=1)
POISON = 8
"""A source word that some steppers cannot bear; no job has it."""

words = st.lists(st.integers(FIRST, POISON - 1), max_size=5)
jobs = st.lists(st.tuples(words.map(lambda ids: (*ids, EOS)), st.sampled_from([1, 1, 2, 4, 5])), max_size=12)


def alone(source, options):
    """What the sentence gives by itself, by the slow twin."""
    return reference_search(LANGUAGE, source, options, options.limit(len(source), 12))


def toy_stepper(kind=ReferenceStepper):
    return kind(LANGUAGE, LANGUAGE.vocab_size, max_positions=12)


def drain(batcher, stepper, most_steps=1000):
    """Run until idle; everything that ended, by key."""
    ended = {}
    for _ in range(most_steps):
        if batcher.idle:
            break
        for finished in batcher.step():
            assert finished.key not in ended
            ended[finished.key] = finished
    assert batcher.idle
    assert batcher.waiting == batcher.running == 0
    assert stepper.slots == {}
    assert stepper.breaches == []
    assert batcher.step() == []
    return ended

"""How a translation model is made: corpus, subwords, fit, publish, evaluate."""

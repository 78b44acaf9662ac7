"""What a translation model is: configuration, tokenizer, network, graphs, decoding."""

"""What a request asks of the search, in ids; and which texts cannot be asked that."""

from __future__ import annotations

from model.decode.options import DecodeOptions, chosen
from model.errors import DecodeError
from service.api.ports import ModelInfo, TranslateCommand
from service.errors import InvalidRequest, Refusal, UnsupportedOption
from service.text.pipeline import Pipeline, Prepared


def decode_options(defaults: DecodeOptions, command: TranslateCommand, pipeline: Pipeline) -> DecodeOptions:
    """The options of `command` over the model's `defaults`.

    Raises `InvalidRequest` when they contradict each other; its field is the option that the message begins with.
    """
    try:
        return chosen(
            defaults,
            beam_size=command.beam_size,
            length_penalty=command.length_penalty,
            coverage_penalty=command.coverage_penalty,
            n_best=command.n_best,
            max_length=command.max_length,
            min_length=command.min_length,
            no_repeat_ngram=command.no_repeat_ngram,
            repetition_penalty=command.repetition_penalty,
            sampling=command.sampling,
            prefix=None if command.prefix is None else pipeline.target_ids(command.prefix),
            suppress=tuple(pipeline.target_ids(words) for words in command.suppress),
            carry=pipeline.carry,
            token_scores=command.return_scores,
            alignment=command.alignment,
            repetition_guard=command.repetition_guard,
        )
    except DecodeError as error:
        message, (field, *_) = f"The decoding options must go together, but {error}", str(error).split(maxsplit=1)
        raise InvalidRequest(message, field) from error


def check_supported(info: ModelInfo, command: TranslateCommand) -> None:
    """Raise `UnsupportedOption` where the model lacks what an option of `command` needs."""
    for field, asked in (("alignment", command.alignment), ("coverage_penalty", command.coverage_penalty)):
        if asked and not info.alignment:
            raise UnsupportedOption(
                f"{field} needs a model with an attending decoder, but {info.name} {info.version} has none; "
                "leave it out, or have the model published again.",
                field,
            )


def unfit_for_prefix(prepared: Prepared) -> dict[int, Refusal]:
    """The texts that a prefix cannot begin, by index: those that are not one sentence."""
    refused: dict[int, Refusal] = {}
    for text in range(len(prepared.layouts)):
        count = len(prepared.segments_of(text))
        if count != 1:
            message = f"prefix needs texts of one sentence, but this one has {count}; send its sentences as texts."
            refused[text] = InvalidRequest(message, "prefix")
    return refused

"""Random weights, a tokenizer and, for models that see, a processor of images: all that a checkpoint's folder holds."""

from __future__ import annotations

import pathlib

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from tests.families.family import Family

_CHAT = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
# Times 1/sqrt(inputs), the standard deviation of a matrix. Large enough that attention depends on position, or tests
# would not see a wrong rotation; and no larger, or the smallest rounding would show.
_GAIN = 1.2


def save(folder: pathlib.Path, family: Family) -> pathlib.Path:
    """Save a checkpoint into a new folder: the same weights each time.

    Returns:
        The folder.
    """
    config = family.config()
    torch.manual_seed(0)
    model: PreTrainedModel = getattr(transformers, family.architecture)(config).float()
    spread(model, config)
    model.to(getattr(torch, family.dtype)).save_pretrained(folder)
    tokenizer(family.tokens).save_pretrained(folder)
    return folder


@torch.no_grad()
def spread(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Draw matrices anew, and move what norms and sinks begin with.

    What state-space layers begin with (decays, steps, convolutions) stays as transformers draws it.
    """
    inputs = {id(layer.weight): layer.in_features for layer in model.modules() if isinstance(layer, torch.nn.Linear)}
    text = config.get_text_config()
    if text.tie_word_embeddings:
        # Half as large, or each token would be its own successor.
        inputs[id(model.get_input_embeddings().weight)] = 4 * text.hidden_size
    for name, parameter in model.named_parameters():
        last = name.rpartition(".")[2]
        if "conv" in name:
            continue
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=_GAIN / inputs.get(id(parameter), text.hidden_size) ** 0.5)
        elif last == "sinks":
            torch.nn.init.normal_(parameter)
        elif "norm" in name or last == "bias":
            parameter += 0.1 * torch.randn_like(parameter)


def tokenizer(special: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: 256 tokens, any text; and special ones from 256 on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    by_byte = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    by_byte.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    by_byte.decoder = decoders.ByteLevel()
    by_byte.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=by_byte, chat_template=_CHAT)

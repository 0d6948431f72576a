"""Random weights, a tokenizer and, for models that see, a processor of images: all that a checkpoint's folder holds."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from tests.families.family import Family

_BYTES = 256
_CHAT = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
# Times 1/sqrt(inputs), the standard deviation of a matrix. Large enough that attention depends on position, or tests
# would not see a wrong rotation; and no larger, or the smallest rounding would show.
_GAIN = 1.2


def save(folder: pathlib.Path, family: Family) -> pathlib.Path:
    """Save a checkpoint into a new folder: the same weights each time.

    Returns:
        The folder.
    """
    model = build(family)
    model.save_pretrained(folder)
    if family.renamed:
        save_file(family.renamed(model.state_dict()), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer(family.tokens).save_pretrained(folder)
    published = {"config.json": family.published() | {"dtype": family.dtype}} if family.published else {}
    for name, content in {**family.files, **published}.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def build(family: Family, **changes: Any) -> PreTrainedModel:
    """A model of transformers with the weights of a family, in evaluation mode.

    Args:
        changes: to the configuration of its text.
    """
    config = family.config()
    for name, value in changes.items():
        setattr(config.get_text_config(), name, value)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model: PreTrainedModel = getattr(transformers, family.model or family.architecture)(config)
    spread(model, config)
    if family.tokens:
        # None is ever said: an image's would be taken for one.
        model.get_output_embeddings().weight.data[_BYTES : _BYTES + len(family.tokens)] = 0
    if family.dtype != "float32":  # which would also make complex angles of a tower real
        model.to(getattr(torch, family.dtype))
    return model.eval()


@torch.no_grad()
def spread(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Draw matrices anew, and move what norms and sinks begin with.

    What state-space layers begin with (decays, steps, convolutions) stays as transformers draws it.
    """
    inputs = {id(layer.weight): layer.in_features for layer in model.modules() if isinstance(layer, torch.nn.Linear)}
    hidden = config.get_text_config().hidden_size
    embedding = model.get_input_embeddings().weight
    if model.get_output_embeddings().weight is embedding:
        # Half as large, or each token would be its own successor.
        inputs[id(embedding)] = 4 * hidden
    for name, parameter in model.named_parameters():
        last = name.rpartition(".")[2]
        if "conv" in name:
            continue
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=_GAIN / inputs.get(id(parameter), hidden) ** 0.5)
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

"""Every hyperparameter of the demo model, and its curriculum of lengths."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from transformers import LlamaConfig

from posenc_runtime.zoo.recall import Mix


@dataclass(frozen=True)
class Stage:
    """From `start` on, a share of all steps, the length of each batch is drawn from `lengths` with `weights`."""

    start: float
    lengths: tuple[int, ...]
    weights: tuple[float, ...]
    mix: Mix
    text_loss_weight: float = 0.3


@dataclass(frozen=True)
class Recipe:
    """The settings of a run: the model's sizes, how it is trained and evaluated, and its curriculum."""

    seed: int = 0
    steps: int = 3400
    tokens_per_step: int = 4096
    trained_length: int = 512
    vocab_size: int = 1024
    hidden_size: int = 192
    intermediate_size: int = 384
    num_hidden_layers: int = 4
    num_attention_heads: int = 6
    head_dim: int = 32
    rope_theta: float = 10000.0
    matrix_lr: float = 0.02
    other_lr: float = 0.004
    weight_decay: float = 0.01
    warmup_steps: int = 100
    final_lr_share: float = 0.02
    gradient_clip: float = 1.0
    evaluate_every: int = 400
    evaluation_samples: int = 40
    stages: tuple[Stage, ...] = field(
        default=(
            Stage(0.0, (64,), (1.0,), Mix(copy=0.5, needles=0.35, passkey=0.1, text=0.05, max_needles=3)),
            Stage(0.1, (128, 64), (0.8, 0.2), Mix(copy=0.4, needles=0.4, passkey=0.15, text=0.05, max_needles=5)),
            Stage(0.2, (256, 128), (0.8, 0.2), Mix(copy=0.3, needles=0.4, passkey=0.2, text=0.1, max_needles=8)),
            Stage(0.4, (512, 256), (0.8, 0.2), Mix(copy=0.2, needles=0.35, passkey=0.3, text=0.15, max_needles=12)),
            Stage(
                0.72, (512, 256), (0.6, 0.4), Mix(copy=0.05, needles=0.15, passkey=0.2, text=0.6, max_needles=12), 1.0
            ),
        )
    )

    def stage(self, step: int) -> Stage:
        return [s for s in self.stages if step >= s.start * self.steps][-1]

    def length(self, step: int) -> int:
        """The batch length of a step, the same in every run with this seed."""
        stage = self.stage(step)
        return random.Random(f"{self.seed}:length:{step}").choices(stage.lengths, stage.weights)[0]

    def model_config(self, end_of_text: int) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_attention_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.trained_length,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end_of_text,
            pad_token_id=end_of_text,
            attention_bias=False,
            use_cache=True,
        )

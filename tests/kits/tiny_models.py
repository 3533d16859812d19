"""Tiny random-weight models of real architectures, saved with a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEXT = "is it blue? no idea! which colour has the sky a good bad long short answer question user assistant cook\n"
VOCABULARY, SPECIAL = 360, ("<pad>", "<s>", "</s>", "<unk>")
CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }} {{ m['content'] }}{{ eos_token }}{% endfor %}"  # as Llama's
)
SIZE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SIZE["initializer_range"] = 0.2  # with the usual 0.02 all outputs are about equal
ARCHITECTURES = ("llama", "qwen2", "deberta")


def save_tokenizer(folder: Path, *, chat: bool) -> None:
    """A byte-level tokenizer; with a chat template, or made for pairs of texts as BERT's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator(
        [TEXT] * 3,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[*SPECIAL],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if not chat:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, model_input_names=["input_ids", "token_type_ids", "attention_mask"], **names
    )
    fast.chat_template = CHAT if chat else None
    fast.save_pretrained(str(folder))


def save_model(folder: Path, architecture: str, *, labels: int = 1, head: bool = True, **config: Any) -> Any:
    """Save a model with seeded random weights; returns it. `head` False saves it without a classification head."""
    import torch
    import transformers as tf

    torch.manual_seed(7)
    shape = SIZE | {"vocab_size": VOCABULARY, "num_labels": labels, "max_position_embeddings": 512} | config
    if architecture == "deberta":
        made = tf.DebertaV2Config(**shape, type_vocab_size=2, relative_attention=True, pos_att_type=["c2p", "p2c"])
        model: Any = tf.DebertaV2ForSequenceClassification(made)
    elif architecture == "bert":
        model = tf.BertForSequenceClassification(tf.BertConfig(**shape))
    else:
        kind: Any = tf.LlamaConfig if architecture == "llama" else tf.Qwen2Config
        whole: Any = tf.LlamaForSequenceClassification if architecture == "llama" else tf.Qwen2ForSequenceClassification
        model = whole(kind(**({"num_key_value_heads": 2, "pad_token_id": 0} | shape)))
    with torch.no_grad():  # the initial heads give nearly equal outputs
        for name, parameter in model.named_parameters():
            if name.startswith(("score", "classifier")):
                parameter.normal_(std=0.1)
    model = model.eval()
    (model if head else model.base_model).save_pretrained(str(folder))
    save_tokenizer(folder, chat=architecture in {"llama", "qwen2"})
    return model

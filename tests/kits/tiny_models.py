"""Tiny random-weight models of real architectures, saved with a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = "is it blue no idea sky which colour has the a good bad long short answer question user assistant cook".split()
CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }} {{ m['content'] }}{{ eos_token }}{% endfor %}"  # as Llama's
)
SIZE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SIZE["initializer_range"] = 0.2  # with the usual 0.02 all outputs are about equal
ARCHITECTURES = ("llama", "qwen2", "deberta")


def save_tokenizer(folder: Path, *, chat: bool) -> None:
    """A word-level tokenizer; with a chat template, or made for pairs of texts as BERT's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 - no password
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if not chat:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
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
    shape = SIZE | {"vocab_size": 4 + len(WORDS), "num_labels": labels, "max_position_embeddings": 512} | config
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
                parameter.normal_()
    model = model.eval()
    (model if head else model.base_model).save_pretrained(str(folder))
    save_tokenizer(folder, chat=architecture in {"llama", "qwen2"})
    return model
